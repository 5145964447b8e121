//! From a URL, or from the builder of the async locks, to a blocking [`DistributedLock`].

use holdtight_core::{Builder, LockError, OpenStore};

use super::background;
use super::lock::DistributedLock;
use crate::connect::{ByUrl, builder};
use crate::url::StoreUrl;

/// Connects to a store: by its URL, or as a builder says, which may have a store already.
///
/// A store whose connection belongs to a runtime of yours works only while that runtime does;
/// connect by URL to have it belong to the background thread.
///
/// ```
/// # fn main() -> Result<(), holdtight::LockError> {
/// use std::time::Duration;
/// use holdtight::blocking;
/// use holdtight::{DistributedLock, MemoryStore};
///
/// let by_url = blocking::connect("memory:")?;
/// let with_options = holdtight::builder("memory:").ttl(Duration::from_secs(10));
/// let with_options = blocking::connect(with_options)?;
/// let by_store = blocking::connect(DistributedLock::builder(MemoryStore::new()))?;
/// # let _ = (by_url, with_options, by_store);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`connect`](crate::connect) and [`Builder::build`].
pub fn connect<S>(store: impl IntoBuilder<S>) -> Result<DistributedLock, LockError>
where
    S: OpenStore + 'static,
{
    let builder = store.into_builder();
    background::wait(async move { Ok(DistributedLock::from(builder.connect().await?)) })
}

/// As [`connect`], and asks again for at most `limit` while the store cannot be reached.
///
/// # Errors
/// As [`connect`].
pub fn connect_within<S>(
    store: impl IntoBuilder<S>,
    limit: std::time::Duration,
) -> Result<DistributedLock, LockError>
where
    S: OpenStore + 'static,
{
    let builder = store.into_builder();
    background::wait(async move { Ok(DistributedLock::from(builder.connect_within(limit).await?)) })
}

/// What a blocking lock is made of: a URL, or a [`Builder`] with options.
pub trait IntoBuilder<S> {
    /// The builder, with default options for a URL.
    fn into_builder(self) -> Builder<S>;
}

impl<S> IntoBuilder<S> for Builder<S> {
    fn into_builder(self) -> Builder<S> {
        self
    }
}

impl IntoBuilder<ByUrl> for &str {
    fn into_builder(self) -> Builder<ByUrl> {
        builder(self)
    }
}

impl IntoBuilder<ByUrl> for String {
    fn into_builder(self) -> Builder<ByUrl> {
        builder(self)
    }
}

impl IntoBuilder<ByUrl> for &String {
    fn into_builder(self) -> Builder<ByUrl> {
        builder(self)
    }
}

impl IntoBuilder<ByUrl> for StoreUrl {
    fn into_builder(self) -> Builder<ByUrl> {
        builder(self)
    }
}
