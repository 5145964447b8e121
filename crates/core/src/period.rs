//! At most once per period: a lock that stays for the rest of the period after its work was done.
//!
//! All safety is the lock's; this file only counts what is left of the period.

use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::LockError;
use crate::handle::{Held, LockHandle};
use crate::lease;
use crate::lock::DistributedLock;

/// The turn of this period: see [`DistributedLock::turn`](crate::DistributedLock::turn).
///
/// Dropping it gives the turn back: the work was not done, and somebody else may do it.
#[must_use = "a turn that is dropped is given back at once"]
#[derive(Debug)]
pub struct Turn {
    handle: LockHandle,
    period: Duration,
    started: Moment,
    lock: DistributedLock,
}

/// Refuses a period that no lease could last.
pub(crate) fn check(engine: &Engine, period: Duration) -> Result<(), LockError> {
    lease::check_ttl(period, engine.store.min_ttl, engine.store.max_ttl).map_err(|_| {
        LockError::invalid_config(format!(
            "a period of {period:?} is outside of what this store allows: {:?} to {:?}",
            engine.store.min_ttl.max(lease::MIN_TTL),
            engine.store.max_ttl.min(lease::MAX_TTL)
        ))
    })
}

impl Turn {
    pub(crate) fn new(lock: DistributedLock, handle: LockHandle, period: Duration) -> Self {
        let started = lock.engine().clock.now();
        Self { handle, period, started, lock }
    }

    /// A view of the lock, to hand to the work.
    pub fn held(&self) -> Held {
        self.handle.held()
    }

    /// The work was done: nobody gets another turn before the period is over, counted from when this one began.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before: somebody else may have done the work as well. Other
    /// kinds if the store did not answer: the period may be cut short.
    ///
    /// # Cancel safety
    /// If the future is dropped, the period may be cut short.
    pub async fn done(self) -> Result<(), LockError> {
        let engine = self.lock.engine();
        let left = self.period.saturating_sub(engine.clock.now().since(self.started));
        let kept = if left.is_zero() {
            self.handle.release().await
        } else {
            self.handle.keep_for(left).await
        };
        if let Err(error) = &kept {
            tracing::warn!(%error, "the work was done, but its period may be cut short");
        }
        kept
    }
}
