//! Whether the system lets us start threads. The libraries below panic where it does not, perhaps
//! with a lock in hand, so it is asked before anything is taken.

use std::sync::{Arc, Barrier};

use crate::exit::{self, Failure};

/// As many as a call that takes a lock needs at the same time: for signals, for files, for
/// wake-ups, and for the engine.
pub(crate) const FOR_A_LOCK: usize = 4;

/// As many as a run needs at the same time for a store that is a server: for the engine, and to
/// look up its name; and one more, because one that has ended counts for a moment longer.
pub(crate) const FOR_A_SERVER: usize = 3;

/// Starts `number` threads at once, and lets them end.
pub(crate) fn must_start(number: usize) -> Result<(), Failure> {
    let all = Arc::new(Barrier::new(number + 1));
    let mut started = Vec::with_capacity(number);
    for _ in 0..number {
        let here = Arc::clone(&all);
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        match thread.spawn(move || here.wait()) {
            Ok(thread) => started.push(thread),
            // Those that wait for the rest end with this process, which ends now.
            Err(error) => return Err(cannot(&error)),
        }
    }
    all.wait();
    for thread in started {
        let _ = thread.join();
    }
    Ok(())
}

/// Says that there are no threads to be had.
pub(crate) fn cannot(error: &std::io::Error) -> Failure {
    Failure::new(
        exit::UNAVAILABLE,
        format!("cannot start a thread: {error}; is a limit of processes reached (ulimit -u)?"),
    )
}
