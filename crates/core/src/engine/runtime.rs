//! Where the background work of one engine runs, and in which process.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::model::clock::Clock;
use crate::store::runtime::background;

/// Where the background work of one engine lives, and in which process.
#[derive(Debug)]
pub(crate) struct EngineRuntime {
    process: AtomicU32,
    runtime: Where,
}

#[derive(Debug)]
enum Where {
    /// In the runtime of the process.
    Process,
    /// In the runtime of the test that drives its clock, the latest that was seen.
    Test(Mutex<Option<Handle>>),
}

impl EngineRuntime {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        let test = clock.is_driven_by_tokio();
        let runtime = if test { Where::Test(Mutex::default()) } else { Where::Process };
        Self { process: AtomicU32::new(std::process::id()), runtime }
    }

    /// Whether this process is a forked child of the one whose locks these are. It has copies of
    /// all that its parent knew, secrets too, and must do nothing with them: what it gave back
    /// would be the parent's.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process.load(Ordering::Relaxed) != std::process::id()
    }

    /// As if this process had been forked.
    #[cfg(test)]
    pub(crate) fn pretend_fork(&self) {
        self.process.store(0, Ordering::Relaxed);
    }

    /// Starts a task. `None` if there is nowhere to run it, or if it is another process' to run.
    pub(crate) fn spawn<F>(&self, future: F) -> Option<JoinHandle<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if self.is_inherited() {
            // Not even dropped: that would undo what the parent has begun.
            std::mem::forget(future);
            return None;
        }
        let seen = match &self.runtime {
            Where::Process => match background() {
                Ok(background) => return Some(background.spawn(future)),
                Err(error) => {
                    tracing::error!(%error, "background work runs in its caller's runtime");
                    None
                }
            },
            Where::Test(seen) => Some(seen),
        };
        let here = Handle::try_current().ok();
        let runtime = match seen.map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner)) {
            Some(mut seen) => {
                if here.is_some() {
                    seen.clone_from(&here);
                }
                seen.clone()
            }
            None => here,
        };
        runtime.map(|runtime| runtime.spawn(future))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::api::builder::Builder;
    use crate::api::lock::DistributedLock;
    use crate::model::error::ErrorKind;
    use crate::model::loss::Loss;
    use crate::store::Backend;
    use crate::store::memory::MemoryStore;

    /// A lock object, and another one on the same store.
    fn two_of_one_store() -> (DistributedLock, DistributedLock) {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let lock = || Builder::shared(Arc::clone(&store)).build().unwrap();
        (lock(), lock())
    }

    #[tokio::test]
    async fn a_forked_child_believes_in_none_of_its_parents_locks() {
        let (lock, _) = two_of_one_store();
        let handle = lock.acquire("k").await.unwrap();
        let held = handle.held();
        assert!(handle.is_held());
        lock.engine().runtime.pretend_fork();
        assert!(!handle.is_held() && !held.info().is_held);
        assert_eq!(handle.remaining(), Duration::ZERO);
        assert_eq!(handle.lost().await, Loss::Forked);
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
        let extended = handle.extend(Duration::from_secs(60)).await;
        assert_eq!(extended.unwrap_err().kind(), ErrorKind::Lost);
    }

    #[tokio::test]
    async fn a_forked_child_gives_nothing_of_its_parents_back() {
        for how in ["drop", "release", "detach", "keep"] {
            let (lock, other) = two_of_one_store();
            let handle = lock.acquire("k").await.unwrap();
            lock.engine().runtime.pretend_fork();
            let refused = match how {
                "drop" => {
                    drop(handle);
                    None
                }
                "release" => handle.release().await.err(),
                "detach" => handle.detach().await.err(),
                _ => handle.keep_for(Duration::from_secs(1)).await.err(),
            };
            assert!(refused.is_none_or(|error| error.kind() == ErrorKind::Lost), "{how}");
            assert!(other.is_locked("k").await.unwrap(), "{how} took the parent's lock");
        }
    }

    #[tokio::test]
    async fn a_forked_child_gives_up_no_attempt_of_its_parents() {
        let (lock, other) = two_of_one_store();
        let first = other.acquire("k").await.unwrap();
        let mut waiting = Box::pin(lock.acquire("k"));
        assert!(
            std::future::poll_fn(|cx| {
                std::task::Poll::Ready(std::future::Future::poll(waiting.as_mut(), cx).is_pending())
            })
            .await
        );
        lock.engine().runtime.pretend_fork();
        drop(waiting);
        assert_eq!(lock.engine().background.unfinished(), 0, "the parent does that");
        first.release().await.unwrap();
    }

    #[tokio::test]
    async fn a_forked_child_has_to_connect_again() {
        let (lock, _) = two_of_one_store();
        lock.engine().runtime.pretend_fork();
        for error in [
            lock.acquire("k").await.unwrap_err(),
            lock.try_acquire("k").await.unwrap_err(),
            lock.acquire_all(["a", "b"]).await.unwrap_err(),
            lock.lookup("k").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Closed);
            assert!(error.to_string().contains("connect again in the child"), "{error}");
        }
    }
}
