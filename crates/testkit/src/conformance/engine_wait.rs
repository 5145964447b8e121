//! The engine over this store, waiting: who gets a lock, when, and what is left when somebody stops
//! waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdtight_core::ErrorKind;

use super::case::{Case, cases};
use super::stage::Stage;

pub(super) const CASES: &[Case] = cases![
    a_lock_is_taken_seen_and_given_back,
    waiting_ends_with_the_wait,
    a_waiter_gets_the_lock_when_its_holder_lets_go,
    a_waiter_gets_the_lock_of_a_holder_that_vanished,
    many_waiters_of_several_clients_all_get_their_turn,
    a_waiter_that_gives_up_leaves_nothing_behind,
    a_dropped_handle_frees_its_lock,
    a_shutdown_gives_everything_back,
];

async fn a_lock_is_taken_seen_and_given_back(stage: &Stage) {
    let (lock, other) = (stage.engine(&stage.store), stage.engine(&stage.open().await));
    for _ in 0..5 {
        let handle = lock.acquire("engine").await.unwrap();
        assert!(handle.is_held());
        assert!(other.is_locked("engine").await.unwrap());
        assert!(other.try_acquire("engine").await.unwrap().is_none(), "it is held");
        let shown = other.lookup("engine").await.unwrap().expect("it is held");
        assert!(shown.fence.is_none() || shown.fence == Some(handle.fence()));
        handle.release().await.unwrap();
        assert!(!other.is_locked("engine").await.unwrap());
    }
}

async fn waiting_ends_with_the_wait(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let (_owner, _) = stage.taken(&key, stage.long()).await;
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let error = lock.acquire("engine").wait(wait).await.expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.key(), Some(&key));
        assert!(error.attempts().is_some_and(|attempts| attempts >= 1), "{error}");
    }
}

async fn a_waiter_gets_the_lock_when_its_holder_lets_go(stage: &Stage) {
    let (lock, other) = (stage.engine(&stage.store), stage.engine(&stage.open().await));
    let mut last = None;
    for _ in 0..5 {
        let handle = lock.acquire("engine").await.unwrap();
        assert!(last < Some(handle.fence()), "fences must rise");
        let waiting = tokio::spawn(other.acquire("engine").wait_forever().into_future());
        // The waiter may not have asked yet when the lock is freed: then it needs no wake-up, which
        // is as good.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..60))).await;
        let first = handle.fence();
        handle.release().await.unwrap();
        let next = tokio::time::timeout(stage.patience, waiting).await;
        let next = next.expect("the lease lasts for minutes: a waiter must ask before it ends");
        let next = next.unwrap().unwrap();
        assert!(next.fence() > first, "fences must rise");
        last = Some(next.fence());
        next.release().await.unwrap();
    }
}

async fn a_waiter_gets_the_lock_of_a_holder_that_vanished(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.open().await));
    let (_, lease) = stage.taken(&key, stage.brief()).await;
    let wait = stage.brief() + stage.capabilities.ttl_slack + stage.patience;
    let handle = lock.acquire("engine").wait(wait).await.unwrap();
    assert!(handle.fence() > lease.fence);
    handle.release().await.unwrap();
}

async fn many_waiters_of_several_clients_all_get_their_turn(stage: &Stage) {
    const WAITERS: u64 = 15;
    let total = Arc::new(AtomicU64::new(0));
    let fence = Arc::new(AtomicU64::new(0));
    let mut crowd = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        let lock = stage.engine(&client);
        for _ in 0..WAITERS {
            let (lock, total, fence) = (lock.clone(), Arc::clone(&total), Arc::clone(&fence));
            crowd.spawn(async move {
                let handle = lock.acquire("engine").wait_forever().await.unwrap();
                let seen = total.load(Ordering::SeqCst);
                let last = fence.swap(handle.fence().get(), Ordering::SeqCst);
                assert!(last < handle.fence().get(), "fence {} after {last}", handle.fence());
                tokio::task::yield_now().await;
                total.store(seen + 1, Ordering::SeqCst);
                handle.release().await.unwrap();
            });
        }
    }
    while let Some(waiter) = crowd.join_next().await {
        waiter.unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), 3 * WAITERS, "updates were lost");
    let key = stage.key("engine");
    stage.until("the key is free", async || stage.lookup(&key).await.is_none()).await;
}

async fn a_waiter_that_gives_up_leaves_nothing_behind(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    for round in 0..20 {
        // Every other time somebody has it, so that the waiter really waits.
        let holder = match round % 2 {
            0 => Some(lock.acquire("engine").await.unwrap()),
            _ => None,
        };
        let waiting = tokio::spawn(lock.acquire("engine").wait_forever().into_future());
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
        waiting.abort();
        let gone = waiting.await;
        drop(gone);
        if let Some(holder) = holder {
            holder.release().await.unwrap();
        }
        // Leases last for minutes: only a release frees it in time.
        stage.until("the key is free", async || stage.lookup(&key).await.is_none()).await;
    }
    // A store that needs several requests may take the lock only now, for a waiter that is gone: it
    // is given back too.
    lock.shutdown_within(stage.patience).await.unwrap();
    stage.must_be_free(&key).await;
}

async fn a_dropped_handle_frees_its_lock(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    drop(lock.acquire("engine").await.unwrap());
    stage.until("the key is free", async || stage.lookup(&key).await.is_none()).await;
    stage.must_be_free(&key).await;
}

async fn a_shutdown_gives_everything_back(stage: &Stage) {
    let lock = stage.engine(&stage.store);
    for n in 0..10 {
        drop(lock.acquire(format!("engine:{n}")).await.unwrap());
    }
    lock.shutdown_within(stage.patience).await.unwrap();
    for n in 0..10 {
        stage.must_be_free(&stage.key(&format!("engine:{n}"))).await;
    }
    let closed = lock.acquire("engine").await.expect_err("it is shut down");
    assert_eq!(closed.kind(), ErrorKind::Closed, "{closed}");
}
