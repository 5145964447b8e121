//! What becomes of a signal without a handler of ours: whether it is ignored, and how to die of it.
//!
//! Both ways of waiting for signals block them and leave their dispositions alone; what they have
//! in common is here.

use nix::sys::signal::{SigSet, Signal, raise};

/// Whether whoever started us wants `signal` to be ignored, as `nohup` does.
///
/// To be asked by those who block signals: Linux queues also the ignored ones while they are
/// blocked.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as u32 - 1) & 1 == 1
}

/// Ends this process by `signal` itself, as if it had never been blocked. Returns only if that is
/// not possible.
pub(crate) fn die_of(signal: Signal) {
    if raise(signal).is_ok() {
        let _ = SigSet::from(signal).thread_unblock();
    }
}

/// Has a file that may not grow (`ulimit -f`) be an error to be told, and not a death without a
/// word.
///
/// To be called before any thread is started.
pub(crate) fn survive_file_limit() {
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rust_ignores_is_seen_as_ignored() {
        // The standard library ignores SIGPIPE in every Rust program.
        assert!(is_ignored(Signal::SIGPIPE));
        assert!(!is_ignored(Signal::SIGUSR1));
    }
}
