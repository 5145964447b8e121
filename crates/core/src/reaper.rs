//! The reaper: finishes in the background what a caller left unfinished, above all releases.
//!
//! Handing work over is synchronous, cannot fail, and needs no runtime: dropping a handle in a destructor, after
//! a panic or outside of async code is all the same. What the work is, is decided in [`release`](crate::release).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// A piece of work that ends by itself.
pub(crate) type Chore = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Runs chores. Owned by the engine; outlives it until all of them are done.
pub(crate) struct Reaper {
    yard: Arc<Yard>,
}

struct Yard {
    /// Chores that no runtime has taken yet.
    waiting: Mutex<Vec<Chore>>,
    /// Whether there may be any: every acquire call looks.
    any_waiting: AtomicBool,
    /// The runtime that was there last: chores dropped outside of any runtime go there.
    home: Mutex<Option<Handle>>,
    unfinished: AtomicUsize,
    finished: Notify,
}

/// Counts a chore until it is done, however it ends: also when its runtime is shut down under it.
struct Counted(Arc<Yard>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.finished.notify_waiters();
        }
    }
}

impl Reaper {
    pub(crate) fn new() -> Self {
        Self {
            yard: Arc::new(Yard {
                waiting: Mutex::default(),
                any_waiting: AtomicBool::new(false),
                home: Mutex::new(Handle::try_current().ok()),
                unfinished: AtomicUsize::new(0),
                finished: Notify::new(),
            }),
        }
    }

    /// Takes a chore over. Never blocks, never panics.
    pub(crate) fn submit(&self, chore: Chore) {
        self.yard.unfinished.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(Arc::clone(&self.yard));
        let chore: Chore = Box::pin(async move {
            let _counted = counted;
            chore.await;
        });
        if let Some(runtime) = self.runtime() {
            runtime.spawn(chore);
        } else {
            let mut waiting = lock(&self.yard.waiting);
            waiting.push(chore);
            self.yard.any_waiting.store(true, Ordering::Release);
        }
    }

    /// Takes note of the runtime that the caller runs in, and gives it what could not be run before.
    pub(crate) fn adopt(&self) {
        if !self.yard.any_waiting.load(Ordering::Acquire) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let mut waiting = lock(&self.yard.waiting);
            self.yard.any_waiting.store(false, Ordering::Release);
            let chores = std::mem::take(&mut *waiting);
            drop(waiting);
            for chore in chores {
                runtime.spawn(chore);
            }
        }
    }

    fn runtime(&self) -> Option<Handle> {
        match Handle::try_current() {
            Ok(runtime) => {
                let mut home = lock(&self.yard.home);
                if !home.as_ref().is_some_and(|home| home.id() == runtime.id()) {
                    *home = Some(runtime.clone());
                }
                Some(runtime)
            }
            Err(_) => lock(&self.yard.home).clone(),
        }
    }

    /// How many chores are not done.
    pub(crate) fn unfinished(&self) -> usize {
        self.yard.unfinished.load(Ordering::Acquire)
    }

    /// Waits until all chores are done, at most so long. Returns how many are left.
    pub(crate) async fn drain(&self, limit: Duration) -> usize {
        self.adopt();
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
