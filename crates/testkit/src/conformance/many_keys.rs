//! Several keys in one step: all of them, or none.

use std::sync::Arc;

use holdtight_core::{AcquireRequest, Backend, Key, ManyAttempt, Release, Secret};

use super::case::{Case, cases};
use super::stage::{Stage, release, secret};

pub(super) const CASES: &[Case] = cases![if AcquireMany;
    all_keys_are_granted_in_order,
    one_busy_key_and_none_is_taken,
    asking_for_all_again_is_granted_with_the_same_fences,
    sets_that_overlap_never_both_win,
];

async fn many(
    store: &Arc<dyn Backend>,
    keys: &[Key],
    owner: &Secret,
    ttl: std::time::Duration,
) -> ManyAttempt {
    let ask = |key: &Key| AcquireRequest::new(key.clone(), owner.clone(), ttl);
    Arc::clone(store).acquire_many(keys.iter().map(ask).collect()).await.unwrap()
}

fn keys(stage: &Stage, names: &[&str]) -> Vec<Key> {
    names.iter().map(|name| stage.key(name)).collect()
}

async fn all_keys_are_granted_in_order(stage: &Stage) {
    let (keys, owner) = (keys(stage, &["many:c", "many:a", "many:b"]), secret());
    let ManyAttempt::Granted(leases) = many(&stage.store, &keys, &owner, stage.long()).await else {
        panic!("all keys are free")
    };
    assert_eq!(leases.len(), keys.len());
    for (key, lease) in keys.iter().zip(&leases) {
        stage.must_be_held(key, &owner, lease.fence).await;
    }
    assert_eq!(stage.release(&keys[1], &owner).await, Release::Released);
    stage.must_be_free(&keys[1]).await;
    let (next, _) = stage.taken(&keys[1], stage.long()).await;
    assert_eq!(stage.release(&keys[1], &next).await, Release::Released);
    stage.must_be_held(&keys[0], &owner, leases[0].fence).await;
}

async fn one_busy_key_and_none_is_taken(stage: &Stage) {
    let all = keys(stage, &["many:a", "many:b", "many:c"]);
    for busy in &all {
        let (holder, lease) = stage.taken(busy, stage.long()).await;
        let owner = secret();
        match many(&stage.store, &all, &owner, stage.long()).await {
            ManyAttempt::Busy(named, _) => assert_eq!(named, *busy, "the busy key must be named"),
            other => panic!("{busy:?} is held: {other:?}"),
        }
        stage.must_be_held(busy, &holder, lease.fence).await;
        for free in all.iter().filter(|key| *key != busy) {
            assert_eq!(stage.release(free, &owner).await, Release::NotHeld, "{free:?} was taken");
            stage.must_be_free(free).await;
        }
        assert_eq!(stage.release(busy, &holder).await, Release::Released);
    }
}

async fn asking_for_all_again_is_granted_with_the_same_fences(stage: &Stage) {
    let (keys, owner) = (keys(stage, &["many:a", "many:b"]), secret());
    let mut fences = Vec::new();
    for _ in 0..3 {
        let ManyAttempt::Granted(leases) = many(&stage.store, &keys, &owner, stage.long()).await
        else {
            panic!("all keys are free or ours")
        };
        fences.push(leases.into_iter().map(|lease| lease.fence).collect::<Vec<_>>());
    }
    assert_eq!(fences[0], fences[1]);
    assert_eq!(fences[0], fences[2]);
    // One of them is ours already, the other was lost: the lost one is granted anew.
    assert_eq!(stage.release(&keys[0], &owner).await, Release::Released);
    let ManyAttempt::Granted(leases) = many(&stage.store, &keys, &owner, stage.long()).await else {
        panic!("all keys are free or ours")
    };
    assert!(leases[0].fence > fences[0][0], "a new grant needs a new fence");
    assert_eq!(leases[1].fence, fences[0][1]);
}

async fn sets_that_overlap_never_both_win(stage: &Stage) {
    let sets =
        [["many:a", "many:b"], ["many:b", "many:c"], ["many:c", "many:a"], ["many:b", "many:a"]];
    let clients = stage.open_many(2).await;
    for _ in 0..15 {
        let mut calls = tokio::task::JoinSet::new();
        for (n, set) in sets.iter().enumerate() {
            let (client, owner) = (Arc::clone(&clients[n % clients.len()]), secret());
            let (keys, ttl) = (keys(stage, set), stage.long());
            calls.spawn(async move {
                let answer = many(&client, &keys, &owner, ttl).await;
                matches!(answer, ManyAttempt::Granted(_)).then_some((client, keys, owner))
            });
        }
        let mut winners = Vec::new();
        while let Some(answer) = calls.join_next().await {
            winners.extend(answer.unwrap());
        }
        // Any two of the sets share a key, so that two winners mean two owners of it.
        assert!(winners.len() <= 1, "{} owners of sets that overlap", winners.len());
        for (client, keys, owner) in winners {
            for key in keys {
                assert_eq!(release(&client, &key, &owner).await, Release::Released);
            }
        }
    }
    for key in keys(stage, &["many:a", "many:b", "many:c"]) {
        stage.must_be_free(&key).await;
    }
}
