//! Extending moves the end of a lease later, never earlier, and brings nothing back (contract 3 and
//! 5).

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{ExtendBy, ExtendRequest, Extension, MAX_TTL, margin};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![
    an_extended_lease_outlives_its_first_end,
    an_extension_never_shortens,
    an_extension_never_revives,
    adding_counts_from_the_end_of_the_lease,
    adding_ends_at_the_longest_lease,
    zero_only_asks,
    a_batch_is_answered_in_order_and_each_on_its_own,
    a_full_batch_and_an_empty_one_are_answered,
];

async fn an_extended_lease_outlives_its_first_end(stage: &Stage) {
    let (key, ttl) = (stage.key("extension"), stage.short() * 3);
    let (owner, first) = stage.taken(&key, ttl).await;
    let lease = stage.extended(&key, &owner, ExtendBy::AtLeast(stage.long())).await;
    assert_eq!(lease.fence, first.fence, "an extension is not a new grant");
    assert!(lease.ttl + margin(stage.long()) >= stage.long(), "too short: {lease:?}");
    stage.pass(ttl + stage.capabilities.ttl_slack + ttl / 4).await;
    stage.must_be_held(&key, &owner, first.fence).await;
}

async fn an_extension_never_shortens(stage: &Stage) {
    let key = stage.key("extension");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    for by in [ExtendBy::AtLeast(stage.capabilities.min_ttl), ExtendBy::AtLeast(Duration::ZERO)] {
        let lease = stage.extended(&key, &owner, by).await;
        assert!(lease.ttl > stage.long() / 2, "{by:?} shortened the lease to {:?}", lease.ttl);
    }
    stage.pass(stage.capabilities.min_ttl + stage.capabilities.ttl_slack).await;
    stage.must_be_held(&key, &owner, first.fence).await;
}

async fn an_extension_never_revives(stage: &Stage) {
    let (key, ttl) = (stage.key("extension"), stage.short());
    let (owner, first) = stage.taken(&key, ttl).await;
    stage.expire(&key, ttl).await;
    // Nobody took it since: it is over all the same.
    for by in
        [ExtendBy::AtLeast(stage.long()), ExtendBy::Add(ttl), ExtendBy::AtLeast(Duration::ZERO)]
    {
        let moved = stage.extend(&key, &owner, by).await;
        assert_eq!(moved, Extension::NotHeld, "{by:?} revived a lease that was over");
    }
    assert!(stage.lookup(&key).await.is_none());
    let (_, next) = stage.taken(&key, stage.long()).await;
    assert!(next.fence > first.fence);
}

async fn adding_counts_from_the_end_of_the_lease(stage: &Stage) {
    let (key, ttl) = (stage.key("extension"), stage.long() / 4);
    let sent_at = stage.now();
    let (owner, first) = stage.taken(&key, ttl).await;
    let lease = stage.extended(&key, &owner, ExtendBy::Add(ttl)).await;
    let gone = stage.now().since(sent_at);
    assert_eq!(lease.fence, first.fence);
    assert!(lease.ttl + gone + margin(ttl * 2) >= ttl * 2, "{ttl:?} twice is not {:?}", lease.ttl);
    let most = ttl * 2 + stage.capabilities.ttl_slack * 2;
    assert!(lease.ttl <= most, "adding went beyond the sum: {:?}", lease.ttl);
    stage.must_be_held(&key, &owner, first.fence).await;
}

async fn adding_ends_at_the_longest_lease(stage: &Stage) {
    let key = stage.key("extension");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    for _ in 0..3 {
        let lease = stage.extended(&key, &owner, ExtendBy::Add(stage.capabilities.max_ttl)).await;
        let most = MAX_TTL + stage.capabilities.ttl_slack * 2;
        assert!(lease.ttl <= most, "a lease of {:?} is longer than any may be", lease.ttl);
    }
    stage.must_be_held(&key, &owner, first.fence).await;
}

async fn zero_only_asks(stage: &Stage) {
    let (key, ttl) = (stage.key("extension"), stage.short());
    let (owner, first) = stage.taken(&key, ttl).await;
    // Held or, on a machine that slept, over; never longer than it was.
    if let Extension::Extended(lease) =
        stage.extend(&key, &owner, ExtendBy::AtLeast(Duration::ZERO)).await
    {
        assert_eq!(lease.fence, first.fence);
        assert!(lease.ttl <= ttl + stage.capabilities.ttl_slack, "asking moved the end: {lease:?}");
    }
    stage.expire(&key, ttl).await;
}

async fn a_batch_is_answered_in_order_and_each_on_its_own(stage: &Stage) {
    let by = ExtendBy::AtLeast(stage.long());
    let mut held = Vec::new();
    for n in 0..4 {
        let key = stage.key(&format!("extension:{n}"));
        let (owner, lease) = stage.taken(&key, stage.long() / 2).await;
        held.push((key, owner, lease));
    }
    let ask = |n: usize| ExtendRequest::new(held[n].0.clone(), held[n].1.clone(), by);
    let batch = vec![
        ask(2),
        ExtendRequest::new(stage.key("extension:free"), secret(), by),
        ask(0),
        ExtendRequest::new(held[1].0.clone(), secret(), by),
        ask(3),
        // Another owner's secret on this key.
        ExtendRequest::new(held[1].0.clone(), held[0].1.clone(), by),
        ask(1),
    ];
    let answers = Arc::clone(&stage.store).extend(batch).await.unwrap();
    let fences: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Extension::Extended(lease) => Some(lease.fence),
            _ => None,
        })
        .collect();
    let fence = |n: usize| Some(held[n].2.fence);
    assert_eq!(fences, [fence(2), None, fence(0), None, fence(3), None, fence(1)]);
    for (key, owner, lease) in &held {
        stage.must_be_held(key, owner, lease.fence).await;
    }
    stage.must_be_free(&stage.key("extension:free")).await;
}

async fn a_full_batch_and_an_empty_one_are_answered(stage: &Stage) {
    let none = Arc::clone(&stage.store).extend(Vec::new()).await.unwrap();
    assert!(none.is_empty(), "no request, no answer");
    // Half of the keys are held, so that neither answer can be the same for all.
    let count = stage.capabilities.max_batch.clamp(1, 512);
    let (owner, by) = (secret(), ExtendBy::AtLeast(stage.long()));
    let key = |n: usize| stage.key(&format!("extension:{n}"));
    for n in (0..count).step_by(2) {
        stage.granted(&key(n), &owner, stage.long()).await;
    }
    let batch = (0..count).map(|n| ExtendRequest::new(key(n), owner.clone(), by)).collect();
    let answers = Arc::clone(&stage.store).extend(batch).await.unwrap();
    assert_eq!(answers.len(), count);
    for (n, answer) in answers.into_iter().enumerate() {
        let held = matches!(answer.unwrap(), Extension::Extended(_));
        assert_eq!(held, n % 2 == 0, "answer {n} of {count}");
    }
}
