//! Whether there are threads to be had for work that blocks. The runtime panics where there are none, so it is asked first.

use holdtight_core::LockError;

/// Starts a thread that does nothing.
///
/// # Errors
/// `Unavailable` if the system gives none: nothing was done, and may be tried again.
pub(crate) fn must_start() -> Result<(), LockError> {
    let thread = std::thread::Builder::new().name("holdtight-try".into());
    // That it was started is enough: nobody waits for it.
    thread.spawn(|| ()).map(drop).map_err(|source| {
        LockError::unavailable(
            "no thread could be started for files; is a limit of processes reached (ulimit -u)?",
        )
        .with_source(source)
    })
}
