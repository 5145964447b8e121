//! The keeper: one task that renews all held locks in batches and tells holders of a loss in time.
//!
//! What is due when is decided in [`book`]; this file only carries it out. The task lives while the engine does,
//! and is started again if its runtime was shut down.

mod book;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use self::book::GrantId;
use self::book::{Answer, Book, Terms};
use crate::backend::{Backend, ExtendBy, ExtendRequest, Extension};
use crate::clock::{Clock, Moment};
use crate::error::LockError;
use crate::event::{EventKind, Events};
use crate::grant::{Grant, Loss, TICK};

/// Keeps locks alive. Owned by the engine.
#[derive(Debug)]
pub(crate) struct Keeper {
    desk: Arc<Desk>,
    wake: Arc<Notify>,
}

#[derive(Debug)]
struct Desk {
    book: Mutex<Book<Arc<Grant>>>,
    /// Whether the task is there.
    attended: AtomicBool,
    /// Whether it sleeps without a timer, because there is nothing to keep.
    asleep: AtomicBool,
    backend: Arc<dyn Backend>,
    max_batch: usize,
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    step_timeout: Duration,
}

impl Keeper {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        events: Arc<Events>,
        step_timeout: Duration,
    ) -> Self {
        let max_batch = backend.capabilities().max_batch.max(1);
        let desk = Desk {
            book: Mutex::new(Book::new()),
            attended: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            backend,
            max_batch,
            clock,
            events,
            step_timeout,
        };
        Self { desk: Arc::new(desk), wake: Arc::default() }
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
        let mut book = self.desk.book();
        let id = book.admit(Arc::clone(grant), terms, fastrand::f64());
        let first = book.next_wake();
        drop(book);
        // Nobody else sets it, and nobody reads it before the grant is handed out.
        let _ = grant.kept.set(id);
        self.attend(first);
    }

    /// Stops looking after a grant; answers that are still on their way will be ignored.
    pub(crate) fn dismiss(&self, grant: &Grant) {
        if let Some(id) = grant.kept.get() {
            self.desk.book().dismiss(*id);
        }
    }

    /// The holder extended the lease itself.
    pub(crate) fn moved(&self, grant: &Grant) {
        if let Some(id) = grant.kept.get() {
            self.desk.book().moved(*id, grant.valid_until());
        }
    }

    /// The holder heard from the store that the lock is gone.
    pub(crate) fn lose(&self, grant: &Grant, loss: Loss) {
        self.dismiss(grant);
        self.desk.lose(grant, loss);
    }

    /// Sees to it that the task is there and awake in time for `first`.
    fn attend(&self, first: Option<Moment>) {
        if !self.desk.attended.swap(true, Ordering::AcqRel) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => {
                    drop(runtime.spawn(keep(Arc::downgrade(&self.desk), Arc::clone(&self.wake))));
                }
                // Without a runtime nothing is renewed; deadlines are still honoured by those who read them.
                Err(_) => self.desk.attended.store(false, Ordering::Release),
            }
        } else if self.desk.asleep.load(Ordering::SeqCst)
            || first.is_some_and(|first| first < self.desk.clock.now().after(TICK))
        {
            self.wake.notify_one();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Marks the desk as unattended however the task ends, also when its runtime is shut down.
struct Attendance(Weak<Desk>);

impl Drop for Attendance {
    fn drop(&mut self) {
        if let Some(desk) = self.0.upgrade() {
            desk.asleep.store(false, Ordering::SeqCst);
            desk.attended.store(false, Ordering::Release);
        }
    }
}

/// The task. It holds no strong reference while it sleeps, so that the engine can go away.
async fn keep(desk: Weak<Desk>, wake: Arc<Notify>) {
    let attendance = Attendance(desk);
    let mut idle = 0;
    loop {
        let Some(desk) = attendance.0.upgrade() else { return };
        let now = desk.clock.now();
        let (due, next) = {
            let mut book = desk.book();
            let due = book.due(now);
            (due, book.next_wake())
        };
        for (grant, loss) in due.lost {
            desk.lose(&grant, loss);
        }
        let mut renew = due.renew.into_iter().peekable();
        while renew.peek().is_some() {
            let batch: Vec<_> = renew.by_ref().take(desk.max_batch).collect();
            // Each batch on its own: a slow store must not delay the news of a loss.
            tokio::spawn(renew_batch(Arc::clone(&desk), batch));
        }
        idle = if next.is_some() { 0 } else { idle + 1 };
        drop(desk);
        match next {
            // Timers stand still while a machine sleeps, leases do not: so look at least every tick.
            Some(next) => {
                let Some(desk) = attendance.0.upgrade() else { return };
                let left = next.since(desk.clock.now()).min(TICK);
                drop(desk);
                let _ =
                    tokio::time::timeout(left.max(Duration::from_millis(1)), wake.notified()).await;
            }
            // Linger for a moment: locks that come and go quickly should not have to wake the task each time.
            None if idle <= 2 => {
                let _ = tokio::time::timeout(TICK, wake.notified()).await;
            }
            None => {
                let Some(desk) = attendance.0.upgrade() else { return };
                desk.asleep.store(true, Ordering::SeqCst);
                // Whoever was entered since the last look did not know yet that somebody has to be woken.
                let alone = desk.book().is_empty();
                drop(desk);
                if alone {
                    wake.notified().await;
                }
                let Some(desk) = attendance.0.upgrade() else { return };
                desk.asleep.store(false, Ordering::SeqCst);
                idle = 0;
            }
        }
    }
}

async fn renew_batch(desk: Arc<Desk>, batch: Vec<(GrantId, Arc<Grant>)>) {
    // Before the request leaves: validity counts from here.
    let sent_at = desk.clock.now();
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
    for ((id, grant), answer) in batch.into_iter().zip(answers) {
        desk.answered(id, &grant, answer, sent_at);
    }
}

fn same_for_all(error: &LockError, count: usize) -> Vec<Result<Extension, LockError>> {
    (0..count).map(|_| Err(error.duplicate())).collect()
}

impl Desk {
    fn book(&self) -> MutexGuard<'_, Book<Arc<Grant>>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
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
                self.events.emit(EventKind::Renewed, &grant.key, Some(grant.fence), None);
                Answer::Extended { valid_until: grant.valid_until(), sent_at }
            }
            Ok(Extension::Extended(_) | Extension::NotHeld) => Answer::NotHeld,
            Err(error) => {
                tracing::warn!(key = %grant.key, fence = %grant.fence, %error, "a renewal failed; it is tried again until the lease ends");
                self.events.emit(
                    EventKind::RenewalFailed,
                    &grant.key,
                    Some(grant.fence),
                    Some(&error),
                );
                Answer::Failed
            }
        };
        let lost = self.book().answered(id, answer, self.clock.now(), fastrand::f64());
        if let Some((grant, loss)) = lost {
            self.lose(&grant, loss);
        }
    }

    /// Tells the holder, and lets the next of this process ask the store.
    fn lose(&self, grant: &Grant, loss: Loss) {
        if grant.end(loss.into()) {
            tracing::warn!(key = %grant.key, fence = %grant.fence, reason = %loss, "the lock was lost");
            self.events.emit(EventKind::Lost(loss), &grant.key, Some(grant.fence), None);
        }
        drop(grant.take_front());
    }
}
