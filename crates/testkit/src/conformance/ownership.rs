//! The secret is the owner: nobody else extends, releases or hands on (contract 3).

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{ExtendBy, Extension, Key, Release, Secret};

use super::case::{Case, cases};
use super::stage::{Stage, extend, release, secret};

pub(super) const CASES: &[Case] = cases![
    a_wrong_secret_releases_nothing,
    a_wrong_secret_extends_nothing,
    a_second_release_is_not_held,
    a_key_that_nobody_holds_is_not_held,
    the_last_owner_cannot_touch_the_next,
    an_expired_owner_cannot_touch_the_next,
    secrets_are_compared_whole,
    a_release_frees_its_own_key_only,
    a_release_without_waiting_is_a_release,
    a_storm_of_wrong_secrets_changes_nothing,
];

async fn a_wrong_secret_releases_nothing(stage: &Stage) {
    let key = stage.key("ownership");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    for _ in 0..5 {
        assert_eq!(stage.release(&key, &secret()).await, Release::NotHeld);
    }
    stage.must_be_held(&key, &owner, lease.fence).await;
}

async fn a_wrong_secret_extends_nothing(stage: &Stage) {
    let key = stage.key("ownership");
    let ttl = stage.long() / 2;
    let (owner, lease) = stage.taken(&key, ttl).await;
    for by in
        [ExtendBy::AtLeast(stage.long()), ExtendBy::Add(ttl), ExtendBy::AtLeast(Duration::ZERO)]
    {
        assert_eq!(stage.extend(&key, &secret(), by).await, Extension::NotHeld, "{by:?}");
    }
    let left = stage.extended(&key, &owner, ExtendBy::AtLeast(Duration::ZERO)).await;
    assert!(
        left.ttl <= ttl + stage.capabilities.ttl_slack,
        "a wrong secret moved the end: {left:?}"
    );
    stage.must_be_held(&key, &owner, lease.fence).await;
}

async fn a_second_release_is_not_held(stage: &Stage) {
    let key = stage.key("ownership");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    assert_eq!(stage.release(&key, &owner).await, Release::NotHeld);
    let moved = stage.extend(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
    assert_eq!(moved, Extension::NotHeld, "a released lock must not come back");
    stage.must_be_free(&key).await;
}

async fn a_key_that_nobody_holds_is_not_held(stage: &Stage) {
    let key = stage.key("ownership");
    assert_eq!(stage.release(&key, &secret()).await, Release::NotHeld);
    for by in [ExtendBy::AtLeast(stage.long()), ExtendBy::Add(stage.long())] {
        assert_eq!(stage.extend(&key, &secret(), by).await, Extension::NotHeld, "{by:?}");
    }
    stage.must_be_free(&key).await;
}

async fn the_last_owner_cannot_touch_the_next(stage: &Stage) {
    let key = stage.key("ownership");
    let (first, _) = stage.taken(&key, stage.long()).await;
    assert_eq!(stage.release(&key, &first).await, Release::Released);
    next_is_untouchable(stage, &key, &first).await;
}

async fn an_expired_owner_cannot_touch_the_next(stage: &Stage) {
    let key = stage.key("ownership");
    let (first, _) = stage.taken(&key, stage.short()).await;
    stage.expire(&key, stage.short()).await;
    next_is_untouchable(stage, &key, &first).await;
}

async fn next_is_untouchable(stage: &Stage, key: &Key, last: &Secret) {
    let (next, lease) = stage.taken(key, stage.long()).await;
    assert_eq!(stage.release(key, last).await, Release::NotHeld);
    let moved = stage.extend(key, last, ExtendBy::AtLeast(stage.long())).await;
    assert_eq!(moved, Extension::NotHeld);
    stage.must_be_held(key, &next, lease.fence).await;
}

/// Secrets of other programs come in all lengths; one may begin with another, or differ in case
/// only.
async fn secrets_are_compared_whole(stage: &Stage) {
    let near = ["token", "token2", "Token", "oken", "t", "TOKEN", "token-", "%74oken"];
    for (n, text) in near.iter().enumerate() {
        let (key, owner) = (stage.key(&format!("ownership:{n}")), Secret::parse(text).unwrap());
        let lease = stage.granted(&key, &owner, stage.long()).await;
        for other in near.iter().filter(|other| *other != text) {
            let other = Secret::parse(other).unwrap();
            assert_eq!(
                stage.release(&key, &other).await,
                Release::NotHeld,
                "{other:?} is not the owner"
            );
            let moved = stage.extend(&key, &other, ExtendBy::AtLeast(stage.long())).await;
            assert_eq!(moved, Extension::NotHeld);
        }
        stage.must_be_held(&key, &owner, lease.fence).await;
    }
}

async fn a_release_frees_its_own_key_only(stage: &Stage) {
    let (one, two) = (stage.key("ownership"), stage.key("ownership:2"));
    let owner = secret();
    stage.granted(&one, &owner, stage.long()).await;
    let lease = stage.granted(&two, &owner, stage.long()).await;
    assert_eq!(stage.release(&one, &owner).await, Release::Released);
    stage.must_be_free(&one).await;
    stage.must_be_held(&two, &owner, lease.fence).await;
}

/// `release_now` is optional, but a store that has it must mean it.
async fn a_release_without_waiting_is_a_release(stage: &Stage) {
    let key = stage.key("ownership");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    match stage.store.release_now(&key, &secret()) {
        None => assert!(stage.store.release_now(&key, &owner).is_none(), "it can, or it cannot"),
        Some(answer) => {
            assert_eq!(answer.unwrap(), Release::NotHeld, "a wrong secret");
            stage.must_be_held(&key, &owner, lease.fence).await;
            let released = stage.store.release_now(&key, &owner).expect("it can");
            assert_eq!(released.unwrap(), Release::Released);
            let again = stage.store.release_now(&key, &owner).expect("it can");
            assert_eq!(again.unwrap(), Release::NotHeld, "a second release");
            stage.must_be_free(&key).await;
        }
    }
}

async fn a_storm_of_wrong_secrets_changes_nothing(stage: &Stage) {
    let key = stage.key("ownership");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let mut storm = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        for _ in 0..8 {
            let (client, key, ttl) = (Arc::clone(&client), key.clone(), stage.long());
            storm.spawn(async move {
                for round in 0..10 {
                    let wrong = secret();
                    if round % 2 == 0 {
                        assert_eq!(release(&client, &key, &wrong).await, Release::NotHeld);
                    } else {
                        let moved = extend(&client, &key, &wrong, ExtendBy::AtLeast(ttl)).await;
                        assert_eq!(moved, Extension::NotHeld);
                    }
                }
            });
        }
    }
    while !storm.is_empty() {
        // The owner works on through it.
        let left = stage.extended(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
        assert_eq!(left.fence, lease.fence);
        storm.join_next().await.unwrap().unwrap();
    }
    stage.must_be_held(&key, &owner, lease.fence).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}
