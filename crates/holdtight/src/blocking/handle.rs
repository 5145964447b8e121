//! A held lock in the hands of blocking code.

use std::fmt;
use std::time::Duration;

use holdtight_core::{Fence, Key, LockError, LockInfo, LockToken, Loss};

use super::background;

/// A lock that is held until it is released, dropped, detached or lost.
///
/// It is renewed by a background thread and knows by itself when it can no longer be trusted:
/// [`is_held`](Self::is_held) reads a local clock.
///
/// Dropping it gives the lock back: at once in the memory and file stores, in the background
/// elsewhere. **A program that ends right after dropping a handle** calls
/// [`shutdown`](super::DistributedLock::shutdown) first, or the lock stays until its lease is over.
/// [`release`](Self::release) tells whether it was still ours.
///
/// ```
/// # fn main() -> Result<(), holdtight::LockError> {
/// # let lock = holdtight::blocking::connect("memory:")?;
/// let handle = lock.acquire("invoice:7").get()?;
/// println!("pass {} to whatever the lock protects", handle.fence());
/// handle.release()
/// # }
/// ```
#[must_use = "a handle that is dropped gives its lock back at once"]
pub struct LockHandle {
    held: Held,
    token: LockToken,
    /// Taken by the calls that consume the handle.
    inner: Option<holdtight_core::LockHandle>,
}

/// A view of a held lock: what work done under it may know. Cheap to clone; does not keep the lock.
#[derive(Clone)]
pub struct Held(pub(super) holdtight_core::Held);

impl LockHandle {
    pub(super) fn new(inner: holdtight_core::LockHandle) -> Self {
        Self { held: Held(inner.held()), token: inner.token(), inner: Some(inner) }
    }

    fn consume(mut self) -> Result<holdtight_core::LockHandle, LockError> {
        self.inner.take().ok_or_else(|| LockError::internal("the handle was used before"))
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more: somebody else may have worked
    /// at the same time. Other kinds if the store did not answer for five seconds; the release goes
    /// on in the background.
    pub fn release(self) -> Result<(), LockError> {
        let inner = self.consume()?;
        background::wait(async move { inner.release().await })
    }

    /// Lets the lock live on by its lease alone and gives the right to it as plain data, to be
    /// [resumed](super::DistributedLock::resume) by another process, or by this one later.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more; other kinds if the store did
    /// not answer. The lock is then given back in the background.
    pub fn detach(self) -> Result<LockToken, LockError> {
        let inner = self.consume()?;
        background::wait(async move { inner.detach().await })
    }

    /// Leaves the lock held for `duration` from now, and forgets it: a cooldown, as long as the
    /// async [`keep_for`](crate::LockHandle::keep_for) says.
    ///
    /// # Errors
    /// As [`detach`](Self::detach), and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) outside
    /// the store's limits.
    pub fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        let inner = self.consume()?;
        background::wait(async move { inner.keep_for(duration).await })
    }

    /// A view of this lock, to hand to the work that is done under it.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// The right to this lock as plain data, without letting go of it.
    pub fn token(&self) -> LockToken {
        self.token.clone()
    }

    /// Moves the end of the lease to at least `ttl` from now, by the store's time. Never shortens
    /// it. Returns how long the lock is held from now on at least, as
    /// [`remaining`](Self::remaining) does.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it is not ours any more; it cannot be revived. Other
    /// kinds if the store did not answer: the lock is then held until the deadline it had before.
    pub fn extend(&self, ttl: Duration) -> Result<Duration, LockError> {
        self.held.extend(ttl)
    }

    /// Adds `extra` to what is left of the lease, computed in the store; at most 24 h from now in
    /// all. Returns how long the lock is held from now on at least.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn extend_by(&self, extra: Duration) -> Result<Duration, LockError> {
        self.held.extend_by(extra)
    }

    /// Whether the lock is held, by the local deadline. No I/O.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// How long it is held at least, if nothing is renewed. Zero once it is not.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// The lease that was asked for, and that each renewal asks for again.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// Whether the lock is renewed in the background.
    pub fn is_auto_renewed(&self) -> bool {
        self.held.is_auto_renewed()
    }

    /// Waits until the lock is lost, at most `limit`: `None` if it was not.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) on the background thread itself.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>, LockError> {
        self.held.lost_within(limit)
    }

    /// The number that whatever the lock protects should check.
    pub fn fence(&self) -> Fence {
        self.held.fence()
    }

    /// The key, as it was asked for.
    pub fn key(&self) -> Key {
        self.held.key()
    }

    /// What is known about this lock.
    pub fn info(&self) -> LockInfo {
        self.held.info()
    }
}

impl Held {
    /// As [`LockHandle::fence`].
    pub fn fence(&self) -> Fence {
        self.0.fence()
    }

    /// As [`LockHandle::key`].
    pub fn key(&self) -> Key {
        self.0.key()
    }

    /// As [`LockHandle::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// As [`LockHandle::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// As [`LockHandle::ttl`].
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// As [`LockHandle::is_auto_renewed`].
    pub fn is_auto_renewed(&self) -> bool {
        self.0.is_auto_renewed()
    }

    /// An error if the lock is not held any more: one clock read, to put before every side effect.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or [`NotHeld`](crate::ErrorKind::NotHeld) after it was
    /// given back.
    pub fn check(&self) -> Result<(), LockError> {
        self.0.check()
    }

    /// As [`LockHandle::info`].
    pub fn info(&self) -> LockInfo {
        self.0.info()
    }

    /// As [`LockHandle::extend`].
    ///
    /// # Errors
    /// As [`LockHandle::extend`].
    pub fn extend(&self, ttl: Duration) -> Result<Duration, LockError> {
        let held = self.0.clone();
        background::wait(async move { held.extend(ttl).await })
    }

    /// As [`LockHandle::extend_by`].
    ///
    /// # Errors
    /// As [`LockHandle::extend`].
    pub fn extend_by(&self, extra: Duration) -> Result<Duration, LockError> {
        let held = self.0.clone();
        background::wait(async move { held.extend_by(extra).await })
    }

    /// As [`LockHandle::lost_within`].
    ///
    /// # Errors
    /// As [`LockHandle::lost_within`].
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>, LockError> {
        let held = self.0.clone();
        background::wait(async move { Ok(tokio::time::timeout(limit, held.lost()).await.ok()) })
    }
}

impl Drop for LockHandle {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            // Not on the caller's runtime, which may be shut down before the release is through.
            background::inside(|| drop(inner));
        }
    }
}

impl fmt::Debug for LockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockHandle").field(&self.held).finish()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
