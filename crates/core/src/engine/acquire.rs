//! The wait loop: from the request for a lock to a held one, a refusal, or an error.
//!
//! It mixes the store's answers with wake-ups, the retry timer and the deadline. Dropped at any
//! await point it leaves nothing behind: its [`Claim`] settles what the store may have granted or
//! queued.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tracing::{Instrument as _, Span};

use crate::engine::claim::Claim;
use crate::engine::event::{EventKind, watched};
use crate::engine::fairness::STEP_BACK;
use crate::engine::grant::LockFront;
use crate::engine::instance::{Engine, GRACE};
use crate::engine::meter::{self, Waiting};
use crate::engine::options::AcquireOptions;
use crate::engine::queue::{Entered, Turn, Why};
use crate::engine::release::Hold;
use crate::engine::timeout::within;
use crate::model::clock::Moment;
use crate::model::error::{ErrorKind, LockError, Span as Spell};
use crate::model::holder::Holder;
use crate::model::key::Key;
use crate::model::lease;
use crate::model::loss::Loss;
use crate::store::{Attempt, Busy, Intent, Lease, Subscription, WakeUps};

/// A policy may ask for no pause at all; the store and the others are given this one.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// An attempt that leaves at the deadline may still take so long.
const LAST_ATTEMPT: Duration = Duration::from_secs(1);

/// How an acquire call ended, errors aside.
pub(crate) enum Outcome {
    Held(Hold),
    /// Busy to the end: the error that says so.
    Busy(LockError),
}

/// Takes the lock `key` as `options` says.
///
/// A store may answer at once, so that no call ever waits. Every call that asks one uses up some of
/// its task's budget, before anything is sent: otherwise a loop of them would leave the other tasks
/// of its thread no turn.
pub(crate) async fn acquire(
    engine: Arc<Engine>,
    key: Key,
    options: Arc<AcquireOptions>,
) -> Result<Outcome, LockError> {
    consume_budget().await;
    engine.check_open()?;
    Engine::check_runtime()?;
    // The defaults were checked when they were set.
    if !Arc::ptr_eq(&options, &engine.defaults) {
        options.check(&engine.store).map_err(|error| error.with_key(&key))?;
    }
    let span = watched(|| tracing::debug_span!("acquire", %key, store = engine.store.name));
    let mut call = AcquireLoop::new(Claim::draw(engine, key, options)?);
    // An unwatched span is not entered: moving the future into it would cost a tenth of the whole
    // call.
    let outcome = match &span {
        None => call.run().await,
        Some(span) => Box::pin(call.run()).instrument(Span::clone(span)).await,
    };
    call.outcome = match &outcome {
        Ok(Outcome::Held(_)) => "acquired",
        Ok(Outcome::Busy(_)) => "busy",
        Err(_) => "failed",
    };
    if let Err(error) | Ok(Outcome::Busy(error)) = &outcome {
        let (attempts, outcome) = (call.attempts, call.outcome);
        let _in = span.as_deref().map(Span::enter);
        tracing::debug!(attempts, outcome, %error, "not acquired");
        let events = &call.claim.engine.events;
        events.emit(EventKind::AcquireFailed, &call.claim.request.key, None, Some(error));
    }
    outcome
}

/// One acquire call on its way.
struct AcquireLoop {
    claim: Claim<Attempt>,
    started: Moment,
    deadline: Moment,
    attempts: u32,
    /// Attempts that the timer started, as opposed to wake-ups.
    retries: u32,
    holder: Option<Box<Holder>>,
    /// The last error, and since when there was nothing but errors.
    outage: Option<(Moment, LockError)>,
    /// How it ended, for those who count.
    outcome: &'static str,
    waiting: Option<Waiting>,
}

/// What one attempt came to.
enum Tried {
    Granted(Lease, Moment),
    Busy(Busy),
    Failed(LockError),
}

impl AcquireLoop {
    fn new(claim: Claim<Attempt>) -> Self {
        let started = claim.engine.clock.now();
        let wait = claim.request.options.wait;
        let deadline = wait.map_or(Moment::FAR_FUTURE, |wait| started.after(wait));
        Self {
            claim,
            started,
            deadline,
            attempts: 0,
            retries: 0,
            holder: None,
            outage: None,
            outcome: "cancelled",
            waiting: None,
        }
    }

    async fn run(&mut self) -> Result<Outcome, LockError> {
        if self.claim.request.options.tries_once() {
            let front = self.claim.engine.queue.try_front(&self.claim.request.key);
            return self.try_once(front).await;
        }
        let (front, why) = loop {
            let mut ticket =
                match self.claim.engine.queue.enter(&self.claim.request.key, &self.claim.request) {
                    Entered::Front(front) => break (front, Why::Vacant),
                    Entered::Behind(ticket) => ticket,
                };
            self.waiting.get_or_insert_with(|| Waiting::new(self.claim.engine.store.name));
            self.claim.engine.patrol();
            // Whoever shut the queue did it before or after we entered: in both cases we hear of
            // it.
            self.claim.engine.check_open().map_err(|_| self.closed())?;
            let turn = match self.claim.request.options.wait {
                Some(_) => {
                    within(self.deadline.since(self.claim.engine.clock.now()), &mut ticket).await
                }
                None => Some((&mut ticket).await),
            };
            match turn.or_else(|| ticket.leave()) {
                Some(Turn::Granted(delivery)) => {
                    let engine = &self.claim.engine;
                    let hold = delivery.accept().map(|grant| Hold::new(Arc::clone(engine), grant));
                    if let Some(hold) = hold.filter(|hold| hold.held().is_held()) {
                        hold.grant().take();
                        engine.acquired(hold.grant(), 0);
                        return Ok(Outcome::Held(hold));
                    }
                    // It lay unread for longer than its lease, and its secret is being released.
                    self.claim.redraw()?;
                }
                Some(Turn::Contend(front, why)) => break (front, why),
                Some(Turn::Closed) => return Err(self.closed()),
                // Still in line at the deadline: one look at the store, which also says who holds
                // it. The lock may be on its way to us just now. Whoever hands it over finds that
                // we have left, and passes it on or releases it.
                None => {
                    self.claim.redraw()?;
                    return self.try_once(None).await;
                }
            }
        };
        // In a box of its own, made at the front: those in line, who may be many, stay small.
        Box::pin(self.contend(front, why)).await
    }

    async fn try_once(&mut self, front: Option<LockFront>) -> Result<Outcome, LockError> {
        match self.attempt(Intent::Try).await {
            Tried::Granted(lease, sent_at) => self.admit(lease, sent_at, front),
            Tried::Busy(busy) => {
                self.holder = busy.holder.map(Box::new);
                Ok(Outcome::Busy(self.timeout()))
            }
            Tried::Failed(error) => Err(self.explain(error)),
        }
    }

    /// Asks the store until it grants, refuses for good, or the wait is over.
    async fn contend(&mut self, front: LockFront, why: Why) -> Result<Outcome, LockError> {
        let wake_ups = self.claim.engine.store.wake_ups;
        let mut bell = None;
        let mut intent = Intent::Try;
        if why == Why::Uncertain {
            self.claim.is_unresolved_now();
        }
        if wake_ups == WakeUps::Standing {
            bell = self.subscribe().await;
            intent = Intent::Queue;
        }
        // Once a pause was made: by the timers' own clock, when it began, and how long the wait
        // still was.
        let mut paused: Option<(tokio::time::Instant, Duration)> = None;
        let now = || self.claim.engine.clock.now();
        if why == Why::Yielded || self.claim.engine.courtesy.is_owed(&self.claim.request.key, now) {
            self.step_back(bell.as_mut()).await;
        }
        loop {
            self.claim.engine.check_open().map_err(|_| self.closed())?;
            let mut recheck = Duration::MAX;
            match self.attempt(intent).await {
                Tried::Granted(lease, sent_at) => {
                    if self.claim.engine.clock.now()
                        < lease::valid_until(sent_at, lease.ttl.min(self.claim.request.options.ttl))
                    {
                        return self.admit(lease, sent_at, Some(front));
                    }
                    // The answer came after the lease was over. The next attempt, under the same
                    // secret, tells.
                    self.claim.expect_traces();
                }
                Tried::Busy(busy) => {
                    self.outage = None;
                    if intent == Intent::Queue {
                        self.claim.expect_traces();
                    }
                    self.holder = busy.holder.map(Box::new);
                    recheck =
                        busy.retry_after.unwrap_or(Duration::MAX).max(Duration::from_millis(1));
                    self.found_busy();
                    if bell.is_none()
                        && wake_ups == WakeUps::PerKey
                        && self.claim.engine.clock.now() < self.deadline
                    {
                        // Listen first, then look again: a release in between would not be heard.
                        bell = self.subscribe().await;
                        intent = Intent::Queue;
                        if bell.is_some() {
                            continue;
                        }
                    }
                }
                Tried::Failed(error) => self.tolerate(error)?,
            }
            let now = self.claim.engine.clock.now();
            // A test that pauses tokio's clock, and not the one of the leases, would ask for as
            // long as the latter takes.
            let is_over =
                now >= self.deadline || paused.is_some_and(|(since, left)| since.elapsed() >= left);
            if is_over || self.claim.request.options.retry.exhausted(self.retries) {
                return match self.outage.take() {
                    Some((_, error)) => Err(self.explain(error)),
                    None => Ok(Outcome::Busy(self.timeout())),
                };
            }
            let pause = self.claim.request.options.retry.delay(self.retries, fastrand::f64());
            let pause = pause.max(SHORTEST_PAUSE).min(recheck).min(self.deadline.since(now));
            front.back_by(now.after(pause).after(GRACE));
            paused.get_or_insert_with(|| (tokio::time::Instant::now(), self.deadline.since(now)));
            if !heard(bell.as_mut(), pause).await {
                self.retries = self.retries.saturating_add(1);
            }
        }
    }

    /// One request to the store. Its answer counts from before it left.
    async fn attempt(&mut self, intent: Intent) -> Tried {
        self.attempts = self.attempts.saturating_add(1);
        let longest = self.claim.engine.step_timeout.min(self.claim.request.options.ttl);
        let deadline = self.deadline;
        let limit = |sent_at| deadline.since(sent_at).max(LAST_ATTEMPT).min(longest);
        let ask = |claim: &Claim<Attempt>| {
            Arc::clone(&claim.engine.backend).acquire(claim.request.to_store(intent))
        };
        match self.claim.ask("acquire", limit, ask).await {
            (sent_at, Ok(Attempt::Granted(lease))) => Tried::Granted(lease, sent_at),
            (_, Ok(Attempt::Busy(busy))) => Tried::Busy(busy),
            (_, Err(error)) => Tried::Failed(error),
        }
    }

    /// From here on the secret is the holder's to give back.
    fn admit(
        &mut self,
        lease: Lease,
        sent_at: Moment,
        front: Option<LockFront>,
    ) -> Result<Outcome, LockError> {
        let (engine, request) = (Arc::clone(&self.claim.engine), self.claim.request.clone());
        let grant = engine.admit(request, lease, sent_at, front, self.attempts);
        let hold = Hold::new(engine, grant);
        if self.claim.granted() {
            hold.grant().note_unresolved();
        }
        if hold.held().is_held() {
            return Ok(Outcome::Held(hold));
        }
        let error = match hold.grant().loss(self.claim.engine.clock.now()) {
            Some(Loss::MaxHold) => {
                let most = self.claim.request.options.max_hold.unwrap_or_default();
                LockError::invalid_config(format!(
                    "a `max_hold` of {most:?} was over before the store answered; allow more"
                ))
            }
            Some(Loss::TakenAway) => LockError::ambiguous(
                "it was granted, but freed or taken by others before the answer came; try again",
            ),
            _ => LockError::ambiguous(
                "the store answered after the lease was over; ask for a longer TTL",
            ),
        };
        drop(hold);
        Err(self.explain(error))
    }

    /// Takes note of an error, or returns it if it is final or has lasted too long.
    fn tolerate(&mut self, error: LockError) -> Result<(), LockError> {
        let now = self.claim.engine.clock.now();
        let since = self.outage.as_ref().map_or(now, |(since, _)| *since);
        if !error.kind().is_transient()
            || now.since(since) >= self.claim.request.options.retry.outage()
        {
            return Err(self.explain(error));
        }
        tracing::debug!(key = %self.claim.request.key, %error, "an attempt failed; trying again");
        self.outage = Some((since, error));
        Ok(())
    }

    async fn subscribe(&mut self) -> Option<Subscription> {
        let mut call =
            Arc::clone(&self.claim.engine.backend).subscribe(self.claim.request.key.clone());
        match within(self.claim.engine.step_timeout, &mut call).await {
            Some(Ok(subscription)) => Some(subscription),
            // Wake-ups are hints: without them the timer does it.
            Some(Err(error)) => {
                tracing::debug!(key = %self.claim.request.key, %error, "no wake-ups; waiting by the timer");
                None
            }
            None => None,
        }
    }

    /// Lets other processes go first: their wake-up was sent before ours can be.
    async fn step_back(&mut self, bell: Option<&mut Subscription>) {
        let pause = match self.claim.engine.store.wake_ups {
            // Nobody is told: they ask by their timers.
            WakeUps::None => self.claim.request.options.retry.delay(0, fastrand::f64()),
            _ => STEP_BACK.mul_f64(0.5 + fastrand::f64()),
        };
        heard(bell, pause.min(self.deadline.since(self.claim.engine.clock.now()))).await;
    }

    fn found_busy(&mut self) {
        let (key, attempts) = (&self.claim.request.key, self.attempts);
        tracing::debug!(attempts, outcome = "busy", "busy");
        self.claim.engine.events.emit_attempts(EventKind::Busy, key, None, attempts);
        self.waiting.get_or_insert_with(|| Waiting::new(self.claim.engine.store.name));
    }

    fn timeout(&mut self) -> LockError {
        let error = LockError::new(
            ErrorKind::Timeout,
            if self.claim.request.options.tries_once() {
                "it is held; try again later, or wait for it"
            } else if self.claim.request.options.retry.exhausted(self.retries) {
                "it was still held when the retries were used up; allow more of them, or limit the wait instead"
            } else {
                "it stayed held until the wait was over; try again later, or wait longer"
            },
        );
        let holder = self.holder.take().map(|holder| *holder);
        self.explain(error).with_holder(holder)
    }

    fn closed(&self) -> LockError {
        self.explain(LockError::closed("`shutdown` was called while waiting"))
    }

    fn explain(&self, error: LockError) -> LockError {
        let now = self.claim.engine.clock.now();
        let elapsed = now.since(self.started);
        // The last error may say that nothing was done, and be right; but it speaks for the last
        // attempt only.
        let error = if self.claim.is_unresolved() && error.kind().is_transient() {
            let left = self.claim.until().since(now);
            LockError::ambiguous(format!(
                "an attempt may have been granted without an answer; it is being undone, and if that \
                 fails, the key stays held for {} at most",
                Spell(left)
            ))
            .with_source(error)
        } else {
            error
        };
        error
            .with_key(&self.claim.engine.user_key(&self.claim.request.key))
            .with_attempts(self.attempts, elapsed)
    }
}

/// Whether the bell rang before the pause was over.
pub(crate) async fn heard(bell: Option<&mut Subscription>, pause: Duration) -> bool {
    let Some(bell) = bell else {
        tokio::time::sleep(pause).await;
        return false;
    };
    tokio::time::timeout(pause, bell.heard()).await.is_ok()
}

impl Drop for AcquireLoop {
    fn drop(&mut self) {
        let elapsed = || self.claim.engine.clock.now().since(self.started);
        meter::acquire(self.claim.engine.store.name, self.outcome, elapsed);
    }
}
