//! The forms in which people write calls: futures that are spawned as they are, both styles of
//! closures, keys and stores that are passed on; and what a test sees that pauses time for tokio
//! alone.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireOptions, Backend, Builder, DistributedLock, ErrorKind, Key, MemoryStore, RetryPolicy,
};
use tokio::task::JoinSet;

const SECOND: Duration = Duration::from_secs(1);

fn lock() -> DistributedLock {
    DistributedLock::builder(MemoryStore::new()).build().unwrap()
}

#[tokio::test]
async fn calls_are_futures_that_can_be_spawned_and_collected() {
    let lock = lock();
    let handle = tokio::spawn(lock.acquire("a")).await.unwrap().unwrap();
    assert!(tokio::spawn(lock.try_acquire("a")).await.unwrap().unwrap().is_none());
    let set = tokio::spawn(lock.acquire_all(["b", "c"]).ttl(SECOND)).await.unwrap().unwrap();
    set.release().await.unwrap();
    handle.release().await.unwrap();
    let mut set = JoinSet::new();
    for key in ["a", "b", "c"] {
        set.spawn(lock.acquire(key).wait_forever());
    }
    for taken in set.join_all().await {
        taken.unwrap().release().await.unwrap();
    }
    // Awaited by reference, too, and nothing is begun before.
    let mut later = lock.acquire("a");
    assert!(!lock.is_locked("a").await.unwrap());
    let handle = (&mut later).await.unwrap();
    drop(later);
    assert!(handle.is_held(), "the handle is all that counts");
    let error = tokio::spawn(lock.acquire("two\nlines")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
}

#[tokio::test]
async fn work_is_a_closure_of_either_style_and_may_borrow() {
    let lock = lock();
    let text = String::from("borrowed");
    let both = [
        lock.with_lock("k", async |held| (held.fence(), text.len())).await.unwrap(),
        lock.with_lock("k", |held| async move { (held.fence(), 8) }).await.unwrap(),
        lock.acquire("k").run(|held| async move { (held.fence(), 8) }).await.unwrap(),
        lock.try_acquire("k").run(|held| async move { (held.fence(), 8) }).await.unwrap().unwrap(),
        lock.election("k").lead(async |held| (held.fence(), text.len())).await.unwrap(),
    ];
    assert!(both.is_sorted() && both.iter().all(|(_, length)| *length == text.len()));
    let fences = lock.acquire_all(["k", "l"]).run(|held| async move { held.len() });
    assert_eq!(fences.await.unwrap(), 2);
    let hour = 3600 * SECOND;
    assert_eq!(lock.once_per("report", hour, |_| async { 1 }).await.unwrap(), Some(1));
    assert_eq!(lock.once_per("report", hour, async |_| 1).await.unwrap(), None);
    // On a runtime of many threads it has to be `Send`.
    let spawned = tokio::spawn(async move {
        lock.with_lock("k", async |held| {
            tokio::task::yield_now().await;
            held.check().map(|()| text.len())
        })
        .await
    });
    assert_eq!(spawned.await.unwrap().unwrap().unwrap(), 8);
}

#[tokio::test]
async fn keys_are_taken_wherever_a_name_is() {
    let lock = lock();
    let handle = lock.acquire("job:7").await.unwrap();
    let key: Key = handle.key();
    assert!(lock.lookup(&key).await.unwrap().is_some());
    let error = lock.acquire(handle.key()).wait(Duration::ZERO).await.unwrap_err();
    assert!(lock.is_locked(error.key().unwrap()).await.unwrap());
    let number: u64 = handle.fence().into();
    assert_eq!(number, handle.fence().get());
    handle.release().await.unwrap();
    lock.acquire_all([key.clone()]).await.unwrap().release().await.unwrap();
    lock.acquire_all([&key]).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_shared_is_a_store() {
    let store = Arc::new(MemoryStore::new());
    let first = DistributedLock::builder(Arc::clone(&store)).build().unwrap();
    let second = DistributedLock::builder(store as Arc<dyn Backend>).build().unwrap();
    let handle = first.acquire("k").await.unwrap();
    assert!(second.try_acquire("k").await.unwrap().is_none());
    // What a store may leave at its default is the inner one's as well.
    assert_eq!(second.probe().await.unwrap(), first.probe().await.unwrap());
    second.force_release("k", handle.fence()).await.unwrap();
    let token = second.acquire("k").await.unwrap().detach().await.unwrap();
    first.resume(token).await.unwrap().release().await.unwrap();
    second.acquire_all(["a", "b"]).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_handle_tells_its_lease_its_renewal_and_its_new_end() {
    let lock = lock();
    let handle = lock.acquire("k").ttl(20 * SECOND).auto_renew(false).await.unwrap();
    assert_eq!((handle.ttl(), handle.is_auto_renewed()), (20 * SECOND, false));
    let left = handle.extend(60 * SECOND).await.unwrap();
    assert!(left > 50 * SECOND && left <= 60 * SECOND, "{left:?}");
    let left = handle.held().extend_by(60 * SECOND).await.unwrap();
    assert!(left > 100 * SECOND && left <= 120 * SECOND, "{left:?}");
    assert!(lock.acquire("l").await.unwrap().held().is_auto_renewed());
}

#[tokio::test]
async fn running_out_of_retries_is_told_as_such() {
    let retry = RetryPolicy::fixed(Duration::from_millis(10)).max_retries(1);
    let store: Arc<dyn Backend> = MemoryStore::shared("forms: retries");
    let [one, two] = [(), ()].map(|()| Builder::shared(Arc::clone(&store)).build().unwrap());
    let _first = one.acquire("k").await.unwrap();
    let error = two.acquire("k").retry(retry).wait(60 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("retries were used up"), "{error}");
}

#[tokio::test]
async fn too_long_a_period_is_called_a_period() {
    let error = lock().once_per("k", 48 * 3600 * SECOND, async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("a period of 172800s"), "{error}");
}

/// The clock of the leases is the machine's, while tokio's timers fire as soon as everybody waits.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_tokio_says_so_also_if_only_its_clock_is_paused() {
    let store: Arc<dyn Backend> = MemoryStore::shared("forms: paused");
    let [one, two] = [(), ()].map(|()| Builder::shared(Arc::clone(&store)).build().unwrap());
    let _held = one.acquire("k").await.unwrap();
    let error = two.acquire("k").wait(3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.attempts().unwrap() < 50, "{error}");
}

/// A store normalises the whole name, and what stands on both sides of the border must not become
/// one character there: the lock would be known by another name than it was asked for, and not be
/// found again.
#[tokio::test]
async fn a_key_that_would_run_into_its_prefix_is_refused_and_all_others_are_found_again() {
    let clash = [
        ("cafe", "\u{301}x"),     // composes with the `e`
        ("\u{1100}", "\u{1161}"), // two parts of one Hangul syllable
        ("a\u{301}", "\u{323}"),  // marks that are put into another order
        ("cafe", "\u{301}"),
    ];
    for (prefix, key) in clash {
        let lock = DistributedLock::builder(MemoryStore::new()).prefix(prefix).build().unwrap();
        for error in [
            lock.acquire(key).await.unwrap_err(),
            lock.try_acquire(key).await.unwrap_err(),
            lock.lookup(key).await.unwrap_err(),
            lock.list(key).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidKey, "{prefix:?} {key:?}");
            assert!(error.to_string().contains("separator"), "{error}");
        }
    }
    // A prefix is a text like any other: two spellings of it are one.
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    for (prefix, key) in
        [("cafe:", "\u{301}x"), ("cafe\u{301}", "x"), ("café", "y"), ("", "\u{301}x")]
    {
        let lock = Builder::shared(Arc::clone(&store)).prefix(prefix).build().unwrap();
        let handle = lock.acquire(key).await.unwrap();
        assert_eq!(handle.key().as_str(), key);
        let listed = lock.list("").await.unwrap();
        let found = listed.iter().filter(|info| info.key.as_str() == key).count();
        assert_eq!(found, 1, "{prefix:?} {key:?} in {listed:?}");
        handle.detach().await.unwrap();
    }
    let keys = |prefix: &str| {
        let lock = Builder::shared(Arc::clone(&store)).prefix(prefix).build().unwrap();
        async move {
            let listed = lock.list("").await.unwrap();
            listed.iter().map(|info| info.key.to_string()).collect::<Vec<_>>()
        }
    };
    assert_eq!(keys("cafe\u{301}").await, ["x", "y"]);
    assert_eq!(keys("café").await, ["x", "y"]);
}

/// A prefix is plain text: without a separator at its end, one may go on where another one ends.
#[tokio::test]
async fn a_prefix_is_text_before_the_key_and_a_separator_keeps_two_apart() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let with = |prefix: &str| Builder::shared(Arc::clone(&store)).prefix(prefix).build().unwrap();
    let _held = with("a").acquire("bc").await.unwrap();
    assert!(with("ab").try_acquire("c").await.unwrap().is_none(), "the same text, the same lock");
    let _held = with("a:").acquire("bc").await.unwrap();
    assert!(with("ab:").try_acquire("c").await.unwrap().is_some());
}

#[tokio::test]
async fn a_try_asks_once_whatever_its_options_say() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let _held = lock.acquire("k").await.unwrap();
    let options = AcquireOptions { wait: None, ..AcquireOptions::default() };
    let tried = lock.try_acquire("k").options(options);
    let tried = tokio::time::timeout(Duration::from_secs(20), tried).await;
    assert!(tried.expect("it does not wait").unwrap().is_none());
}
