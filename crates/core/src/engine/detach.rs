//! A lock that lives on by its lease alone: left to whoever has its token, or as a cooldown to
//! nobody.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::claim::Claim;
use crate::engine::grant::End;
use crate::engine::held::Held;
use crate::engine::instance::{Engine, GRACE};
use crate::engine::release::Hold;
use crate::engine::settle::Unsettled;
use crate::engine::timeout::within;
use crate::model::error::LockError;
use crate::model::lease;
use crate::model::loss::Loss;
use crate::model::secret::Secret;
use crate::model::token::LockToken;
use crate::store::{AcquireRequest, Liveness, Transfer, TransferRequest};

impl Hold {
    /// Leaves the lock to whoever has the token.
    pub(crate) async fn detach(self) -> Result<LockToken, LockError> {
        self.held().check()?;
        let Held { engine, grant } = self.held().clone();
        let ttl = grant.options.ttl;
        if !(grant.is_unresolved() && engine.store.transfer) {
            let token = LockToken::new(grant.key.clone(), grant.secret.clone());
            self.let_run(ttl).await?;
            return Ok(token);
        }
        // A request under this secret may still be on its way, and would make a used token good
        // again. So the token gets another secret, and the old one is looked after as if the lock
        // had been released.
        let (key, options) = (grant.key.clone(), Arc::clone(&grant.options));
        let mut claim = Claim::draw(Arc::clone(&engine), key.clone(), options)?;
        let secret = claim.request.secret.clone();
        self.leave(ttl, &secret, Some(&mut claim)).await?;
        claim.granted();
        Unsettled::watch(&engine, &key, &grant.secret);
        Ok(LockToken::new(key, secret))
    }

    /// Leaves the lock to nobody, for `duration`.
    pub(crate) async fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        let Held { engine, grant } = self.held().clone();
        let store = &engine.store;
        let (least, most) = (store.min_ttl.max(lease::MIN_TTL), store.max_ttl.min(lease::MAX_TTL));
        // Too long a cooldown is better than none: refusing one would free the lock.
        let kept = duration.clamp(least, most.max(least));
        let key = self.held().key();
        if store.transfer {
            self.leave(kept, &Secret::generate()?, None).await?;
            if grant.is_unresolved() {
                Unsettled::watch(&engine, &grant.key, &grant.secret);
            }
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
        self.held().check()?;
        Engine::check_runtime()?;
        let Held { engine, grant } = self.held();
        let sent_at = engine.clock.now();
        grant.back_by(sent_at.after(engine.step_timeout).after(GRACE));
        let mut call =
            Arc::clone(&engine.backend).detach(grant.key.clone(), grant.secret.clone(), ttl);
        let answer = within(engine.step_timeout, &mut call).await;
        self.held().take_extension(answer, sent_at)?;
        self.forget()
    }

    /// Leaves the lock to whoever knows `secret`, and be it nobody: then it has no claim. It ends
    /// with a lease of just `ttl`: its own, which may be longer, could not be cut short.
    async fn leave(
        self,
        ttl: Duration,
        secret: &Secret,
        claim: Option<&mut Claim<Transfer>>,
    ) -> Result<(), LockError> {
        self.held().check()?;
        Engine::check_runtime()?;
        let Held { engine, grant } = self.held();
        let mut to =
            AcquireRequest::new(grant.key.clone(), secret.clone(), ttl).liveness(Liveness::Lease);
        to.owner = Arc::clone(&grant.options.owner);
        let request = TransferRequest::new(grant.secret.clone(), to);
        // The store may be slow to answer what is long done: a renewal meanwhile must not take that
        // for a loss.
        grant.leave();
        let mut call = Arc::clone(&engine.backend).transfer(request);
        let limit = engine.step_timeout;
        let answer = if let Some(claim) = claim {
            claim.ask("detach", |_| limit, |_| call).await.1
        } else {
            let answer = within(limit, &mut call).await.unwrap_or_else(|| {
                Err(LockError::ambiguous(
                    "the store did not answer in time; the lock is kept as asked for, or given back",
                ))
            });
            if let Err(error) = &answer {
                engine.events.store_error("keep_for", Some(&grant.key), error);
            }
            answer
        };
        match answer {
            Ok(Transfer::Transferred(_)) => self.forget(),
            Ok(Transfer::NotHeld) => {
                engine.keeper.lose(grant, Loss::TakenAway);
                Err(self.held().lost_error(Loss::TakenAway))
            }
            Err(error) => Err(error.with_key(&self.held().key())),
        }
    }

    /// The lock lives on without this holder, unless it was lost meanwhile.
    fn forget(mut self) -> Result<(), LockError> {
        let Held { engine, grant } = self.held().clone();
        if !grant.end(End::Detached) {
            return self.held().check();
        }
        tracing::debug!(key = %grant.key, store = engine.store.name, fence = %grant.fence, outcome = "detached", "detached");
        engine.events.ended(&grant, engine.clock.now(), None);
        self.disown();
        engine.keeper.dismiss(&grant);
        drop(grant.take_front());
        Ok(())
    }
}
