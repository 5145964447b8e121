//! The keeper: one task that renews all held locks in batches and tells holders of a loss in time.
//!
//! What is due when is decided in [`book`]; this file only carries it out. The task lives while the engine does,
//! and goes on in another runtime if its own is shut down.

mod book;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

pub(crate) use self::book::Place;
use self::book::{Answer, Book, Due, GrantId, Terms};
use crate::backend::{Backend, ExtendBy, ExtendRequest, Extension};
use crate::clock::{Clock, Moment};
use crate::error::LockError;
use crate::event::{EventKind, Events};
use crate::grant::{Grant, Loss, TICK};
use crate::meter;
use crate::runtimes::Runtimes;

/// How often the task looks in vain before it sleeps until it is woken.
const IDLE_LOOKS: u32 = 2;

/// Keeps locks alive. Owned by the engine.
#[derive(Debug)]
pub(crate) struct Keeper {
    desk: Arc<Desk>,
}

#[derive(Debug)]
struct Desk {
    plan: Mutex<Plan>,
    /// Whether the task is there.
    attended: AtomicBool,
    /// Shared with the task, which keeps nothing else of the desk while it sleeps.
    wake: Arc<Notify>,
    backend: Arc<dyn Backend>,
    max_batch: usize,
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    runtimes: Arc<Runtimes>,
    step_timeout: Duration,
}

#[derive(Debug)]
struct Plan {
    book: Book<Arc<Grant>>,
    /// When the task will look next by itself. Whoever enters something earlier has to wake it.
    wakes_at: Moment,
}

impl Keeper {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
        runtimes: Arc<Runtimes>,
        step_timeout: Duration,
    ) -> Self {
        let max_batch = backend.capabilities().max_batch.max(1);
        let desk = Desk {
            plan: Mutex::new(Plan { book: Book::new(max_batch), wakes_at: Moment::FAR_FUTURE }),
            attended: AtomicBool::new(false),
            wake: Arc::default(),
            backend,
            max_batch,
            clock,
            events,
            runtimes,
            step_timeout,
        };
        Self { desk: Arc::new(desk) }
    }

    /// Starts to look after a grant.
    pub(crate) fn admit(&self, grant: &Arc<Grant>) {
        let terms = Terms {
            ttl: grant.spec.ttl,
            sent_at: grant.acquired_at,
            valid_until: grant.valid_until(),
            hold_until: grant.hold_until,
            renew: grant.spec.auto_renew,
        };
        let jitter = fastrand::f64();
        let (id, early) = self.desk.planning(|book| book.admit(Arc::clone(grant), terms, jitter));
        grant.kept.set(id);
        self.attend(early);
    }

    /// Stops looking after a grant; answers that are still on their way will be ignored.
    pub(crate) fn dismiss(&self, grant: &Grant) {
        if let Some(id) = grant.kept.get() {
            self.desk.plan().book.dismiss(id);
        }
    }

    /// The holder extended the lease itself.
    pub(crate) fn moved(&self, grant: &Grant) {
        if let Some(id) = grant.kept.get() {
            self.desk.plan().book.moved(id, grant.valid_until());
        }
    }

    /// The holder heard from the store that the lock is gone.
    pub(crate) fn lose(&self, grant: &Grant, loss: Loss) {
        self.dismiss(grant);
        self.desk.lose(grant, loss);
    }

    /// Sees to it that the task is there, and awake if it has planned to look too late.
    fn attend(&self, early: bool) {
        let attended = &self.desk.attended;
        // Nearly always it is: then looking is enough.
        if !attended.load(Ordering::Acquire) && !attended.swap(true, Ordering::AcqRel) {
            match Handle::try_current() {
                Ok(runtime) => self.desk.keep_in(&runtime),
                // Without a runtime nothing is renewed; deadlines are still honoured by those who read them.
                Err(_) => attended.store(false, Ordering::Release),
            }
        } else if early {
            self.desk.wake.notify_one();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.desk.wake.notify_one();
    }
}

/// Marks the desk as unattended however the task ends, also when its runtime is shut down, even before it began. Locks
/// that are still held, by users of another runtime, are then kept from there.
struct Attendance {
    desk: Weak<Desk>,
    runtime: Id,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let Some(desk) = self.desk.upgrade() else { return };
        desk.attended.store(false, Ordering::Release);
        desk.runtimes.forget(self.runtime);
        // Asked first: a runtime that has ended too drops the task at once, which comes here again.
        let needed = desk.plan().book.next_wake().is_some();
        if needed
            && let Some(runtime) = desk.runtimes.latest()
            && !desk.attended.swap(true, Ordering::AcqRel)
        {
            desk.keep_in(&runtime);
        }
    }
}

/// The task. It holds no strong reference while it sleeps, so that the engine can go away.
async fn keep(attendance: Attendance, wake: Arc<Notify>) {
    let mut idle = 0;
    loop {
        let Some(desk) = attendance.desk.upgrade() else { return };
        let now = desk.clock.now();
        let (due, until) = desk.look(now, &mut idle);
        for (grant, loss) in due.lost {
            desk.lose(&grant, loss);
        }
        // A lock that was handed to somebody who does not come for it ends with its lease.
        let (taken, untaken): (Vec<_>, Vec<_>) =
            due.renew.into_iter().partition(|(_, grant)| grant.is_taken());
        for (id, _) in untaken {
            desk.plan().book.answered(id, Answer::Failed, now, fastrand::f64());
        }
        let mut renew = taken.into_iter().peekable();
        while renew.peek().is_some() {
            let batch: Vec<_> = renew.by_ref().take(desk.max_batch).collect();
            // Each batch on its own: a slow store must not delay the news of a loss.
            tokio::spawn(renew_batch(Arc::clone(&desk), batch));
        }
        let left = until.since(desk.clock.now()).max(Duration::from_millis(1));
        drop(desk);
        if until == Moment::FAR_FUTURE {
            wake.notified().await;
            idle = 0;
        } else {
            let _ = tokio::time::timeout(left, wake.notified()).await;
        }
    }
}

/// Renewals on their way. If their task ends without an answer, because a store panicked or a runtime was shut down, they
/// count as failed and are tried again.
struct Renewing {
    desk: Arc<Desk>,
    batch: Vec<(GrantId, Arc<Grant>)>,
    /// Before the request left: validity counts from here.
    sent_at: Moment,
}

impl Renewing {
    fn answered(&mut self, answers: impl IntoIterator<Item = Result<Extension, LockError>>) {
        for ((id, grant), answer) in std::mem::take(&mut self.batch).into_iter().zip(answers) {
            self.desk.answered(id, &grant, answer, self.sent_at);
        }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.answered(std::iter::repeat_with(|| {
            Err(LockError::ambiguous("the renewal was cut off before its answer came"))
        }));
    }
}

async fn renew_batch(desk: Arc<Desk>, batch: Vec<(GrantId, Arc<Grant>)>) {
    let sent_at = desk.clock.now();
    let mut renewing = Renewing { desk, batch, sent_at };
    let Renewing { desk, batch, .. } = &renewing;
    let requests = batch.iter().map(|(_, grant)| {
        ExtendRequest::new(
            grant.key.clone(),
            grant.secret.clone(),
            ExtendBy::AtLeast(grant.spec.ttl),
        )
    });
    let call = Arc::clone(&desk.backend).extend(requests.collect());
    // A call that hangs is given up after a third of the shortest lease, while there is time to try again.
    let patience = batch
        .iter()
        .map(|(_, grant)| grant.spec.ttl / 3)
        .min()
        .unwrap_or_default()
        .min(desk.step_timeout);
    let answers = match tokio::time::timeout(patience, call).await {
        Ok(Ok(answers)) if answers.len() == batch.len() => answers,
        Ok(Ok(answers)) => {
            let text = format!("the store answered {} of {} renewals", answers.len(), batch.len());
            same_for_all(&LockError::internal(text), batch.len())
        }
        Ok(Err(error)) => same_for_all(&error, batch.len()),
        Err(_) => same_for_all(
            &LockError::ambiguous("the store did not answer a renewal in time"),
            batch.len(),
        ),
    };
    renewing.answered(answers);
}

fn same_for_all(error: &LockError, count: usize) -> Vec<Result<Extension, LockError>> {
    (0..count).map(|_| Err(error.duplicate())).collect()
}

impl Desk {
    /// Starts the task in `runtime`. Whoever calls this has marked the desk as attended.
    fn keep_in(self: &Arc<Self>, runtime: &Handle) {
        let attendance = Attendance { desk: Arc::downgrade(self), runtime: runtime.id() };
        drop(runtime.spawn(keep(attendance, Arc::clone(&self.wake))));
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is due, and until when the task may sleep. `idle` counts the looks at an empty book.
    fn look(&self, now: Moment, idle: &mut u32) -> (Due<Arc<Grant>>, Moment) {
        let mut plan = self.plan();
        let due = plan.book.due(now);
        let next = plan.book.next_wake();
        *idle = if next.is_some() { 0 } else { *idle + 1 };
        // Locks that come and go quickly should not have to wake the task each time, so it lingers for a moment.
        plan.wakes_at = if *idle > IDLE_LOOKS {
            Moment::FAR_FUTURE
        } else {
            // Timers stand still while a machine sleeps, leases do not: so look at least every tick.
            next.unwrap_or(Moment::FAR_FUTURE).min(now.after(TICK))
        };
        (due, plan.wakes_at)
    }

    /// Changes the book; also says whether something is now due before the task means to look.
    fn planning<T>(&self, change: impl FnOnce(&mut Book<Arc<Grant>>) -> T) -> (T, bool) {
        let mut plan = self.plan();
        let out = change(&mut plan.book);
        let early = plan.book.next_wake().is_some_and(|next| next < plan.wakes_at);
        (out, early)
    }

    fn answered(
        &self,
        id: GrantId,
        grant: &Arc<Grant>,
        answer: Result<Extension, LockError>,
        sent_at: Moment,
    ) {
        let answer = match answer {
            // Somebody else's fence means somebody else's lock, whatever the store calls it.
            Ok(Extension::Extended(lease)) if lease.fence == grant.fence => {
                grant.extended(lease, sent_at);
                tracing::trace!(key = %grant.key, fence = %grant.fence, outcome = "renewed", "renewed");
                meter::renewal(self.events.store(), "renewed");
                self.events.emit(EventKind::Renewed, &grant.key, Some(grant.fence), None);
                Answer::Extended { valid_until: grant.valid_until(), sent_at }
            }
            Ok(Extension::Extended(_) | Extension::NotHeld) => {
                meter::renewal(self.events.store(), "lost");
                Answer::NotHeld
            }
            Err(error) => {
                meter::renewal(self.events.store(), "failed");
                meter::store_error(self.events.store(), error.kind());
                tracing::warn!(store = self.events.store(), key = %grant.key, fence = %grant.fence, %error, "a renewal failed; it is tried again until the lease ends");
                self.events.emit(
                    EventKind::RenewalFailed,
                    &grant.key,
                    Some(grant.fence),
                    Some(&error),
                );
                Answer::Failed
            }
        };
        let (now, jitter) = (self.clock.now(), fastrand::f64());
        let (lost, early) = self.planning(|book| book.answered(id, answer, now, jitter));
        // The next try after a failure comes sooner than the task expected.
        if early {
            self.wake.notify_one();
        }
        if let Some((grant, loss)) = lost {
            self.lose(&grant, loss);
        }
    }

    /// Tells the holder, and lets the next of this process ask the store.
    fn lose(&self, grant: &Grant, loss: Loss) {
        if grant.end(loss.into()) {
            self.events.ended(grant, self.clock.now(), Some(loss));
        }
        drop(grant.take_front());
    }
}
