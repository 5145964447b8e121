//! The reaper: finishes in the background what a caller left unfinished, above all releases.
//!
//! Handing work over is synchronous, cannot fail, and needs no runtime: dropping a handle in a destructor, after
//! a panic or outside of async code is all the same. What the work is, is decided in [`release`](crate::release).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use crate::runtimes::Runtimes;

/// A piece of work that ends by itself.
pub(crate) type Chore = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Runs chores. Owned by the engine; outlives it until all of them are done.
pub(crate) struct Reaper {
    yard: Arc<Yard>,
}

struct Yard {
    /// Chores that no runtime has taken yet.
    waiting: Mutex<Vec<Bound>>,
    /// Whether there may be any: every acquire call looks.
    any_waiting: AtomicBool,
    /// Chores dropped outside of any runtime go to the latest.
    runtimes: Arc<Runtimes>,
    unfinished: AtomicUsize,
    finished: Notify,
}

/// A chore that is counted until it is done, however it ends: also when its runtime is shut down under it.
///
/// One that was not begun by then goes to another runtime. One that was begun cannot: its timers and sockets are gone.
struct Bound {
    chore: Option<Chore>,
    begun: bool,
    /// The runtime that it was given to.
    runtime: Option<Id>,
    yard: Arc<Yard>,
}

impl Bound {
    fn run_in(mut self, runtime: &Handle) {
        self.runtime = Some(runtime.id());
        drop(runtime.spawn(self));
    }
}

impl Future for Bound {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.begun = true;
        match &mut self.chore {
            Some(chore) => chore.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let (Some(ended), false) = (self.runtime, self.begun) {
            self.yard.runtimes.forget(ended);
            if let (Some(runtime), Some(chore)) = (self.yard.runtimes.latest(), self.chore.take()) {
                let yard = Arc::clone(&self.yard);
                Self { chore: Some(chore), begun: false, runtime: None, yard }.run_in(&runtime);
                return;
            }
        }
        // Whatever it holds goes before it counts as done.
        self.chore = None;
        if self.yard.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.yard.finished.notify_waiters();
        }
    }
}

impl Reaper {
    pub(crate) fn new(runtimes: Arc<Runtimes>) -> Self {
        Self {
            yard: Arc::new(Yard {
                waiting: Mutex::default(),
                any_waiting: AtomicBool::new(false),
                runtimes,
                unfinished: AtomicUsize::new(0),
                finished: Notify::new(),
            }),
        }
    }

    /// Takes a chore over. Never blocks, never panics.
    pub(crate) fn submit(&self, chore: Chore) {
        self.yard.unfinished.fetch_add(1, Ordering::AcqRel);
        let yard = Arc::clone(&self.yard);
        let chore = Bound { chore: Some(chore), begun: false, runtime: None, yard };
        if let Some(runtime) = self.runtime() {
            chore.run_in(&runtime);
        } else {
            let mut waiting = lock(&self.yard.waiting);
            waiting.push(chore);
            self.yard.any_waiting.store(true, Ordering::Release);
        }
    }

    /// Takes note of the runtime that the caller runs in, and gives it what could not be run before.
    pub(crate) fn adopt(&self, runtime: &Handle) {
        self.yard.runtimes.note(runtime);
        if !self.yard.any_waiting.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = lock(&self.yard.waiting);
        self.yard.any_waiting.store(false, Ordering::Release);
        let chores = std::mem::take(&mut *waiting);
        drop(waiting);
        for chore in chores {
            chore.run_in(runtime);
        }
    }

    /// As [`adopt`](Self::adopt), if there is a runtime.
    pub(crate) fn adopt_here(&self) {
        if let Ok(runtime) = Handle::try_current() {
            self.adopt(&runtime);
        }
    }

    fn runtime(&self) -> Option<Handle> {
        match Handle::try_current() {
            Ok(runtime) => {
                self.yard.runtimes.note(&runtime);
                Some(runtime)
            }
            Err(_) => self.yard.runtimes.latest(),
        }
    }

    /// How many chores are not done.
    pub(crate) fn unfinished(&self) -> usize {
        self.yard.unfinished.load(Ordering::Acquire)
    }

    /// Waits until all chores are done, at most so long. Returns how many are left.
    pub(crate) async fn drain(&self, limit: Duration) -> usize {
        self.adopt_here();
        let all_done = async {
            loop {
                let finished = self.yard.finished.notified();
                tokio::pin!(finished);
                finished.as_mut().enable();
                if self.unfinished() == 0 {
                    return;
                }
                finished.await;
            }
        };
        let _ = tokio::time::timeout(limit, all_done).await;
        self.unfinished()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("unfinished", &self.unfinished()).finish_non_exhaustive()
    }
}
