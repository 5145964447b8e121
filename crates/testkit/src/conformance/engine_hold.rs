//! The engine over this store, holding: renewal, the end of a lease, and loss.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{ErrorKind, Loss};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![
    a_held_lock_is_renewed_beyond_its_lease,
    many_held_locks_are_renewed_together,
    the_holder_stops_before_the_next_one_starts,
    a_lock_that_was_taken_away_is_reported_lost,
    work_is_stopped_when_its_lock_is_lost,
    a_handle_extends_its_lease,
    a_runtime_that_is_blocked_costs_nobody_else_a_lock,
    a_runtime_that_stands_idle_costs_nobody_else_a_lock,
    acquires_that_nobody_polls_do_not_hold_up_the_others,
];

async fn a_held_lock_is_renewed_beyond_its_lease(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let ttl = stage.brief();
    let handle = lock.acquire("engine").ttl(ttl).await.unwrap();
    // Longer than the lease could last by itself.
    let end = tokio::time::Instant::now() + ttl * 2 + stage.capabilities.ttl_slack;
    while tokio::time::Instant::now() < end {
        assert!(handle.is_held(), "a held lock is renewed");
        stage.refused(&key).await;
        tokio::time::sleep(ttl / 8).await;
    }
    let shown = stage.lookup(&key).await.expect("held");
    stage.must_show(&shown, handle.fence());
    handle.release().await.unwrap();
    // A renewal under way must not bring it back.
    tokio::time::sleep(ttl / 2).await;
    stage.must_be_free(&key).await;
}

async fn many_held_locks_are_renewed_together(stage: &Stage) {
    // More than fit in one batch, where batches are small.
    let count = (stage.capabilities.max_batch + 1).min(70);
    let (lock, ttl) = (stage.engine(&stage.store), stage.brief() * 2);
    let mut handles = Vec::new();
    for n in 0..count {
        handles.push(lock.acquire(format!("engine:{n}")).ttl(ttl).await.unwrap());
    }
    tokio::time::sleep(ttl + stage.capabilities.ttl_slack + ttl / 4).await;
    for (n, handle) in handles.iter().enumerate() {
        assert!(handle.is_held(), "lock {n} of {count} was not renewed");
        let shown = stage.lookup(&stage.key(&format!("engine:{n}"))).await.expect("held");
        stage.must_show(&shown, handle.fence());
    }
    for handle in handles {
        handle.release().await.unwrap();
    }
}

/// The rule that everything stands on: nobody is granted a lock whose last holder still believes in
/// it.
async fn the_holder_stops_before_the_next_one_starts(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let ttl = stage.brief();
    for _ in 0..2 {
        let handle = lock.acquire("engine").ttl(ttl).auto_renew(false).await.unwrap();
        let next = secret();
        let started = tokio::time::Instant::now();
        loop {
            let answer = stage.attempt(&key, &next, stage.long()).await.unwrap();
            let believes = handle.is_held();
            if let holdtight_core::Attempt::Granted(lease) = answer {
                assert!(!believes, "granted to the next one while the last one believes in it");
                assert!(lease.fence > handle.fence());
                break;
            }
            let longest = ttl + stage.capabilities.ttl_slack + stage.patience;
            assert!(started.elapsed() < longest, "the lease does not end");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let loss = tokio::time::timeout(stage.patience, handle.lost()).await;
        assert_eq!(loss.expect("a loss is reported"), Loss::Expired);
        let late = handle.release().await.expect_err("it was not ours any more");
        assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
        stage.release(&key, &next).await;
    }
}

async fn a_lock_that_was_taken_away_is_reported_lost(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let handle = lock.acquire("engine").ttl(stage.brief() * 2).await.unwrap();
    stage.release(&key, handle.token().secret()).await;
    let (next, lease) = stage.taken(&key, stage.long()).await;
    let loss = tokio::time::timeout(stage.patience + stage.brief() * 2, handle.lost()).await;
    loss.expect("the next renewal notices, or else the deadline");
    assert!(!handle.is_held());
    let late = handle.release().await.expect_err("it was not ours any more");
    assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
    stage.must_be_held(&key, &next, lease.fence).await;
}

async fn work_is_stopped_when_its_lock_is_lost(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let done = lock.acquire("engine").run(async |held| held.fence()).await.unwrap();
    stage.until("the key is free", async || stage.lookup(&key).await.is_none()).await;
    let work = lock.acquire("engine").ttl(stage.brief() * 2).run(async |held| {
        assert!(held.fence() > done, "fences must rise");
        let shown = stage.lookup(&key).await.expect("held");
        stage.must_show(&shown, held.fence());
        let held_by = shown.fence.filter(|_| stage.capabilities.force_release);
        // Without force there is nothing to stop the work with.
        if let Some(fence) = held_by {
            let store = Arc::clone(&stage.store);
            store.force_release(key.clone(), fence).await.unwrap();
            std::future::pending::<()>().await;
        }
    });
    let ended = tokio::time::timeout(stage.patience + stage.brief() * 2, work).await;
    let ended = ended.expect("work does not outlive its lock");
    match ended {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        Ok(()) => assert!(!stage.capabilities.force_release, "lost, and nobody said so"),
    }
}

async fn a_handle_extends_its_lease(stage: &Stage) {
    let lock = stage.engine(&stage.store);
    let ttl = stage.brief() * 3;
    let handle = lock.acquire("engine").ttl(ttl).auto_renew(false).await.unwrap();
    assert!(handle.remaining() <= ttl);
    handle.extend(stage.long()).await.unwrap();
    assert!(handle.remaining() > stage.long() / 2, "{:?} are left", handle.remaining());
    handle.extend(ttl).await.unwrap();
    assert!(handle.remaining() > stage.long() / 2, "an extension shortened it");
    handle.extend_by(ttl).await.unwrap();
    handle.release().await.unwrap();
}

/// The store was opened, and the lock first used, in a runtime without threads of its own, which
/// nobody drives any more: one that a program made for a moment at its start, or a worker that a
/// handler blocks.
async fn a_runtime_that_stands_idle_costs_nobody_else_a_lock(stage: &Stage) {
    let ttl = stage.brief();
    let used = || {
        let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let lock = idle.block_on(async {
            let lock = stage.engine(&stage.open().await);
            lock.acquire("engine").ttl(ttl).await.unwrap().release().await.unwrap();
            drop(lock.acquire("engine:dropped").await.unwrap());
            lock
        });
        (idle, lock)
    };
    // On a thread of its own, as a runtime cannot be driven inside of another one.
    let (idle, lock) =
        tokio::task::block_in_place(|| std::thread::scope(|all| all.spawn(used).join().unwrap()));
    let handle = lock.acquire("engine").ttl(ttl).await.unwrap();
    let end = tokio::time::Instant::now() + ttl * 2 + stage.capabilities.ttl_slack;
    while tokio::time::Instant::now() < end {
        assert!(handle.is_held(), "not renewed");
        tokio::time::sleep(ttl / 8).await;
    }
    handle.release().await.unwrap();
    // What was dropped there is given back all the same, long before its lease is over.
    stage
        .until("the dropped lock is free", async || {
            !lock.is_locked("engine:dropped").await.unwrap()
        })
        .await;
    idle.shutdown_background();
}

/// The same for a runtime that has threads, when code that blocks has taken them all.
async fn a_runtime_that_is_blocked_costs_nobody_else_a_lock(stage: &Stage) {
    // No store notices at once that a connection is not driven any more.
    let ttl = stage.brief().max(Duration::from_secs(3));
    let used = || {
        let mut one_thread = tokio::runtime::Builder::new_multi_thread();
        let busy = one_thread.worker_threads(1).enable_all().build().unwrap();
        let lock = busy.block_on(async {
            let lock = stage.engine(&stage.open().await);
            lock.acquire("engine").ttl(ttl).await.unwrap().release().await.unwrap();
            lock
        });
        (busy, lock)
    };
    let (busy, lock) =
        tokio::task::block_in_place(|| std::thread::scope(|all| all.spawn(used).join().unwrap()));
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    busy.spawn(async move { blocked.recv() });
    let handle = lock.acquire("engine").ttl(ttl).await.unwrap();
    let end = tokio::time::Instant::now() + ttl * 2 + stage.capabilities.ttl_slack;
    while tokio::time::Instant::now() < end {
        assert!(handle.is_held(), "not renewed");
        tokio::time::sleep(ttl / 8).await;
    }
    drop(unblock);
    handle.release().await.unwrap();
    busy.shutdown_background();
}

/// Futures of a `select!` with a slow arm, or of a set that nobody drives: each has left a request
/// somewhere.
async fn acquires_that_nobody_polls_do_not_hold_up_the_others(stage: &Stage) {
    let lock = stage.engine(&stage.store);
    let pairs = async |count: usize| {
        for n in 0..count {
            lock.acquire(format!("engine:{n}")).await.unwrap().release().await.unwrap();
        }
    };
    pairs(1).await;
    let mut forgotten: Vec<_> =
        (0..40).map(|n| Box::pin(lock.acquire(format!("forgotten:{n}")).into_future())).collect();
    for future in &mut forgotten {
        std::future::poll_fn(|cx| {
            drop(future.as_mut().poll(cx));
            std::task::Poll::Ready(())
        })
        .await;
    }
    // If each of these took as long as a request may take, this would last for minutes.
    tokio::time::timeout(stage.patience, pairs(30)).await.expect("held up by futures of others");
    drop(forgotten);
}
