//! A lease ends by itself, by the store's clock, not early and not much later (contract 2).

use std::time::Duration;

use holdtight_core::{Attempt, ExtendBy, Extension, Release, margin};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![
    a_lease_is_not_over_early,
    an_extended_lease_is_not_over_early,
    a_lease_that_is_over_can_be_taken_without_a_lookup,
    a_lease_that_is_over_cannot_be_released,
    one_lease_ends_and_another_does_not,
    the_shortest_and_the_longest_lease_are_granted,
];

/// One-sided, so that no slow machine fails it: when somebody is told that the key is free, the
/// lease is over.
async fn a_lease_is_not_over_early(stage: &Stage) {
    let (key, ttl) = (stage.key("expiry"), stage.short());
    let sent_at = stage.now();
    stage.taken(&key, ttl).await;
    free_no_earlier(stage, &key, sent_at, ttl).await;
}

async fn an_extended_lease_is_not_over_early(stage: &Stage) {
    let (key, ttl) = (stage.key("expiry"), stage.short());
    let taken_at = stage.now();
    let (owner, _) = stage.taken(&key, ttl).await;
    let sent_at = stage.now();
    if let Extension::Extended(lease) = stage.extend(&key, &owner, ExtendBy::AtLeast(ttl * 2)).await
    {
        assert!(lease.ttl + margin(ttl * 2) >= ttl * 2, "less than asked for: {lease:?}");
        free_no_earlier(stage, &key, sent_at, ttl * 2).await;
    } else {
        // Only a machine that slept through the first lease may see this.
        let lived = stage.now().since(taken_at);
        assert!(lived + margin(ttl) >= ttl, "a lease of {ttl:?} was over after {lived:?}");
    }
}

async fn free_no_earlier(
    stage: &Stage,
    key: &holdtight_core::Key,
    sent_at: holdtight_core::Moment,
    ttl: Duration,
) {
    // Eight looks on the way, so that a lease that ends at half time is seen to.
    let step = ttl / 8;
    let waited = tokio::time::Instant::now();
    while stage.lookup(key).await.is_some() {
        let gone = stage.now().since(sent_at);
        let patience = ttl + stage.capabilities.ttl_slack + stage.patience;
        assert!(gone < patience, "the lease of {ttl:?} is still there after {gone:?}");
        assert!(waited.elapsed() < stage.patience * 3, "the store's time stands still");
        stage.pass(step).await;
    }
    // Two clocks measure this; they may differ by the margin that holders keep anyway.
    let lived = stage.now().since(sent_at);
    assert!(lived + margin(ttl) >= ttl, "a lease of {ttl:?} was over after {lived:?}");
    stage.must_be_free(key).await;
}

async fn a_lease_that_is_over_can_be_taken_without_a_lookup(stage: &Stage) {
    let (key, ttl) = (stage.key("expiry"), stage.short());
    let (_, first) = stage.taken(&key, ttl).await;
    stage.pass(ttl + stage.capabilities.ttl_slack).await;
    let next = secret();
    let mut taken = None;
    stage
        .until("the key of a lease that is over can be taken", async || {
            match stage.attempt(&key, &next, stage.long()).await.unwrap() {
                Attempt::Granted(lease) => taken = Some(lease),
                _ => taken = None,
            }
            taken.is_some()
        })
        .await;
    let lease = taken.expect("just granted");
    assert!(lease.fence > first.fence, "a new grant needs a new fence");
    stage.must_be_held(&key, &next, lease.fence).await;
}

async fn a_lease_that_is_over_cannot_be_released(stage: &Stage) {
    let (key, ttl) = (stage.key("expiry"), stage.short());
    let (owner, _) = stage.taken(&key, ttl).await;
    stage.expire(&key, ttl).await;
    assert_eq!(stage.release(&key, &owner).await, Release::NotHeld);
    stage.must_be_free(&key).await;
}

async fn one_lease_ends_and_another_does_not(stage: &Stage) {
    let (short, long) = (stage.key("expiry"), stage.key("expiry:2"));
    let owner = secret();
    stage.granted(&short, &owner, stage.short()).await;
    let lease = stage.granted(&long, &owner, stage.long()).await;
    stage.expire(&short, stage.short()).await;
    stage.must_be_free(&short).await;
    stage.must_be_held(&long, &owner, lease.fence).await;
}

async fn the_shortest_and_the_longest_lease_are_granted(stage: &Stage) {
    let limits = [stage.capabilities.min_ttl, stage.capabilities.max_ttl];
    for (n, ttl) in limits.into_iter().enumerate() {
        let (_, lease) = stage.taken(&stage.key(&format!("expiry:{n}")), ttl).await;
        let most = ttl + stage.capabilities.ttl_slack;
        assert!(
            lease.ttl <= most,
            "asked for {ttl:?}, slack included {most:?}, got {:?}",
            lease.ttl
        );
        assert!(lease.ttl + margin(ttl) >= ttl, "asked for {ttl:?} and got {:?}", lease.ttl);
    }
    stage.expire(&stage.key("expiry:0"), stage.capabilities.min_ttl).await;
    assert!(stage.lookup(&stage.key("expiry:1")).await.is_some(), "a long lease ended early");
}
