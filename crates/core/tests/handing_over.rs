//! A lock on its way from one waiter of a process to the next, and everybody who may leave
//! meanwhile: whatever happens, nobody asks the store under a secret that somebody else still hands
//! over, releases or chases.

mod common;

use std::time::Duration;

use common::{Fault, SECOND, Step, builder, eventually, scripted};
use holdtight_core::{DistributedLock, ErrorKind, LockError, LockHandle};
use tokio::task::JoinHandle;

type Waiting = JoinHandle<Result<LockHandle, LockError>>;

fn waiting(lock: &DistributedLock, wait: Duration) -> Waiting {
    tokio::spawn(lock.acquire("k").wait(wait).into_future())
}

/// Holds the lock, lets a first waiter stand in line for one second, and `others` for long; then
/// gives the lock back by a hand-over that the store takes as `fault` says.
async fn a_wait_that_ends_during_the_hand_over(fault: Fault, others: usize) {
    let (lock, store, clock) = scripted();
    let rival = builder(&store, &clock).build().unwrap();
    let held = lock.acquire("k").await.unwrap();
    let first = waiting(&lock, SECOND);
    tokio::time::sleep(SECOND / 2).await;
    let others: Vec<Waiting> = (0..others).map(|_| waiting(&lock, 600 * SECOND)).collect();
    tokio::time::sleep(SECOND / 4).await;
    store.next(Step::Transfer, &[fault]);
    let releasing = tokio::spawn(held.release());

    // The first may have the lock or not, but what it has is its own: nobody else can have it, or
    // take it away.
    let first = first.await.unwrap();
    if let Ok(first) = &first {
        for _ in 0..200 {
            tokio::time::sleep(SECOND / 20).await;
            let next = others.iter().any(JoinHandle::is_finished);
            let rival = rival.try_acquire("k").await.unwrap();
            assert!(!(first.is_held() && (next || rival.is_some())), "{fault:?}: two holders");
        }
        assert!(first.is_held(), "{fault:?}: a handle that nobody took away");
    }
    releasing.await.unwrap().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    match first {
        Ok(first) => first.release().await.unwrap_or_else(|error| panic!("{fault:?}: {error}")),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{fault:?}: {error}"),
    }
    for next in others {
        let next = next.await.unwrap().unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(rival.try_acquire("k").await.unwrap().is_none(), "{fault:?}: held, and free");
        next.release().await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    }
    eventually("nothing is left", async || !store.is_held("k").await).await;
}

const FAULTS: [Fault; 6] = [
    Fault::SlowReply(Duration::from_secs(2)),
    Fault::SlowRequest(Duration::from_secs(2)),
    Fault::SlowReply(Duration::from_secs(8)),
    Fault::SlowRequest(Duration::from_secs(8)),
    Fault::LoseReply,
    Fault::Straggle(Duration::from_secs(2)),
];

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_while_the_lock_is_handed_to_it_makes_no_second_holder() {
    for fault in FAULTS {
        for others in [0, 1, 2] {
            a_wait_that_ends_during_the_hand_over(fault, others).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_short_waits_for_a_busy_lock_never_make_two_holders() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let (lock, store, _) = scripted();
    // As long as the pauses between waits that end: many a hand-over goes to somebody who has just
    // left.
    store.always(Step::Transfer, Fault::SlowReply(Duration::from_millis(3)));
    let (inside, doubles, gone) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let grants = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..30)
        .map(|n: u64| {
            let (lock, inside, doubles) = (lock.clone(), Arc::clone(&inside), Arc::clone(&doubles));
            let (gone, grants) = (Arc::clone(&gone), Arc::clone(&grants));
            tokio::spawn(async move {
                for round in 0..40 {
                    let wait = Duration::from_millis(1 + (7 * n + round) % 40);
                    let Ok(handle) = lock.acquire("k").wait(wait).await else { continue };
                    grants.fetch_add(1, Ordering::SeqCst);
                    let before = inside.fetch_add(1, Ordering::SeqCst);
                    if handle.is_held() && before > 0 {
                        doubles.fetch_add(1, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(n % 8)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if handle.release().await.is_err() {
                        gone.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::SeqCst) > 30);
    assert_eq!(doubles.load(Ordering::SeqCst), 0, "two valid holders");
    assert_eq!(gone.load(Ordering::SeqCst), 0, "releases that found the lock gone");
    lock.shutdown().await.unwrap();
    assert!(!store.is_held("k").await);
}
