//! Whether there are threads to be had for work that blocks. The runtime panics where there are
//! none, so it is asked first.

use holdtight_core::LockError;

/// Starts two threads that do nothing: one that has ended counts for a moment longer, so there must
/// be room for more than the one that is needed.
///
/// # Errors
/// `Unavailable` if the system gives none: nothing was done, and may be tried again.
pub(crate) fn must_start() -> Result<(), LockError> {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let first = std::thread::Builder::new().spawn(move || _ = ended.recv());
    let second = std::thread::Builder::new().spawn(|| ());
    drop(end);
    let both = first.and_then(|first| second.map(|second| _ = (first.join(), second.join())));
    both.map_err(|source| {
        LockError::unavailable(
            "no thread could be started for files; is a limit of processes reached (ulimit -u)?",
        )
        .with_source(source)
    })
}
