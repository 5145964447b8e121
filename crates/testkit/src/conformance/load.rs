//! Whatever users can do, many at once and at random, over this store: the history must hold
//! nothing that cannot be.
//!
//! See [`history`](crate::history). Each trial prints its seed when it fails; `HOLDTIGHT_SEED`
//! repeats one.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{DistributedLock, ErrorKind};

use super::case::{Case, cases};
use super::place::Place;
use super::player::{LIMIT, lock};
use super::stage::Stage;
use super::worker::{Job, Worker};
use crate::history::{Load, Recorder, Report, Rules, check};
use crate::{Chaos, Fault, Flow};

pub(super) const CASES: &[Case] = cases![
    a_rush_of_short_waits_has_one_holder_at_a_time,
    everything_at_once_keeps_every_promise,
    lost_requests_and_replies_break_no_promise,
    lost_requests_and_replies_leave_nothing_behind,
];

/// A store that cannot move a lock to another secret cannot resume one.
pub(super) const TOKEN_CASES: &[Case] = cases![if Transfer; a_token_has_one_holder];

pub(super) const PROXY_CASES: &[Case] = cases![if Proxy;
    a_network_that_breaks_all_the_time_breaks_no_promise,
];

pub(super) const PROCESS_CASES: &[Case] = cases![if Processes;
    several_processes_keep_every_promise,
];

fn seed() -> u64 {
    let given = std::env::var("HOLDTIGHT_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

fn recorder(stage: &Stage, seed: u64) -> Recorder {
    Recorder::new(format!("{}, HOLDTIGHT_SEED={seed}", stage.fixture_name))
}

/// The load as this store can bear it, where leases have to end because some are forgotten.
fn fitting(load: Load, stage: &Stage) -> Load {
    load.limit(LIMIT).brief(able(stage, 1000)).ttl(able(stage, 5000))
}

/// The same where nothing is hurt: a lock that is forgotten does not come back by itself.
fn calm(load: Load, stage: &Stage) -> Load {
    fitting(load, stage).ttl(able(stage, 600_000))
}

fn able(stage: &Stage, ttl: u64) -> Duration {
    Duration::from_millis(ttl).clamp(stage.capabilities.min_ttl, stage.capabilities.max_ttl)
}

/// Two objects over one client, and one over another: as one process and another.
async fn locks(stage: &Stage) -> Vec<DistributedLock> {
    let other = stage.open().await;
    vec![lock(Arc::clone(&stage.store)), lock(Arc::clone(&stage.store)), lock(other)]
}

async fn report(stage: &Stage, load: &Load, recorder: &Recorder, rules: Rules) -> Report {
    load.settle(&lock(Arc::clone(&stage.store)), recorder).await;
    check(&recorder.history(), rules)
}

async fn a_rush_of_short_waits_has_one_holder_at_a_time(stage: &Stage) {
    let (seed, lock) = (seed(), lock(Arc::clone(&stage.store)));
    let recorder = recorder(stage, seed);
    let load = calm(Load::rush(seed), stage).grants(600);
    load.run(&[lock], &recorder).await;
    let report = report(stage, &load, &recorder, Rules::CALM).await;
    report.assert_clean(&[("grants", report.counts.grants)]);
}

async fn everything_at_once_keeps_every_promise(stage: &Stage) {
    let seed = seed();
    let (recorder, locks) = (recorder(stage, seed), locks(stage).await);
    let load = calm(Load::mixed(seed), stage);
    // Half of it in a runtime with a single thread, as programs with one runtime per thread have
    // it.
    let elsewhere = {
        let (load, locks, recorder) = (load.clone(), locks.clone(), recorder.clone());
        tokio::task::spawn_blocking(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(load.run(&locks, &recorder));
        })
    };
    load.run(&locks, &recorder).await;
    elsewhere.await.unwrap();
    let report = report(stage, &load, &recorder, Rules::CALM).await;
    let counts = report.counts;
    report.assert_clean(&[
        ("grants", counts.grants),
        ("anybody who finds it busy", counts.busy + counts.timeouts),
        ("cancelled waits", counts.cancelled),
        ("losses", counts.losses),
        ("takeovers", counts.takeovers),
        ("hand-overs", counts.hand_overs),
    ]);
}

async fn a_token_has_one_holder(stage: &Stage) {
    let seed = seed();
    let (recorder, locks) = (recorder(stage, seed), locks(stage).await);
    let load = calm(Load::tokens(seed), stage).grants(200);
    load.run(&locks, &recorder).await;
    let report = report(stage, &load, &recorder, Rules::CALM).await;
    let counts = report.counts;
    report.assert_clean(&[
        ("resumed tokens", counts.resumed),
        ("tokens that open nothing", counts.not_held),
        ("released tokens", counts.released_by_token),
    ]);
}

async fn lost_requests_and_replies_break_no_promise(stage: &Stage) {
    let seed = seed();
    hurt(stage, seed, fitting(Load::mixed(seed), stage).grants(300)).await;
}

/// Whatever was lost on its way, whoever only waits and gives back leaves nothing that has to end
/// by its lease.
async fn lost_requests_and_replies_leave_nothing_behind(stage: &Stage) {
    let seed = seed();
    hurt(stage, seed, calm(Load::rush(seed), stage).tasks(12).grants(200)).await;
}

/// A load over two clients whose calls are lost and slow.
async fn hurt(stage: &Stage, seed: u64, load: Load) {
    let recorder = recorder(stage, seed);
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(30));
    let faults = [
        Fault::LostRequest,
        Fault::LostReply,
        Fault::SlowRequest(short),
        Fault::SlowReply(short),
        Fault::SlowRequest(long),
        Fault::SlowReply(long),
        Fault::Error(ErrorKind::Unavailable),
    ];
    let stores = stage.open_many(2).await;
    let chaos: Vec<_> = stores.into_iter().map(Chaos::around).collect();
    for (number, chaos) in (0..).zip(&chaos) {
        chaos.random(seed ^ number, 150, &faults);
    }
    let locks: Vec<_> = chaos.iter().map(|chaos| lock(Arc::clone(chaos) as _)).collect();
    load.run(&locks, &recorder).await;
    for chaos in &chaos {
        chaos.heal();
    }
    let report = report(stage, &load, &recorder, Rules::FAULTS).await;
    let hurt = chaos.iter().flat_map(|chaos| chaos.history());
    let hurt = hurt.filter(|call| call.fault != Fault::None).count();
    report.assert_clean(&[("grants", report.counts.grants), ("faults", hurt as u64)]);
}

async fn a_network_that_breaks_all_the_time_breaks_no_promise(stage: &Stage) {
    let seed = seed();
    let (recorder, locks) = (recorder(stage, seed), locks(stage).await);
    let proxy = stage.proxy.clone().expect("a trial that needs a proxy");
    let weather = tokio::spawn({
        let (proxy, mut random) = (proxy.clone(), fastrand::Rng::with_seed(seed));
        async move {
            loop {
                match random.u32(..4) {
                    0 => proxy.cut(),
                    1 => proxy.replies(Flow::Drop),
                    2 => proxy.requests(Flow::Delay(Duration::from_millis(20))),
                    _ => proxy.replies(Flow::Hold),
                }
                tokio::time::sleep(Duration::from_millis(random.u64(5..100))).await;
                proxy.heal();
                tokio::time::sleep(Duration::from_millis(random.u64(50..300))).await;
            }
        }
    });
    let load = fitting(Load::mixed(seed), stage).grants(300);
    load.run(&locks, &recorder).await;
    weather.abort();
    proxy.heal();
    let report = report(stage, &load, &recorder, Rules::FAULTS).await;
    report.assert_clean(&[("grants", report.counts.grants)]);
}

async fn several_processes_keep_every_promise(stage: &Stage) {
    let (seed, place) = (seed(), Place::new());
    let recorder = recorder(stage, seed);
    let load = fitting(Load::mixed(seed), stage);
    let key = stage.key("load");
    let mut workers: Vec<_> = (0..3)
        .map(|n| Worker::start(stage, &key, place.path(), Job::Load(seed.wrapping_add(n))))
        .collect();
    for worker in &mut workers {
        worker.done().await;
    }
    load.settle(&lock(Arc::clone(&stage.store)), &recorder).await;
    let mut history = recorder.history();
    for worker in &workers {
        history.merge(&worker.wrote()).unwrap();
    }
    let report = check(&history, Rules::CALM);
    let counts = report.counts;
    report.assert_clean(&[("grants", counts.grants), ("hand-overs", counts.hand_overs)]);
}
