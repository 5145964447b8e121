//! How a test gets a store: the one thing that differs between the stores the suite runs on.

use std::future::Future;
use std::sync::Arc;

use holdtight_core::{Backend, ManualClock};

use crate::proxy::Proxy;

/// A store to test, fresh and empty, with whatever server it needs.
///
/// Only [`NAME`](Self::NAME), [`start`](Self::start) and [`open`](Self::open) are needed; each
/// further method lets the suite try more. Dropping the value ends what it started.
///
/// ```
/// use std::sync::Arc;
/// use holdtight_core::{Backend, BootClock, ManualClock, MemoryStore};
/// use holdtight_testkit::Fixture;
///
/// struct Memory {
///     store: Arc<MemoryStore>,
///     clock: ManualClock,
/// }
///
/// impl Fixture for Memory {
///     const NAME: &'static str = "memory";
///
///     async fn start() -> Self {
///         let clock = ManualClock::over(BootClock);
///         Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock }
///     }
///
///     async fn open(&self) -> Arc<dyn Backend> {
///         Arc::clone(&self.store) as Arc<dyn Backend>
///     }
///
///     fn clock(&self) -> Option<ManualClock> {
///         Some(self.clock.clone())
///     }
/// }
/// ```
pub trait Fixture: Send + Sync + Sized + 'static {
    /// What the store is called in the names of trials: `redis-cluster`. Different for each fixture
    /// of a test file.
    const NAME: &'static str;

    /// A store with no lock in it that no other trial sees: its own server, or a fresh namespace of
    /// a shared one.
    ///
    /// May panic; the message should say what to do about it.
    fn start() -> impl Future<Output = Self> + Send;

    /// One more client of this store, as independent of the others as another process would be.
    fn open(&self) -> impl Future<Output = Arc<dyn Backend>> + Send;

    /// What this machine lacks to run the store, and how to get it: `None` if nothing.
    ///
    /// Trials are then ignored, unless `CI=true`, where they fail.
    fn missing() -> Option<String> {
        None
    }

    /// Where another process finds this store, for [`join`](Self::join). `None` if no other process
    /// can.
    fn address(&self) -> Option<String> {
        None
    }

    /// A client of the store at `address`, in another process than the one that called
    /// [`start`](Self::start).
    fn join(address: String) -> impl Future<Output = Arc<dyn Backend>> + Send {
        async move { panic!("{} has no way to join the store at {address}", Self::NAME) }
    }

    /// The clock by which the store ends leases, if a test can move it. Without one the suite waits
    /// in real time.
    fn clock(&self) -> Option<ManualClock> {
        None
    }

    /// The proxy through which *every* client of this fixture reaches the server, if there is one.
    ///
    /// With it the suite also tests what a store says when the network fails.
    fn proxy(&self) -> Option<Proxy> {
        None
    }
}
