//! The builders behind the blocking `acquire`, `acquire_all` and `try_acquire`: options first, then
//! `.get()` or `.run(…)`.

use std::time::Duration;

use holdtight_core::{AcquireOptions, ErrorKind, Liveness, LockError, Owner, RetryPolicy};

use super::background;
use super::handle::{Held, LockHandle};

/// A lock about to be taken: see [`DistributedLock::acquire`](super::DistributedLock::acquire).
#[derive(Debug)]
#[must_use = "nothing happens until `get` or `run` is called"]
pub struct Acquire(pub(super) holdtight_core::Acquire);

/// A lock about to be tried: see
/// [`DistributedLock::try_acquire`](super::DistributedLock::try_acquire).
#[derive(Debug)]
#[must_use = "nothing happens until `get` or `run` is called"]
pub struct TryAcquire(pub(super) holdtight_core::TryAcquire);

/// Several locks about to be taken: see
/// [`DistributedLock::acquire_all`](super::DistributedLock::acquire_all).
#[derive(Debug)]
#[must_use = "nothing happens until `get` or `run` is called"]
pub struct AcquireAll(pub(super) holdtight_core::AcquireAll);

macro_rules! options {
    ($builder:ident: $($(#[$doc:meta])* $name:ident($($value:ident: $type:ty)?);)*) => {
        impl $builder {$(
            $(#[$doc])*
            pub fn $name(self $(, $value: $type)?) -> Self {
                Self(self.0.$name($($value)?))
            }
        )*}
    };
}

macro_rules! common_options {
    ($builder:ident) => {
        options! { $builder:
            /// All options at once, as plain data.
            options(options: AcquireOptions);
            /// The lease: how long the lock lasts if nothing is heard from its holder. Default 30
            /// s.
            ttl(ttl: Duration);
            /// Whether the lock is renewed in the background while the handle lives. Default: it
            /// is.
            auto_renew(auto_renew: bool);
            /// Ends the lock after so long, however often it is renewed: for work that may hang.
            /// The handle has lost it then; others get it when the handle is dropped, or when the
            /// lease ends that was asked for last.
            max_hold(most: Duration);
            /// Why the lock is taken, for whoever finds it held.
            reason(reason: impl Into<String>);
            /// Who takes the lock, for whoever finds it held. Default: this process.
            owner(owner: Owner);
            /// What keeps the lock alive besides its lease. Default: this process.
            liveness(liveness: Liveness);
        }
    };
}

macro_rules! wait_options {
    ($builder:ident) => {
        options! { $builder:
            /// How long to wait if a lock is busy. Zero makes one attempt. Default 5 s.
            wait(wait: Duration);
            /// Waits until it can be had, however long that takes.
            wait_forever();
            /// How a busy lock is rechecked.
            retry(retry: RetryPolicy);
        }
    };
}

common_options!(Acquire);
common_options!(AcquireAll);
common_options!(TryAcquire);
wait_options!(Acquire);
wait_options!(AcquireAll);

impl Acquire {
    /// Takes the lock.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire`](super::DistributedLock::acquire).
    pub fn get(self) -> Result<LockHandle, LockError> {
        background::wait(self.0).map(LockHandle::new)
    }

    /// Takes the lock, runs `work` on this thread, and gives the lock back, also if the work
    /// panics.
    ///
    /// # Errors
    /// Those of acquiring; [`Lost`](crate::ErrorKind::Lost) if the lock was lost before the work
    /// ended, or the store says so of the release: somebody else may have worked at the same time.
    pub fn run<T>(self, work: impl FnOnce(&Held) -> T) -> Result<T, LockError> {
        under(self.get()?, work)
    }
}

/// Runs `work` under a lock and gives it back.
fn under<T>(handle: LockHandle, work: impl FnOnce(&Held) -> T) -> Result<T, LockError> {
    let out = work(handle.held());
    handle.held().check()?;
    done(handle.release())?;
    Ok(out)
}

/// What becomes of work whose lock was given back: it counts unless the lock had been lost. That it
/// could not be given back for another reason is logged where it happens.
pub(super) fn done(released: Result<(), LockError>) -> Result<(), LockError> {
    released.or_else(|error| if error.kind() == ErrorKind::Lost { Err(error) } else { Ok(()) })
}

impl TryAcquire {
    /// Asks for the lock once: `Ok(None)` if it is busy.
    ///
    /// # Errors
    /// As [`DistributedLock::try_acquire`](super::DistributedLock::try_acquire).
    pub fn get(self) -> Result<Option<LockHandle>, LockError> {
        Ok(background::wait(self.0)?.map(LockHandle::new))
    }

    /// As [`Acquire::run`], if the lock can be had at once: `Ok(None)` if it is busy, and nothing
    /// was run.
    ///
    /// # Errors
    /// As [`Acquire::run`], without `Timeout`.
    pub fn run<T>(self, work: impl FnOnce(&Held) -> T) -> Result<Option<T>, LockError> {
        self.get()?.map(|handle| under(handle, work)).transpose()
    }
}
