//! The runtimes that an engine was used from. Background work needs one that lives: when the one it runs in is shut
//! down, as at the end of a test or of a short `block_on`, it goes on in another.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Handle, Id};

/// More are forgotten: whoever uses more runtimes than that will be seen again.
const MOST: usize = 4;

/// Where the runtimes of one engine are noted.
#[derive(Debug)]
pub(crate) struct Runtimes {
    /// Tells engines apart, for threads that remember what they noted last.
    name: u64,
    /// The latest last.
    seen: Mutex<Vec<Handle>>,
}

thread_local! {
    /// The engine and the runtime that this thread noted last: every acquire call notes, and nearly always the same.
    static NOTED: Cell<Option<(u64, Id)>> = const { Cell::new(None) };
}

impl Runtimes {
    pub(crate) fn new() -> Arc<Self> {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        let name = NAMES.fetch_add(1, Ordering::Relaxed);
        let runtimes = Self { name, seen: Mutex::default() };
        if let Ok(current) = Handle::try_current() {
            runtimes.note(&current);
        }
        Arc::new(runtimes)
    }

    /// Takes note of the runtime that a caller runs in.
    pub(crate) fn note(&self, runtime: &Handle) {
        let news = Some((self.name, runtime.id()));
        // A thread that is about to end remembers nothing.
        if NOTED.try_with(|noted| noted.replace(news)) == Ok(news) {
            return;
        }
        let mut seen = self.seen();
        seen.retain(|other| other.id() != runtime.id());
        if seen.len() == MOST {
            seen.remove(0);
        }
        seen.push(runtime.clone());
    }

    /// The runtime that was there last.
    pub(crate) fn latest(&self) -> Option<Handle> {
        self.seen().last().cloned()
    }

    /// That one has ended, or is about to.
    pub(crate) fn forget(&self, ended: Id) {
        self.seen().retain(|runtime| runtime.id() != ended);
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
