//! A claim owns a key and a secret from the moment the secret is drawn until it is a holder's, or
//! nothing can be left of it in the store.
//!
//! A secret has one owner at a time: the claim of the call that drew it, then the lock's holder, or
//! else the [settling](crate::engine::settle) in the background. Nobody else asks the store under
//! it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::grant::LockRequest;
use crate::engine::instance::Engine;
use crate::engine::options::AcquireOptions;
use crate::engine::queue::Waiter as _;
use crate::engine::settle::{GivenUp, Undo, Unsettled, drive_on};
use crate::engine::timeout::within;
use crate::model::clock::Moment;
use crate::model::error::LockError;
use crate::model::key::Key;
use crate::model::secret::Secret;
use crate::model::token::LockToken;
use crate::store::{Intent, Liveness, Reply};

/// One call's claim on a lock. `T` is what the store answers.
///
/// Dropping it, at whatever point, leaves nothing behind: requests that are on their way are seen
/// to their end, and what the store may hold is settled.
pub(crate) struct Claim<T: Send + 'static> {
    pub(crate) engine: Arc<Engine>,
    pub(crate) request: LockRequest,
    /// Other keys that are asked for in the same step.
    pub(crate) also: Vec<LockRequest>,
    /// The token that a lock is taken up by, and goes back to.
    from: Option<LockToken>,
    /// The request that is on its way.
    call: Option<Reply<T>>,
    /// Requests that were not answered in time.
    given_up: Vec<GivenUp<T>>,
    /// The store may hold something: a grant, or a place in its queue.
    traces: bool,
    /// Some request may have been done although its answer was lost, or may still arrive.
    unresolved: bool,
    last_sent: Moment,
}

impl<T: Send + 'static> Claim<T> {
    /// Draws a secret.
    pub(crate) fn draw(
        engine: Arc<Engine>,
        key: Key,
        options: Arc<AcquireOptions>,
    ) -> Result<Self, LockError> {
        let request = LockRequest::new(key, Secret::generate()?, options);
        // Nothing has left yet: the moment is read when it does.
        let last_sent = Moment::from_nanos(0);
        Ok(Self {
            engine,
            request,
            also: Vec::new(),
            from: None,
            call: None,
            given_up: Vec::new(),
            traces: false,
            unresolved: false,
            last_sent,
        })
    }

    /// A claim on a lock that goes back to `token`, if its holder is not found.
    pub(crate) fn from_token(
        engine: Arc<Engine>,
        token: LockToken,
        options: Arc<AcquireOptions>,
    ) -> Result<Self, LockError> {
        let mut claim = Self::draw(engine, token.key().clone(), options)?;
        claim.from = Some(token);
        Ok(claim)
    }

    /// Goes on under another secret, before anything was asked under this one. It belongs to
    /// another owner: it stood in line, and may have been called out of it.
    pub(crate) fn redraw(&mut self) -> Result<(), LockError> {
        let (key, options) = (self.request.key.clone(), Arc::clone(&self.request.options));
        self.request = LockRequest::new(key, Secret::generate()?, options);
        Ok(())
    }

    /// Asks the store by the request that `ask` makes, and waits for the answer for `limit`.
    /// Returns when it left: the answer counts from then.
    ///
    /// `step` names it for those who count errors.
    pub(crate) async fn ask(
        &mut self,
        step: &'static str,
        limit: impl FnOnce(Moment) -> Duration,
        ask: impl FnOnce(&Self) -> Reply<T>,
    ) -> (Moment, Result<T, LockError>) {
        let sent_at = self.engine.clock.now();
        self.last_sent = sent_at;
        let call = ask(self);
        // Kept here, so that it is driven to its end if this future is dropped.
        let call = self.call.insert(call);
        let answer = within(limit(sent_at), call).await;
        let call = self.call.take();
        let answer = answer.unwrap_or_else(|| {
            let ttl = self.request.options.ttl;
            self.given_up.extend(call.map(|call| drive_on(call, ttl)));
            Err(LockError::ambiguous("the store did not answer in time; check that it is up"))
        });
        if let Err(error) = &answer {
            self.unresolved |= !error.kind().is_definite();
            self.traces |= self.unresolved;
            let key = self.also.is_empty().then_some(&self.request.key);
            self.engine.events.store_error(step, key, error);
        }
        (sent_at, answer)
    }

    /// The store may hold something under the secret, for sure or not.
    pub(crate) fn expect_traces(&mut self) {
        self.traces = true;
    }

    /// A request of somebody else under this secret, just now, has an unknown outcome.
    pub(crate) fn is_unresolved_now(&mut self) {
        (self.traces, self.unresolved) = (true, true);
        self.last_sent = self.engine.clock.now();
    }

    /// Whether some request may have been done although its answer was lost.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.unresolved
    }

    /// When the last request would have lost its lease, had it got one.
    pub(crate) fn until(&self) -> Moment {
        self.last_sent.after(self.request.options.ttl)
    }

    /// The lock is granted: from here on the secret is its holder's. Says whether a request under
    /// it may still arrive.
    ///
    /// It is looked for when the lock was given back, and not before: until then the secret is the
    /// holder's alone.
    pub(crate) fn granted(&mut self) -> bool {
        self.traces = false;
        self.given_up.clear();
        self.unresolved
    }
}

impl<T: Send + 'static> Drop for Claim<T> {
    fn drop(&mut self) {
        // Called to the front after a hand-over of unknown outcome, and gone before it heard of it.
        let in_doubt = self.request.seat().is_left_in_doubt();
        if !self.traces && !in_doubt && self.call.is_none() && self.given_up.is_empty() {
            return;
        }
        if in_doubt {
            self.is_unresolved_now();
        }
        let (until, mut unresolved) = (self.until(), self.unresolved);
        let undo = self.undo();
        let leftovers: Vec<_> = std::iter::once(&self.request)
            .chain(&self.also)
            .map(|request| {
                let (key, secret) = (&request.key, &request.secret);
                let left = Unsettled::new(&self.engine, key, secret, until, true);
                Unsettled { undo: undo.clone(), ..left }
            })
            .collect();
        let (engine, call) = (Arc::clone(&self.engine), self.call.take());
        let given_up = std::mem::take(&mut self.given_up);
        let alone = Box::pin(settle_all(leftovers.clone()));
        let begun = Box::pin(async move {
            // All are seen to their end, so that the release cannot overtake them.
            if let Some(mut call) = call {
                unresolved |= !is_known(within(until.since(engine.clock.now()), &mut call).await);
            }
            for mut call in given_up {
                let answer = within(until.since(engine.clock.now()), &mut call).await;
                unresolved |= !is_known(answer.and_then(Result::ok).flatten());
            }
            let known =
                leftovers.into_iter().map(|left| Unsettled { in_flight: unresolved, ..left });
            settle_all(known.collect()).await;
        });
        self.engine.background.take_over(begun, self.engine.step_timeout, alone);
    }
}

impl<T: Send + 'static> Claim<T> {
    fn undo(&self) -> Undo {
        let Some(token) = &self.from else { return Undo::Release };
        let mut to = self.request.to_store(Intent::Try).liveness(Liveness::Lease);
        to.secret = token.secret().clone();
        let returning = self.engine.returning.begin(token.secret());
        Undo::HandBack { to, _returning: Arc::new(returning) }
    }
}

async fn settle_all(leftovers: Vec<Unsettled>) {
    for unsettled in leftovers {
        unsettled.settle().await;
    }
}

/// Whether an answer says what became of its request.
fn is_known<T>(answer: Option<Result<T, LockError>>) -> bool {
    match answer {
        Some(Ok(_)) => true,
        Some(Err(error)) => error.kind().is_definite(),
        None => false,
    }
}
