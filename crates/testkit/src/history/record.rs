//! Writes down who asked for which lock, what each was told, and when, on the one clock of the
//! machine.

use std::fmt;
use std::io::Write;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use holdtight_core::{BootClock, Clock as _, Fence, Held, LockError, Loss, Moment};

use super::event::{Answer, Event, Foreign, Form, LetGo, NotAnEvent, Patience, Refusal, What};

/// Everything that was written down, by one process or by several.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Where and how it came about, for reports: the store, the seed.
    pub label: String,
    /// What happened, in no particular order.
    pub events: Vec<Event>,
}

impl History {
    /// Adds what another process printed. Its last line may be cut off, if it was killed.
    ///
    /// # Errors
    /// A whole line is not of a history.
    pub fn merge(&mut self, lines: &str) -> Result<(), NotAnEvent> {
        let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
        for line in whole.lines() {
            self.events.push(line.parse()?);
        }
        Ok(())
    }
}

/// Writes a history. Cheap to clone; all clones write the same one.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Book>);

struct Book {
    label: String,
    events: Mutex<Vec<Event>>,
    out: Option<Mutex<Box<dyn Write + Send>>>,
    next: AtomicU64,
    grants: AtomicU64,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Recorder {
    /// An empty history. The label is shown in reports: name the store and the seed.
    pub fn new(label: impl Into<String>) -> Self {
        Self::start(label.into(), 0, None)
    }

    /// The history of one process among several: each has its own number, and writes its events as
    /// lines to `out`.
    pub fn of_process(number: u32, out: impl Write + Send + 'static) -> Self {
        Self::start(format!("process {number}"), number, Some(Mutex::new(Box::new(out))))
    }

    fn start(label: String, process: u32, out: Option<Mutex<Box<dyn Write + Send>>>) -> Self {
        Self(Arc::new(Book {
            label,
            events: Mutex::default(),
            out,
            next: AtomicU64::new(u64::from(process) << 32),
            grants: AtomicU64::new(0),
        }))
    }

    /// Somebody begins to ask for a lock. To be called right before the call that asks.
    pub fn ask(&self, key: &str, form: Form, patience: Patience) -> Claim {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.note(now(), id, What::Asked { key: key.to_owned(), form, patience });
        Claim { recorder: self.clone(), id, answered: false }
    }

    /// How many locks were granted so far.
    pub fn grants(&self) -> u64 {
        self.0.grants.load(Ordering::Relaxed)
    }

    /// The store still shows a holder, long after everybody let go.
    pub fn left(&self, key: &str) {
        self.note(now(), 0, What::Left { key: key.to_owned() });
    }

    /// The writer comes to its end: claims without an answer are still waiting, and nobody will end
    /// them any more.
    pub fn over(&self) {
        let process = self.0.next.load(Ordering::Relaxed) >> 32;
        self.note(now(), process << 32, What::Over);
    }

    /// All that was written down so far.
    pub fn history(&self) -> History {
        let events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        History { label: self.0.label.clone(), events }
    }

    fn note(&self, at: Moment, claim: u64, what: What) {
        if matches!(what, What::Granted { .. }) {
            self.0.grants.fetch_add(1, Ordering::Relaxed);
        }
        let event = Event { at, claim, what };
        if let Some(out) = &self.0.out {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            // In one write, so that a kill cuts off a whole line or the last one. Nobody reads any
            // more if it fails.
            let _ = out.write_all(format!("{event}\n").as_bytes()).and_then(|()| out.flush());
            return;
        }
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

fn now() -> Moment {
    BootClock.now()
}

/// Somebody who asked for one lock, and has no answer yet. Dropped without one, it counts as
/// cancelled.
#[derive(Debug)]
#[must_use = "a claim that is dropped counts as cancelled"]
pub struct Claim {
    recorder: Recorder,
    id: u64,
    answered: bool,
}

impl Claim {
    /// The answer was yes. To be called right after it.
    pub fn granted(self, held: Held) -> Holding {
        let fence = held.fence();
        self.watched(fence, Watch::Held(held))
    }

    /// The same for a lock without a [`Held`], as another face of the library gives it: `remaining`
    /// says for how much longer it is held, zero if it is not.
    pub fn granted_as(
        self,
        fence: Fence,
        remaining: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Holding {
        self.watched(fence, Watch::Asked(Box::new(remaining)))
    }

    fn watched(mut self, fence: Fence, watch: Watch) -> Holding {
        self.answered = true;
        let (at, left) = (now(), watch.remaining());
        self.recorder.note(at, self.id, What::Granted { fence, left });
        Holding { recorder: self.recorder.clone(), id: self.id, watch, let_go: false }
    }

    /// The answer was no.
    pub fn refused(mut self, why: Refusal) {
        self.answered = true;
        self.recorder.note(now(), self.id, What::Refused(why));
    }

    /// The answer was an error.
    pub fn failed(self, error: &LockError) {
        self.refused(Refusal::of(error));
    }

    /// The number under which this claim stands in the history.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.answered {
            self.recorder.note(now(), self.id, What::Refused(Refusal::Cancelled));
        }
    }
}

/// Somebody who got a lock. Dropped, it counts as having let go.
#[derive(Debug)]
#[must_use = "a holding that is dropped counts as let go"]
pub struct Holding {
    recorder: Recorder,
    id: u64,
    watch: Watch,
    let_go: bool,
}

/// How a holder asks whether it still holds.
enum Watch {
    Held(Held),
    Asked(Box<dyn Fn() -> Duration + Send + Sync>),
}

impl Watch {
    fn remaining(&self) -> Duration {
        match self {
            Self::Held(held) => held.remaining(),
            Self::Asked(remaining) => remaining(),
        }
    }

    /// Why it is lost, if it is; a lock that was given back is not.
    fn loss(&self) -> Option<Loss> {
        let Self::Held(held) = self else { return None };
        match pin!(held.lost()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(loss) => Some(loss),
            Poll::Pending => None,
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(held) => held.fmt(f),
            Self::Asked(_) => f.write_str("Asked"),
        }
    }
}

impl Holding {
    /// Asks the lock whether it is held, and writes the answer down.
    pub fn look(&self) -> bool {
        // The moment *before*: whoever holds at a later one has held at this one.
        let (at, left) = (now(), self.watch.remaining());
        if left > Duration::ZERO {
            self.note_at(at, What::Seen { left });
            return true;
        }
        if let Some(loss) = self.watch.loss() {
            self.note(What::Told(loss));
        }
        false
    }

    /// The holder was told that its lock is lost.
    pub fn told(&self, loss: Loss) {
        self.note(What::Told(loss));
    }

    /// Somebody else begins to end this claim; the future is awaited and its outcome written down.
    ///
    /// # Errors
    /// Those of `call`.
    pub async fn ended_by<T>(
        &self,
        how: Foreign,
        call: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.note(What::Ending(how));
        let result = call.await;
        self.note(What::Ended(Answer::of(&result)));
        result
    }

    /// The holder extends its lease.
    pub async fn extended<T>(&self, call: impl Future<Output = Result<T, LockError>>) {
        self.note(What::Extending);
        let result = call.await;
        self.note(What::Extended(Answer::of(&result)));
        self.look();
    }

    /// The holder begins to let go. To be called right before; the answer goes to
    /// [`Parting::done`].
    pub fn letting_go(mut self, how: LetGo) -> Parting {
        self.look();
        self.let_go = true;
        self.note(What::LettingGo(how));
        Parting { recorder: self.recorder.clone(), id: self.id }
    }

    fn note(&self, what: What) {
        self.note_at(now(), what);
    }

    fn note_at(&self, at: Moment, what: What) {
        self.recorder.note(at, self.id, what);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if !self.let_go {
            self.look();
            self.note(What::LettingGo(LetGo::Drop));
        }
    }
}

/// Somebody who lets go, and may be told whether the lock was still there.
#[derive(Clone, Debug)]
pub struct Parting {
    recorder: Recorder,
    id: u64,
}

impl Parting {
    /// What a release or a detach answered.
    pub fn done<T>(&self, result: &Result<T, LockError>) {
        self.recorder.note(now(), self.id, What::Gone(Answer::of(result)));
    }

    /// What `run`, `with_lock`, `once_per` or `lead` said of the work that had this lock.
    pub fn worked<T>(&self, result: &Result<T, LockError>) {
        self.recorder.note(now(), self.id, What::Worked(Answer::of(result)));
    }

    /// Somebody ends the detached lock by its token.
    ///
    /// # Errors
    /// Those of `call`.
    pub async fn ended_by<T>(
        &self,
        how: Foreign,
        call: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.recorder.note(now(), self.id, What::Ending(how));
        let result = call.await;
        self.recorder.note(now(), self.id, What::Ended(Answer::of(&result)));
        result
    }
}
