//! A held lock in the hands of its holder: [`LockHandle`] owns it, [`Held`] watches it.

use std::fmt;
use std::time::Duration;

use crate::engine::held::Held;
use crate::engine::release::Hold;
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::holder::LockInfo;
use crate::model::key::Key;
use crate::model::loss::Loss;
use crate::model::token::LockToken;

/// A lock that is held until it is released, dropped, detached or lost.
///
/// It is renewed in the background (unless `auto_renew(false)` was asked for) and knows by itself
/// when it can no longer be trusted: [`is_held`](Self::is_held) reads a local clock, and
/// [`lost`](Self::lost) aims to resolve *before* anybody else can get the lock.
///
/// Dropping it gives the lock back: at once in the memory and file stores, in the background
/// elsewhere. **A program that ends right after dropping a handle** calls
/// [`shutdown`](crate::DistributedLock::shutdown) first, or the lock stays until its lease is over.
/// [`release`](Self::release) tells whether it was still ours.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
/// let handle = lock.acquire("invoice:7").await?;
/// println!("pass {} to whatever the lock protects", handle.fence());
/// handle.release().await
/// # }
/// ```
#[must_use = "a handle that is dropped gives its lock back at once"]
pub struct LockHandle {
    hold: Hold,
}

impl LockHandle {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { hold }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more: somebody else may have worked
    /// at the same time. Other kinds if the store did not answer for five seconds; the release goes
    /// on in the background.
    ///
    /// # Cancel safety
    /// Cancel-safe: if the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<(), LockError> {
        tokio::task::coop::consume_budget().await;
        self.hold.release().await
    }

    /// Lets the lock live on by its lease alone and gives the right to it as plain data.
    ///
    /// The lease runs for at least the lock's TTL from now; it is not renewed any more. Another
    /// process, or this one later, takes it up again with
    /// [`resume`](crate::DistributedLock::resume): once, because that uses the token up.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more; other kinds if the store did
    /// not answer. The lock is then given back in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is given back in the background.
    pub async fn detach(self) -> Result<LockToken, LockError> {
        self.hold.detach().await
    }

    /// Leaves the lock held for `duration` from now, and forgets it: a cooldown.
    ///
    /// It is as long as asked for, also if that is less than what is left of the lease, but no
    /// shorter than the shortest lease of the store. In a store that cannot move a lock to another
    /// owner (a custom one without [`transfer`](crate::Backend::transfer)) it is never shorter than
    /// what is left of the lease.
    ///
    /// # Errors
    /// As [`detach`](Self::detach), and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) above
    /// the longest lease of the store: the lock is kept for that long then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is given back in the background, or kept as asked for.
    pub async fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        self.hold.keep_for(duration).await
    }

    /// A view of this lock, to hand to the work that is done under it.
    pub fn held(&self) -> Held {
        self.hold.held().clone()
    }

    /// Moves the end of the lease to at least `ttl` from now, by the store's time. Never shortens
    /// it. Returns how long the lock is held from now on at least, as
    /// [`remaining`](Self::remaining) does.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it is not ours any more; it cannot be revived. Other
    /// kinds if the store did not answer: the lock is then held until the deadline it had before.
    ///
    /// # Cancel safety
    /// Cancel-safe: the lease may or may not have been extended; the handle counts only on what it
    /// knows.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # use std::time::Duration;
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let handle = lock.acquire("export").ttl(Duration::from_secs(10)).auto_renew(false).await?;
    /// let left = handle.extend(Duration::from_secs(60)).await?;
    /// assert!(left > handle.ttl());
    /// handle.release().await
    /// # }
    /// ```
    pub async fn extend(&self, ttl: Duration) -> Result<Duration, LockError> {
        self.hold.held().extend(ttl).await
    }

    /// Adds `extra` to what is left of the lease, computed in the store; at most 24 h from now in
    /// all. Returns how long the lock is held from now on at least.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Cancel safety
    /// Not idempotent: if the future is dropped, the lease may or may not be longer.
    pub async fn extend_by(&self, extra: Duration) -> Result<Duration, LockError> {
        self.hold.held().extend_by(extra).await
    }

    /// The lease that was asked for, and that each renewal asks for again.
    pub fn ttl(&self) -> Duration {
        self.hold.held().ttl()
    }

    /// Whether the lock is renewed in the background.
    pub fn is_auto_renewed(&self) -> bool {
        self.hold.held().is_auto_renewed()
    }

    /// Whether the lock is held, by the local deadline. No I/O.
    pub fn is_held(&self) -> bool {
        self.hold.held().is_held()
    }

    /// How long it is held at least, if nothing is renewed. Zero once it is not.
    pub fn remaining(&self) -> Duration {
        self.hold.held().remaining()
    }

    /// Resolves when the lock is lost; never, if it is given back.
    ///
    /// It aims at the deadline that [`is_held`](Self::is_held) reads, which comes before the
    /// store's own by a [`margin`](crate::margin). It is told as soon as its task runs: on a
    /// machine that is busy for longer than that margin somebody else may have the lock by then.
    /// `is_held` and [`check`](Held::check) are exact.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> Loss {
        self.hold.held().lost().await
    }

    /// The number that whatever the lock protects should check.
    pub fn fence(&self) -> Fence {
        self.hold.held().fence()
    }

    /// The key, as it was asked for.
    pub fn key(&self) -> Key {
        self.hold.held().key()
    }

    /// What is known about this lock.
    pub fn info(&self) -> LockInfo {
        self.hold.held().info()
    }

    /// The right to this lock as plain data, without letting go of it.
    ///
    /// Whoever has it can extend and release the lock, and take it up by
    /// [`resume`](crate::DistributedLock::resume), which takes it away from this handle. To pass
    /// the lock on for good, use [`detach`](Self::detach): it sees to it that no request of this
    /// handle's own, delayed on its way to the store, can make a used token good again.
    pub fn token(&self) -> LockToken {
        LockToken::new(self.hold.held().grant.key.clone(), self.hold.held().grant.secret.clone())
    }
}

impl fmt::Debug for LockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockHandle").field(self.hold.held()).finish()
    }
}
