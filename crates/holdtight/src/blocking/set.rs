//! Several locks at once in the hands of blocking code.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use holdtight_core::{ErrorKind, Fence, Key, LockError, Loss};

use super::acquire::{AcquireAll, done};
use super::background;
use super::handle::{Held, LockHandle};

/// Several held locks, sorted by key. Dropping it gives all of them back.
///
/// If one is lost, none can be trusted: [`is_held`](Self::is_held), [`check`](Self::check) and
/// [`lost_within`](Self::lost_within) speak for all.
#[derive(Debug)]
#[must_use = "a set that is dropped gives its locks back at once"]
pub struct LockSet {
    handles: Vec<LockHandle>,
}

impl AcquireAll {
    /// Takes all locks, or none.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_all`](super::DistributedLock::acquire_all).
    pub fn get(self) -> Result<LockSet, LockError> {
        let set = background::wait(self.0)?;
        let handles = set.into_handles().into_iter().map(LockHandle::new).collect();
        Ok(LockSet { handles })
    }

    /// Takes all locks, runs `work` on this thread, and gives them back, also if the work panics.
    ///
    /// # Errors
    /// Those of acquiring; [`Lost`](crate::ErrorKind::Lost) if any of them was lost before the work
    /// ended, or the store says so of the release: somebody else may have worked at the same time.
    pub fn run<T>(self, work: impl FnOnce(&LockSet) -> T) -> Result<T, LockError> {
        let set = self.get()?;
        let out = work(&set);
        set.check()?;
        done(set.release())?;
        Ok(out)
    }
}

impl LockSet {
    /// The handles, sorted by key.
    pub fn handles(&self) -> &[LockHandle] {
        &self.handles
    }

    /// Takes the set apart.
    pub fn into_handles(self) -> Vec<LockHandle> {
        self.handles
    }

    /// Views of all locks, sorted by key.
    pub fn held(&self) -> Vec<Held> {
        self.handles.iter().map(|handle| handle.held().clone()).collect()
    }

    /// Each key with its fence, sorted by key.
    pub fn fences(&self) -> Vec<(Key, Fence)> {
        self.handles.iter().map(|handle| (handle.key(), handle.fence())).collect()
    }

    /// Whether all of them are held. No I/O.
    pub fn is_held(&self) -> bool {
        self.handles.iter().all(LockHandle::is_held)
    }

    /// How long all of them are held at least.
    pub fn remaining(&self) -> Duration {
        self.handles.iter().map(LockHandle::remaining).min().unwrap_or_default()
    }

    /// An error if any of them is not held any more: to put before every side effect.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), naming the key.
    pub fn check(&self) -> Result<(), LockError> {
        self.handles.iter().try_for_each(|handle| handle.held().check())
    }

    /// Waits until the first of them is lost, at most `limit`: `None` if none was.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) on the background thread itself.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<(Key, Loss)>, LockError> {
        let held = self.held();
        background::wait(async move {
            let mut all: Vec<_> = held.iter().map(|held| Box::pin(held.0.lost())).collect();
            let first = poll_fn(|cx| {
                for (n, one) in all.iter_mut().enumerate() {
                    if let Poll::Ready(loss) = one.as_mut().poll(cx) {
                        return Poll::Ready((held[n].key(), loss));
                    }
                }
                Poll::Pending
            });
            Ok(tokio::time::timeout(limit, first).await.ok())
        })
    }

    /// Gives all of them back.
    ///
    /// # Errors
    /// The first error of any; all are tried.
    pub fn release(self) -> Result<(), LockError> {
        let mut outcome: Result<(), LockError> = Ok(());
        for handle in self.handles {
            let released = handle.release();
            // A loss says more than a store that does not answer.
            let lost = |done: &Result<(), LockError>| {
                done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost)
            };
            if outcome.is_ok() || (lost(&released) && !lost(&outcome)) {
                outcome = released;
            }
        }
        outcome
    }

    /// Leaves all of them held for at least `duration` from now, and forgets them.
    ///
    /// # Errors
    /// As [`LockHandle::keep_for`]; those that could not be kept are given back.
    pub fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        let mut outcome = Ok(());
        for handle in self.handles {
            outcome = outcome.and(handle.keep_for(duration));
        }
        outcome
    }
}
