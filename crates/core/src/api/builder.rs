//! From a store and options to a [`DistributedLock`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::lock::DistributedLock;
use crate::engine::event::{Event, Events};
use crate::engine::instance::Engine;
use crate::engine::options::LockOptions;
use crate::model::clock::{BootClock, Clock};
use crate::model::error::LockError;
use crate::model::key::Key;
use crate::model::owner::Owner;
use crate::model::retry::RetryPolicy;
use crate::store::{Backend, Liveness, OpenStore};

/// A [`DistributedLock`] in the making: where its store comes from, and the options that all its
/// locks share.
///
/// It ends with [`build`](Self::build) if the store is there, otherwise with
/// [`connect`](Self::connect).
#[must_use = "nothing is built until `connect` or `build` is called"]
pub struct Builder<S = Arc<dyn Backend>> {
    store: S,
    options: LockOptions,
    clock: Arc<dyn Clock>,
    events: Events,
}

impl DistributedLock {
    /// Starts with a store, which may be in an `Arc` that others have as well.
    pub fn builder(store: impl Backend) -> Builder {
        Builder::shared(Arc::new(store))
    }
}

impl<S> Builder<S> {
    /// Starts with a store, or with where to find one.
    pub fn new(store: S) -> Self {
        Self {
            store,
            options: LockOptions::default(),
            clock: Arc::new(BootClock),
            events: Events::default(),
        }
    }

    /// All plain options at once.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }

    /// Put before every key, as plain text: **end it with a separator**, as in `billing:`. Locks
    /// with different prefixes do not know each other then. Without it `a` before `bc` and `ab`
    /// before `c` are the same lock, and a key whose first character would become one with the end
    /// of the prefix (an accent, for one) is [`InvalidKey`](crate::ErrorKind::InvalidKey). The two
    /// together may have [`Key::MAX_BYTES`].
    ///
    /// A store may put a prefix of its own before this one (`holdtight:` on Redis). To share locks
    /// with other programs, set that one, in the store's URL: `redis://localhost?prefix=lock:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// The lease of each lock. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.acquire.ttl = ttl;
        self
    }

    /// How long `acquire` waits for a busy lock. Zero makes one attempt. Default 5 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.acquire.wait = Some(wait);
        self
    }

    /// Lets `acquire` wait until a lock is free.
    pub fn wait_forever(mut self) -> Self {
        self.options.acquire.wait = None;
        self
    }

    /// How a busy lock is rechecked.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.acquire.retry = retry;
        self
    }

    /// Whether locks are renewed in the background while their handles live. Default: they are.
    pub fn auto_renew(mut self, auto_renew: bool) -> Self {
        self.options.acquire.auto_renew = auto_renew;
        self
    }

    /// Ends every lock after so long, however often it is renewed. The handle has lost it then;
    /// others get it when the handle is dropped, or when the lease ends that was asked for last.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.options.acquire.max_hold = Some(most);
        self
    }

    /// Who takes the locks, for whoever finds them held. Default: this process.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.options.acquire.owner = Arc::new(owner);
        self
    }

    /// What keeps locks alive besides their leases. Default: this process.
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.options.acquire.liveness = liveness;
        self
    }

    /// How long one step of the store may take before its outcome counts as unknown. Default 5 s.
    pub fn step_timeout(mut self, limit: Duration) -> Self {
        self.options.step_timeout = limit;
        self
    }

    /// Where leases read the time: for tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Calls `sink` for everything that happens to a lock. It should be quick: what a caller does
    /// waits for it, renewals and background releases do not. If it panics, nothing is harmed.
    /// Events carry a hash of the key; see [`reveal_keys`](Self::reveal_keys).
    pub fn on_event(mut self, sink: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.events.watch(sink);
        self
    }

    /// Lets those events show their keys for which `show` says yes. Default: they carry a hash of
    /// the key only.
    ///
    /// It is asked once for each event; if it panics, that event shows a hash.
    pub fn reveal_keys(
        mut self,
        show: impl Fn(&Event<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.events.reveal(show);
        self
    }
}

impl<S: OpenStore> Builder<S> {
    /// Opens the store, and checks the options.
    ///
    /// # Errors
    /// What the store reports, and as [`build`](Builder::build).
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    pub async fn connect(self) -> Result<DistributedLock, LockError> {
        let store = self.store.open().await?;
        self.with_store(store).build()
    }

    /// The same, and asks again for at most `limit` while the store cannot be reached: for programs
    /// that may start while their server restarts. What will not pass by itself, such as a wrong
    /// password, is told at once.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    pub async fn connect_within(self, limit: Duration) -> Result<DistributedLock, LockError> {
        let store = self.store.open_within(limit).await?;
        self.with_store(store).build()
    }

    fn with_store(self, store: Arc<dyn Backend>) -> Builder {
        Builder { store, options: self.options, clock: self.clock, events: self.events }
    }
}

impl Builder {
    /// Starts with a store that others use as well.
    pub fn shared(store: Arc<dyn Backend>) -> Self {
        Self::new(store)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit that the store does not
    /// allow; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a prefix that could not stand in a
    /// key.
    pub fn build(mut self) -> Result<DistributedLock, LockError> {
        let store = self.store.capabilities();
        self.options.acquire.check(&store)?;
        if self.options.step_timeout.is_zero() {
            return Err(LockError::invalid_config("a step timeout of zero would fail every step"));
        }
        if !self.options.prefix.is_empty() {
            self.options.prefix = Key::with_form(&self.options.prefix, store.key_form)?.into();
        }
        let engine = Engine::new(self.store, self.clock, self.events, self.options);
        Ok(DistributedLock::new(engine))
    }
}

impl<S: fmt::Debug> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("store", &self.store)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
