//! [`DistributedLock`] for blocking code: every call of the async one that a thread can wait for.

use std::time::Duration;

use holdtight_core::{Fence, Guarantees, Lease, LockError, LockInfo, LockToken};

use super::acquire::{Acquire, AcquireAll, TryAcquire, done};
use super::background;
use super::election::Election;
use super::handle::{Held, LockHandle};

/// Locks in one store, for code without async. Cheap to clone; all clones share one queue, one
/// keeper and one connection.
///
/// See the [module](super) for an example and for how it differs from the async API.
#[derive(Clone, Debug)]
pub struct DistributedLock {
    inner: crate::DistributedLock,
}

/// The same locks for blocking code.
impl From<crate::DistributedLock> for DistributedLock {
    fn from(inner: crate::DistributedLock) -> Self {
        Self { inner }
    }
}

impl DistributedLock {
    /// Takes the lock, waiting for it as the policy says. Add options, then [`get`](Acquire::get)
    /// it, or [`run`](Acquire::run) work.
    ///
    /// # Errors
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder if it stayed busy;
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) before any I/O; what the store reports
    /// otherwise.
    pub fn acquire(&self, key: impl AsRef<str>) -> Acquire {
        Acquire(self.inner.acquire(key))
    }

    /// Asks for the lock once: add options, then [`get`](TryAcquire::get) gives `Ok(None)` if it is
    /// busy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Timeout`.
    pub fn try_acquire(&self, key: impl AsRef<str>) -> TryAcquire {
        TryAcquire(self.inner.try_acquire(key))
    }

    /// Takes several locks, all or none, without deadlock whatever others ask for and in whatever
    /// order. Add options, then [`get`](AcquireAll::get) them, or [`run`](AcquireAll::run) work.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); a `Timeout` names the lock that was busy last.
    ///
    /// ```
    /// # fn main() -> Result<(), holdtight::LockError> {
    /// # let lock = holdtight::blocking::connect("memory:")?;
    /// let moved = lock.acquire_all(["account:7", "account:3"]).run(|both| {
    ///     both.check()?; // before every side effect
    ///     Ok::<_, holdtight::LockError>(both.fences())
    /// })??;
    /// # assert_eq!(moved.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn acquire_all<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> AcquireAll {
        AcquireAll(self.inner.acquire_all(keys))
    }

    /// Takes the lock, waiting at most `wait`: the same as `acquire(key).wait(wait).get()`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn wait_for_lock(
        &self,
        key: impl AsRef<str>,
        wait: Duration,
    ) -> Result<LockHandle, LockError> {
        self.acquire(key).wait(wait).get()
    }

    /// Runs `work` under the lock, on this thread: the same as `acquire(key).run(work)`.
    ///
    /// # Errors
    /// As [`Acquire::run`].
    ///
    /// ```
    /// # fn main() -> Result<(), holdtight::LockError> {
    /// # let lock = holdtight::blocking::connect("memory:")?;
    /// let written = lock.with_lock("report", |held| {
    ///     let rows = ["a", "b"];
    ///     for row in rows {
    ///         held.check()?; // before every side effect: nobody can stop this thread for us
    ///         println!("{row} under fence {}", held.fence());
    ///     }
    ///     Ok::<_, holdtight::LockError>(rows.len())
    /// })??;
    /// # assert_eq!(written, 2);
    /// # Ok(()) }
    /// ```
    pub fn with_lock<T>(
        &self,
        key: impl AsRef<str>,
        work: impl FnOnce(&Held) -> T,
    ) -> Result<T, LockError> {
        self.acquire(key).run(work)
    }

    /// Runs `work` on this thread unless it was run within the last `period`, here or anywhere
    /// else: `Ok(None)` if it was.
    ///
    /// The period counts from the start of the work, by the store's clock. Work that takes longer
    /// than the period keeps the lock until it is done. Work that panics does not count: the lock
    /// is given back.
    ///
    /// # Errors
    /// As [`Acquire::run`], without `Timeout`; [`InvalidConfig`](crate::ErrorKind::InvalidConfig)
    /// for a period outside the store's limits.
    ///
    /// ```
    /// # fn main() -> Result<(), holdtight::LockError> {
    /// # use std::time::Duration;
    /// # let lock = holdtight::blocking::connect("memory:")?;
    /// let hour = Duration::from_secs(3600);
    /// assert_eq!(lock.once_per("report", hour, |_| "sent")?, Some("sent"));
    /// assert_eq!(lock.once_per("report", hour, |_| "sent")?, None);
    /// # Ok(()) }
    /// ```
    pub fn once_per<T>(
        &self,
        key: impl AsRef<str>,
        period: Duration,
        work: impl FnOnce(&Held) -> T,
    ) -> Result<Option<T>, LockError> {
        let (lock, key) = (self.inner.clone(), key.as_ref().to_owned());
        let turn = background::wait(async move { lock.turn(key, period).await })?;
        let Some(turn) = turn.map(Turn::new) else { return Ok(None) };
        let out = work(&turn.held);
        turn.held.check()?;
        // The work was done in time. If its period is cut short, the log says so.
        done(turn.done())?;
        Ok(Some(out))
    }

    /// An election for the post `post`: one leader at a time.
    ///
    /// ```
    /// # fn main() -> Result<(), holdtight::LockError> {
    /// # let lock = holdtight::blocking::connect("memory:")?;
    /// let election = lock.election("scheduler").reason("node 7");
    /// let done = election.lead(|held| {
    ///     for job in ["a", "b"] {
    ///         held.check()?; // a leader that goes on after losing is two leaders
    ///         println!("{job} under fence {}", held.fence());
    ///     }
    ///     Ok::<_, holdtight::LockError>(())
    /// })?;
    /// # done
    /// # }
    /// ```
    pub fn election(&self, post: impl AsRef<str>) -> Election {
        Election(self.inner.election(post))
    }

    /// Whether anybody holds the lock now. By the time it is read the answer may be old: to *get*
    /// the lock, try.
    ///
    /// # Errors
    /// What the store reports.
    pub fn is_locked(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let (lock, key) = (self.inner.clone(), key.as_ref().to_owned());
        background::wait(async move { lock.is_locked(key).await })
    }

    /// Who holds the lock now.
    ///
    /// # Errors
    /// What the store reports.
    pub fn lookup(&self, key: impl AsRef<str>) -> Result<Option<LockInfo>, LockError> {
        let (lock, key) = (self.inner.clone(), key.as_ref().to_owned());
        background::wait(async move { lock.lookup(key).await })
    }

    /// The locks that are held now and begin with `prefix`, sorted by key, at most 10 000.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot list; what it reports
    /// otherwise.
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>, LockError> {
        let (lock, prefix) = (self.inner.clone(), prefix.as_ref().to_owned());
        background::wait(async move { lock.list(prefix).await })
    }

    /// Whether the lock of `token` is still held under it.
    ///
    /// # Errors
    /// What the store reports.
    pub fn owns(&self, token: &LockToken) -> Result<bool, LockError> {
        let (lock, token) = (self.inner.clone(), token.clone());
        background::wait(async move { lock.owns(&token).await })
    }

    /// Takes up a lock that was [detached](LockHandle::detach), here or in another process, and
    /// keeps it for the default TTL and longer, as if it had been acquired here.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if its lease is over; what the store reports
    /// otherwise.
    pub fn resume(&self, token: LockToken) -> Result<LockHandle, LockError> {
        let lock = self.inner.clone();
        background::wait(async move { lock.resume(token).await }).map(LockHandle::new)
    }

    /// As [`resume`](Self::resume), with a TTL of its own.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a
    /// TTL outside the limits.
    pub fn resume_for(&self, token: LockToken, ttl: Duration) -> Result<LockHandle, LockError> {
        let lock = self.inner.clone();
        background::wait(async move { lock.resume_for(token, ttl).await }).map(LockHandle::new)
    }

    /// Extends a detached lock without taking it up: at least `ttl` from now.
    ///
    /// # Errors
    /// As [`resume_for`](Self::resume_for).
    pub fn extend_token(&self, token: &LockToken, ttl: Duration) -> Result<Lease, LockError> {
        let (lock, token) = (self.inner.clone(), token.clone());
        background::wait(async move { lock.extend_token(&token, ttl).await })
    }

    /// Gives back a detached lock.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it was not held under this token any more; what
    /// the store reports otherwise.
    pub fn release_token(&self, token: &LockToken) -> Result<(), LockError> {
        let (lock, token) = (self.inner.clone(), token.clone());
        background::wait(async move { lock.release_token(&token).await })
    }

    /// Frees a lock, whoever holds it, if its fence is still `fence`, as [`lookup`](Self::lookup)
    /// showed it.
    ///
    /// Its holder learns of it at the next renewal and may be at work until then: the fence is what
    /// protects.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it is not held with that fence; what the store
    /// reports otherwise.
    pub fn force_release(&self, key: impl AsRef<str>, fence: Fence) -> Result<(), LockError> {
        let (lock, key) = (self.inner.clone(), key.as_ref().to_owned());
        background::wait(async move { lock.force_release(key, fence).await })
    }

    /// What this store promises, as it is set up now.
    ///
    /// # Errors
    /// What the store reports.
    pub fn probe(&self) -> Result<Guarantees, LockError> {
        let lock = self.inner.clone();
        background::wait(async move { lock.probe().await })
    }

    /// Refuses new locks, and waits for the releases that are still under way: at most five
    /// seconds.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if some releases could not be confirmed;
    /// their leases end by themselves.
    pub fn shutdown(&self) -> Result<(), LockError> {
        let lock = self.inner.clone();
        background::wait(async move { lock.shutdown().await })
    }
}

/// A turn whose end is driven by the background thread, also if the work panics.
struct Turn {
    held: Held,
    inner: Option<holdtight_core::Turn>,
}

impl Turn {
    fn new(inner: holdtight_core::Turn) -> Self {
        Self { held: Held(inner.held()), inner: Some(inner) }
    }

    fn done(mut self) -> Result<(), LockError> {
        self.inner.take().map_or(Ok(()), |turn| background::wait(turn.done()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            background::inside(|| drop(inner));
        }
    }
}
