//! Leaders come and go, in bad weather and under kill -9: never two at once, and never none for
//! ever.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Builder, DistributedLock, ErrorKind, MemoryStore, TokioClock};
use holdtight_file::{Config, FileStore};
use holdtight_testkit::Chaos;
use holdtight_testkit::servers::Directory;

use super::share;
use super::under_faults::{
    Claims, Crew, Rounds, TTL, WEATHER, Witness, badness, in_virtual_time, role, say_round,
};
use crate::Failure;

const ROUNDS: u64 = 10_000;
const CANDIDATES: usize = 3;

/// Terms under one seed, in one store.
const TERMS: u64 = 100;

/// Nobody needs so long to win, in weather that lets most calls pass.
const FOR_EVER: Duration = Duration::from_secs(3600);

pub(super) fn in_bad_weather(scale: f64) -> Result<String, Failure> {
    let rounds = share(ROUNDS, scale);
    in_virtual_time(async move |done| {
        let (mut seed, mut lost) = (0, 0);
        while done.count() < rounds {
            seed += 1;
            lost += terms(seed, done, (done.count() + TERMS).min(rounds))
                .await
                .map_err(|problem| format!("seed {seed}: {problem}"))?;
        }
        Ok(format!("{rounds} terms of {seed} seeds, {lost} ended by a loss, never two leaders"))
    })
}

/// Lets candidates of three processes lead until `until` rounds are done; how many terms ended by a
/// loss.
async fn terms(seed: u64, done: &Rounds, until: u64) -> Result<u64, Failure> {
    let clock = TokioClock::new();
    let chaos = Chaos::around(Arc::new(MemoryStore::with_clock(clock.clone())));
    chaos.random(seed, badness(seed), WEATHER);
    let claims = Claims::default();
    let mut locks = Vec::new();
    for _ in 0..CANDIDATES {
        let builder = Builder::shared(Arc::clone(&chaos) as _).clock(clock.clone());
        locks.push(builder.ttl(TTL).step_timeout(Duration::from_millis(500)).build()?);
    }
    let [a, b, c] = &locks[..] else { return Err("three candidates".into()) };
    let lead = |lock, n| candidate(lock, seed * 10 + n, &claims, done, until);
    let (a, b, c) = tokio::join!(lead(a, 1), lead(b, 2), lead(c, 3));
    let lost = a? + b? + c?;
    // Whatever the weather left undone is done when it clears up.
    chaos.heal();
    for lock in &locks {
        lock.shutdown_within(FOR_EVER).await?;
    }
    let left = locks[0].list("").await?;
    if left.is_empty() { Ok(lost) } else { Err(format!("left behind: {left:?}").into()) }
}

async fn candidate(
    lock: &DistributedLock,
    seed: u64,
    claims: &Claims,
    done: &Rounds,
    until: u64,
) -> Result<u64, Failure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let election = lock.election("post");
    let mut lost = 0;
    while done.count() < until {
        // Some lose patience: a candidacy that is dropped anywhere must leave nothing behind.
        let patience = match random.u8(..4) {
            0 => Duration::from_millis(random.u64(..3_000)),
            _ => FOR_EVER,
        };
        let leadership = match tokio::time::timeout(patience, election.campaign()).await {
            Ok(Ok(leadership)) => leadership,
            Ok(Err(error)) if error.kind().is_transient() => continue,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) if patience == FOR_EVER => return Err("nobody gets the post any more".into()),
            Err(_) => continue,
        };
        let claim = claims.begin(leadership.held(), Some(done))?;
        let term = tokio::time::sleep(Duration::from_millis(random.u64(..5_000)));
        let ended_by_loss = tokio::select! {
            _ = leadership.lost() => true,
            () = term => false,
        };
        lost += u64::from(ended_by_loss);
        claims.end(claim);
        if random.bool() {
            drop(leadership);
        } else if let Err(error) = leadership.step_down().await
            && error.kind() == ErrorKind::Internal
        {
            return Err(error.into());
        }
    }
    Ok(lost)
}

pub(super) fn under_kills(scale: f64) -> Result<String, Failure> {
    if let Some((place, _)) = role() {
        return run_for_office(&place);
    }
    let rounds = share(ROUNDS, scale);
    let place = Directory::new();
    let mut crew = Crew::start("election-kills", place.path(), CANDIDATES)?;
    let mut kills = 0;
    for _ in 0..rounds {
        crew.round()?;
        if fastrand::bool() {
            crew.kill_one()?;
            kills += 1;
        }
    }
    Ok(format!("{rounds} terms, {kills} processes killed, never two leaders"))
}

/// One process that leads for a moment, again and again, until it is killed.
fn run_for_office(place: &Path) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = FileStore::open(Config::new(place.join("locks"))).await?;
        let lock = DistributedLock::builder(store).build()?;
        let (election, note) = (lock.election("post"), place.join("leader"));
        loop {
            let leadership = election.campaign().await?;
            let witness = Witness::begin(&note, leadership.fence())?;
            say_round()?;
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
            leadership.held().check()?;
            witness.end()?;
            if fastrand::bool() {
                drop(leadership);
            } else {
                leadership.step_down().await?;
            }
        }
    })
}
