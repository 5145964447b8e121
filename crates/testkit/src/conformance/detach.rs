//! A lock that lives on by its lease alone, whatever becomes of the process that took it.

use std::sync::Arc;

use holdtight_core::{Extension, Release, margin};

use super::case::{Case, cases};
use super::stage::{Stage, release, secret};

pub(super) const CASES: &[Case] = cases![
    a_detached_lock_is_still_held,
    another_client_releases_a_detached_lock,
    detaching_needs_the_secret,
    detaching_revives_nothing,
];

async fn a_detached_lock_is_still_held(stage: &Stage) {
    let key = stage.key("detach");
    let (owner, first) = stage.taken(&key, stage.short() * 3).await;
    let store = Arc::clone(&stage.store);
    match store.detach(key.clone(), owner.clone(), stage.long()).await.unwrap() {
        Extension::Extended(lease) => {
            assert_eq!(lease.fence, first.fence);
            assert!(lease.ttl + margin(stage.long()) >= stage.long(), "too short: {lease:?}");
        }
        other => panic!("our own lock must be detached, not {other:?}"),
    }
    stage.pass(stage.short() * 3 + stage.capabilities.ttl_slack).await;
    stage.must_be_held(&key, &owner, first.fence).await;
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}

async fn another_client_releases_a_detached_lock(stage: &Stage) {
    let (key, other) = (stage.key("detach"), stage.open().await);
    let (owner, first) = stage.taken(&key, stage.long()).await;
    let store = Arc::clone(&stage.store);
    store.detach(key.clone(), owner.clone(), stage.long()).await.unwrap();
    stage.must_be_held(&key, &owner, first.fence).await;
    assert_eq!(release(&other, &key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}

async fn detaching_needs_the_secret(stage: &Stage) {
    let key = stage.key("detach");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    let wrong = Arc::clone(&stage.store).detach(key.clone(), secret(), stage.long()).await.unwrap();
    assert_eq!(wrong, Extension::NotHeld);
    stage.must_be_held(&key, &owner, first.fence).await;
}

async fn detaching_revives_nothing(stage: &Stage) {
    let (over, released) = (stage.key("detach:over"), stage.key("detach:released"));
    let (one, _) = stage.taken(&over, stage.short()).await;
    let (two, _) = stage.taken(&released, stage.long()).await;
    assert_eq!(stage.release(&released, &two).await, Release::Released);
    stage.expire(&over, stage.short()).await;
    for (key, owner) in [(over, one), (released, two)] {
        let store = Arc::clone(&stage.store);
        let detached = store.detach(key.clone(), owner.clone(), stage.long()).await.unwrap();
        assert_eq!(detached, Extension::NotHeld, "{key:?}");
        stage.must_be_free(&key).await;
    }
}
