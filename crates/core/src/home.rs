//! Where background work lives: in a runtime of its own, one for the whole process.
//!
//! Renewals and releases must go on whatever callers do. A caller's runtime may be shut down, stand idle between two
//! calls of `block_on`, or have its threads blocked, and then everything in it stands still: also what others depend on.
//! So the process has one thread for such work, started when it is first needed and never stopped.
//!
//! Connections are driven in the caller's runtime as long as that has threads of its own, because a change of threads for
//! every request is felt. Where it has none they live here as well.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::error::LockError;

/// The runtime of one process. A forked child inherits the value but not the thread, and makes its own.
struct Process {
    id: u32,
    runtime: Runtime,
    child: OnceLock<Box<Process>>,
}

static FIRST: OnceLock<Box<Process>> = OnceLock::new();

/// The background runtime of this process, for what must go on whatever becomes of its callers.
///
/// # Errors
/// [`Unavailable`](crate::ErrorKind::Unavailable) if no thread can be started.
pub fn background() -> Result<&'static Handle, LockError> {
    let me = std::process::id();
    let mut place = &FIRST;
    loop {
        let Some(process) = place.get() else {
            let runtime = start()?;
            let fresh = Box::new(Process { id: me, runtime, child: OnceLock::new() });
            // Another thread may have been quicker. A runtime must not be dropped where it must not block.
            if let Err(surplus) = place.set(fresh) {
                surplus.runtime.shutdown_background();
            }
            continue;
        };
        if process.id == me {
            return Ok(process.runtime.handle());
        }
        place = &process.child;
    }
}

fn start() -> Result<Runtime, LockError> {
    // The runtime panics if it gets no thread, so two are tried first: one that has ended counts for a moment longer.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let first = std::thread::Builder::new().spawn(move || _ = ended.recv());
    let second = std::thread::Builder::new().spawn(|| ());
    drop(end);
    let tried = first.and_then(|first| second.map(|second| _ = (first.join(), second.join())));
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("holdtight").enable_all();
    tried.and_then(|()| builder.build()).map_err(|error| {
        LockError::unavailable("no thread could be started for locks; the system is out of them")
            .with_source(error)
    })
}

/// For those who write a store: runs `future` in a task that goes on whatever becomes of its caller. Connections are to be
/// opened and driven in such tasks.
///
/// In the caller's runtime, if that has threads of its own, otherwise in the [`background`].
///
/// # Panics
/// If there is no runtime here and no thread can be started.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let answer = holdtight_core::spawn_lasting(async { 6 * 7 });
/// assert_eq!(answer.await.unwrap(), 42);
/// # }
/// ```
pub fn spawn_lasting<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(here) if here.runtime_flavor() != RuntimeFlavor::CurrentThread => here.spawn(future),
        here => match (background(), here) {
            (Ok(background), _) => background.spawn(future),
            (Err(_), Ok(here)) => here.spawn(future),
            (Err(error), Err(_)) => panic!("{error}"),
        },
    }
}

/// Runs code of the user's, which may block, so that background work goes on meanwhile.
pub(crate) fn let_block<T>(work: impl FnOnce() -> T) -> T {
    if is_background() { tokio::task::block_in_place(work) } else { work() }
}

/// Whether this thread works in the background runtime.
fn is_background() -> bool {
    let Ok(here) = Handle::try_current() else { return false };
    let mut place = &FIRST;
    while let Some(process) = place.get() {
        if process.runtime.handle().id() == here.id() {
            return true;
        }
        place = &process.child;
    }
    false
}

/// Where the background work of one engine lives, and in which process.
#[derive(Debug)]
pub(crate) struct Home {
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

impl Home {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        let test = clock.is_driven_by_tokio();
        let runtime = if test { Where::Test(Mutex::default()) } else { Where::Process };
        Self { process: AtomicU32::new(std::process::id()), runtime }
    }

    /// Whether this process is a forked child of the one whose locks these are. It has copies of all that its parent knew,
    /// secrets too, and must do nothing with them: what it gave back would be the parent's.
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

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::backend::Backend;
    use crate::error::ErrorKind;
    use crate::grant::Loss;
    use crate::lock::{Builder, DistributedLock};
    use crate::memory::MemoryStore;

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
        lock.engine().home.pretend_fork();
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
            lock.engine().home.pretend_fork();
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
        lock.engine().home.pretend_fork();
        drop(waiting);
        assert_eq!(lock.engine().reaper.unfinished(), 0, "the parent does that");
        first.release().await.unwrap();
    }

    #[tokio::test]
    async fn a_forked_child_has_to_connect_again() {
        let (lock, _) = two_of_one_store();
        lock.engine().home.pretend_fork();
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
