//! The builders behind `lock.acquire(key)` and `lock.try_acquire(key)`: options first, then
//! `.await` or `.run(…)`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::handle::LockHandle;
use crate::engine::acquire::{Outcome, acquire};
use crate::engine::held::Held;
use crate::engine::instance::Engine;
use crate::engine::options::AcquireOptions;
use crate::model::error::{ErrorKind, LockError};
use crate::model::key::Key;
use crate::model::owner::Owner;
use crate::model::retry::RetryPolicy;
use crate::store::Liveness;

/// The future of an acquire call.
pub type Acquiring<T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'static>>;

/// The options that every way of taking a lock has.
macro_rules! options {
    ($builder:ident, $what:ident) => {
        impl $builder {
            /// All options at once, as plain data.
            pub fn options(mut self, options: AcquireOptions) -> Self {
                self.options = Arc::new(options);
                self
            }

            /// The lease: how long the lock lasts if nothing is heard from its holder. Default 30
            /// s.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.set().ttl = ttl;
                self
            }

            /// Whether the lock is renewed in the background while the handle lives. Default: it
            /// is.
            pub fn auto_renew(mut self, auto_renew: bool) -> Self {
                self.set().auto_renew = auto_renew;
                self
            }

            /// Ends the lock after so long, however often it is renewed: for work that may hang.
            /// The handle has lost it then; others get it when the handle is dropped, or when the
            /// lease ends that was asked for last.
            pub fn max_hold(mut self, most: Duration) -> Self {
                self.set().max_hold = Some(most);
                self
            }

            /// Why the lock is taken, for whoever finds it held.
            pub fn reason(mut self, reason: impl Into<String>) -> Self {
                let options = self.set();
                options.owner = Arc::new(Owner::clone(&options.owner).with_reason(reason));
                self
            }

            /// Who takes the lock, for whoever finds it held. Default: this process.
            pub fn owner(mut self, owner: Owner) -> Self {
                self.set().owner = Arc::new(owner);
                self
            }

            /// What keeps the lock alive besides its lease. Default: this process.
            pub fn liveness(mut self, liveness: Liveness) -> Self {
                self.set().liveness = liveness;
                self
            }

            fn set(&mut self) -> &mut AcquireOptions {
                Arc::make_mut(&mut self.options)
            }
        }

        impl fmt::Debug for $builder {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($builder))
                    .field(stringify!($what), &self.$what)
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Makes a future of a builder, so that it can be spawned and collected as it is. Nothing is begun
/// before the first poll.
macro_rules! future {
    ($builder:ident => $output:ty) => {
        impl Future for $builder {
            type Output = Result<$output, LockError>;

            fn poll(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                let running = self.running.take().unwrap_or_else(|| self.begin());
                self.running.insert(running).as_mut().poll(cx)
            }
        }
    };
}

/// A lock about to be taken: see [`DistributedLock::acquire`](crate::DistributedLock::acquire).
#[must_use = "nothing happens until it is awaited"]
pub struct Acquire {
    engine: Arc<Engine>,
    key: Result<Key, LockError>,
    options: Arc<AcquireOptions>,
    running: Option<Acquiring<LockHandle>>,
}

/// A lock about to be tried: see
/// [`DistributedLock::try_acquire`](crate::DistributedLock::try_acquire).
#[must_use = "nothing happens until it is awaited"]
pub struct TryAcquire {
    engine: Arc<Engine>,
    key: Result<Key, LockError>,
    options: Arc<AcquireOptions>,
    running: Option<Acquiring<Option<LockHandle>>>,
}

options!(Acquire, key);
options!(TryAcquire, key);

/// The options of those that wait.
macro_rules! wait_options {
    ($builder:ident) => {
        impl $builder {
            /// How long to wait if a lock is busy. Zero makes one attempt. Default 5 s.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.set().wait = Some(wait);
                self
            }

            /// Waits until it can be had, however long that takes.
            pub fn wait_forever(mut self) -> Self {
                self.set().wait = None;
                self
            }

            /// How a busy lock is rechecked.
            pub fn retry(mut self, retry: RetryPolicy) -> Self {
                self.set().retry = retry;
                self
            }
        }
    };
}

wait_options!(Acquire);

future!(Acquire => LockHandle);
future!(TryAcquire => Option<LockHandle>);

pub(crate) use {future, options, wait_options};

impl Acquire {
    pub(crate) fn new(engine: &Arc<Engine>, key: &str) -> Self {
        Self {
            engine: Arc::clone(engine),
            key: engine.key(key),
            options: Arc::clone(&engine.defaults),
            running: None,
        }
    }

    fn begin(&mut self) -> Acquiring<LockHandle> {
        let (engine, key, options) =
            (Arc::clone(&self.engine), self.key.clone(), self.options.clone());
        Box::pin(async move {
            match acquire(engine, key?, options).await? {
                Outcome::Held(hold) => Ok(LockHandle::new(hold)),
                Outcome::Busy(error) => Err(error),
            }
        })
    }

    /// Takes the lock, runs `work` under it, and gives it back. The work is dropped if the lock is
    /// lost.
    ///
    /// The work gets a [`Held`]: fence, deadline, loss. Work that blocks its thread cannot be
    /// stopped: let what it writes to check the fence.
    ///
    /// # Errors
    /// Those of acquiring; [`Lost`](crate::ErrorKind::Lost) if the lock was lost before the work
    /// had ended, whether that stopped the work, came to light when it was done (it had blocked its
    /// thread, or the machine slept), or is what the store says of the release: somebody else may
    /// have worked at the same time, so the outcome of the work is dropped. A store that cannot be
    /// reached for the release is no error, if the work had ended before its deadline.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the work, and the lock is given back in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # use std::time::Duration;
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let shipped = lock
    ///     .acquire("deploy")
    ///     .ttl(Duration::from_secs(60))
    ///     .run(async |held| format!("release under fence {}", held.fence()))
    ///     .await?;
    /// # assert!(shipped.starts_with("release"));
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(
        self,
        work: impl FnOnce(Held) -> W,
    ) -> Result<W::Output, LockError> {
        under(self.await?, work).await
    }
}

/// Runs `work` under a lock and gives it back.
async fn under<W: Future>(
    handle: LockHandle,
    work: impl FnOnce(Held) -> W,
) -> Result<W::Output, LockError> {
    let held = handle.held();
    // Loss is looked at first: work that is woken together with the loss does not get to run once
    // more.
    let ended = tokio::select! {
        biased;
        loss = held.lost() => Err(loss),
        out = work(handle.held()) => Ok(out),
    };
    let out = ended.map_err(|loss| held.lost_error(loss))?;
    // The loss may have come while the work kept its thread, and nobody could look.
    held.check()?;
    done(handle.release().await)?;
    Ok(out)
}

/// What becomes of work whose lock was given back: it counts unless the lock had been lost.
pub(crate) fn done(released: Result<(), LockError>) -> Result<(), LockError> {
    match released {
        Err(error) if error.kind() == ErrorKind::Lost => Err(error),
        Err(error) => {
            tracing::warn!(%error, "the work was done in time, but its lock could not be given back");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

impl TryAcquire {
    pub(crate) fn new(engine: &Arc<Engine>, key: &str) -> Self {
        let options = Arc::clone(&engine.defaults);
        Self { engine: Arc::clone(engine), key: engine.key(key), options, running: None }
    }

    fn begin(&mut self) -> Acquiring<Option<LockHandle>> {
        // Whatever the options say of waiting: this is a try.
        if !self.options.tries_once() {
            Arc::make_mut(&mut self.options).wait = Some(Duration::ZERO);
        }
        let (engine, key, options) =
            (Arc::clone(&self.engine), self.key.clone(), self.options.clone());
        Box::pin(async move {
            match acquire(engine, key?, options).await? {
                Outcome::Held(hold) => Ok(Some(LockHandle::new(hold))),
                Outcome::Busy(_) => Ok(None),
            }
        })
    }

    /// As [`Acquire::run`], if the lock can be had at once: `Ok(None)` if it is busy, and nothing
    /// was run.
    ///
    /// # Errors
    /// As [`Acquire::run`], without `Timeout`.
    ///
    /// # Cancel safety
    /// As [`Acquire::run`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let Some(removed) = lock.try_acquire("clean-up").run(async |_held| 17).await? else {
    ///     return Ok(()); // somebody else is at it
    /// };
    /// # assert_eq!(removed, 17);
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(
        self,
        work: impl FnOnce(Held) -> W,
    ) -> Result<Option<W::Output>, LockError> {
        match self.await? {
            Some(handle) => Ok(Some(under(handle, work).await?)),
            None => Ok(None),
        }
    }
}
