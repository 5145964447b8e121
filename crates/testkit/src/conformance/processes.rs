//! Several processes on one store: they exclude each other, and a killed one is replaced.

use std::time::Duration;

use holdtight_core::{Fence, Liveness, Release};

use super::case::{Case, cases};
use super::place::Place;
use super::stage::Stage;
use super::worker::{self, Job, Worker};

pub(super) const CASES: &[Case] = cases![if Processes;
    no_update_is_lost_among_processes,
    the_lock_of_a_killed_process_passes_on,
    a_lock_that_lives_by_its_lease_survives_its_process,
    a_detached_lock_survives_its_process,
];

pub(super) const LIVENESS_CASES: &[Case] = cases![if Processes, ProcessLiveness;
    a_killed_holder_is_replaced_at_once,
];

async fn no_update_is_lost_among_processes(stage: &Stage) {
    const WORKERS: u64 = 4;
    const ROUNDS: u64 = 25;
    let (key, place) = (stage.key("processes"), Place::new());
    let job = Job::Count(ROUNDS);
    let mut workers: Vec<_> =
        (0..WORKERS).map(|_| Worker::start(stage, &key, place.path(), job)).collect();
    for worker in &mut workers {
        worker.done().await;
    }
    let (count, fences) = worker::count_files(place.path());
    let count: u64 = std::fs::read_to_string(count).unwrap().parse().unwrap();
    assert_eq!(count, WORKERS * ROUNDS, "updates were lost");
    let fences = std::fs::read_to_string(fences).unwrap();
    let fences: Vec<Fence> = fences.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len() as u64, WORKERS * ROUNDS);
    assert!(fences.is_sorted_by(|one, next| one < next), "fences must rise: {fences:?}");
    stage.must_be_free(&key).await;
}

async fn the_lock_of_a_killed_process_passes_on(stage: &Stage) {
    let (key, place) = (stage.key("processes"), Place::new());
    // Real time passes here, whatever clock the fixture has.
    let ttl = Duration::from_secs(3).max(stage.capabilities.min_ttl);
    let mut worker =
        Worker::start(stage, &key, place.path(), Job::Hold(millis(ttl), Liveness::Process));
    let (_, fence) = worker.held().await;
    worker.kill();
    stage.expire(&key, ttl).await;
    let (_, next) = stage.taken(&key, stage.long()).await;
    assert!(next.fence > fence, "{} after {fence}", next.fence);
}

async fn a_killed_holder_is_replaced_at_once(stage: &Stage) {
    let (key, place) = (stage.key("processes"), Place::new());
    let job = Job::Hold(millis(stage.long()), Liveness::Process);
    let mut worker = Worker::start(stage, &key, place.path(), job);
    let (_, fence) = worker.held().await;
    stage.refused(&key).await;
    worker.kill();
    // Its lease would last for minutes.
    stage
        .until("the lock of a killed process is free", async || stage.lookup(&key).await.is_none())
        .await;
    let (_, next) = stage.taken(&key, stage.long()).await;
    assert!(next.fence > fence, "{} after {fence}", next.fence);
}

async fn a_lock_that_lives_by_its_lease_survives_its_process(stage: &Stage) {
    let (key, place) = (stage.key("processes"), Place::new());
    let job = Job::Hold(millis(stage.long()), Liveness::Lease);
    let mut worker = Worker::start(stage, &key, place.path(), job);
    let (owner, fence) = worker.held().await;
    worker.kill();
    for _ in 0..20 {
        stage.must_be_held(&key, &owner, fence).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}

async fn a_detached_lock_survives_its_process(stage: &Stage) {
    let (key, place) = (stage.key("processes"), Place::new());
    let mut worker = Worker::start(stage, &key, place.path(), Job::Detach(millis(stage.long())));
    let (owner, fence) = worker.held().await;
    worker.kill();
    for _ in 0..20 {
        stage.must_be_held(&key, &owner, fence).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
