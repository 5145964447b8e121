//! Handing a held lock to the next owner in one step (contract 1, 3, 4 and 6).

use std::sync::Arc;

use holdtight_core::{
    AcquireRequest, ExtendBy, Extension, Key, Release, Secret, Transfer, TransferRequest, margin,
};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![if Transfer;
    a_transfer_makes_another_the_owner_with_a_new_fence,
    a_transfer_needs_the_holders_secret,
    a_transfer_of_a_lease_that_is_over_is_refused,
    a_transferred_lease_is_that_of_the_next_owner,
    a_lock_is_transferred_once,
    a_transfer_whose_answer_was_lost_can_be_repeated,
];

async fn transfer(
    stage: &Stage,
    key: &Key,
    from: &Secret,
    to: &Secret,
    ttl: std::time::Duration,
) -> Transfer {
    let to = AcquireRequest::new(key.clone(), to.clone(), ttl);
    let request = TransferRequest::new(from.clone(), to);
    Arc::clone(&stage.store).transfer(request).await.unwrap()
}

async fn a_transfer_makes_another_the_owner_with_a_new_fence(stage: &Stage) {
    let key = stage.key("transfer");
    let (mut owner, mut lease) = stage.taken(&key, stage.long()).await;
    for _ in 0..10 {
        let next = secret();
        let Transfer::Transferred(given) = transfer(stage, &key, &owner, &next, stage.long()).await
        else {
            panic!("a held lock must be handed on")
        };
        assert!(given.fence > lease.fence, "{} after {}", given.fence, lease.fence);
        assert!(given.ttl + margin(stage.long()) >= stage.long(), "too short: {given:?}");
        assert_eq!(stage.release(&key, &owner).await, Release::NotHeld, "the last owner is out");
        let moved = stage.extend(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
        assert_eq!(moved, Extension::NotHeld, "the last owner is out");
        stage.must_be_held(&key, &next, given.fence).await;
        (owner, lease) = (next, given);
    }
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    stage.must_be_free(&key).await;
}

async fn a_transfer_needs_the_holders_secret(stage: &Stage) {
    let (key, free) = (stage.key("transfer"), stage.key("transfer:free"));
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let thief = secret();
    let refused = transfer(stage, &key, &thief, &thief, stage.long()).await;
    assert_eq!(refused, Transfer::NotHeld);
    let refused = transfer(stage, &free, &owner, &thief, stage.long()).await;
    assert_eq!(refused, Transfer::NotHeld, "a free key has nobody to hand it on");
    stage.must_be_held(&key, &owner, lease.fence).await;
    assert_eq!(stage.release(&key, &thief).await, Release::NotHeld);
    stage.must_be_free(&free).await;
}

async fn a_transfer_of_a_lease_that_is_over_is_refused(stage: &Stage) {
    let key = stage.key("transfer");
    let (owner, _) = stage.taken(&key, stage.short()).await;
    stage.expire(&key, stage.short()).await;
    let refused = transfer(stage, &key, &owner, &secret(), stage.long()).await;
    assert_eq!(refused, Transfer::NotHeld, "a lease that is over cannot be handed on");
    stage.must_be_free(&key).await;
}

async fn a_transferred_lease_is_that_of_the_next_owner(stage: &Stage) {
    let (key, ttl) = (stage.key("transfer"), stage.short());
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let next = secret();
    let Transfer::Transferred(lease) = transfer(stage, &key, &owner, &next, ttl).await else {
        panic!("a held lock must be handed on")
    };
    assert!(lease.ttl <= ttl + stage.capabilities.ttl_slack, "longer than asked for: {lease:?}");
    // The first owner's lease would last for minutes.
    stage.expire(&key, ttl).await;
    stage.must_be_free(&key).await;
}

async fn a_lock_is_transferred_once(stage: &Stage) {
    let key = stage.key("transfer");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let mut calls = tokio::task::JoinSet::new();
    // Kept to the end: with the last client of a process the lock may end, where stores see that.
    let clients = stage.open_many(3).await;
    for client in &clients {
        for _ in 0..4 {
            let (client, next) = (Arc::clone(client), secret());
            let to = AcquireRequest::new(key.clone(), next.clone(), stage.long());
            let request = TransferRequest::new(owner.clone(), to);
            calls.spawn(async move { (next, client.transfer(request).await.unwrap()) });
        }
    }
    let mut winners = Vec::new();
    while let Some(answer) = calls.join_next().await {
        if let (next, Transfer::Transferred(lease)) = answer.unwrap() {
            winners.push((next, lease));
        }
    }
    assert_eq!(winners.len(), 1, "one lock was handed to {}", winners.len());
    stage.must_be_held(&key, &winners[0].0, winners[0].1.fence).await;
}

async fn a_transfer_whose_answer_was_lost_can_be_repeated(stage: &Stage) {
    let key = stage.key("transfer");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    let next = secret();
    let mut fences = Vec::new();
    for ttl in [stage.short(), stage.long()] {
        let Transfer::Transferred(lease) = transfer(stage, &key, &owner, &next, ttl).await else {
            panic!("it is the next owner's already, or becomes so now")
        };
        assert!(lease.ttl + margin(ttl) >= ttl, "too short: {lease:?}");
        fences.push(lease.fence);
    }
    assert!(fences[0] > first.fence && fences[1] == fences[0], "one grant, one fence: {fences:?}");
    stage.must_be_held(&key, &next, fences[0]).await;
    // Another one with the same token is not a repetition.
    let late = transfer(stage, &key, &owner, &secret(), stage.long()).await;
    assert_eq!(late, Transfer::NotHeld);
    assert_eq!(stage.release(&key, &next).await, Release::Released);
    let over = transfer(stage, &key, &owner, &next, stage.long()).await;
    assert_eq!(over, Transfer::NotHeld, "what was given back is not taken again");
    stage.must_be_free(&key).await;
}
