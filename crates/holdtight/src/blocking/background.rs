//! How the blocking face waits: calls run in the [background](holdtight_core::background) runtime
//! of the process.
//!
//! It is never the caller's: so blocking calls work inside and outside of async code, and what a
//! dropped handle leaves to do is done although the caller's runtime has gone away.

use std::future::Future;
use std::sync::mpsc;

use holdtight_core::{LockError, background};
use tokio::runtime::Handle;

/// Drives `future` to its end on the background runtime, while the calling thread waits.
pub(super) fn wait<T, F>(future: F) -> Result<T, LockError>
where
    F: Future<Output = Result<T, LockError>> + Send + 'static,
    T: Send + 'static,
{
    let background = background()?;
    match Handle::try_current() {
        // No runtime here, so nothing can be starved, and a change of threads is saved.
        Err(error) if error.is_missing_context() => background.block_on(future),
        Ok(here) if here.id() == background.id() => Err(LockError::invalid_config(
            "a blocking call was made on the thread that has to answer it, for instance in \
             `on_event`; hand the work to another thread",
        )),
        _ => {
            let (answer, answered) = mpsc::sync_channel(1);
            background.spawn(async move {
                // Nobody stops listening before the answer is there.
                let _ = answer.send(future.await);
            });
            answered.recv().unwrap_or_else(|_| {
                Err(LockError::internal("the call panicked; this is a fault of the store"))
            })
        }
    }
}

/// Runs `action` so that whatever it starts goes to the background runtime, whichever the caller is
/// in.
pub(super) fn inside<T>(action: impl FnOnce() -> T) -> T {
    // Late in the life of a thread there is no place left to note a runtime in; the lock then
    // remembers it.
    let gone = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    match background() {
        Ok(background) if !gone => {
            let _inside = background.enter();
            action()
        }
        _ => action(),
    }
}
