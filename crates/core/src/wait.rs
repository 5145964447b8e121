//! The wait loop: from the wish for a lock to a handle, a refusal, or an error.
//!
//! It mixes the store's answers with wake-ups, the retry timer and the deadline. A [`Contest`] that is dropped at
//! any await point leaves nothing behind: whatever the store may have granted or queued is withdrawn.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use tracing::{Instrument as _, Span};

use crate::backend::{Attempt, Busy, Intent, Lease, Reply, Subscription, WakeUps};
use crate::clock::Moment;
use crate::courtesy::STEP_BACK;
use crate::engine::{Engine, GRACE};
use crate::error::{ErrorKind, LockError};
use crate::event::{EventKind, watched};
use crate::grant::{LockFront, Loss};
use crate::handle::LockHandle;
use crate::info::Holder;
use crate::key::Key;
use crate::lease;
use crate::meter::{self, Waiting};
use crate::queue::{Entered, Turn, Waiter as _, Why};
use crate::release::withdraw;
use crate::secret::Secret;
use crate::spec::{Spec, Wish};
use crate::within::within;

/// A policy may ask for no pause at all; the store and the others are given this one.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// An attempt that leaves at the deadline may still take so long.
const LAST_ATTEMPT: Duration = Duration::from_secs(1);

/// How an acquire call ended, errors aside.
pub(crate) enum Outcome {
    Held(LockHandle),
    /// Busy to the end: the error that says so.
    Busy(LockError),
}

/// Takes the lock `key` as `spec` says.
///
/// A store may answer at once, so that no call ever waits. Every call that asks one uses up some of
/// its task's budget, before anything is sent: otherwise a loop of them would leave the other tasks
/// of its thread no turn.
pub(crate) async fn acquire(
    engine: Arc<Engine>,
    key: Key,
    spec: Arc<Spec>,
) -> Result<Outcome, LockError> {
    consume_budget().await;
    engine.check_open()?;
    Engine::check_runtime()?;
    // The defaults were checked when they were set.
    if !Arc::ptr_eq(&spec, &engine.defaults) {
        spec.check(&engine.store).map_err(|error| error.with_key(&key))?;
    }
    let wish = Wish::new(key, Secret::generate()?, spec);
    let span =
        watched(|| tracing::debug_span!("acquire", key = %wish.key, store = engine.store.name));
    let mut contest = Contest::new(engine, wish);
    // An unwatched span is not entered: moving the future into it would cost a tenth of the whole call.
    let outcome = match &span {
        None => contest.run().await,
        Some(span) => Box::pin(contest.run()).instrument(Span::clone(span)).await,
    };
    contest.outcome = match &outcome {
        Ok(Outcome::Held(_)) => "acquired",
        Ok(Outcome::Busy(_)) => "busy",
        Err(_) => "failed",
    };
    if let Err(error) | Ok(Outcome::Busy(error)) = &outcome {
        let (attempts, outcome) = (contest.attempts, contest.outcome);
        let _in = span.as_deref().map(Span::enter);
        tracing::debug!(attempts, outcome, %error, "not acquired");
        let events = &contest.engine.events;
        events.emit(EventKind::AcquireFailed, &contest.wish.key, None, Some(error));
    }
    outcome
}

/// One acquire call on its way.
struct Contest {
    engine: Arc<Engine>,
    wish: Wish,
    started: Moment,
    deadline: Moment,
    attempts: u32,
    /// Attempts that the timer started, as opposed to wake-ups.
    retries: u32,
    holder: Option<Box<Holder>>,
    /// The last error, and since when there was nothing but errors.
    outage: Option<(Moment, LockError)>,
    /// The request that is on its way.
    call: Option<Reply<Attempt>>,
    /// Requests that were not answered in time.
    given_up: Vec<GivenUp<Attempt>>,
    /// The store may hold something for our secret: a grant or a place in its queue.
    traces: bool,
    /// Some request may have been done although its answer was lost.
    doubtful: bool,
    last_sent: Moment,
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

impl Contest {
    fn new(engine: Arc<Engine>, wish: Wish) -> Self {
        let started = engine.clock.now();
        let deadline = wish.spec.wait.map_or(Moment::FAR_FUTURE, |wait| started.after(wait));
        Self {
            engine,
            wish,
            started,
            deadline,
            attempts: 0,
            retries: 0,
            holder: None,
            outage: None,
            call: None,
            given_up: Vec::new(),
            traces: false,
            doubtful: false,
            last_sent: started,
            outcome: "cancelled",
            waiting: None,
        }
    }

    async fn run(&mut self) -> Result<Outcome, LockError> {
        if self.wish.spec.tries_once() {
            let front = self.engine.queue.try_front(&self.wish.key);
            return self.try_once(front).await;
        }
        let (front, why) = loop {
            let mut ticket = match self.engine.queue.enter(&self.wish.key, &self.wish) {
                Entered::Front(front) => break (front, Why::Vacant),
                Entered::Behind(ticket) => ticket,
            };
            self.waiting.get_or_insert_with(|| Waiting::new(self.engine.store.name));
            self.engine.patrol();
            // Whoever shut the queue did it before or after we entered: in both cases we hear of it.
            self.engine.check_open().map_err(|_| self.closed())?;
            let turn = match self.wish.spec.wait {
                Some(_) => within(self.deadline.since(self.engine.clock.now()), &mut ticket).await,
                None => Some((&mut ticket).await),
            };
            match turn.or_else(|| ticket.leave()) {
                Some(Turn::Granted(handle)) if handle.is_held() => {
                    handle.grant().take();
                    self.engine.acquired(handle.grant(), 0);
                    return Ok(Outcome::Held(handle));
                }
                // It lay unread for longer than its lease, and its secret is being released.
                Some(Turn::Granted(stale)) => {
                    drop(stale);
                    self.start_afresh()?;
                }
                Some(Turn::Contend(front, why)) => break (front, why),
                Some(Turn::Closed) => return Err(self.closed()),
                // Still in line at the deadline: one look at the store, which also says who holds it.
                // The lock may be on its way to us just now. Whoever hands it over finds that we have
                // left, and passes it on or releases it.
                None => {
                    self.start_afresh()?;
                    return self.try_once(None).await;
                }
            }
        };
        // In a box of its own, made at the front: those in line, who may be many, stay small.
        Box::pin(self.contend(front, why)).await
    }

    /// Goes on under another secret. Each has one owner at a time: the one that stood in line belongs
    /// to whoever may have called us out of it, and only they hand it over, release it or chase it.
    fn start_afresh(&mut self) -> Result<(), LockError> {
        let (key, spec) = (self.wish.key.clone(), Arc::clone(&self.wish.spec));
        self.wish = Wish::new(key, Secret::generate()?, spec);
        Ok(())
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
        let wake_ups = self.engine.store.wake_ups;
        let mut bell = None;
        let mut intent = Intent::Try;
        if why == Why::Uncertain {
            (self.traces, self.doubtful) = (true, true);
            self.last_sent = self.engine.clock.now();
        }
        if wake_ups == WakeUps::Standing {
            bell = self.subscribe().await;
            intent = Intent::Queue;
        }
        // Once a pause was made: by the timers' own clock, when it began, and how long the wait still was.
        let mut paused: Option<(tokio::time::Instant, Duration)> = None;
        let now = || self.engine.clock.now();
        if why == Why::Yielded || self.engine.courtesy.is_owed(&self.wish.key, now) {
            self.step_back(bell.as_mut()).await;
        }
        loop {
            self.engine.check_open().map_err(|_| self.closed())?;
            let mut recheck = Duration::MAX;
            match self.attempt(intent).await {
                Tried::Granted(lease, sent_at) => {
                    if self.engine.clock.now()
                        < lease::valid_until(sent_at, lease.ttl.min(self.wish.spec.ttl))
                    {
                        return self.admit(lease, sent_at, Some(front));
                    }
                    // The answer came after the lease was over. The next attempt, under the same secret, tells.
                    self.traces = true;
                }
                Tried::Busy(busy) => {
                    self.outage = None;
                    self.traces |= intent == Intent::Queue;
                    self.holder = busy.holder.map(Box::new);
                    recheck =
                        busy.retry_after.unwrap_or(Duration::MAX).max(Duration::from_millis(1));
                    self.found_busy();
                    if bell.is_none()
                        && wake_ups == WakeUps::PerKey
                        && self.engine.clock.now() < self.deadline
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
            let now = self.engine.clock.now();
            // A test that pauses tokio's clock, and not the one of the leases, would ask for as long as the latter takes.
            let is_over =
                now >= self.deadline || paused.is_some_and(|(since, left)| since.elapsed() >= left);
            if is_over || self.wish.spec.retry.exhausted(self.retries) {
                return match self.outage.take() {
                    Some((_, error)) => Err(self.explain(error)),
                    None => Ok(Outcome::Busy(self.timeout())),
                };
            }
            let pause = self.wish.spec.retry.delay(self.retries, fastrand::f64());
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
        let sent_at = self.engine.clock.now();
        self.attempts = self.attempts.saturating_add(1);
        self.last_sent = sent_at;
        let call = Arc::clone(&self.engine.backend).acquire(self.wish.request(intent));
        // Kept here, so that it is driven to its end if this future is dropped.
        let call = self.call.insert(call);
        let limit = self
            .deadline
            .since(sent_at)
            .max(LAST_ATTEMPT)
            .min(self.engine.step_timeout)
            .min(self.wish.spec.ttl);
        let answer = within(limit, call).await;
        let call = self.call.take();
        let Some(answer) = answer else {
            (self.traces, self.doubtful) = (true, true);
            let ttl = self.wish.spec.ttl;
            self.given_up.extend(call.map(|call| drive_on(call, ttl)));
            let error = LockError::ambiguous("the store did not answer in time");
            self.engine.events.store_error("acquire", Some(&self.wish.key), &error);
            return Tried::Failed(error);
        };
        match answer {
            Ok(Attempt::Granted(lease)) => Tried::Granted(lease, sent_at),
            Ok(Attempt::Busy(busy)) => Tried::Busy(busy),
            Err(error) => {
                let doubtful = !error.kind().is_definite();
                self.traces |= doubtful;
                self.doubtful |= doubtful;
                self.engine.events.store_error("acquire", Some(&self.wish.key), &error);
                Tried::Failed(error)
            }
        }
    }

    /// Makes a handle. From here on the secret is the handle's to give back.
    fn admit(
        &mut self,
        lease: Lease,
        sent_at: Moment,
        front: Option<LockFront>,
    ) -> Result<Outcome, LockError> {
        let wish = self.wish.clone();
        let handle = self.engine.admit(wish, lease, sent_at, front, self.attempts);
        self.traces = false;
        if !handle.is_held() {
            let error = match handle.grant().loss(self.engine.clock.now()) {
                Some(Loss::MaxHold) => {
                    let most = self.wish.spec.max_hold.unwrap_or_default();
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
            drop(handle);
            return Err(self.explain(error));
        }
        if self.doubtful {
            // A request that was given up could be done after our release, and hold the lock for
            // nobody. It is looked for then and not before: until the release is over, the secret
            // is the handle's alone.
            handle.expect_straggler();
            self.given_up.clear();
        }
        Ok(Outcome::Held(handle))
    }

    /// Takes note of an error, or returns it if it is final or has lasted too long.
    fn tolerate(&mut self, error: LockError) -> Result<(), LockError> {
        let now = self.engine.clock.now();
        let since = self.outage.as_ref().map_or(now, |(since, _)| *since);
        if !error.kind().is_transient() || now.since(since) >= self.wish.spec.retry.outage() {
            return Err(self.explain(error));
        }
        tracing::debug!(key = %self.wish.key, %error, "an attempt failed; trying again");
        self.outage = Some((since, error));
        Ok(())
    }

    async fn subscribe(&mut self) -> Option<Subscription> {
        let mut call = Arc::clone(&self.engine.backend).subscribe(self.wish.key.clone());
        match within(self.engine.step_timeout, &mut call).await {
            Some(Ok(subscription)) => Some(subscription),
            // Wake-ups are hints: without them the timer does it.
            Some(Err(error)) => {
                tracing::debug!(key = %self.wish.key, %error, "no wake-ups; waiting by the timer");
                None
            }
            None => None,
        }
    }

    /// Lets other processes go first: their wake-up was sent before ours can be.
    async fn step_back(&mut self, bell: Option<&mut Subscription>) {
        let pause = match self.engine.store.wake_ups {
            // Nobody is told: they ask by their timers.
            WakeUps::None => self.wish.spec.retry.delay(0, fastrand::f64()),
            _ => STEP_BACK.mul_f64(0.5 + fastrand::f64()),
        };
        heard(bell, pause.min(self.deadline.since(self.engine.clock.now()))).await;
    }

    fn found_busy(&mut self) {
        let (key, attempts) = (&self.wish.key, self.attempts);
        tracing::debug!(attempts, outcome = "busy", "busy");
        self.engine.events.emit_attempts(EventKind::Busy, key, None, attempts);
        self.waiting.get_or_insert_with(|| Waiting::new(self.engine.store.name));
    }

    fn timeout(&mut self) -> LockError {
        let error = LockError::new(
            ErrorKind::Timeout,
            if self.wish.spec.tries_once() {
                "it is held; try again later, or wait for it"
            } else if self.wish.spec.retry.exhausted(self.retries) {
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
        let now = self.engine.clock.now();
        let elapsed = now.since(self.started);
        // The last error may say that nothing was done, and be right; but it speaks for the last attempt only.
        let error = if self.doubtful && error.kind().is_transient() {
            let left = self.last_sent.after(self.wish.spec.ttl).since(now);
            LockError::ambiguous(format!(
                "an attempt may have been granted without an answer; it is being undone, and if that \
                 fails, the key stays held for {} at most",
                crate::error::Span(left)
            ))
            .with_source(error)
        } else {
            error
        };
        error.with_key(&self.engine.user_key(&self.wish.key)).with_attempts(self.attempts, elapsed)
    }
}

/// A request that was given up, and its answer if one comes.
pub(crate) type GivenUp<T> = JoinHandle<Option<Result<T, LockError>>>;

/// Drives a request on in a task of its own. Left alone it might keep what others need: a place in a queue of the store's
/// client, or the right to open a connection.
pub(crate) fn drive_on<T: Send + 'static>(call: Reply<T>, limit: Duration) -> GivenUp<T> {
    tokio::spawn(async move { tokio::time::timeout(limit, call).await.ok() })
}

/// Whether the bell rang before the pause was over.
pub(crate) async fn heard(bell: Option<&mut Subscription>, pause: Duration) -> bool {
    let Some(bell) = bell else {
        tokio::time::sleep(pause).await;
        return false;
    };
    tokio::time::timeout(pause, bell.heard()).await.is_ok()
}

impl Drop for Contest {
    fn drop(&mut self) {
        let elapsed = || self.engine.clock.now().since(self.started);
        meter::acquire(self.engine.store.name, self.outcome, elapsed);
        // Called to the front after a hand-over of unknown outcome, and gone before it heard of it.
        let in_doubt = self.wish.seat().is_left_in_doubt();
        if !self.traces && !in_doubt && self.call.is_none() && self.given_up.is_empty() {
            return;
        }
        let since = if in_doubt { self.engine.clock.now() } else { self.last_sent };
        let until = since.after(self.wish.spec.ttl);
        let (engine, wish) = (Arc::clone(&self.engine), self.wish.clone());
        let (call, given_up) = (self.call.take(), std::mem::take(&mut self.given_up));
        let doubtful = self.doubtful || in_doubt;
        let alone = withdraw(Arc::clone(&engine), wish.clone(), None, Vec::new(), until, true);
        let limit = engine.step_timeout;
        let begun = withdraw(engine, wish, call, given_up, until, doubtful);
        self.engine.reaper.take_over(begun, limit, alone);
    }
}
