//! Hints for waiters: a release is heard, and a waiter that left does not swallow it.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Intent, Key, Release, Secret, Subscription,
};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![if WakeUps;
    a_release_is_heard,
    a_release_is_heard_by_another_client,
    every_release_is_heard_while_somebody_waits,
    a_waiter_that_left_does_not_swallow_the_wake_up,
    a_waiter_that_withdrew_does_not_swallow_the_wake_up,
    a_release_by_force_is_heard,
];

async fn subscribe(store: &Arc<dyn Backend>, key: &Key) -> Subscription {
    Arc::clone(store).subscribe(key.clone()).await.unwrap()
}

/// Stands in line as a waiter does: subscribed, and refused with the intent to queue.
async fn wait_in_line(
    stage: &Stage,
    store: &Arc<dyn Backend>,
    key: &Key,
) -> (Secret, Subscription) {
    let (me, subscription) = (secret(), subscribe(store, key).await);
    let request = AcquireRequest::new(key.clone(), me.clone(), stage.long()).intent(Intent::Queue);
    let answer = Arc::clone(store).acquire(request).await.unwrap();
    assert!(matches!(answer, Attempt::Busy(_)), "the key is held: {answer:?}");
    (me, subscription)
}

async fn must_hear(stage: &Stage, subscription: &mut Subscription, what: &str) {
    let heard = tokio::time::timeout(stage.patience, subscription.heard()).await;
    assert!(heard.is_ok(), "nothing heard of {what} for {:?}", stage.patience);
}

/// Takes the key as the waiter `me` would after a wake-up: the place in the line is used up.
async fn take_turn(stage: &Stage, store: &Arc<dyn Backend>, key: &Key, me: &Secret) {
    stage
        .until("the woken waiter gets the lock", async || {
            let request = AcquireRequest::new(key.clone(), me.clone(), stage.long());
            let request = request.intent(Intent::Queue);
            matches!(Arc::clone(store).acquire(request).await.unwrap(), Attempt::Granted(_))
        })
        .await;
}

async fn a_release_is_heard(stage: &Stage) {
    let key = stage.key("wake");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let (me, mut subscription) = wait_in_line(stage, &stage.store, &key).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    must_hear(stage, &mut subscription, "a release").await;
    take_turn(stage, &stage.store, &key, &me).await;
}

async fn a_release_is_heard_by_another_client(stage: &Stage) {
    let (key, other) = (stage.key("wake"), stage.open().await);
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let (me, mut subscription) = wait_in_line(stage, &other, &key).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    must_hear(stage, &mut subscription, "another client's release").await;
    take_turn(stage, &other, &key, &me).await;
}

async fn every_release_is_heard_while_somebody_waits(stage: &Stage) {
    let (key, other) = (stage.key("wake"), stage.open().await);
    for _ in 0..10 {
        let (owner, _) = stage.taken(&key, stage.long()).await;
        let (me, mut subscription) = wait_in_line(stage, &other, &key).await;
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
        must_hear(stage, &mut subscription, "a release").await;
        take_turn(stage, &other, &key, &me).await;
        let released = Arc::clone(&other).release(key.clone(), me).await.unwrap();
        assert_eq!(released, Release::Released);
    }
}

/// Its process crashed: it never withdrew. The other waiter is woken, or at least gets the lock.
async fn a_waiter_that_left_does_not_swallow_the_wake_up(stage: &Stage) {
    let (key, other) = (stage.key("wake"), stage.open().await);
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let gone = wait_in_line(stage, &stage.store, &key).await;
    let (me, mut subscription) = wait_in_line(stage, &other, &key).await;
    drop(gone);
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    let request =
        || AcquireRequest::new(key.clone(), me.clone(), stage.long()).intent(Intent::Queue);
    let started = tokio::time::Instant::now();
    loop {
        // A waiter asks again now and then; whether it was woken or not, it must get there.
        let _ = tokio::time::timeout(Duration::from_millis(500), subscription.heard()).await;
        if let Attempt::Granted(_) = Arc::clone(&other).acquire(request()).await.unwrap() {
            break;
        }
        assert!(started.elapsed() < stage.patience * 2, "a waiter that left blocks the line");
    }
}

async fn a_waiter_that_withdrew_does_not_swallow_the_wake_up(stage: &Stage) {
    let (key, other) = (stage.key("wake"), stage.open().await);
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let (first, first_subscription) = wait_in_line(stage, &stage.store, &key).await;
    let (me, mut subscription) = wait_in_line(stage, &other, &key).await;
    // Withdrawing is a release of what is not held.
    assert_eq!(stage.release(&key, &first).await, Release::NotHeld);
    drop(first_subscription);
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    must_hear(stage, &mut subscription, "a release after the first waiter withdrew").await;
    take_turn(stage, &other, &key, &me).await;
}

async fn a_release_by_force_is_heard(stage: &Stage) {
    if !stage.capabilities.force_release {
        return;
    }
    let key = stage.key("wake");
    let (_, lease) = stage.taken(&key, stage.long()).await;
    let (_, mut subscription) = wait_in_line(stage, &stage.store, &key).await;
    let freed = Arc::clone(&stage.store).force_release(key.clone(), lease.fence).await.unwrap();
    assert_eq!(freed, Release::Released);
    must_hear(stage, &mut subscription, "a release by force").await;
}
