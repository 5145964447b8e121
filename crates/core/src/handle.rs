//! A held lock in the hands of its holder: [`LockHandle`] owns it, [`Held`] watches it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    AcquireRequest, ExtendBy, ExtendRequest, Extension, Liveness, Transfer, TransferRequest,
};
use crate::clock::Moment;
use crate::engine::{Engine, GRACE};
use crate::error::LockError;
use crate::event::EventKind;
use crate::fence::Fence;
use crate::grant::{End, Grant, Loss};
use crate::info::LockInfo;
use crate::key::Key;
use crate::lease;
use crate::meter;
use crate::release::{self, Finishing};
use crate::secret::Secret;
use crate::token::LockToken;
use crate::within::within;

/// A lock that is held until it is released, dropped, detached or lost.
///
/// It is renewed in the background (unless `auto_renew(false)` was asked for) and knows by itself when it can no
/// longer be trusted: [`is_held`](Self::is_held) reads a local clock, and [`lost`](Self::lost) aims to resolve *before*
/// anybody else can get the lock.
///
/// Dropping it gives the lock back: at once in the memory and file stores, in the background elsewhere. **A program
/// that ends right after dropping a handle** calls [`shutdown`](crate::DistributedLock::shutdown) first, or the lock
/// stays until its lease is over. [`release`](Self::release) tells whether it was still ours.
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
    held: Held,
    /// Whether the lock is still this handle's to give back.
    owned: bool,
}

/// A view of a held lock: what work done under it may know. Cheap to clone; does not keep the lock.
#[derive(Clone)]
pub struct Held {
    engine: Arc<Engine>,
    grant: Arc<Grant>,
}

impl LockHandle {
    pub(crate) fn new(engine: Arc<Engine>, grant: Arc<Grant>) -> Self {
        Self { held: Held { engine, grant }, owned: true }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.held.engine
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.held.grant
    }

    /// The grant inside, to be given back by the caller.
    pub(crate) fn into_grant(mut self) -> Option<Arc<Grant>> {
        self.disown().then(|| Arc::clone(&self.held.grant))
    }

    /// A request of the call that got this lock was given up and may still arrive.
    pub(crate) fn expect_straggler(&self) {
        self.held.grant.expect_straggler();
    }

    /// From here on somebody else gives the lock back. Returns whether it was this handle's.
    pub(crate) fn disown(&mut self) -> bool {
        std::mem::replace(&mut self.owned, false)
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more: somebody else may have worked at the same time.
    /// Other kinds if the store did not answer for five seconds; the release goes on in the background.
    ///
    /// # Cancel safety
    /// Cancel-safe: if the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<(), LockError> {
        tokio::task::coop::consume_budget().await;
        Finishing::new(self).await
    }

    /// Lets the lock live on by its lease alone and gives the right to it as plain data.
    ///
    /// The lease runs for at least the lock's TTL from now; it is not renewed any more. Another process, or this one
    /// later, takes it up again with [`resume`](crate::DistributedLock::resume): once, because that uses the token up.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it was not ours any more; other kinds if the store did not answer. The lock
    /// is then given back in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is given back in the background.
    pub async fn detach(self) -> Result<LockToken, LockError> {
        self.held.check()?;
        let ttl = self.held.grant.spec.ttl;
        let Held { engine, grant } = self.held.clone();
        if !(grant.expects_straggler() && engine.store.transfer) {
            let token = self.token();
            self.let_run(ttl).await?;
            return Ok(token);
        }
        // A request under this secret may still be on its way, and would make a used token good again. So the token gets
        // another secret, and the old one is looked after as if the lock had been released.
        let fresh = release::Fresh::new(&engine, &grant.key, ttl)?;
        self.leave(ttl, fresh.secret()).await?;
        release::look_out_for_stragglers(&engine, &grant);
        Ok(LockToken::new(grant.key.clone(), fresh.keep()))
    }

    /// Leaves the lock held for `duration` from now, and forgets it: a cooldown.
    ///
    /// It is as long as asked for, also if that is less than what is left of the lease, but no shorter than the shortest
    /// lease of the store. In a store that cannot move a lock to another owner (a custom one without
    /// [`transfer`](crate::Backend::transfer)) it is never shorter than what is left of the lease.
    ///
    /// # Errors
    /// As [`detach`](Self::detach), and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) above the longest lease of the
    /// store: the lock is kept for that long then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is given back in the background, or kept as asked for.
    pub async fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        let store = &self.held.engine.store;
        let (least, most) = (store.min_ttl.max(lease::MIN_TTL), store.max_ttl.min(lease::MAX_TTL));
        // Too long a cooldown is better than none: refusing one would free the lock.
        let kept = duration.clamp(least, most.max(least));
        let key = self.key();
        if store.transfer {
            let Held { engine, grant } = self.held.clone();
            self.leave(kept, &Secret::generate()?).await?;
            release::look_out_for_stragglers(&engine, &grant);
        } else {
            self.let_run(kept).await?;
        }
        if duration > kept {
            return Err(LockError::invalid_config(format!(
                "a cooldown of {duration:?} is longer than this store allows; it is kept for {kept:?}",
            ))
            .with_key(&key));
        }
        Ok(())
    }

    /// Lets the lease run, at least so long, under the secret that it has.
    async fn let_run(self, ttl: Duration) -> Result<(), LockError> {
        self.held.check()?;
        Engine::check_runtime()?;
        let Held { engine, grant } = &self.held;
        let sent_at = engine.clock.now();
        grant.back_by(sent_at.after(engine.step_timeout).after(GRACE));
        let mut call =
            Arc::clone(&engine.backend).detach(grant.key.clone(), grant.secret.clone(), ttl);
        let answer = within(engine.step_timeout, &mut call).await;
        self.held.take_extension(answer, sent_at)?;
        self.forget()
    }

    /// Leaves the lock to whoever knows `secret`, and be it nobody. It ends with a lease of just `ttl`: its own, which may
    /// be longer, could not be cut short.
    async fn leave(self, ttl: Duration, secret: &Secret) -> Result<(), LockError> {
        self.held.check()?;
        Engine::check_runtime()?;
        let Held { engine, grant } = &self.held;
        let mut to =
            AcquireRequest::new(grant.key.clone(), secret.clone(), ttl).liveness(Liveness::Lease);
        to.owner = Arc::clone(&grant.spec.owner);
        let request = TransferRequest::new(grant.secret.clone(), to);
        // The store may be slow to answer what is long done: a renewal meanwhile must not take that for a loss.
        grant.leave();
        let mut call = Arc::clone(&engine.backend).transfer(request);
        match within(engine.step_timeout, &mut call).await {
            Some(Ok(Transfer::Transferred(_))) => self.forget(),
            Some(Ok(Transfer::NotHeld)) => {
                engine.keeper.lose(grant, Loss::TakenAway);
                Err(self.held.lost_error(Loss::TakenAway))
            }
            Some(Err(error)) => Err(self.held.failed(error)),
            None => Err(self.held.failed(LockError::ambiguous(
                "the store did not answer in time; the lock is kept as asked for, or given back",
            ))),
        }
    }

    /// The lock lives on without this handle, unless it was lost meanwhile.
    fn forget(mut self) -> Result<(), LockError> {
        let Held { engine, grant } = self.held.clone();
        if !grant.end(End::Detached) {
            return self.held.check();
        }
        tracing::debug!(key = %grant.key, store = engine.store.name, fence = %grant.fence, outcome = "detached", "detached");
        engine.events.ended(&grant, engine.clock.now(), None);
        self.disown();
        engine.keeper.dismiss(&grant);
        drop(grant.take_front());
        Ok(())
    }

    /// A view of this lock, to hand to the work that is done under it.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Moves the end of the lease to at least `ttl` from now, by the store's time. Never shortens it. Returns how long the
    /// lock is held from now on at least, as [`remaining`](Self::remaining) does.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if it is not ours any more; it cannot be revived. Other kinds if the store did
    /// not answer: the lock is then held until the deadline it had before.
    ///
    /// # Cancel safety
    /// Cancel-safe: the lease may or may not have been extended; the handle counts only on what it knows.
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
        self.held.extend(ttl).await
    }

    /// Adds `extra` to what is left of the lease, computed in the store; at most 24 h from now in all. Returns how long the
    /// lock is held from now on at least.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Cancel safety
    /// Not idempotent: if the future is dropped, the lease may or may not be longer.
    pub async fn extend_by(&self, extra: Duration) -> Result<Duration, LockError> {
        self.held.extend_by(extra).await
    }

    /// The lease that was asked for, and that each renewal asks for again.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// Whether the lock is renewed in the background.
    pub fn is_auto_renewed(&self) -> bool {
        self.held.is_auto_renewed()
    }

    /// Whether the lock is held, by the local deadline. No I/O.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// How long it is held at least, if nothing is renewed. Zero once it is not.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Resolves when the lock is lost; never, if it is given back.
    ///
    /// It aims at the deadline that [`is_held`](Self::is_held) reads, which comes before the store's own by a
    /// [`margin`](crate::margin). It is told as soon as its task runs: on a machine that is busy for longer than that margin
    /// somebody else may have the lock by then. `is_held` and [`check`](Held::check) are exact.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> Loss {
        self.held.lost().await
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

    /// The right to this lock as plain data, without letting go of it.
    ///
    /// Whoever has it can extend and release the lock, and take it up by
    /// [`resume`](crate::DistributedLock::resume), which takes it away from this handle. To pass the lock on for good, use
    /// [`detach`](Self::detach): it sees to it that no request of this handle's own, delayed on its way to the store, can
    /// make a used token good again.
    pub fn token(&self) -> LockToken {
        LockToken::new(self.held.grant.key.clone(), self.held.grant.secret.clone())
    }
}

impl Held {
    /// As [`LockHandle::fence`].
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// As [`LockHandle::key`].
    pub fn key(&self) -> Key {
        self.engine.user_key(&self.grant.key)
    }

    /// As [`LockHandle::is_held`].
    pub fn is_held(&self) -> bool {
        self.believes(self.engine.clock.now())
    }

    fn believes(&self, now: Moment) -> bool {
        self.grant.is_held(now) && !self.engine.home.is_inherited()
    }

    /// As [`LockHandle::remaining`].
    pub fn remaining(&self) -> Duration {
        let now = self.engine.clock.now();
        if self.believes(now) { self.grant.deadline().since(now) } else { Duration::ZERO }
    }

    /// As [`LockHandle::ttl`].
    pub fn ttl(&self) -> Duration {
        self.grant.spec.ttl
    }

    /// As [`LockHandle::is_auto_renewed`].
    pub fn is_auto_renewed(&self) -> bool {
        self.grant.spec.auto_renew
    }

    /// As [`LockHandle::lost`].
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> Loss {
        if self.engine.home.is_inherited() {
            return Loss::Forked;
        }
        self.grant.lost(&*self.engine.clock).await
    }

    /// An error if the lock is not held any more: one clock read, to put before every side effect.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or [`NotHeld`](crate::ErrorKind::NotHeld) after it was given back.
    pub fn check(&self) -> Result<(), LockError> {
        let now = self.engine.clock.now();
        let forked = || self.engine.home.is_inherited().then_some(Loss::Forked);
        match self.grant.loss(now).or_else(forked) {
            Some(loss) => Err(self.lost_error(loss)),
            None if self.grant.is_held(now) => Ok(()),
            None => Err(LockError::not_held("it was given back before").with_key(&self.key())),
        }
    }

    /// What is known about this lock.
    pub fn info(&self) -> LockInfo {
        let (now, wall) = (self.engine.clock.now(), self.engine.clock.wall());
        LockInfo {
            key: self.key(),
            fence: Some(self.grant.fence),
            acquired_at: wall.checked_sub(now.since(self.grant.acquired_at)),
            expires_at: wall.checked_add(self.grant.deadline().since(now)),
            is_held: self.believes(now),
            owner: (*self.grant.spec.owner).clone(),
        }
    }

    /// As [`LockHandle::extend`].
    ///
    /// # Errors
    /// As [`LockHandle::extend`].
    pub async fn extend(&self, ttl: Duration) -> Result<Duration, LockError> {
        lease::check_ttl(ttl, self.engine.store.min_ttl, self.engine.store.max_ttl)?;
        self.extend_step(ExtendBy::AtLeast(ttl)).await
    }

    /// As [`LockHandle::extend_by`].
    ///
    /// # Errors
    /// As [`LockHandle::extend`].
    pub async fn extend_by(&self, extra: Duration) -> Result<Duration, LockError> {
        lease::check_ttl(extra, Duration::ZERO, lease::MAX_TTL)?;
        self.extend_step(ExtendBy::Add(extra)).await
    }

    async fn extend_step(&self, by: ExtendBy) -> Result<Duration, LockError> {
        tokio::task::coop::consume_budget().await;
        self.check()?;
        Engine::check_runtime()?;
        let request = ExtendRequest::new(self.grant.key.clone(), self.grant.secret.clone(), by);
        let sent_at = self.engine.clock.now();
        let mut call = Arc::clone(&self.engine.backend).extend(vec![request]);
        let answer = match within(self.engine.step_timeout, &mut call).await {
            Some(Ok(mut answers)) if answers.len() == 1 => answers.pop(),
            Some(Ok(_)) => {
                Some(Err(LockError::internal("the store answered one extension with several")))
            }
            Some(Err(error)) => Some(Err(error)),
            None => None,
        };
        let extended = self.take_extension(answer, sent_at);
        let (key, fence, events) = (&self.grant.key, self.grant.fence, &self.engine.events);
        match &extended {
            Ok(()) => {
                tracing::debug!(%key, store = events.store(), %fence, outcome = "extended", "extended");
                events.emit(EventKind::Extended, key, Some(fence), None);
            }
            Err(error) => {
                tracing::debug!(%key, store = events.store(), %fence, outcome = "failed", %error, "not extended");
                events.emit(EventKind::ExtendFailed, key, Some(fence), Some(error));
            }
        }
        extended.map(|()| self.remaining())
    }

    fn take_extension(
        &self,
        answer: Option<Result<Extension, LockError>>,
        sent_at: Moment,
    ) -> Result<(), LockError> {
        match answer {
            Some(Ok(Extension::Extended(lease))) if lease.fence == self.grant.fence => {
                self.grant.extended(lease, sent_at);
                self.engine.keeper.moved(&self.grant);
                // An answer that took longer than the lease is no answer.
                self.check()
            }
            Some(Ok(answer)) => {
                // Whoever extends what is being detached comes too late, and takes nothing from whoever detaches it.
                if !(self.grant.is_leaving() && answer == Extension::NotHeld) {
                    self.engine.keeper.lose(&self.grant, Loss::TakenAway);
                }
                Err(self.lost_error(Loss::TakenAway))
            }
            other => {
                Err(self.failed(other.and_then(Result::err).unwrap_or_else(|| {
                    LockError::ambiguous(
                        "the store did not answer in time; the lock is held until the deadline it had before",
                    )
                })))
            }
        }
    }

    /// A step of the store failed.
    fn failed(&self, error: LockError) -> LockError {
        meter::store_error(self.engine.store.name, error.kind());
        error.with_key(&self.key())
    }

    pub(crate) fn lost_error(&self, loss: Loss) -> LockError {
        release::lost_error(&self.engine, &self.grant, loss)
    }
}

impl Drop for LockHandle {
    fn drop(&mut self) {
        // A forked child has a copy of its parent's handle, and nothing to give back.
        if self.disown() && !self.held.engine.home.is_inherited() {
            release::drop_grant(&self.held.engine, Arc::clone(&self.held.grant));
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
        f.debug_struct("Held")
            .field("key", &self.grant.key)
            .field("fence", &self.grant.fence)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
