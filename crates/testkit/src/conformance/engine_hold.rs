//! The engine over this store, holding: renewal, the end of a lease, loss, and locks as tokens.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{ErrorKind, LockToken, Loss};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![
    a_held_lock_is_renewed_beyond_its_lease,
    many_held_locks_are_renewed_together,
    the_holder_stops_before_the_next_one_starts,
    a_lock_that_was_taken_away_is_reported_lost,
    work_is_stopped_when_its_lock_is_lost,
    a_handle_extends_its_lease,
    a_token_is_resumed_by_another_client,
    a_foreign_token_opens_nothing,
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

/// The rule that everything stands on: nobody is granted a lock whose last holder still believes in it.
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

async fn a_token_is_resumed_by_another_client(stage: &Stage) {
    let (lock, other) = (stage.engine(&stage.store), stage.engine(&stage.open().await));
    let handle = lock.acquire("engine").await.unwrap();
    let fence = handle.fence();
    let text = handle.detach().await.unwrap().expose();
    assert!(lock.try_acquire("engine").await.unwrap().is_none(), "a detached lock is held");
    let token: LockToken = text.parse().unwrap();
    assert!(other.owns(&token).await.unwrap());
    let resumed = other.resume(token.clone()).await.unwrap();
    assert!(resumed.is_held());
    assert_eq!(resumed.fence(), fence, "the same grant, the same fence");
    resumed.release().await.unwrap();
    assert!(!other.owns(&token).await.unwrap());
    let late = other.resume(token).await.expect_err("it was released");
    assert_eq!(late.kind(), ErrorKind::NotHeld, "{late}");
}

async fn a_foreign_token_opens_nothing(stage: &Stage) {
    let (key, lock) = (stage.key("engine"), stage.engine(&stage.store));
    let handle = lock.acquire("engine").await.unwrap();
    let foreign = LockToken::new(key, secret());
    assert!(!lock.owns(&foreign).await.unwrap());
    let refused = lock.resume(foreign).await.expect_err("it is not ours");
    assert_eq!(refused.kind(), ErrorKind::NotHeld, "{refused}");
    assert!(handle.is_held());
    handle.release().await.unwrap();
}
