//! What the work done under a lock may know of it, and how its lease is extended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::event::EventKind;
use crate::engine::grant::Grant;
use crate::engine::instance::Engine;
use crate::engine::meter;
use crate::engine::timeout::within;
use crate::model::clock::Moment;
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::holder::LockInfo;
use crate::model::key::Key;
use crate::model::lease;
use crate::model::loss::Loss;
use crate::store::{ExtendBy, ExtendRequest, Extension};

/// A view of a held lock: what work done under it may know. Cheap to clone; does not keep the lock.
#[derive(Clone)]
pub struct Held {
    pub(crate) engine: Arc<Engine>,
    pub(crate) grant: Arc<Grant>,
}

impl Held {
    /// As [`LockHandle::fence`](crate::LockHandle::fence).
    pub fn fence(&self) -> Fence {
        self.grant.fence
    }

    /// As [`LockHandle::key`](crate::LockHandle::key).
    pub fn key(&self) -> Key {
        self.engine.user_key(&self.grant.key)
    }

    /// As [`LockHandle::is_held`](crate::LockHandle::is_held).
    pub fn is_held(&self) -> bool {
        self.believes(self.engine.clock.now())
    }

    fn believes(&self, now: Moment) -> bool {
        self.grant.is_held(now) && !self.engine.runtime.is_inherited()
    }

    /// As [`LockHandle::remaining`](crate::LockHandle::remaining).
    pub fn remaining(&self) -> Duration {
        let now = self.engine.clock.now();
        if self.believes(now) { self.grant.deadline().since(now) } else { Duration::ZERO }
    }

    /// As [`LockHandle::ttl`](crate::LockHandle::ttl).
    pub fn ttl(&self) -> Duration {
        self.grant.options.ttl
    }

    /// As [`LockHandle::is_auto_renewed`](crate::LockHandle::is_auto_renewed).
    pub fn is_auto_renewed(&self) -> bool {
        self.grant.options.auto_renew
    }

    /// As [`LockHandle::lost`](crate::LockHandle::lost).
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> Loss {
        if self.engine.runtime.is_inherited() {
            return Loss::Forked;
        }
        self.grant.lost(&*self.engine.clock).await
    }

    /// An error if the lock is not held any more: one clock read, to put before every side effect.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost), or [`NotHeld`](crate::ErrorKind::NotHeld) after it was
    /// given back.
    pub fn check(&self) -> Result<(), LockError> {
        let now = self.engine.clock.now();
        let forked = || self.engine.runtime.is_inherited().then_some(Loss::Forked);
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
            owner: (*self.grant.options.owner).clone(),
        }
    }

    /// As [`LockHandle::extend`](crate::LockHandle::extend).
    ///
    /// # Errors
    /// As [`LockHandle::extend`](crate::LockHandle::extend).
    pub async fn extend(&self, ttl: Duration) -> Result<Duration, LockError> {
        lease::check_ttl(ttl, self.engine.store.min_ttl, self.engine.store.max_ttl)?;
        self.extend_step(ExtendBy::AtLeast(ttl)).await
    }

    /// As [`LockHandle::extend_by`](crate::LockHandle::extend_by).
    ///
    /// # Errors
    /// As [`LockHandle::extend`](crate::LockHandle::extend).
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

    pub(crate) fn take_extension(
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
                // Whoever extends what is being detached comes too late, and takes nothing from
                // whoever detaches it.
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
    pub(crate) fn failed(&self, error: LockError) -> LockError {
        meter::store_error(self.engine.store.name, error.kind());
        error.with_key(&self.key())
    }

    pub(crate) fn lost_error(&self, loss: Loss) -> LockError {
        lost_error(&self.engine, &self.grant, loss)
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

pub(crate) fn lost_error(engine: &Engine, grant: &Grant, loss: Loss) -> LockError {
    let text = match loss {
        Loss::Forked => format!("{loss}; connect again in the child and take a lock of its own"),
        _ => format!("{loss}; check what was done under fence {} since then", grant.fence),
    };
    LockError::lost(text).with_key(&engine.user_key(&grant.key))
}
