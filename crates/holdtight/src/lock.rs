//! [`DistributedLock`] with URLs: the engine's lock, and the two ways to get one.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Backend, Clock, Event, Liveness, LockError, Owner, RetryPolicy};

use crate::stores::{open, open_within};
use crate::url::StoreUrl;

/// Locks in one store. Cheap to clone; all clones share one queue, one keeper and one connection.
///
/// Everything that can be done with locks is a method of
/// [`holdtight_core::DistributedLock`], to which this dereferences.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
/// use std::time::Duration;
/// use holdtight::DistributedLock;
///
/// let lock = DistributedLock::connect("memory:").await?;
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
#[derive(Clone, Debug)]
pub struct DistributedLock {
    inner: holdtight_core::DistributedLock,
}

impl DistributedLock {
    /// Connects to the store that `url` names, with default options.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that names no store, with the ones that exist; what
    /// the store reports otherwise. Secrets of the URL are never shown.
    pub async fn connect(url: impl Into<String>) -> Result<Self, LockError> {
        Self::builder(url.into()).connect().await
    }

    /// Starts with a URL, to be ended with [`connect`](Builder::connect), or with a store, to be ended with
    /// [`build`](Builder::build).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use holdtight::{DistributedLock, MemoryStore};
    ///
    /// let by_url = DistributedLock::builder("memory:").ttl(Duration::from_secs(10)).connect().await?;
    /// let by_store = DistributedLock::builder(MemoryStore::new()).prefix("billing:").build()?;
    ///
    /// // A store that is used elsewhere, too:
    /// let store = Arc::new(MemoryStore::new());
    /// let shared = DistributedLock::builder(Arc::clone(&store)).build()?;
    /// # let _ = (by_url, by_store, shared);
    /// # Ok(()) }
    /// ```
    pub fn builder<S>(store: impl IntoStore<S>) -> Builder<S> {
        Builder { store: store.into_store(), options: Vec::new() }
    }
}

impl Deref for DistributedLock {
    type Target = holdtight_core::DistributedLock;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl From<holdtight_core::DistributedLock> for DistributedLock {
    fn from(inner: holdtight_core::DistributedLock) -> Self {
        Self { inner }
    }
}

/// A store that is named by a URL and still has to be connected to.
pub struct ByUrl(String);

/// A store that is there.
#[derive(Debug)]
pub struct Ready(Arc<dyn Backend>);

/// What [`DistributedLock::builder`] starts with: a URL or a store, which may be in an `Arc` that others have as well.
///
/// The parameter tells the two kinds apart, so that a URL is connected to and a store is not.
pub trait IntoStore<S> {
    /// The store, or where to find it.
    fn into_store(self) -> S;
}

impl IntoStore<ByUrl> for &str {
    fn into_store(self) -> ByUrl {
        ByUrl(self.to_owned())
    }
}

impl IntoStore<ByUrl> for String {
    fn into_store(self) -> ByUrl {
        ByUrl(self)
    }
}

impl IntoStore<ByUrl> for &String {
    fn into_store(self) -> ByUrl {
        ByUrl(self.clone())
    }
}

impl IntoStore<ByUrl> for StoreUrl {
    fn into_store(self) -> ByUrl {
        ByUrl(self.expose().to_owned())
    }
}

impl<B: Backend> IntoStore<Ready> for B {
    fn into_store(self) -> Ready {
        Ready(Arc::new(self))
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

type Setting = Box<dyn FnOnce(holdtight_core::Builder) -> holdtight_core::Builder + Send>;

/// Options that all locks of one [`DistributedLock`] share.
#[must_use = "nothing is built until `connect` or `build` is called"]
pub struct Builder<S> {
    store: S,
    /// What was asked for, to be applied when the store is there.
    options: Vec<Setting>,
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty)?);)*) => {
        impl<S> Builder<S> {$(
            $(#[$doc])*
            pub fn $name(mut self $(, $value: $type)?) -> Self {
                self.options.push(Box::new(move |builder| builder.$name($($value)?)));
                self
            }
        )*}
    };
}

options! {
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
}

impl<S> Builder<S> {
    /// Put before every key, as plain text: **end it with a separator**, as in `billing:`. Locks
    /// with different prefixes do not know each other then. Without it `a` before `bc` and `ab`
    /// before `c` are the same lock, and a key whose first character would become one with the end
    /// of the prefix (an accent, for one) is [`InvalidKey`](crate::ErrorKind::InvalidKey). The two
    /// together may have [`Key::MAX_BYTES`](crate::Key::MAX_BYTES).
    ///
    /// A store may put a prefix of its own before this one (`holdtight:` on Redis). To share locks with other
    /// programs, set that one, in the store's URL: `redis://localhost?prefix=lock:`.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.with(|builder| builder.prefix(prefix))
    }

    /// Where leases read the time: for tests.
    pub fn clock(self, clock: impl Clock) -> Self {
        self.with(|builder| builder.clock(clock))
    }

    /// Calls `sink` for everything that happens to a lock. It should be quick; if it panics, nothing is harmed.
    /// Events carry a hash of the key; see [`reveal_keys`](Self::reveal_keys).
    pub fn on_event(self, sink: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.with(|builder| builder.on_event(sink))
    }

    /// Lets those events show their keys for which `show` says yes. Default: they carry a hash of the key only.
    ///
    /// It is asked once for each event; if it panics, that event shows a hash.
    pub fn reveal_keys(self, show: impl Fn(&Event<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with(|builder| builder.reveal_keys(show))
    }

    fn with(
        mut self,
        setting: impl FnOnce(holdtight_core::Builder) -> holdtight_core::Builder + Send + 'static,
    ) -> Self {
        self.options.push(Box::new(setting));
        self
    }
}

fn build(store: Arc<dyn Backend>, options: Vec<Setting>) -> Result<DistributedLock, LockError> {
    let start = holdtight_core::Builder::shared(store);
    let builder = options.into_iter().fold(start, |builder, set| set(builder));
    Ok(DistributedLock { inner: builder.build()? })
}

impl Builder<ByUrl> {
    /// Connects to the store.
    ///
    /// # Errors
    /// As [`DistributedLock::connect`], and as [`build`](Builder::build).
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    pub async fn connect(self) -> Result<DistributedLock, LockError> {
        let store = open(&StoreUrl::new(self.store.0)?).await?;
        build(store, self.options)
    }

    /// Connects to the store, and asks again for at most `limit` while it cannot be reached: for programs that may start
    /// while their server restarts. What will not pass by itself, such as a wrong password, is told at once.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight::LockError> {
    /// # use std::time::Duration;
    /// use holdtight::DistributedLock;
    ///
    /// let lock = DistributedLock::builder("memory:").connect_within(Duration::from_secs(5)).await?;
    /// # lock.shutdown().await
    /// # }
    /// ```
    pub async fn connect_within(self, limit: Duration) -> Result<DistributedLock, LockError> {
        let store = open_within(&StoreUrl::new(self.store.0)?, limit).await?;
        build(store, self.options)
    }
}

impl Builder<Ready> {
    /// Starts with a store that others use as well.
    pub fn shared(store: Arc<dyn Backend>) -> Self {
        Self { store: Ready(store), options: Vec::new() }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit that the store does not allow;
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) for a prefix that could not stand in a key.
    pub fn build(self) -> Result<DistributedLock, LockError> {
        build(self.store.0, self.options)
    }
}

impl<S: fmt::Debug> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("store", &self.store).finish_non_exhaustive()
    }
}
