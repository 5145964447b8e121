//! Where background work lives: in a runtime of its own, one for the whole process.
//!
//! Renewals and releases must go on whatever callers do. A caller's runtime may be shut down, stand
//! idle between two calls of `block_on`, or have its threads blocked, and then everything in it
//! stands still: also what others depend on. So the process has one thread for such work, started
//! when it is first needed and never stopped.
//!
//! Connections are driven in the caller's runtime as long as that has threads of its own, because a
//! change of threads for every request is felt. Where it has none they live here as well.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

use crate::model::error::LockError;

/// The runtime of one process. A forked child inherits the value but not the thread, and makes its
/// own.
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
            // Another thread may have been quicker. A runtime must not be dropped where it must not
            // block.
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
    // The runtime panics if it gets no thread, so two are tried first: one that has ended counts
    // for a moment longer.
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

/// For those who write a store: runs `future` in a task that goes on whatever becomes of its
/// caller. Connections are to be opened and driven in such tasks.
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

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", &self.id).finish_non_exhaustive()
    }
}
