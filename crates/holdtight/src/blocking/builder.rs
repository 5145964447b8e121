//! The options that all locks of one blocking [`DistributedLock`] share: those of the async one.

use std::fmt;
use std::time::Duration;

use holdtight_core::{Clock, Event, Liveness, LockError, Owner, RetryPolicy};

use super::background;
use super::lock::DistributedLock;
use crate::lock::{ByUrl, IntoStore, Ready};

impl DistributedLock {
    /// Connects to the store that `url` names, with default options.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that names no store, with the ones that exist; what
    /// the store reports otherwise. Secrets of the URL are never shown.
    pub fn connect(url: impl Into<String>) -> Result<Self, LockError> {
        Builder::<ByUrl>::new(url.into()).connect()
    }

    /// Starts with a URL, to be ended with [`connect`](Builder::connect), or with a store, to be ended with
    /// [`build`](Builder::build).
    ///
    /// ```
    /// # fn main() -> Result<(), holdtight::LockError> {
    /// use std::time::Duration;
    /// use holdtight::MemoryStore;
    /// use holdtight::blocking::DistributedLock;
    ///
    /// let by_url = DistributedLock::builder("memory:").ttl(Duration::from_secs(10)).connect()?;
    /// let by_store = DistributedLock::builder(MemoryStore::new()).prefix("billing:").build()?;
    /// # let _ = (by_url, by_store);
    /// # Ok(()) }
    /// ```
    pub fn builder<S>(store: impl IntoStore<S>) -> Builder<S> {
        Builder::new(store)
    }
}

/// Options that all locks of one [`DistributedLock`] share.
#[must_use = "nothing is built until `connect` or `build` is called"]
pub struct Builder<S> {
    inner: crate::Builder<S>,
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty)?);)*) => {
        impl<S> Builder<S> {$(
            $(#[$doc])*
            pub fn $name(self $(, $value: $type)?) -> Self {
                Self { inner: self.inner.$name($($value)?) }
            }
        )*}
    };
}

options! {
    /// Put before every key, as plain text: end it with a separator, and locks with different
    /// prefixes do not know each other.
    prefix(prefix: impl Into<String>);
    /// The lease of each lock. Default 30 s.
    ttl(ttl: Duration);
    /// How long `acquire` waits for a busy lock. Zero makes one attempt. Default 5 s.
    wait(wait: Duration);
    /// Lets `acquire` wait until a lock is free.
    wait_forever();
    /// How a busy lock is rechecked.
    retry(retry: RetryPolicy);
    /// Whether locks are renewed in the background while their handles live. Default: they are.
    auto_renew(auto_renew: bool);
    /// Ends every lock after so long, however often it is renewed. The handle has lost it then;
    /// others get it when the handle is dropped, or when the lease ends that was asked for last.
    max_hold(most: Duration);
    /// Who takes the locks, for whoever finds them held. Default: this process.
    owner(owner: Owner);
    /// What keeps locks alive besides their leases. Default: this process.
    liveness(liveness: Liveness);
    /// How long one step of the store may take before its outcome counts as unknown. Default 5 s.
    step_timeout(limit: Duration);
    /// Where leases read the time: for tests.
    clock(clock: impl Clock);
    /// Calls `sink` for everything that happens to a lock. It should be quick, and make no blocking call on a lock; if it
    /// panics, nothing is harmed.
    on_event(sink: impl Fn(&Event<'_>) + Send + Sync + 'static);
    /// Lets those events show their keys for which `show` says yes. Default: they carry a hash of the key only.
    reveal_keys(show: impl Fn(&Event<'_>) -> bool + Send + Sync + 'static);
}

impl<S> Builder<S> {
    pub(super) fn new(store: impl IntoStore<S>) -> Self {
        Self { inner: crate::DistributedLock::builder(store) }
    }
}

impl Builder<ByUrl> {
    /// Connects to the store.
    ///
    /// # Errors
    /// As [`DistributedLock::connect`], and as [`build`](Builder::build).
    pub fn connect(self) -> Result<DistributedLock, LockError> {
        background::wait(async move { Ok(DistributedLock::new(self.inner.connect().await?)) })
    }
}

impl Builder<ByUrl> {
    /// Connects to the store, and asks again for at most `limit` while it cannot be reached.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_within(self, limit: Duration) -> Result<DistributedLock, LockError> {
        background::wait(async move {
            Ok(DistributedLock::new(self.inner.connect_within(limit).await?))
        })
    }
}

impl Builder<Ready> {
    /// Checks the options.
    ///
    /// A store whose connection belongs to a runtime of yours works only while that runtime does; connect by URL
    /// to have it belong to the background thread.
    ///
    /// # Errors
    /// As [`crate::Builder::build`].
    pub fn build(self) -> Result<DistributedLock, LockError> {
        background::started(|| Ok(DistributedLock::new(self.inner.build()?)))
    }
}

impl<S: fmt::Debug> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
