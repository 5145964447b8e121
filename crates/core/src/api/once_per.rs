//! At most once per period: a lock that stays for the rest of the period after its work was done.
//!
//! All safety is the lock's; this file only counts what is left of the period.

use std::time::Duration;

use crate::api::acquire::done;
use crate::api::handle::LockHandle;
use crate::api::lock::DistributedLock;
use crate::engine::held::Held;
use crate::engine::instance::Engine;
use crate::model::clock::Moment;
use crate::model::error::LockError;
use crate::model::lease;

/// The lease of a turn in a shorter period: less would be lost by a hiccup.
const SHORTEST_TURN: Duration = Duration::from_secs(1);

impl DistributedLock {
    /// Runs `work` unless it was run within the last `period`, here or anywhere else: `Ok(None)` if
    /// it was.
    ///
    /// The period counts from the start of the work, and ends by the store's clock: no earlier, and
    /// later only by what a lease of the store is rounded up to. Work that takes longer than the
    /// period keeps the lock until it is done. Work that is stopped by a loss, or panics, does not
    /// count: the lock is given back.
    ///
    /// # Errors
    /// As [`Acquire::run`](crate::Acquire::run), without `Timeout`;
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a period of more than 24 hours.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the work, and the period is over.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # use std::time::Duration;
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let hour = Duration::from_secs(3600);
    /// assert_eq!(lock.once_per("report", hour, async |_| "sent").await?, Some("sent"));
    /// assert_eq!(lock.once_per("report", hour, async |_| "sent").await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn once_per<W: Future>(
        &self,
        key: impl AsRef<str>,
        period: Duration,
        work: impl FnOnce(Held) -> W,
    ) -> Result<Option<W::Output>, LockError> {
        let Some(turn) = self.turn(key, period).await? else { return Ok(None) };
        let held = turn.held();
        let out = tokio::select! {
            biased;
            loss = held.lost() => return Err(held.lost_error(loss)),
            out = work(turn.held()) => out,
        };
        held.check()?;
        // The work was done in time, whatever becomes of its period; if that is cut short, the log
        // says so.
        done(turn.done().await)?;
        Ok(Some(out))
    }

    /// As [`once_per`](Self::once_per), for work that is not one future: `Ok(None)` if this period
    /// had its turn. The turn says when the work was [done](Turn::done); nobody stops the work if
    /// its lock is lost.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a period outside the store's limits.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn turn(
        &self,
        key: impl AsRef<str>,
        period: Duration,
    ) -> Result<Option<Turn>, LockError> {
        check(self.engine(), period)?;
        // A longer lease than the period would make the period as long as the lease.
        let ttl = self.engine().defaults.ttl.min(period.max(SHORTEST_TURN));
        let ttl = ttl.max(self.engine().store.min_ttl);
        let handle = self.try_acquire(key).ttl(ttl).await?;
        Ok(handle.map(|handle| Turn::new(self.clone(), handle, period)))
    }
}

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

    /// The work was done: nobody gets another turn before the period is over, counted from when
    /// this one began.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before: somebody else may have done
    /// the work as well. Other kinds if the store did not answer: the period may be cut short.
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
