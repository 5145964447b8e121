//! Asking again is harmless, and so is going away in the middle of a question (contract 4 and 9).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use holdtight_core::{AcquireRequest, Attempt, ExtendBy, Extension, Release, margin};

use super::case::{Case, cases};
use super::stage::{Stage, attempt, secret};

pub(super) const CASES: &[Case] = cases![
    asking_again_is_granted_with_the_same_fence,
    asking_again_renews_and_never_shortens,
    asking_again_after_a_release_is_a_new_grant,
    asking_again_after_the_end_is_a_new_grant,
    retries_in_parallel_are_one_grant,
    a_call_that_is_dropped_anywhere_leaves_the_store_usable,
    a_dropped_release_is_done_or_can_be_repeated,
];

async fn asking_again_is_granted_with_the_same_fence(stage: &Stage) {
    let (key, other) = (stage.key("retries"), stage.open().await);
    let (owner, first) = stage.taken(&key, stage.long()).await;
    for store in [&stage.store, &other] {
        match attempt(store, &key, &owner, stage.long()).await {
            Ok(Attempt::Granted(again)) => assert_eq!(again.fence, first.fence),
            other => panic!("a retry by the holder must be granted, not {other:?}"),
        }
    }
    stage.must_be_held(&key, &owner, first.fence).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    assert_eq!(stage.release(&key, &owner).await, Release::NotHeld, "granted twice, held once");
    stage.must_be_free(&key).await;
}

async fn asking_again_renews_and_never_shortens(stage: &Stage) {
    let key = stage.key("retries");
    let (owner, first) = stage.taken(&key, stage.short()).await;
    let longer = stage.granted(&key, &owner, stage.long()).await;
    assert!(longer.ttl + margin(stage.long()) >= stage.long(), "too short: {longer:?}");
    let same = stage.granted(&key, &owner, stage.short()).await;
    assert!(same.ttl > stage.long() / 2 || stage.long() == stage.short(), "shortened: {same:?}");
    stage.pass(stage.short() + stage.capabilities.ttl_slack + stage.short() / 4).await;
    // On a machine that slept through the first lease the second attempt was a new grant.
    let fence = longer.fence.max(first.fence);
    stage.must_be_held(&key, &owner, fence).await;
}

async fn asking_again_after_a_release_is_a_new_grant(stage: &Stage) {
    let key = stage.key("retries");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    let next = stage.granted(&key, &owner, stage.long()).await;
    assert!(next.fence > first.fence, "a released lock is gone, its fence with it");
}

async fn asking_again_after_the_end_is_a_new_grant(stage: &Stage) {
    let (key, ttl) = (stage.key("retries"), stage.short());
    let (owner, first) = stage.taken(&key, ttl).await;
    stage.expire(&key, ttl).await;
    let next = stage.granted(&key, &owner, stage.long()).await;
    assert!(
        next.fence > first.fence,
        "a lease that was over must not come back with its old fence"
    );
}

async fn retries_in_parallel_are_one_grant(stage: &Stage) {
    let clients = stage.open_many(3).await;
    for round in 0..10 {
        let (key, owner) = (stage.key(&format!("retries:{round}")), secret());
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..9 {
            let (client, key) = (Arc::clone(&clients[n % clients.len()]), key.clone());
            let (owner, ttl) = (owner.clone(), stage.long());
            calls.spawn(async move { attempt(&client, &key, &owner, ttl).await });
        }
        let mut fences = std::collections::BTreeSet::new();
        while let Some(answer) = calls.join_next().await {
            match answer.unwrap() {
                Ok(Attempt::Granted(lease)) => fences.insert(lease.fence),
                other => panic!("every retry of one owner must be granted, not {other:?}"),
            };
        }
        assert_eq!(fences.len(), 1, "one owner, one grant, one fence: {fences:?}");
        let fence = fences.pop_first().expect("one");
        stage.must_be_held(&key, &owner, fence).await;
    }
}

/// Polls the call a few times, drops it, and looks whether everything still works.
async fn a_call_that_is_dropped_anywhere_leaves_the_store_usable(stage: &Stage) {
    for polls in 0..12 {
        let (key, owner) = (stage.key(&format!("retries:{polls}")), secret());
        let request = AcquireRequest::new(key.clone(), owner.clone(), stage.long());
        drop_after(polls, Arc::clone(&stage.store).acquire(request)).await;
        // The step may have been done or not, now or in a moment: the owner's next call settles it.
        let lease = stage.granted(&key, &owner, stage.long()).await;
        stage.must_be_held(&key, &owner, lease.fence).await;
        let request = holdtight_core::ExtendRequest::new(
            key.clone(),
            owner.clone(),
            ExtendBy::AtLeast(stage.long()),
        );
        drop_after(polls, Arc::clone(&stage.store).extend(vec![request])).await;
        let moved = stage.extend(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
        assert!(matches!(moved, Extension::Extended(moved) if moved.fence == lease.fence));
        drop_after(polls, Arc::clone(&stage.store).lookup(key.clone())).await;
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
        // A call that was dropped on its way may arrive as late as now; it too can be taken back.
        stage
            .until("a key that was released is free", async || {
                stage.release(&key, &owner).await;
                stage.lookup(&key).await.is_none()
            })
            .await;
    }
}

async fn a_dropped_release_is_done_or_can_be_repeated(stage: &Stage) {
    for polls in 0..12 {
        let key = stage.key(&format!("retries:{polls}"));
        let (owner, _) = stage.taken(&key, stage.long()).await;
        drop_after(polls, Arc::clone(&stage.store).release(key.clone(), owner.clone())).await;
        stage.release(&key, &owner).await;
        stage.must_be_free(&key).await;
    }
}

/// Polls `call` at most `polls` times, letting the rest of the program run in between, and drops
/// it.
async fn drop_after<T>(polls: usize, mut call: holdtight_core::Reply<T>) {
    for _ in 0..polls {
        let ready = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await;
        if ready {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_micros(200)).await;
    }
}
