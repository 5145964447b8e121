//! At most one owner per key, seen from every client (contract 1 and 7).

use std::sync::Arc;

use holdtight_core::{Attempt, ExtendBy, Extension, Release};

use super::case::{Case, cases};
use super::stage::{Stage, attempt, extend, granted, release, secret};

pub(super) const CASES: &[Case] = cases![
    a_free_key_is_granted_and_a_released_one_is_free,
    a_held_key_refuses_everybody_else,
    a_refused_attempt_changes_nothing,
    a_refused_owner_holds_nothing,
    different_keys_do_not_block_each_other,
    every_client_sees_the_same_locks,
    one_of_many_racing_owners_wins,
];

async fn a_free_key_is_granted_and_a_released_one_is_free(stage: &Stage) {
    let key = stage.key("exclusion");
    assert!(stage.lookup(&key).await.is_none(), "a fresh store holds nothing");
    for _ in 0..10 {
        let (owner, lease) = stage.taken(&key, stage.long()).await;
        stage.must_be_held(&key, &owner, lease.fence).await;
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
        stage.must_be_free(&key).await;
    }
}

async fn a_held_key_refuses_everybody_else(stage: &Stage) {
    let key = stage.key("exclusion");
    let sent_at = stage.now();
    let (_owner, lease) = stage.taken(&key, stage.long()).await;
    for _ in 0..5 {
        let busy = stage.refused(&key).await;
        if let Some(holder) = &busy.holder {
            assert_eq!(holder.key, key, "the holder named is that of another key");
            stage.must_show(holder, lease.fence);
        }
        let end = sent_at.after(stage.long() + stage.capabilities.ttl_slack);
        if let Some(after) = busy.retry_after {
            // The lease cannot have begun after the answer came, so its rest is no longer than
            // this.
            let longest = stage.long() + stage.capabilities.ttl_slack;
            assert!(
                after <= longest,
                "retry after {after:?} is beyond the lease, which ends {end:?}"
            );
        }
    }
}

async fn a_refused_attempt_changes_nothing(stage: &Stage) {
    let key = stage.key("exclusion");
    let ttl = stage.long() / 2;
    let (owner, lease) = stage.taken(&key, ttl).await;
    for _ in 0..5 {
        // Asks for twice the lease: an overwritten one would show.
        stage.refused(&key).await;
        let left = stage.extended(&key, &owner, ExtendBy::AtLeast(std::time::Duration::ZERO)).await;
        assert_eq!(left.fence, lease.fence, "a refused attempt must not mint a fence");
        assert!(
            left.ttl <= ttl + stage.capabilities.ttl_slack,
            "a refused attempt made the lease longer: {:?}",
            left.ttl
        );
    }
    stage.must_be_held(&key, &owner, lease.fence).await;
}

async fn a_refused_owner_holds_nothing(stage: &Stage) {
    let key = stage.key("exclusion");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let loser = secret();
    assert!(matches!(stage.attempt(&key, &loser, stage.long()).await, Ok(Attempt::Busy(_))));
    let moved = stage.extend(&key, &loser, ExtendBy::AtLeast(stage.long())).await;
    assert_eq!(moved, Extension::NotHeld, "a refused owner must not extend");
    assert_eq!(stage.release(&key, &loser).await, Release::NotHeld, "nor release");
    stage.must_be_held(&key, &owner, lease.fence).await;
}

async fn different_keys_do_not_block_each_other(stage: &Stage) {
    let mut held = Vec::new();
    for n in 0..20 {
        let key = stage.key(&format!("exclusion:{n}"));
        let (owner, lease) = stage.taken(&key, stage.long()).await;
        held.push((key, owner, lease));
    }
    for (key, owner, lease) in &held {
        stage.must_be_held(key, owner, lease.fence).await;
        assert_eq!(stage.release(key, owner).await, Release::Released);
    }
    for (key, ..) in &held {
        stage.must_be_free(key).await;
    }
}

async fn every_client_sees_the_same_locks(stage: &Stage) {
    let (key, other) = (stage.key("exclusion"), stage.open().await);
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let stranger = secret();
    let refused = attempt(&other, &key, &stranger, stage.long()).await;
    assert!(matches!(refused, Ok(Attempt::Busy(_))), "another client must be refused: {refused:?}");
    let shown = Arc::clone(&other).lookup(key.clone()).await.unwrap();
    stage.must_show(&shown.expect("another client must see the holder"), lease.fence);
    // The secret is the owner, whichever client speaks for it.
    let moved = extend(&other, &key, &owner, ExtendBy::AtLeast(stage.long())).await;
    assert!(matches!(moved, Extension::Extended(moved) if moved.fence == lease.fence), "{moved:?}");
    assert_eq!(release(&other, &key, &owner).await, Release::Released);
    let next = granted(&other, &key, &stranger, stage.long()).await;
    assert!(next.fence > lease.fence, "fences must rise across clients");
    stage.refused(&key).await;
}

async fn one_of_many_racing_owners_wins(stage: &Stage) {
    let clients = stage.open_many(4).await;
    for round in 0..20 {
        let key = stage.key(&format!("exclusion:{round}"));
        let start = Arc::new(tokio::sync::Barrier::new(16));
        let racers: Vec<_> = (0..16)
            .map(|n| {
                let (client, key) = (Arc::clone(&clients[n % clients.len()]), key.clone());
                let (start, ttl) = (Arc::clone(&start), stage.long());
                tokio::spawn(async move {
                    let me = secret();
                    start.wait().await;
                    match attempt(&client, &key, &me, ttl).await {
                        Ok(Attempt::Granted(lease)) => Some((me, lease)),
                        Ok(Attempt::Busy(_)) => None,
                        other => panic!("a race must end in a grant or Busy: {other:?}"),
                    }
                })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in racers {
            winners.extend(racer.await.unwrap());
        }
        assert_eq!(winners.len(), 1, "{} owners of one key at once", winners.len());
        stage.must_be_held(&key, &winners[0].0, winners[0].1.fence).await;
    }
}
