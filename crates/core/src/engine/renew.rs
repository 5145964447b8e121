//! The keeper: one task that renews all held locks in batches and tells holders of a loss in time.
//!
//! What is due when is decided in [`schedule`](crate::engine::schedule); this file only carries it
//! out. The task lives while the engine does, in its [runtime](crate::engine::runtime).

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::event::{EventKind, Events};
use crate::engine::grant::{Grant, TICK};
use crate::engine::meter;
use crate::engine::runtime::EngineRuntime;
use crate::engine::schedule::{Answer, Book, Due, GrantId, Terms};
use crate::model::clock::{Clock, Moment};
use crate::model::error::LockError;
use crate::model::key::{Key, KeyMap};
use crate::model::loss::Loss;
use crate::store::{Backend, ExtendBy, ExtendRequest, Extension};

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
    runtime: Arc<EngineRuntime>,
    step_timeout: Duration,
}

#[derive(Debug)]
struct Plan {
    book: Book<Arc<Grant>>,
    /// The one grant of each key that can be true: the one with the largest fence.
    held: KeyMap<Arc<Grant>>,
    /// When the task will look next by itself. Whoever enters something earlier has to wake it.
    wakes_at: Moment,
}

impl Keeper {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
        runtime: Arc<EngineRuntime>,
        step_timeout: Duration,
    ) -> Self {
        let max_batch = backend.capabilities().max_batch.max(1);
        let desk = Desk {
            plan: Mutex::new(Plan {
                book: Book::new(max_batch),
                held: KeyMap::default(),
                wakes_at: Moment::FAR_FUTURE,
            }),
            attended: AtomicBool::new(false),
            wake: Arc::default(),
            backend,
            max_batch,
            clock,
            events,
            runtime,
            step_timeout,
        };
        Self { desk: Arc::new(desk) }
    }

    /// Starts to look after a grant.
    ///
    /// If an earlier grant of the same key is still believed in, one of the two is not true any
    /// more, and ends at once: the one with the smaller fence.
    pub(crate) fn admit(&self, grant: &Arc<Grant>) {
        let terms = Terms {
            ttl: grant.options.ttl,
            sent_at: grant.acquired_at,
            valid_until: grant.valid_until(),
            hold_until: grant.hold_until,
            renew: grant.options.auto_renew,
        };
        let jitter = fastrand::f64();
        let mut plan = self.desk.plan();
        grant.kept.set(plan.book.admit(Arc::clone(grant), terms, jitter));
        let untrue = match plan.held.entry(grant.key.clone()) {
            Entry::Vacant(place) => {
                place.insert(Arc::clone(grant));
                None
            }
            Entry::Occupied(place) if place.get().fence > grant.fence => Some(Arc::clone(grant)),
            Entry::Occupied(mut place) => Some(place.insert(Arc::clone(grant))),
        };
        // Ended before anybody else can come: between the two moments both would be believed in.
        let untrue = untrue.map(|untrue| (plan.end(&untrue, Loss::TakenAway), untrue));
        let early = plan.is_early();
        drop(plan);
        if let Some((news, untrue)) = untrue {
            self.desk.tell_lost(&untrue, Loss::TakenAway, news);
        }
        self.attend(early);
    }

    /// Stops looking after a grant; answers that are still on their way will be ignored.
    pub(crate) fn dismiss(&self, grant: &Grant) {
        self.desk.plan().dismiss(grant);
    }

    /// The grant of `key` that this engine believes in, if `which` says that it is the one.
    fn held(&self, key: &Key, which: impl FnOnce(&Grant) -> bool) -> Option<Arc<Grant>> {
        self.desk.plan().held.get(key).filter(|grant| which(grant)).map(Arc::clone)
    }

    /// Whether this engine believes that it holds `key`.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        self.desk.plan().held.contains_key(key)
    }

    /// Somebody takes that grant from its holder, through this very engine: the holder is told
    /// before it happens.
    pub(crate) fn revoke(&self, key: &Key, which: impl FnOnce(&Grant) -> bool) {
        if let Some(grant) = self.held(key, which) {
            self.lose(&grant, Loss::TakenAway);
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
        self.desk.lose(grant, loss);
    }

    /// Sees to it that the task is there, and awake if it has planned to look too late.
    fn attend(&self, early: bool) {
        let attended = &self.desk.attended;
        // Nearly always it is: then looking is enough.
        if !attended.load(Ordering::Acquire) && !attended.swap(true, Ordering::AcqRel) {
            self.desk.keep();
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

/// Marks the desk as unattended however the task ends, also when the runtime of a test is shut
/// down: the next grant starts another. Deadlines are honoured without it, by those who read them.
struct Attendance {
    desk: Weak<Desk>,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if let Some(desk) = self.desk.upgrade() {
            desk.attended.store(false, Ordering::Release);
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
        // A lock that was handed to somebody who does not come for it ends with its lease, and so
        // does one whose call is not polled any more. One that moves to another secret is not to be
        // found under this one.
        let (wanted, unwanted): (Vec<_>, Vec<_>) =
            due.renew.into_iter().partition(|(_, grant)| grant.wants_renewal(now));
        for (id, _) in unwanted {
            desk.plan().book.answered(id, Answer::Failed, now, fastrand::f64());
        }
        let mut renew = wanted.into_iter().peekable();
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

/// Renewals on their way. If their task ends without an answer, because a store panicked or a
/// runtime was shut down, they count as failed and are tried again.
struct Renewing {
    desk: Arc<Desk>,
    batch: Vec<(GrantId, Arc<Grant>)>,
    /// Before the request left: validity counts from here.
    sent_at: Moment,
}

impl Renewing {
    fn answered(&mut self, answers: impl IntoIterator<Item = Result<Extension, LockError>>) {
        let batch = std::mem::take(&mut self.batch);
        // All leases first: whoever listens may take its time, and that must not cost the others
        // theirs.
        let told: Vec<_> = batch
            .into_iter()
            .zip(answers)
            .map(|((id, grant), answer)| {
                let lost = self.desk.take_in(id, &grant, &answer, self.sent_at);
                (grant, answer, lost)
            })
            .collect();
        for (_, _, lost) in &told {
            if let Some((grant, loss)) = lost {
                self.desk.lose(grant, *loss);
            }
        }
        self.desk.events.aside(|| {
            for (grant, answer, _) in &told {
                self.desk.tell(grant, answer);
            }
        });
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
            ExtendBy::AtLeast(grant.options.ttl),
        )
    });
    let call = Arc::clone(&desk.backend).extend(requests.collect());
    // A call that hangs is given up after a third of the shortest lease, while there is time to try
    // again.
    let patience = batch
        .iter()
        .map(|(_, grant)| grant.options.ttl / 3)
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
    (0..count).map(|_| Err(error.clone())).collect()
}

impl Desk {
    /// Starts the task. Whoever calls this has marked the desk as attended.
    fn keep(self: &Arc<Self>) {
        let attendance = Attendance { desk: Arc::downgrade(self) };
        drop(self.runtime.spawn(keep(attendance, Arc::clone(&self.wake))));
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
        // Locks that come and go quickly should not have to wake the task each time, so it lingers
        // for a moment.
        plan.wakes_at = if *idle > IDLE_LOOKS {
            Moment::FAR_FUTURE
        } else {
            // Timers stand still while a machine sleeps, leases do not: so look at least every
            // tick.
            next.unwrap_or(Moment::FAR_FUTURE).min(now.after(TICK))
        };
        (due, plan.wakes_at)
    }

    /// Takes in what the store said of one lease. Returns the lock if it is lost by that.
    fn take_in(
        &self,
        id: GrantId,
        grant: &Grant,
        answer: &Result<Extension, LockError>,
        sent_at: Moment,
    ) -> Option<(Arc<Grant>, Loss)> {
        let answer = match answer {
            // Somebody else's fence means somebody else's lock, whatever the store calls it.
            Ok(Extension::Extended(lease)) if lease.fence == grant.fence => {
                grant.extended(*lease, sent_at);
                Answer::Extended { valid_until: grant.valid_until(), sent_at }
            }
            // Perhaps its own holder has moved it meanwhile, which is no loss.
            Ok(Extension::NotHeld) if grant.is_leaving() => Answer::Failed,
            Ok(Extension::Extended(_) | Extension::NotHeld) => Answer::NotHeld,
            Err(_) => Answer::Failed,
        };
        let (now, jitter) = (self.clock.now(), fastrand::f64());
        let mut plan = self.plan();
        let lost = plan.book.answered(id, answer, now, jitter);
        // The next try after a failure comes sooner than the task expected.
        let early = plan.is_early();
        drop(plan);
        if early {
            self.wake.notify_one();
        }
        lost
    }

    /// Tells whoever wants to know what the store said of one lease.
    fn tell(&self, grant: &Grant, answer: &Result<Extension, LockError>) {
        let (key, fence) = (&grant.key, grant.fence);
        match answer {
            Ok(Extension::Extended(lease)) if lease.fence == fence => {
                tracing::trace!(%key, %fence, outcome = "renewed", "renewed");
                meter::renewal(self.events.store(), "renewed");
                self.events.emit(EventKind::Renewed, key, Some(fence), None);
            }
            Ok(Extension::Extended(_) | Extension::NotHeld) => {
                meter::renewal(self.events.store(), "lost");
            }
            Err(error) => {
                meter::renewal(self.events.store(), "failed");
                meter::store_error(self.events.store(), error.kind());
                tracing::warn!(store = self.events.store(), %key, %fence, %error, "a renewal failed; it is tried again until the lease ends");
                self.events.emit(EventKind::RenewalFailed, key, Some(fence), Some(error));
            }
        }
    }

    /// Tells the holder, and lets the next of this process ask the store.
    fn lose(&self, grant: &Grant, loss: Loss) {
        let news = self.plan().end(grant, loss);
        self.tell_lost(grant, loss, news);
    }

    fn tell_lost(&self, grant: &Grant, loss: Loss, news: bool) {
        if news {
            self.events.ended(grant, self.clock.now(), Some(loss));
        }
        drop(grant.take_front());
    }
}

impl Plan {
    /// Whether something is due before the task means to look.
    fn is_early(&self) -> bool {
        self.book.next_wake().is_some_and(|next| next < self.wakes_at)
    }

    /// Ends a grant and strikes it out, in one: whoever finds none here may be sure that none is
    /// believed in. Returns whether it had not ended before.
    fn end(&mut self, grant: &Grant, loss: Loss) -> bool {
        let news = grant.end(loss.into());
        self.dismiss(grant);
        news
    }

    /// Strikes a grant that has ended out, wherever it stands.
    fn dismiss(&mut self, grant: &Grant) {
        if let Some(id) = grant.kept.get() {
            self.book.dismiss(id);
        }
        // Nearly always it is the one that stands there, so looking first would cost more.
        if let Some(held) = self.held.remove(&grant.key)
            && !std::ptr::eq(&raw const *held, grant)
        {
            self.held.insert(grant.key.clone(), held);
        }
    }
}
