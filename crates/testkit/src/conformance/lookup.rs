//! Looking is harmless and true: who holds a key, since when, for how long, and what the store says
//! of itself.

use std::sync::Arc;

use holdtight_core::{AcquireRequest, Attempt, ExtendBy, Owner, Release};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![
    lookup_follows_the_life_of_a_lock,
    what_lookup_tells_of_the_owner_is_true,
    what_lookup_tells_of_time_is_true,
    capabilities_make_sense_and_do_not_change,
    a_probe_answers_and_touches_no_lock,
    nothing_shows_a_secret,
];

async fn lookup_follows_the_life_of_a_lock(stage: &Stage) {
    let (key, ttl) = (stage.key("lookup"), stage.short());
    assert!(stage.lookup(&key).await.is_none(), "never taken");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    for _ in 0..3 {
        stage.must_show(&stage.lookup(&key).await.expect("held"), lease.fence);
    }
    assert_eq!(stage.release(&key, &owner).await, Release::Released);
    assert!(stage.lookup(&key).await.is_none(), "released");
    stage.taken(&key, ttl).await;
    stage.expire(&key, ttl).await;
    assert!(stage.lookup(&key).await.is_none(), "over");
}

/// A store may keep no metadata; what it does keep comes back as it was.
async fn what_lookup_tells_of_the_owner_is_true(stage: &Stage) {
    let owners = [
        Owner::current().with_reason("nightly backup"),
        Owner::unknown().with_command("ship.sh").with_reason("é🔒 = % \" ' \\ {} ; --"),
        Owner::unknown().with_reason("x".repeat(1000)),
        Owner::unknown(),
    ];
    for (n, owner) in owners.into_iter().enumerate() {
        let (key, me) = (stage.key(&format!("lookup:{n}")), secret());
        let request = AcquireRequest::new(key.clone(), me.clone(), stage.long());
        let request = request.owner(Arc::new(owner.clone()));
        let answer = Arc::clone(&stage.store).acquire(request).await.unwrap();
        assert!(matches!(answer, Attempt::Granted(_)));
        for shown in [stage.lookup(&key).await, stage.refused(&key).await.holder] {
            let Some(shown) = shown else { continue };
            let honest = shown.owner == owner || shown.owner == Owner::unknown();
            assert!(honest, "taken by {owner:?}, shown as {:?}", shown.owner);
        }
        // A retry, a refusal or an extension is no reason to forget who it was.
        stage.extended(&key, &me, ExtendBy::AtLeast(stage.long())).await;
        let shown = stage.lookup(&key).await.expect("held").owner;
        assert!(shown == owner || shown == Owner::unknown(), "after an extension: {shown:?}");
    }
}

async fn what_lookup_tells_of_time_is_true(stage: &Stage) {
    let (key, ttl) = (stage.key("lookup"), stage.long());
    let sent_at = stage.now();
    stage.taken(&key, ttl).await;
    stage.pass(stage.capabilities.min_ttl).await;
    let asked_at = stage.now();
    let shown = stage.lookup(&key).await.expect("held");
    let gone = stage.now().since(sent_at);
    if let Some(age) = shown.age {
        // Two clocks that may tick differently measure this.
        let leeway = holdtight_core::margin(ttl) + stage.capabilities.ttl_slack;
        assert!(age <= gone + leeway, "taken {gone:?} ago at most, shown {age:?}");
    }
    let left = shown.remaining.expect("our lock has an end");
    assert!(left <= ttl + stage.capabilities.ttl_slack, "more than was asked for: {left:?}");
    let least = ttl.saturating_sub(gone.max(asked_at.since(sent_at)));
    assert!(
        left + holdtight_core::margin(ttl) >= least,
        "at least {least:?} are left, not {left:?}"
    );
}

async fn capabilities_make_sense_and_do_not_change(stage: &Stage) {
    let can = &stage.capabilities;
    assert!(!can.name.is_empty(), "a store has a name");
    assert!(can.min_ttl <= can.max_ttl, "{can:?}");
    assert!(can.max_batch >= 1, "a batch holds at least one");
    assert_eq!(stage.store.capabilities(), *can, "constant for the life of the value");
    assert_eq!(stage.open().await.capabilities(), *can, "and the same for every client");
}

async fn a_probe_answers_and_touches_no_lock(stage: &Stage) {
    let key = stage.key("lookup");
    let (owner, lease) = stage.taken(&key, stage.long()).await;
    let found = Arc::clone(&stage.store).probe().await.unwrap();
    assert!(!found.store.is_empty(), "a probe names the store");
    for finding in &found.findings {
        assert!(!finding.subject.is_empty() && !finding.found.is_empty(), "{finding:?}");
    }
    stage.must_be_held(&key, &owner, lease.fence).await;
}

async fn nothing_shows_a_secret(stage: &Stage) {
    let key = stage.key("lookup");
    let (owner, _) = stage.taken(&key, stage.long()).await;
    let shown = [
        format!("{:?}", stage.store),
        format!("{:?}", stage.lookup(&key).await),
        format!("{:?}", stage.refused(&key).await),
        format!("{:?}", stage.attempt(&key, &owner, stage.long()).await),
        format!("{:?}", Arc::clone(&stage.store).probe().await),
    ];
    for text in shown {
        assert!(!text.contains(owner.expose()), "the secret stands in {text}");
    }
}
