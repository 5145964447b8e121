//! Fences rise from grant to grant, whoever asks and however the last one ended (contract 6).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{Attempt, ExtendBy, Fence, Release};

use super::case::{Case, cases};
use super::stage::{Stage, attempt, granted, release, secret};

pub(super) const CASES: &[Case] = cases![
    fences_rise_from_grant_to_grant,
    fences_rise_over_expiry,
    fences_rise_across_clients,
    a_fence_stays_that_of_its_grant,
    fences_rise_in_the_order_of_grants_under_contention,
];

async fn fences_rise_from_grant_to_grant(stage: &Stage) {
    let key = stage.key("fences");
    let mut last = Fence::new(0);
    for round in 0..50 {
        let (owner, lease) = stage.taken(&key, stage.long()).await;
        assert!(lease.fence > last, "grant {round}: {} after {last}", lease.fence);
        last = lease.fence;
        assert_eq!(stage.release(&key, &owner).await, Release::Released);
        if round % 5 == 0 {
            // Whatever a store cleans up when it looks, it must not be the fence.
            assert!(stage.lookup(&key).await.is_none());
            assert_eq!(stage.release(&key, &owner).await, Release::NotHeld);
        }
    }
}

async fn fences_rise_over_expiry(stage: &Stage) {
    let key = stage.key("fences");
    let mut last = Fence::new(0);
    for _ in 0..3 {
        let (_, lease) = stage.taken(&key, stage.short()).await;
        assert!(lease.fence > last, "{} after {last}", lease.fence);
        last = lease.fence;
        stage.expire(&key, stage.short()).await;
    }
}

async fn fences_rise_across_clients(stage: &Stage) {
    let (key, clients) = (stage.key("fences"), stage.open_many(3).await);
    let mut last = Fence::new(0);
    for round in 0..30 {
        let (client, owner) = (&clients[round % clients.len()], secret());
        let lease = granted(client, &key, &owner, stage.long()).await;
        assert!(lease.fence > last, "{} after {last}", lease.fence);
        last = lease.fence;
        // A client that did not take the lock gives it back.
        let other = &clients[(round + 1) % clients.len()];
        assert_eq!(release(other, &key, &owner).await, Release::Released);
    }
}

async fn a_fence_stays_that_of_its_grant(stage: &Stage) {
    let key = stage.key("fences");
    let (owner, first) = stage.taken(&key, stage.long()).await;
    for _ in 0..5 {
        stage.refused(&key).await;
        for by in [ExtendBy::AtLeast(stage.long()), ExtendBy::Add(Duration::from_secs(1))] {
            assert_eq!(stage.extended(&key, &owner, by).await.fence, first.fence, "{by:?}");
        }
        let again = stage.granted(&key, &owner, stage.long()).await;
        assert_eq!(again.fence, first.fence, "asking again is not a new grant");
        stage.must_show(&stage.lookup(&key).await.expect("held"), first.fence);
    }
}

async fn fences_rise_in_the_order_of_grants_under_contention(stage: &Stage) {
    const ROUNDS: usize = 120;
    let key = stage.key("fences");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut crowd = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        for _ in 0..3 {
            let (client, key, seen, ttl) =
                (Arc::clone(&client), key.clone(), Arc::clone(&seen), stage.long());
            crowd.spawn(async move {
                while seen.lock().unwrap().len() < ROUNDS {
                    let me = secret();
                    match attempt(&client, &key, &me, ttl).await.unwrap() {
                        Attempt::Granted(lease) => {
                            // Only the holder comes here, so the list is in the order of grants.
                            seen.lock().unwrap().push(lease.fence);
                            assert_eq!(release(&client, &key, &me).await, Release::Released);
                        }
                        _ => tokio::task::yield_now().await,
                    }
                }
            });
        }
    }
    while let Some(worker) = crowd.join_next().await {
        worker.unwrap();
    }
    for pair in seen.lock().unwrap().windows(2) {
        assert!(pair[0] < pair[1], "granted one after the other: {} then {}", pair[0], pair[1]);
    }
    assert!(Arc::clone(&stage.store).lookup(key).await.unwrap().is_none(), "all gave it back");
}
