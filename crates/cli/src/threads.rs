//! Whether the system lets us start threads. The libraries below panic where it does not, perhaps with a lock in hand, so
//! it is asked before anything is taken.

use std::sync::{Arc, Barrier};

use crate::exit::{self, Failure};

/// As many as a call that takes a lock needs at the same time: for signals, for files, for wake-ups, and for the engine.
pub(crate) const FOR_A_LOCK: usize = 4;

/// As many as a run needs, which opens files and hears signals without: one for the engine, and one to look up the name
/// of a server. One more, because one that has ended counts for a moment longer.
pub(crate) fn for_a_run(store_url: &str) -> usize {
    let on_files = store_url.starts_with("file:");
    let for_signals = usize::from(!cfg!(target_os = "linux"));
    2 + usize::from(!on_files) + for_signals
}

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
