//! Signals of the wrapper: all of them blocked and read one by one, so that each is forwarded, and
//! none is lost.
//!
//! Blocking instead of catching leaves every disposition as it was: what `nohup` ignores stays
//! ignored in the command, and stopping ourselves is the default action, with the kernel's own
//! rules for it.

use std::collections::VecDeque;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use self::queue::Queue;

/// Signals that mean something to a command and can be sent on to it.
///
/// Not among them: faults of our own (`SEGV` …), `PIPE`, `CHLD`, and what cannot be caught.
const FORWARDED: [Signal; 15] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGURG,
    Signal::SIGXCPU,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// What else is blocked: `TTOU` and `TTIN`, so that the terminal can be handed over from the
/// background, and `XFSZ`: a store that may not write (`ulimit -f`) is an error to be told, and not
/// a death without a word.
const QUIET: [Signal; 3] = [Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGXFSZ];

/// The signals that this run has blocked, in this thread and so in all threads and processes
/// started from it.
///
/// What was blocked before is not among them: it is no business of ours, and stays blocked in the
/// command.
#[derive(Clone, Debug)]
pub(super) struct Blocked(Vec<Signal>);

impl Blocked {
    /// The numbers, for another process.
    pub(super) fn numbers(&self) -> Vec<i32> {
        self.0.iter().map(|signal| *signal as i32).collect()
    }

    /// What another process has blocked, in one that was started by it.
    pub(super) fn from_numbers(numbers: &[i32]) -> Self {
        Self(numbers.iter().filter_map(|number| Signal::try_from(*number).ok()).collect())
    }

    /// Undoes it.
    pub(super) fn undo(&self) -> io::Result<()> {
        Ok(self.0.iter().copied().collect::<SigSet>().thread_unblock()?)
    }
}

/// Blocks the signals. To be called before any thread is started.
pub(super) fn block() -> io::Result<Blocked> {
    let wanted: Vec<Signal> = FORWARDED.into_iter().chain([Signal::SIGCHLD]).chain(QUIET).collect();
    let set: SigSet = wanted.iter().copied().collect();
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Blocked(wanted.into_iter().filter(|signal| !before.contains(*signal)).collect()))
}

/// The signals, as they come.
#[derive(Debug)]
pub(super) struct Signals {
    queue: Queue,
    /// Read, but not handed out yet.
    early: VecDeque<Signal>,
}

impl Signals {
    /// Listens. Must be called inside a runtime.
    pub(super) fn listen(blocked: &Blocked) -> io::Result<Self> {
        // A parent that ignores SIGCHLD would have our children reaped by the kernel, and their
        // exit codes lost. A handler, though it never runs while the signal is blocked, ends that.
        drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())?);
        let ours = blocked.0.iter().copied().filter(|signal| !QUIET.contains(signal));
        let heard = ours.chain([Signal::SIGCHLD]).collect();
        Ok(Self { queue: Queue::of(heard)?, early: VecDeque::new() })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Cancel-safe: a signal that is not returned is returned by the next call.
    pub(super) async fn next(&mut self) -> Signal {
        match self.early.pop_front() {
            Some(signal) => signal,
            None => self.queue.next().await,
        }
    }

    /// Stops our whole process group as `signal` does by default, until somebody continues it.
    ///
    /// Returns whether we were stopped: a group without a shell above it (an orphaned one) cannot
    /// be.
    pub(super) fn stop_group(&mut self, signal: Signal) -> io::Result<bool> {
        let one = SigSet::from(signal);
        queue::send_to_our_group(signal)?;
        // Ours is pending until here. The next line returns when we are continued.
        one.thread_unblock()?;
        one.thread_block()?;
        let mut continued = false;
        while let Some(signal) = self.queue.take() {
            if signal == Signal::SIGCONT {
                continued = true;
            } else {
                self.early.push_back(signal);
            }
        }
        Ok(continued)
    }
}

/// Blocked signals are read from a descriptor.
#[cfg(target_os = "linux")]
mod queue {
    use std::io;

    use nix::sys::signal::{SigSet, Signal, killpg};
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use nix::unistd::getpgrp;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    #[derive(Debug)]
    pub(super) struct Queue(AsyncFd<SignalFd>);

    impl Queue {
        pub(super) fn of(set: SigSet) -> io::Result<Self> {
            let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
            #[expect(
                deprecated,
                reason = "its successor is unsafe, for descriptors that change; ours is owned and does not"
            )]
            let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Self(fd))
        }

        pub(super) async fn next(&mut self) -> Signal {
            loop {
                match self.0.readable().await {
                    Ok(mut ready) => match read(ready.get_inner()) {
                        Some(signal) => return signal,
                        None => ready.clear_ready(),
                    },
                    // The descriptor is ours and open: this does not happen, and must not spin if
                    // it does.
                    Err(_) => std::future::pending().await,
                }
            }
        }

        /// One that is there already.
        pub(super) fn take(&mut self) -> Option<Signal> {
            read(self.0.get_ref())
        }
    }

    fn read(fd: &SignalFd) -> Option<Signal> {
        loop {
            let info = fd.read_signal().ok()??;
            if let Ok(signal) = Signal::try_from(i32::try_from(info.ssi_signo).ok()?) {
                return Some(signal);
            }
        }
    }

    pub(super) fn send_to_our_group(signal: Signal) -> io::Result<()> {
        Ok(killpg(getpgrp(), signal)?)
    }
}

/// Blocked signals are waited for by a thread, where no descriptor gives them.
#[cfg(not(target_os = "linux"))]
mod queue {
    use std::io;
    use std::time::Duration;

    use nix::sys::signal::{SigSet, Signal, raise};
    use tokio::sync::mpsc;

    #[derive(Debug)]
    pub(super) struct Queue(mpsc::UnboundedReceiver<Signal>);

    impl Queue {
        pub(super) fn of(set: SigSet) -> io::Result<Self> {
            let (tell, heard) = mpsc::unbounded_channel();
            let wait = move || {
                while let Ok(signal) = set.wait() {
                    if tell.send(signal).is_err() {
                        break;
                    }
                }
            };
            std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
            Ok(Self(heard))
        }

        pub(super) async fn next(&mut self) -> Signal {
            match self.0.recv().await {
                Some(signal) => signal,
                None => std::future::pending().await,
            }
        }

        /// One that is there already, or on its way from the thread.
        pub(super) fn take(&mut self) -> Option<Signal> {
            std::thread::sleep(Duration::from_millis(5));
            self.0.try_recv().ok()
        }
    }

    /// Only to this thread: a signal to the group would be taken by the thread that waits.
    pub(super) fn send_to_our_group(signal: Signal) -> io::Result<()> {
        Ok(raise(signal)?)
    }
}

/// Sends a signal to our process group, ourselves included.
pub(super) fn send_to_our_group(signal: Signal) -> io::Result<()> {
    queue::send_to_our_group(signal)
}

/// Whether `signal` ends a process that does nothing about it.
pub(super) fn ends_a_process(signal: Signal) -> bool {
    !matches!(
        signal,
        Signal::SIGCHLD
            | Signal::SIGURG
            | Signal::SIGWINCH
            | Signal::SIGTSTP
            | Signal::SIGCONT
            | Signal::SIGTTIN
            | Signal::SIGTTOU
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_stop_or_do_nothing_do_not_end_a_process() {
        assert!(ends_a_process(Signal::SIGINT) && ends_a_process(Signal::SIGUSR1));
        assert!(!ends_a_process(Signal::SIGWINCH) && !ends_a_process(Signal::SIGTSTP));
    }
}
