//! The engine over a store that loses requests, replies and patience: no lost update, and nothing
//! held at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdtight_core::{Backend, Builder, DistributedLock, ErrorKind, MemoryStore};
use holdtight_testkit::{Chaos, Fault, Method};

fn engine(store: &Arc<MemoryStore>, seed: u64) -> (DistributedLock, Arc<Chaos>) {
    let chaos = Chaos::around(Arc::clone(store) as Arc<dyn Backend>);
    let faults = [
        Fault::LostRequest,
        Fault::LostReply,
        Fault::SlowRequest(Duration::from_millis(3)),
        Fault::SlowReply(Duration::from_millis(3)),
        Fault::Error(ErrorKind::Unavailable),
    ];
    chaos.random(seed, 250, &faults);
    let builder = Builder::shared(Arc::clone(&chaos) as Arc<dyn Backend>);
    (builder.ttl(Duration::from_secs(20)).wait_forever().build().unwrap(), chaos)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_update_is_lost_when_a_quarter_of_all_calls_fail() {
    let store = Arc::new(MemoryStore::new());
    let engines: Vec<_> = (0..3).map(|seed| engine(&store, seed)).collect();
    let (total, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = tokio::task::JoinSet::new();
    for (lock, _) in &engines {
        for _ in 0..6 {
            let (lock, total, done) = (lock.clone(), Arc::clone(&total), Arc::clone(&done));
            crowd.spawn(async move {
                for _ in 0..10 {
                    // An outage may outlast the engine's tolerance; then it says so, and nothing is
                    // held.
                    let Ok(handle) = lock.acquire("account").await else { continue };
                    let seen = total.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    total.store(seen + 1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    // Whether the release was heard is not known here; that it happens is checked
                    // below.
                    let _ = handle.release().await;
                }
            });
        }
    }
    while let Some(task) = crowd.join_next().await {
        task.unwrap();
    }
    let done = done.load(Ordering::SeqCst);
    assert_eq!(total.load(Ordering::SeqCst), done, "updates were lost");
    assert!(done >= 90, "only {done} of 180 turns: the engine gives up too early");
    for (lock, chaos) in &engines {
        let hurt = chaos.history().iter().filter(|call| call.fault != Fault::None).count();
        assert!(hurt > 0 && chaos.count(Method::Acquire) > 0, "nothing was hurt");
        chaos.heal();
        lock.shutdown().await.unwrap();
    }
    let left = Arc::clone(&store).list(String::new(), 10).await.unwrap();
    assert!(left.is_empty(), "left behind: {left:?}");
}
