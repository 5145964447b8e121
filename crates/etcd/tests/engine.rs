//! The whole way: locks as users take them, with their renewal, waiting and release, on a real
//! etcd.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use holdtight_core::{DistributedLock, LockHandle};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::servers::Etcd;
use support::{PATIENCE, entries, until};

async fn locks(server: &Etcd) -> DistributedLock {
    let store = EtcdStore::connect(&server.url()).await.unwrap();
    DistributedLock::builder(store).ttl(Duration::from_secs(4)).wait(PATIENCE).build().unwrap()
}

on_etcd! {
    async fn a_lock_is_renewed_for_as_long_as_it_is_held(server: &Etcd) {
        let (lock, other) = (locks(server).await, locks(server).await);
        let handle = lock.acquire("k").await.unwrap();
        // Twice its lease.
        for _ in 0..16 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(handle.is_held());
            // One that the server takes a second for says nothing.
            assert!(!matches!(other.try_acquire("k").await, Ok(Some(_))), "two holders");
        }
        handle.release().await.unwrap();
        other.acquire("k").await.unwrap().release().await.unwrap();
        until("nothing stays behind", async || entries(server).await == 0).await;
    }
}

on_etcd! {
    async fn processes_take_turns_in_the_order_of_asking(server: &Etcd) {
        let first = locks(server).await.acquire("k").await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiters = tokio::task::JoinSet::new();
        for n in 0..4_usize {
            let (lock, order) = (locks(server).await, Arc::clone(&order));
            waiters.spawn(async move {
                let handle = lock.acquire("k").await.unwrap();
                order.lock().unwrap().push((n, handle.fence()));
                tokio::time::sleep(Duration::from_millis(10)).await;
                handle.release().await.unwrap();
            });
            // In line before the next one asks.
            until("the waiter stands in line", async || entries(server).await == n + 2).await;
        }
        first.release().await.unwrap();
        while let Some(waiter) = waiters.join_next().await {
            waiter.unwrap();
        }
        let order = order.lock().unwrap().clone();
        assert!(order.iter().map(|(n, _)| *n).eq(0..4), "{order:?}");
        assert!(order.is_sorted_by(|one, next| one.1 < next.1), "{order:?}");
        until("nothing stays behind", async || entries(server).await == 0).await;
    }
}

on_etcd! {
    async fn a_waiter_that_gives_up_leaves_no_place_behind(server: &Etcd) {
        let (lock, other) = (locks(server).await, locks(server).await);
        let handle = lock.acquire("k").await.unwrap();
        let error = other.wait_for_lock("k", Duration::from_secs(3)).await.unwrap_err();
        assert!(error.to_string().contains("lease ends in"), "{error}");
        until("the place is withdrawn", async || entries(server).await == 1).await;
        // Dropped in the middle of its wait.
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.acquire("k").await }
        });
        until("it stands in line", async || entries(server).await == 2).await;
        waiting.abort();
        until("the place of a dropped waiter is withdrawn", async || entries(server).await == 1).await;
        handle.release().await.unwrap();
    }
}

on_etcd! {
    async fn a_crowd_of_processes_loses_no_update(server: &Etcd) {
        let (total, mut crowd) = (Arc::new(AtomicU32::new(0)), tokio::task::JoinSet::new());
        for _ in 0..4 {
            let lock = locks(server).await;
            for _ in 0..5 {
                let (lock, total) = (lock.clone(), Arc::clone(&total));
                crowd.spawn(async move {
                    for _ in 0..5 {
                        let handle: LockHandle = lock.acquire("k").wait_forever().await.unwrap();
                        let seen = total.load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        total.store(seen + 1, Ordering::SeqCst);
                        handle.release().await.unwrap();
                    }
                });
            }
        }
        while let Some(task) = crowd.join_next().await {
            task.unwrap();
        }
        assert_eq!(total.load(Ordering::SeqCst), 100);
        until("nothing stays behind", async || entries(server).await == 0).await;
    }
}

on_etcd! {
    async fn a_detached_lock_is_resumed_by_another_process(server: &Etcd) {
        let (lock, other) = (locks(server).await, locks(server).await);
        let handle = lock.acquire("k").await.unwrap();
        let fence = handle.fence();
        let token = handle.detach().await.unwrap();
        assert!(!matches!(other.try_acquire("k").await, Ok(Some(_))), "it is held all the while");
        let resumed = other.resume(token).await.unwrap();
        assert!(resumed.fence() > fence, "another holder, another fence");
        resumed.release().await.unwrap();
        until("nothing stays behind", async || entries(server).await == 0).await;
    }
}
