//! From a URL to a [`DistributedLock`].

use std::fmt;
use std::sync::Arc;

use holdtight_core::{Backend, Builder, DistributedLock, LockError, OpenStore, Reply};

use crate::stores::open;
use crate::url::StoreUrl;

/// Connects to the store that `url` names, with default options.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
/// use std::time::Duration;
///
/// let lock = holdtight::connect("memory:").await?;
///
/// let handle = lock.acquire("user:123").ttl(Duration::from_secs(60)).await?;
/// println!("pass {} to whatever the lock protects", handle.fence());
/// handle.release().await?;
///
/// let Some(handle) = lock.try_acquire("job:7").await? else { return Ok(()) }; // busy is not an error
/// drop(handle);
///
/// lock.shutdown().await // so that what was dropped is given back before the program ends
/// # }
/// ```
///
/// # Errors
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that names no store, with the ones
/// that exist; what the store reports otherwise. Secrets of the URL are never shown.
///
/// # Cancel safety
/// Cancel-safe: nothing was locked yet.
pub async fn connect(url: impl Into<ByUrl>) -> Result<DistributedLock, LockError> {
    builder(url).connect().await
}

/// Starts with a URL; add options, then [`connect`](Builder::connect). For a store that is there
/// already, [`DistributedLock::builder`] does the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdtight::{DistributedLock, MemoryStore};
///
/// let by_url = holdtight::builder("memory:").ttl(Duration::from_secs(10)).connect().await?;
/// let by_store = DistributedLock::builder(MemoryStore::new()).prefix("billing:").build()?;
///
/// // A store that is used elsewhere, too:
/// let store = Arc::new(MemoryStore::new());
/// let shared = DistributedLock::builder(Arc::clone(&store)).build()?;
/// # let _ = (by_url, by_store, shared);
/// # Ok(()) }
/// ```
pub fn builder(url: impl Into<ByUrl>) -> Builder<ByUrl> {
    Builder::new(url.into())
}

/// A store that is named by a URL and still has to be connected to.
#[derive(Clone)]
pub struct ByUrl(String);

impl From<&str> for ByUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl From<String> for ByUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&String> for ByUrl {
    fn from(url: &String) -> Self {
        Self(url.clone())
    }
}

impl From<StoreUrl> for ByUrl {
    fn from(url: StoreUrl) -> Self {
        Self(url.expose().to_owned())
    }
}

impl OpenStore for ByUrl {
    fn open(&self) -> Reply<Arc<dyn Backend>> {
        let url = StoreUrl::new(&*self.0);
        Box::pin(async move { open(&url?).await })
    }
}

impl OpenStore for StoreUrl {
    fn open(&self) -> Reply<Arc<dyn Backend>> {
        let url = self.clone();
        Box::pin(async move { open(&url).await })
    }
}

impl fmt::Debug for ByUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match StoreUrl::new(&*self.0) {
            Ok(url) => url.fmt(f),
            Err(_) => f.write_str("not a URL"),
        }
    }
}
