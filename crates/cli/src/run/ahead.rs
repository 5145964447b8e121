//! What is started before the command line is read: to start a copy of ours takes longer than
//! everything else that a run does, so the wrapper has the guardian start, and the guardian its
//! launcher, while it reads on.
//!
//! Neither does anything before it is told to. If the command line turns out to be none for a run,
//! they end.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::child::Launcher;
use super::signals::{self, Blocked};
use super::{guardian, own_binary, tree};
use crate::args;

/// Which of our processes this is, and what it has started already.
#[derive(Debug)]
pub(crate) enum Role {
    /// What the user started; with a guardian, if it was called for a run.
    Wrapper(Option<io::Result<Ahead>>),
    /// What the wrapper of a run started, with what will become the command.
    Guardian(io::Result<Launcher>),
}

impl Role {
    /// The process that the user called with `args`.
    pub(crate) fn wrapper(args: &[OsString]) -> Self {
        Self::Wrapper(args::is_run(args).then(|| Ahead::start(args)))
    }

    /// The process that the wrapper of that one started.
    pub(crate) fn guardian(args: &[OsString]) -> Self {
        Self::Guardian(tree::adopt_orphans().and_then(|()| Launcher::start(args)))
    }

    pub(crate) fn is_wrapper(&self) -> bool {
        matches!(self, Self::Wrapper(_))
    }
}

/// A guardian that waits for its first message. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Ahead {
    guardian: Pid,
    line: Option<UnixStream>,
    blocked: Blocked,
}

impl Ahead {
    fn start(args: &[OsString]) -> io::Result<Self> {
        // Before the runtime: its threads must not take signals either.
        let blocked = signals::block()?;
        tree::adopt_orphans()?;
        let (ours, theirs) = UnixStream::pair()?;
        let guardian = Command::new(own_binary()?)
            .arg0("holdtight")
            .args([guardian::ARGUMENT, &std::process::id().to_string()])
            .args(args.iter().skip(1))
            .stdin(OwnedFd::from(theirs))
            // Whoever kills a job kills its process group; the guardian must outlive that.
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(guardian.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("an impossible process id"))?;
        Ok(Self { guardian: pid, line: Some(ours), blocked })
    }

    /// The signals that were blocked.
    pub(super) fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// The guardian, and our end of the line to it as `make` makes one of it.
    pub(super) fn take<T>(
        mut self,
        make: impl FnOnce(UnixStream) -> io::Result<T>,
    ) -> io::Result<(nix::unistd::Pid, T)> {
        let line = self.line.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok((nix::unistd::Pid::from_raw(self.guardian.as_raw_pid()), make(line)?))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if self.line.is_some() {
            let _ = kill_process(self.guardian, Signal::KILL);
            let _ = waitpid(Some(self.guardian), WaitOptions::empty());
        }
    }
}
