//! Taking up a lock by its token.
//!
//! A token is plain data and may have been copied: a message that is delivered twice, a file that two processes read. So
//! it is good for one holder only. The lock moves to a fresh secret and a fresh fence in one step of the store, which
//! uses the token up: whoever comes second finds nothing, and what the first one left behind is refused by its fence.
//!
//! The fresh secret is kept for the retries of the call, so that a lost answer can be asked for again. A call that is
//! given up hands the lock back to its token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::backend::{Intent, Liveness, Release, Reply, Transfer, TransferRequest};
use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::LockError;
use crate::event::EventKind;
use crate::handle::LockHandle;
use crate::release::insist;
use crate::secret::Secret;
use crate::spec::{Spec, Wish};
use crate::token::LockToken;
use crate::wait::{GivenUp, SHORTEST_PAUSE, drive_on};
use crate::within::within;

/// Takes up the lock of `token`, and keeps it as `spec` says.
pub(crate) async fn resume(
    engine: Arc<Engine>,
    token: LockToken,
    spec: Arc<Spec>,
) -> Result<LockHandle, LockError> {
    tokio::task::coop::consume_budget().await;
    engine.check_open()?;
    Engine::check_runtime()?;
    let key = token.key().clone();
    let about = |error: LockError| error.with_key(&engine.user_key(&key));
    spec.check(&engine.store).map_err(about)?;
    if !engine.store.transfer {
        return Err(about(LockError::unsupported(
            "this store cannot move a lock to another owner, so nobody can take it up by its \
             token; extend and release it by the token",
        )));
    }
    // An earlier call for the same token may have been given up just now.
    let _ = tokio::time::timeout(engine.step_timeout, engine.returning.over(token.secret())).await;
    let resumed = Taking::new(Arc::clone(&engine), token, spec)?.run().await.map_err(about);
    if let Err(error) = &resumed {
        engine.events.emit(EventKind::ExtendFailed, &key, None, Some(error));
    }
    resumed
}

/// A lock on its way from its token to a holder.
struct Taking {
    engine: Arc<Engine>,
    token: LockToken,
    /// With the fresh secret.
    wish: Wish,
    attempts: u32,
    /// When the last request left.
    sent_at: Moment,
    /// The request that is on its way.
    call: Option<Reply<Transfer>>,
    /// Requests that were not answered in time.
    given_up: Vec<GivenUp<Transfer>>,
    /// Some request may have been done although its answer was lost.
    doubtful: bool,
}

impl Taking {
    fn new(engine: Arc<Engine>, token: LockToken, spec: Arc<Spec>) -> Result<Self, LockError> {
        let wish = Wish::new(token.key().clone(), Secret::generate()?, spec);
        let sent_at = engine.clock.now();
        Ok(Self {
            engine,
            token,
            wish,
            attempts: 0,
            sent_at,
            call: None,
            given_up: Vec::new(),
            doubtful: false,
        })
    }

    /// Asks until there is an answer, or until there was none for as long as an outage may last.
    async fn run(mut self) -> Result<LockHandle, LockError> {
        let mut outage = None;
        loop {
            let error = match self.attempt().await {
                Ok(Transfer::Transferred(lease)) => {
                    self.doubtful = false;
                    self.given_up.clear();
                    let wish = self.wish.clone();
                    let handle = self.engine.admit(wish, lease, self.sent_at, None, self.attempts);
                    return handle.held().check().map(|()| handle);
                }
                Ok(Transfer::NotHeld) => return Err(not_held()),
                Err(error) => error,
            };
            let now = self.engine.clock.now();
            let retry = &self.wish.spec.retry;
            let lasted = now.since(*outage.get_or_insert(now));
            if !error.kind().is_transient() || lasted >= retry.outage() {
                return Err(error);
            }
            tracing::debug!(key = %self.wish.key, %error, "a lock could not be taken up; trying again");
            let pause = retry.delay(self.attempts - 1, fastrand::f64());
            tokio::time::sleep(pause.max(SHORTEST_PAUSE)).await;
        }
    }

    async fn attempt(&mut self) -> Result<Transfer, LockError> {
        let (from, to) = (self.token.secret().clone(), self.wish.request(Intent::Try));
        self.sent_at = self.engine.clock.now();
        self.attempts = self.attempts.saturating_add(1);
        let call = Arc::clone(&self.engine.backend).transfer(TransferRequest::new(from, to));
        // Kept here, so that it is driven to its end if this future is dropped.
        let call = self.call.insert(call);
        let ttl = self.wish.spec.ttl;
        let answer = within(self.engine.step_timeout.min(ttl), call).await;
        let call = self.call.take();
        let answer = answer.unwrap_or_else(|| {
            self.given_up.extend(call.map(|call| drive_on(call, ttl)));
            Err(LockError::ambiguous("the store did not answer in time; check that it is up"))
        });
        if let Err(error) = &answer {
            self.doubtful |= !error.kind().is_definite();
            self.engine.events.store_error("resume", Some(&self.wish.key), error);
        }
        answer
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if self.call.is_none() && self.given_up.is_empty() && !self.doubtful {
            return;
        }
        let (engine, wish) = (Arc::clone(&self.engine), self.wish.clone());
        let (token, mut doubtful) = (self.token.clone(), self.doubtful);
        let (call, given_up) = (self.call.take(), std::mem::take(&mut self.given_up));
        let until = self.sent_at.after(wish.spec.ttl);
        let returning = Arc::new(engine.returning.begin(token.secret()));
        let heir = {
            let (engine, wish, token) = (Arc::clone(&engine), wish.clone(), token.clone());
            let returning = Arc::clone(&returning);
            Box::pin(async move {
                insist(&engine, &wish.key, until, true, || {
                    hand_back(Arc::clone(&engine), wish.clone(), token.clone())
                })
                .await;
                drop(returning);
            })
        };
        let begun = Box::pin(async move {
            let left = || until.since(engine.clock.now());
            if let Some(mut call) = call {
                let answer = within(left(), &mut call).await;
                doubtful |= !answer.is_some_and(|answer| is_known(&answer));
            }
            for mut call in given_up {
                let answer = within(left(), &mut call).await;
                let answer = answer.and_then(Result::ok).flatten();
                doubtful |= !answer.is_some_and(|answer| is_known(&answer));
            }
            insist(&engine, &wish.key, until, doubtful, || {
                hand_back(Arc::clone(&engine), wish.clone(), token.clone())
            })
            .await;
            drop(returning);
        });
        self.engine.reaper.take_over(begun, self.engine.step_timeout, heir);
    }
}

fn is_known(answer: &Result<Transfer, LockError>) -> bool {
    answer.as_ref().map_or_else(|error| error.kind().is_definite(), |_| true)
}

/// Gives the lock back to its token, where it lives on by its lease alone.
async fn hand_back(
    engine: Arc<Engine>,
    wish: Wish,
    token: LockToken,
) -> Result<Release, LockError> {
    let mut to = wish.request(Intent::Try).liveness(Liveness::Lease);
    to.secret = token.secret().clone();
    let request = TransferRequest::new(wish.secret.clone(), to);
    let mut call = Arc::clone(&engine.backend).transfer(request);
    let answer = within(engine.step_timeout, &mut call).await.unwrap_or_else(|| {
        Err(LockError::ambiguous("the store did not take the lock back in time"))
    });
    match answer? {
        Transfer::Transferred(_) => Ok(Release::Released),
        Transfer::NotHeld => Ok(Release::NotHeld),
    }
}

pub(crate) fn not_held() -> LockError {
    LockError::not_held(
        "its lease is over, or it was released, or another holder took it up; acquire it again",
    )
}

/// The tokens to which locks are being handed back: whoever asks again waits for that.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    tokens: Mutex<Vec<Secret>>,
    over: Notify,
}

impl Returning {
    fn tokens(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, token: &Secret) -> Return {
        self.tokens().push(token.clone());
        Return { all: Arc::clone(self), token: token.clone() }
    }

    /// Resolves when nothing is being handed back to `token`.
    async fn over(&self, token: &Secret) {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if !self.tokens().contains(token) {
                return;
            }
            over.await;
        }
    }
}

/// One lock on its way back to its token. Dropping it says that it is over.
struct Return {
    all: Arc<Returning>,
    token: Secret,
}

impl Drop for Return {
    fn drop(&mut self) {
        let mut tokens = self.all.tokens();
        if let Some(at) = tokens.iter().position(|token| *token == self.token) {
            tokens.swap_remove(at);
        }
        drop(tokens);
        self.all.over.notify_waiters();
    }
}
