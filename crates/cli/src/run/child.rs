//! The command as the wrapper sees it: started without a shell in a process group of its own, released by a word,
//! and watched without being reaped too early.
//!
//! The process is first another copy of ours, which waits for that word: see `launch`.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::group::Group;
use super::launch;

/// A command that was started, or is about to be.
#[derive(Debug)]
pub(super) struct Running {
    pid: Pid,
    pub(super) group: Group,
    /// Where the word is given. Dropped without it, nothing runs.
    go: Option<PipeWriter>,
    /// Where it is told that there is no such command.
    refusal: PipeReader,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    /// The exit code that tells it, as shells do.
    pub(super) fn code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }
}

impl Running {
    /// Starts a process for `words`: the program, found in `PATH`, and its arguments. It has our standard streams, and
    /// the environment that `set` gives it, and does nothing before [`go`](Self::go).
    pub(super) fn start(words: &[OsString], set: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let (wait, go) = io::pipe()?;
        let (refusal, refuse) = io::pipe()?;
        rustix::io::ioctl_fionbio(&refusal, true)?;
        // The only two descriptors that are ever inherited from us. The other end closes them before the command runs.
        for inherited in [wait.as_fd(), refuse.as_fd()] {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }
        let mut command = Command::new(super::leash::own_binary()?);
        command
            .arg0("holdtight")
            .arg(launch::ARGUMENT)
            .args([wait.as_raw_fd(), refuse.as_raw_fd()].map(|fd| fd.to_string()))
            .args(words)
            .process_group(0);
        set(&mut command);
        let child = command.spawn()?;
        let group = Group::led_by(child.id());
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match (pid, group) {
            (Some(pid), Some(group)) => Ok(Self { pid, group, go: Some(go), refusal }),
            _ => Err(io::Error::other("the system gave the command an impossible process id")),
        }
    }

    /// Lets it run.
    pub(super) fn go(&mut self) {
        if let Some(mut go) = self.go.take() {
            // If nobody reads it, it has ended, and we shall hear of that.
            let _ = go.write_all(&[launch::GO]);
        }
    }

    /// Why there was nothing to run, if so. To be asked when it has ended.
    pub(super) fn refusal(&mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.refusal.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    /// How it ended, if it has. Not reaped: until [`reap`](Self::reap), nobody else can get its number.
    pub(super) fn ended(&self) -> Option<Ended> {
        let status = self.look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let code = status.exit_status().map(Ended::Code);
        code.or_else(|| status.terminating_signal().map(Ended::Signal))
    }

    /// The signal that stopped it, if one did since the last look.
    pub(super) fn stopped(&self) -> Option<i32> {
        self.look(WaitIdOptions::STOPPED)?.stopping_signal()
    }

    fn look(&self, what: WaitIdOptions) -> Option<WaitIdStatus> {
        waitid(WaitId::Pid(self.pid), what | WaitIdOptions::NOHANG).ok().flatten()
    }

    /// Closes the account of a command that has ended.
    pub(super) fn reap(self) {
        let _ = self.look(WaitIdOptions::EXITED);
    }
}
