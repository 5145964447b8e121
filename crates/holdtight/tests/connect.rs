//! Connecting by URL and by store: what is shared, what is refused, and that options arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdtight::store::Backend;
use holdtight::{Builder, DistributedLock, ErrorKind, EventKind, MemoryStore, StoreUrl};

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

#[tokio::test]
async fn an_unnamed_memory_store_is_private_and_a_named_one_is_shared() -> Result {
    let (a, b) = (holdtight::connect("memory:").await?, holdtight::connect("memory:").await?);
    let held = a.acquire("k").await?;
    assert!(!b.is_locked("k").await?);
    drop(held);

    let (a, b) = (holdtight::connect("memory:x").await?, holdtight::connect("memory:x").await?);
    let held = a.acquire("k").await?;
    assert!(b.is_locked("k").await?);
    drop(held);
    assert!(!b.is_locked("k").await?);
    Ok(())
}

#[cfg(feature = "file")]
#[tokio::test]
async fn two_connections_to_one_directory_exclude_each_other() -> Result {
    let dir = tempfile::tempdir()?;
    let url = format!("file:{}", dir.path().join("locks").display());
    let (a, b) = (holdtight::connect(&*url).await?, holdtight::connect(url).await?);
    let held = a.acquire("k").await?;
    assert!(b.try_acquire("k").await?.is_none());
    let fence = held.fence();
    held.release().await?;
    assert!(b.acquire("k").await?.fence() > fence);
    Ok(())
}

#[tokio::test]
async fn options_are_applied_to_a_url_and_to_a_store() -> Result {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let lock = Builder::shared(Arc::clone(&store))
        .prefix("app:")
        .ttl(Duration::from_secs(7))
        .wait(Duration::ZERO)
        .on_event(move |event| {
            if event.kind == EventKind::Acquired {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()?;
    let held = lock.acquire("k").await?;
    assert!(held.remaining() <= Duration::from_secs(7));
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert_eq!(lock.acquire("k").await.unwrap_err().kind(), ErrorKind::Timeout, "no waiting");
    let bare = Builder::shared(store).build()?;
    assert!(bare.is_locked("app:k").await? && !bare.is_locked("k").await?);

    let error = holdtight::builder("memory:").ttl(Duration::ZERO).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    Ok(())
}

#[tokio::test]
async fn no_error_and_no_debug_shows_a_password() {
    for url in ["nosuch://ann:tiger@h/0", "tiger", "memory://ann:tiger@x/y"] {
        let error = holdtight::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let shown = format!("{error} {error:?} {:?}", holdtight::builder(url));
        assert!(!shown.contains("tiger"), "{shown}");
    }
}

#[tokio::test]
async fn everything_of_the_engine_is_here_and_the_locks_are_ours() -> Result {
    // Ours, not the engine's: only ours has `connect`.
    let lock: holdtight::DistributedLock = holdtight::connect("memory:").await?;
    let set: holdtight::LockSet = lock.acquire_all(["a", "b"]).await?;
    assert!(lock.is_locked("a").await? && lock.is_locked("b").await?);
    set.release().await?;
    holdtight::FencedRegister::new(0).write(holdtight::Fence::new(1), |value| *value = 1)?;
    Ok(())
}

#[tokio::test]
async fn a_builder_starts_with_all_that_names_or_is_a_store() -> Result {
    let url = String::from("memory:named-in-all-ways");
    let (a, b) = (
        holdtight::builder(&url).connect().await?,
        holdtight::builder(url.as_str()).connect().await?,
    );
    let held = a.acquire("k").await?;
    assert!(b.is_locked("k").await?);
    drop(held);

    let store = Arc::new(MemoryStore::new());
    let opened = holdtight::open(&StoreUrl::new("memory:")?).await?;
    let (a, b, c) = (
        DistributedLock::builder(Arc::clone(&store)).build()?,
        DistributedLock::builder(store).build()?,
        DistributedLock::builder(opened).build()?,
    );
    let held = a.acquire("k").await?;
    assert!(b.is_locked(held.key()).await? && !c.is_locked(held.key()).await?);
    assert!(holdtight::blocking::connect(&url).is_ok());
    Ok(())
}

#[cfg(feature = "file")]
#[tokio::test]
async fn stores_are_found_in_the_module_of_their_name() -> Result {
    let dir = tempfile::tempdir()?;
    let config = holdtight::file::Config::new(dir.path().join("locks"));
    let store = Arc::new(holdtight::file::FileStore::open(config).await?);
    let lock = DistributedLock::builder(Arc::clone(&store)).build()?;
    lock.acquire("k").await?.release().await?;
    assert_eq!(store.sweep(Duration::ZERO)?.removed, 1);
    Ok(())
}
