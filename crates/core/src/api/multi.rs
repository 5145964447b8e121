//! Several locks at once, all or none, without deadlock.
//!
//! Where the store can, all are taken in one step. If that is in vain, or cannot be done: wait for
//! one, try the rest, and if one of those is busy give all back and wait for *that* one next.
//! Waiting is done by the wait loop, one key at a time, because a store wakes those who stand in
//! its line.
//!
//! Whoever gives back what it has needs a moment at which all others are free, which may never come
//! where each of them is in use all the time. So after a few rounds in vain the keys are taken in
//! sorted order, and each is *waited for while the smaller ones are held*. Sets among themselves
//! cannot come to a deadlock by that; but somebody may hold one of the later keys and wait for one
//! of the earlier. So that wait has a limit, which grows from round to round, and then all is given
//! back: a deadlock dissolves.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument as _;

use crate::api::acquire::{Acquiring, done, future, options, wait_options};
use crate::api::handle::LockHandle;
use crate::engine::acquire::{Outcome, acquire};
use crate::engine::claim::Claim;
use crate::engine::event::EventKind;
use crate::engine::grant::LockRequest;
use crate::engine::held::Held;
use crate::engine::instance::{Engine, GRACE};
use crate::engine::meter;
use crate::engine::options::AcquireOptions;
use crate::engine::release::Hold;
use crate::model::clock::Moment;
use crate::model::error::{ErrorKind, LockError};
use crate::model::fence::Fence;
use crate::model::holder::Holder;
use crate::model::key::Key;
use crate::model::loss::Loss;
use crate::model::owner::Owner;
use crate::model::retry::RetryPolicy;
use crate::model::secret::Secret;
use crate::store::{Intent, Liveness, ManyAttempt};

/// The most locks that can be taken at once.
const MOST: usize = 64;

/// Several locks about to be taken: see
/// [`DistributedLock::acquire_all`](crate::DistributedLock::acquire_all).
#[must_use = "nothing happens until it is awaited"]
pub struct AcquireAll {
    engine: Arc<Engine>,
    keys: Vec<String>,
    options: Arc<AcquireOptions>,
    running: Option<Acquiring<LockSet>>,
}

options!(AcquireAll, keys);
wait_options!(AcquireAll);

/// Several held locks, sorted by key. Dropping it gives all of them back.
///
/// If one is lost, none can be trusted: [`is_held`](Self::is_held) and [`lost`](Self::lost) speak
/// for all.
#[derive(Debug)]
#[must_use = "a set that is dropped gives its locks back at once"]
pub struct LockSet {
    handles: Vec<LockHandle>,
}

impl AcquireAll {
    pub(crate) fn new(engine: &Arc<Engine>, keys: Vec<String>) -> Self {
        let options = Arc::clone(&engine.defaults);
        Self { engine: Arc::clone(engine), keys, options, running: None }
    }

    fn begin(&mut self) -> Acquiring<LockSet> {
        let (engine, options) = (Arc::clone(&self.engine), Arc::clone(&self.options));
        let keys = std::mem::take(&mut self.keys);
        Box::pin(async move {
            tokio::task::coop::consume_budget().await;
            engine.check_open()?;
            Engine::check_runtime()?;
            let keys = sorted(&engine, &keys)?;
            options.check(&engine.store)?;
            let call = MultiAcquire::new(engine, options);
            if call.engine.store.acquire_many {
                call.in_one_step(keys).await
            } else {
                call.one_by_one(keys, 0).await
            }
        })
    }

    /// Takes all locks, runs `work` under them, and gives them back. The work is dropped if any of
    /// them is lost.
    ///
    /// # Errors
    /// Those of acquiring; [`Lost`](ErrorKind::Lost) if any of them was lost before the work had
    /// ended, in whatever way: see [`Acquire::run`](crate::Acquire::run).
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the work, and the locks are given back in the background.
    pub async fn run<W: Future>(
        self,
        work: impl FnOnce(Vec<Held>) -> W,
    ) -> Result<W::Output, LockError> {
        let set = self.await?;
        let ended = tokio::select! {
            biased;
            (held, loss) = set.first_lost() => Err(held.lost_error(loss)),
            out = work(set.held()) => Ok(out),
        };
        let out = ended?;
        set.check()?;
        done(set.release().await)?;
        Ok(out)
    }
}

future!(AcquireAll => LockSet);

/// The keys as the user wrote them, checked, without repetition, in an order that is the same for
/// everybody.
fn sorted(engine: &Engine, keys: &[String]) -> Result<Vec<Key>, LockError> {
    let mut checked = keys.iter().map(|key| engine.key(key)).collect::<Result<Vec<_>, _>>()?;
    checked.sort();
    checked.dedup();
    if checked.is_empty() || checked.len() > MOST {
        return Err(LockError::invalid_config(format!(
            "{} keys were given; 1 to {MOST} can be taken at once",
            checked.len()
        )));
    }
    Ok(checked)
}

/// One call for several locks on its way.
struct MultiAcquire {
    engine: Arc<Engine>,
    options: Arc<AcquireOptions>,
    started: Moment,
    deadline: Moment,
    attempts: u32,
    /// The key for which the store has given nothing but errors, and since when.
    outage: Option<(usize, Moment)>,
}

/// After so many rounds in vain, keys are waited for while others are held.
const VAIN_ROUNDS: u32 = 3;

/// How long, at first. It doubles from round to round, up to the longest.
const SHORTEST_STAY: Duration = Duration::from_secs(1);
const LONGEST_STAY: Duration = Duration::from_secs(32);

impl MultiAcquire {
    fn new(engine: Arc<Engine>, options: Arc<AcquireOptions>) -> Self {
        let started = engine.clock.now();
        let deadline = options.wait.map_or(Moment::FAR_FUTURE, |wait| started.after(wait));
        Self { engine, options, started, deadline, attempts: 0, outage: None }
    }

    /// Begins with the key at `first`.
    async fn one_by_one(mut self, keys: Vec<Key>, mut first: usize) -> Result<LockSet, LockError> {
        loop {
            let (n, error) = match self.round(&keys, first).await? {
                Ok(set) => return Ok(set),
                Err(vain) => vain,
            };
            self.attempts = self.attempts.saturating_add(1);
            let now = self.engine.clock.now();
            if self.is_over() {
                return Err(error.with_attempts(self.attempts, now.since(self.started)));
            }
            first = n;
            // Two callers that took turns in blocking each other must not stay in step.
            let pause = self.options.retry.delay(0, fastrand::f64()).mul_f64(fastrand::f64());
            tokio::time::sleep(pause.min(self.deadline.since(now))).await;
        }
    }

    /// Takes all, or says which key could not be had, and why; what was taken is given back then.
    async fn round(
        &mut self,
        keys: &[Key],
        first: usize,
    ) -> Result<Result<LockSet, (usize, LockError)>, LockError> {
        let stay = self
            .attempts
            .checked_sub(VAIN_ROUNDS)
            .map(|round| SHORTEST_STAY.saturating_mul(1 << round.min(8)).min(LONGEST_STAY));
        let mut order: Vec<usize> = (0..keys.len()).collect();
        if stay.is_none() {
            order[..=first].rotate_right(1);
        }
        let mut handles: Vec<LockHandle> = Vec::with_capacity(keys.len());
        let mut vain = None;
        for n in order {
            let asked = self.engine.clock.now();
            let left = self.options.wait.map(|_| self.deadline.since(asked));
            let wait = if handles.is_empty() {
                left
            } else {
                let stay = stay.unwrap_or_default();
                let stay = left.map_or(stay, |left| left.min(stay));
                let due = asked.after(stay).after(self.engine.step_timeout).after(GRACE);
                for handle in &handles {
                    handle.hold().grant().back_by(due);
                }
                Some(stay)
            };
            match self.take(&keys[n], wait).await {
                Ok(Outcome::Held(hold)) => {
                    handles.push(LockHandle::new(hold));
                    self.outage.take_if(|(key, _)| *key == n);
                }
                // Holding nothing, it was waited for to the end.
                Ok(Outcome::Busy(error)) if handles.is_empty() => {
                    let elapsed = self.engine.clock.now().since(self.started);
                    return Err(error.with_attempts(self.attempts + 1, elapsed));
                }
                Ok(Outcome::Busy(error)) => {
                    self.outage = None;
                    vain = Some((n, error));
                    break;
                }
                // Alone it would have been asked for again: so is the set. The first one was, for
                // as long as may be.
                Err(error) if self.tolerates(n, &error, handles.is_empty().then_some(asked)) => {
                    vain = Some((n, error));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let Some(vain) = vain else {
            for handle in &handles {
                handle.hold().grant().back_by(Moment::FAR_FUTURE);
            }
            // While the last ones were taken, the first may have been lost.
            return match LockSet::new(handles) {
                Err(error) if self.tolerates(0, &error, None) => Ok(Err((0, error))),
                set => set.map(Ok),
            };
        };
        for handle in handles {
            // Whatever this says, the lock is not ours any more, and that is all that matters here.
            let _ = handle.release().await;
        }
        Ok(Err(vain))
    }

    /// Whether an error of a key will pass, and has not lasted for too long: since `begun`, or
    /// since now.
    fn tolerates(&mut self, key: usize, error: &LockError, begun: Option<Moment>) -> bool {
        let now = self.engine.clock.now();
        let before = self.outage.filter(|(of, _)| *of == key);
        let since = before.map_or(begun.unwrap_or(now), |(_, since)| since);
        self.outage = Some((key, since));
        (error.kind().is_transient() || error.kind() == ErrorKind::Lost)
            && now.since(since) < self.options.retry.outage()
    }

    async fn take(&self, key: &Key, wait: Option<Duration>) -> Result<Outcome, LockError> {
        let options = Arc::new(AcquireOptions { wait, ..AcquireOptions::clone(&self.options) });
        acquire(Arc::clone(&self.engine), key.clone(), options).await
    }

    async fn in_one_step(self, keys: Vec<Key>) -> Result<LockSet, LockError> {
        let (engine, started) = (Arc::clone(&self.engine), self.started);
        let mut timed = Timed { engine, started, outcome: Some("cancelled") };
        let (store, count) = (self.engine.store.name, keys.len());
        let span = tracing::debug_span!("acquire_all", keys = count, store);
        let error = match self.ask_once(&keys).instrument(span.clone()).await {
            Ok(Asked::Held(set)) => {
                timed.outcome = Some("acquired");
                return Ok(set);
            }
            Ok(Asked::WaitFor(first)) => {
                // From here on each key is a call of its own, and timed as such.
                timed.outcome = None;
                drop(timed);
                return self.one_by_one(keys, first).await;
            }
            Err(error) => error,
        };
        let outcome = if error.kind() == ErrorKind::Timeout { "busy" } else { "failed" };
        timed.outcome = Some(outcome);
        let of_error = |key: &&Key| error.key() == Some(&self.engine.user_key(key));
        let key = keys.iter().find(of_error).unwrap_or(&keys[0]);
        // What fails for all of them at once is said of the first.
        let error = error.with_key(&self.engine.user_key(key));
        let attempts = self.attempts + 1;
        span.in_scope(|| tracing::debug!(attempts, outcome, %error, "not acquired"));
        self.engine.events.emit(EventKind::AcquireFailed, key, None, Some(&error));
        Err(error)
    }

    /// Asks the store once. Whoever may wait goes on one by one: where only those in line are
    /// woken, nobody else has a turn.
    async fn ask_once(&self, keys: &[Key]) -> Result<Asked, LockError> {
        let engine = &self.engine;
        let mut claim = self.claim(keys)?;
        let limit = engine.step_timeout.min(self.options.ttl);
        let ask = |claim: &Claim<ManyAttempt>| {
            let requests = std::iter::once(&claim.request).chain(&claim.also);
            let requests = requests.map(|request| request.to_store(Intent::Try)).collect();
            Arc::clone(&claim.engine.backend).acquire_many(requests)
        };
        match claim.ask("acquire_all", |_| limit, ask).await {
            (sent_at, Ok(ManyAttempt::Granted(leases))) if leases.len() == keys.len() => {
                claim.granted();
                let mut requests = vec![claim.request.clone()];
                requests.append(&mut claim.also);
                let admit = |(request, lease)| {
                    let grant = engine.admit(request, lease, sent_at, None, 1);
                    LockHandle::new(Hold::new(Arc::clone(engine), grant))
                };
                let handles = requests.into_iter().zip(leases).map(admit).collect();
                LockSet::new(handles).map(Asked::Held)
            }
            (_, Ok(ManyAttempt::Granted(_))) => {
                claim.is_unresolved_now();
                Err(LockError::internal(
                    "the store granted another number of locks than was asked for",
                ))
            }
            (_, Ok(ManyAttempt::Busy(key, busy))) => {
                tracing::debug!(%key, attempts = 1, outcome = "busy", "busy");
                engine.events.emit_attempts(EventKind::Busy, &key, None, 1);
                if self.is_over() {
                    return Err(self.timeout(&key, busy.holder));
                }
                Ok(Asked::WaitFor(keys.iter().position(|other| *other == key).unwrap_or(0)))
            }
            // The wait for the first key tells how long an outage may last.
            (_, Err(error)) if error.kind().is_transient() && !self.is_over() => {
                Ok(Asked::WaitFor(0))
            }
            (_, Err(error)) => Err(error),
        }
    }

    /// One claim on all keys, each under a secret of its own.
    fn claim(&self, keys: &[Key]) -> Result<Claim<ManyAttempt>, LockError> {
        let (engine, options) = (Arc::clone(&self.engine), Arc::clone(&self.options));
        let mut claim = Claim::draw(engine, keys[0].clone(), options)?;
        for key in &keys[1..] {
            let secret = Secret::generate()?;
            claim.also.push(LockRequest::new(key.clone(), secret, Arc::clone(&self.options)));
        }
        Ok(claim)
    }

    fn is_over(&self) -> bool {
        self.options.retry.exhausted(self.attempts) || self.engine.clock.now() >= self.deadline
    }

    fn timeout(&self, key: &Key, holder: Option<Holder>) -> LockError {
        LockError::new(
            ErrorKind::Timeout,
            "it stayed held, so none of the locks was taken; try again later, or wait longer",
        )
        .with_key(&self.engine.user_key(key))
        .with_holder(holder)
        .with_attempts(self.attempts + 1, self.engine.clock.now().since(self.started))
    }
}

/// What asking for all in one step came to.
enum Asked {
    Held(LockSet),
    /// This key was busy.
    WaitFor(usize),
}

/// One call for several locks in one step, timed when it ends or is dropped.
struct Timed {
    engine: Arc<Engine>,
    started: Moment,
    /// Nothing, if others time it.
    outcome: Option<&'static str>,
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome else { return };
        let elapsed = || self.engine.clock.now().since(self.started);
        meter::acquire(self.engine.store.name, outcome, elapsed);
    }
}

impl LockSet {
    fn new(mut handles: Vec<LockHandle>) -> Result<Self, LockError> {
        handles.sort_by_key(LockHandle::key);
        let set = Self { handles };
        // While the last ones were taken, the first may have been lost.
        set.check()?;
        Ok(set)
    }

    /// The handles, sorted by key.
    pub fn handles(&self) -> &[LockHandle] {
        &self.handles
    }

    /// Takes the set apart.
    pub fn into_handles(self) -> Vec<LockHandle> {
        self.handles
    }

    /// Views of all locks, sorted by key.
    pub fn held(&self) -> Vec<Held> {
        self.handles.iter().map(LockHandle::held).collect()
    }

    /// Each key with its fence, sorted by key.
    pub fn fences(&self) -> Vec<(Key, Fence)> {
        self.handles.iter().map(|handle| (handle.key(), handle.fence())).collect()
    }

    /// Whether all of them are held. No I/O.
    pub fn is_held(&self) -> bool {
        self.handles.iter().all(LockHandle::is_held)
    }

    /// How long all of them are held at least.
    pub fn remaining(&self) -> Duration {
        self.handles.iter().map(LockHandle::remaining).min().unwrap_or_default()
    }

    /// An error if any of them is not held any more.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), naming the key.
    pub fn check(&self) -> Result<(), LockError> {
        self.handles.iter().try_for_each(|handle| handle.held().check())
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> (Key, Loss) {
        let (held, loss) = self.first_lost().await;
        (held.key(), loss)
    }

    async fn first_lost(&self) -> (Held, Loss) {
        type Waiting<'a> = Pin<Box<dyn Future<Output = (Held, Loss)> + Send + 'a>>;
        let wait = |handle: &LockHandle| -> Waiting<'_> {
            let held = handle.held();
            Box::pin(async move {
                let loss = held.lost().await;
                (held, loss)
            })
        };
        let mut all: Vec<_> = self.handles.iter().map(wait).collect();
        poll_fn(|cx| {
            all.iter_mut()
                .map(|one| one.as_mut().poll(cx))
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Gives all of them back.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) if any of them was not ours any more, otherwise the first error;
    /// all are tried.
    ///
    /// # Cancel safety
    /// Cancel-safe: if the future is dropped, the releases go on in the background.
    pub async fn release(self) -> Result<(), LockError> {
        let mut outcome: Result<(), LockError> = Ok(());
        for handle in self.handles {
            let released = handle.release().await;
            // A loss says more than a store that does not answer.
            let lost = |done: &Result<(), LockError>| {
                done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost)
            };
            if outcome.is_ok() || (lost(&released) && !lost(&outcome)) {
                outcome = released;
            }
        }
        outcome
    }

    /// Leaves all of them held for at least `duration` from now, and forgets them.
    ///
    /// # Errors
    /// As [`LockHandle::keep_for`]; those that could not be kept are given back.
    pub async fn keep_for(self, duration: Duration) -> Result<(), LockError> {
        let mut outcome = Ok(());
        for handle in self.handles {
            outcome = outcome.and(handle.keep_for(duration).await);
        }
        outcome
    }
}
