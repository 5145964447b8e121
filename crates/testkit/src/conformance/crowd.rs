//! Many tasks at once, on one key and on many: no lost update, no two owners, nothing left behind.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{Attempt, Backend, Key, Lease, Release, Secret};

use super::case::{Case, cases};
use super::stage::{Stage, attempt, release, secret};

pub(super) const CASES: &[Case] =
    cases![no_update_is_lost_among_many_tasks, many_keys_have_one_owner_each_at_any_time];

/// Asks until it is granted, with pauses that keep racers apart.
async fn wait_for(client: &Arc<dyn Backend>, key: &Key, ttl: Duration) -> (Secret, Lease) {
    let me = secret();
    loop {
        if let Attempt::Granted(lease) = attempt(client, key, &me, ttl).await.unwrap() {
            return (me, lease);
        }
        tokio::time::sleep(Duration::from_micros(fastrand::u64(200..5000))).await;
    }
}

async fn no_update_is_lost_among_many_tasks(stage: &Stage) {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 10;
    let key = stage.key("crowd");
    // Read, pause, write: nothing but the lock keeps two updates apart.
    let (total, fence) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        for _ in 0..TASKS {
            let (client, key, ttl) = (Arc::clone(&client), key.clone(), stage.long());
            let (total, fence) = (Arc::clone(&total), Arc::clone(&fence));
            crowd.spawn(async move {
                for _ in 0..ROUNDS {
                    let (me, lease) = wait_for(&client, &key, ttl).await;
                    let seen = total.load(Ordering::SeqCst);
                    let last = fence.swap(lease.fence.get(), Ordering::SeqCst);
                    assert!(last < lease.fence.get(), "fence {} after {last}", lease.fence);
                    tokio::task::yield_now().await;
                    total.store(seen + 1, Ordering::SeqCst);
                    assert_eq!(release(&client, &key, &me).await, Release::Released);
                }
            });
        }
    }
    while let Some(task) = crowd.join_next().await {
        task.unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), 3 * TASKS * ROUNDS, "updates were lost");
    stage.must_be_free(&key).await;
}

async fn many_keys_have_one_owner_each_at_any_time(stage: &Stage) {
    let keys: Arc<Vec<Key>> = Arc::new((0..8).map(|n| stage.key(&format!("crowd:{n}"))).collect());
    let held = Arc::new(Mutex::new(HashSet::new()));
    let mut crowd = tokio::task::JoinSet::new();
    for client in stage.open_many(3).await {
        for _ in 0..8 {
            let (client, keys, held) = (Arc::clone(&client), Arc::clone(&keys), Arc::clone(&held));
            let ttl = stage.long();
            crowd.spawn(async move {
                for _ in 0..20 {
                    let key = &keys[fastrand::usize(..keys.len())];
                    let (me, _) = wait_for(&client, key, ttl).await;
                    assert!(held.lock().unwrap().insert(key.clone()), "two owners of {key:?}");
                    tokio::task::yield_now().await;
                    held.lock().unwrap().remove(key);
                    assert_eq!(release(&client, key, &me).await, Release::Released);
                }
            });
        }
    }
    while let Some(task) = crowd.join_next().await {
        task.unwrap();
    }
    for key in keys.iter() {
        stage.must_be_free(key).await;
    }
}
