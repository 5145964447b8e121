//! Background work: finishes in the background what a caller left unfinished, above all releases.
//!
//! Handing work over is synchronous, cannot fail, and needs no runtime: dropping a handle in a
//! destructor, after a panic or outside of async code is all the same. What the work is, is decided
//! in [`settle`](crate::engine::settle) and [`release`](crate::engine::release).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::engine::runtime::EngineRuntime;

/// A piece of work that ends by itself.
pub(crate) type Chore = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Runs chores. Owned by the engine; they outlive it until all of them are done.
pub(crate) struct Background {
    runtime: Arc<EngineRuntime>,
    yard: Arc<Yard>,
}

#[derive(Default)]
struct Yard {
    unfinished: AtomicUsize,
    finished: Notify,
}

impl Yard {
    async fn all_done(&self) {
        loop {
            let finished = self.finished.notified();
            tokio::pin!(finished);
            finished.as_mut().enable();
            if self.unfinished.load(Ordering::Acquire) == 0 {
                return;
            }
            finished.await;
        }
    }
}

/// A chore that is counted until it is done, however it ends: also when its runtime is shut down
/// under it.
struct Bound {
    chore: Option<Chore>,
    yard: Arc<Yard>,
}

impl Future for Bound {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.chore {
            Some(chore) => chore.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Whatever it holds goes before it counts as done.
        self.chore = None;
        if self.yard.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.yard.finished.notify_waiters();
        }
    }
}

impl Background {
    pub(crate) fn new(runtime: Arc<EngineRuntime>) -> Self {
        Self { runtime, yard: Arc::default() }
    }

    /// Takes a chore over. Never blocks, never panics. In a forked child there is nothing to do:
    /// the parent does it.
    pub(crate) fn submit(&self, chore: Chore) {
        if self.runtime.is_inherited() {
            std::mem::forget(chore);
            return;
        }
        self.yard.unfinished.fetch_add(1, Ordering::AcqRel);
        let chore = Bound { chore: Some(chore), yard: Arc::clone(&self.yard) };
        if self.runtime.spawn(chore).is_none() {
            tracing::error!("no runtime is left: a lock ends with its lease");
        }
    }

    /// Takes over what a caller has begun. That goes on where the caller was, because its timers
    /// and sockets are there. If it is cut off, or gets nowhere within `limit`, because that
    /// runtime is shut down or nobody drives it, `heir` does what is left to do, and is safe to run
    /// beside it.
    pub(crate) fn take_over(&self, begun: Chore, limit: Duration, heir: Chore) {
        if self.runtime.is_inherited() {
            std::mem::forget((begun, heir));
            return;
        }
        let (finished, is_finished) = tokio::sync::oneshot::channel();
        if let Ok(here) = Handle::try_current() {
            drop(here.spawn(async move {
                begun.await;
                let _ = finished.send(());
            }));
        } else {
            drop((begun, finished));
        }
        self.submit(Box::pin(async move {
            if !matches!(tokio::time::timeout(limit, is_finished).await, Ok(Ok(()))) {
                heir.await;
            }
        }));
    }

    /// How many chores are not done.
    pub(crate) fn unfinished(&self) -> usize {
        self.yard.unfinished.load(Ordering::Acquire)
    }

    /// Waits until all chores are done, at most so long. Returns how many are left.
    ///
    /// The limit is measured where the chores are: a caller that paused tokio's clock would be at
    /// its end at once.
    pub(crate) async fn drain(&self, limit: Duration) -> usize {
        if self.unfinished() > 0 {
            let yard = Arc::clone(&self.yard);
            let done = self.runtime.spawn(async move {
                let _ = tokio::time::timeout(limit, yard.all_done()).await;
            });
            if let Some(done) = done {
                let _ = done.await;
            }
        }
        self.unfinished()
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").field("unfinished", &self.unfinished()).finish_non_exhaustive()
    }
}
