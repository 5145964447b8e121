//! One lock object used by many threads: no two handles of a key are valid at once, not even for a
//! moment. Real time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdtight_core::{
    Builder, DistributedLock, ErrorKind, EventKind, Held, MemoryStore, RetryPolicy,
};

/// Enough to meet in the same microsecond, bounded by whichever comes first.
const GRANTS: u32 = 40_000;
const LIMIT: Duration = Duration::from_secs(4);

/// Some force the lock away from whoever holds it, others resume its token or release by it, all
/// through one object; and each time one gets the lock, it looks at the one that had it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_lock_that_changes_hands_by_force_has_one_holder_at_every_moment() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let (grants, doubles) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let latest: Arc<Mutex<Option<Held>>> = Arc::default();
    let end = Instant::now() + LIMIT;
    let tasks: Vec<_> = (0..12u32)
        .map(|n| {
            let (lock, grants, doubles) = (lock.clone(), Arc::clone(&grants), Arc::clone(&doubles));
            let latest = Arc::clone(&latest);
            tokio::spawn(async move {
                while grants.load(Ordering::Relaxed) < GRANTS && Instant::now() < end {
                    // An error if it was forced away while the answer was on its way.
                    let Ok(Some(handle)) = lock.try_acquire("k").await else {
                        if let Ok(Some(holder)) = lock.lookup("k").await {
                            let _ = lock.force_release("k", holder.fence.unwrap()).await;
                        }
                        continue;
                    };
                    grants.fetch_add(1, Ordering::Relaxed);
                    let before = latest.lock().unwrap().replace(handle.held());
                    // The second look of three: if both others are yes, both handles were valid at
                    // one moment.
                    if let Some(before) = before
                        && handle.is_held()
                        && before.is_held()
                        && handle.is_held()
                    {
                        doubles.fetch_add(1, Ordering::SeqCst);
                    }
                    match n % 3 {
                        0 => drop(lock.release_token(&handle.token()).await),
                        1 => drop(lock.resume(handle.token()).await),
                        _ => {}
                    }
                    drop(handle);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::SeqCst) > 100);
    assert_eq!(doubles.load(Ordering::SeqCst), 0, "two valid handles at one moment");
}

/// A policy without pauses is no reason to ask a store as often as it can answer.
#[tokio::test]
async fn whoever_waits_without_pauses_leaves_the_store_in_peace() {
    let store = Arc::new(MemoryStore::new());
    let over = || Builder::shared(Arc::clone(&store) as _);
    let (lock, busy) = (over().build().unwrap(), Arc::new(AtomicU32::new(0)));
    let _held = lock.acquire("k").await.unwrap();
    let count = Arc::clone(&busy);
    let hasty = over().retry(RetryPolicy::fixed(Duration::ZERO)).on_event(move |event| {
        if event.kind == EventKind::Busy {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let hasty = hasty.build().unwrap();
    hasty.acquire("k").wait(Duration::from_millis(300)).await.unwrap_err();
    let busy = busy.load(Ordering::SeqCst);
    assert!((2..=35).contains(&busy), "asked {busy} times in 300 ms");
}

/// Some executors are not tokio: a release still works there, the rest says what it needs.
#[test]
fn outside_of_a_runtime_a_lock_can_be_given_back_and_nothing_panics() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let handle = runtime.block_on(async { lock.acquire("k").await.unwrap() });
    let error = bare(handle.extend(Duration::from_secs(60))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(bare(lock.is_locked("k")).unwrap_err().kind(), ErrorKind::InvalidConfig);
    let token = handle.token();
    assert_eq!(bare(lock.resume(token)).unwrap_err().kind(), ErrorKind::InvalidConfig);
    bare(handle.release()).unwrap();
    assert!(!runtime.block_on(lock.is_locked("k")).unwrap());
}

/// An executor that is nothing but a thread.
fn bare<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(out) => return out,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
