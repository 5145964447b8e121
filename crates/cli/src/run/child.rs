//! The first process of the command: started without a shell in a process group of its own, released by a word, and
//! reaped with whatever else has ended.
//!
//! The process is first another copy of ours, which waits for that word: see `launch`.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use holdtight_file::SharedLiveness;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::launch;
use super::signals::Blocked;
use super::tree::{self, Group, Left};

/// A command that was started, or is about to be.
#[derive(Debug)]
pub(super) struct Running {
    pid: Pid,
    group: Group,
    /// Where the word is given. Dropped without it, nothing runs.
    go: Option<PipeWriter>,
    /// Where it is told that there is no such command.
    refusal: PipeReader,
    ended: Option<Ended>,
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

/// What the command inherits beside its words.
pub(super) struct Legacy<'a> {
    pub(super) stdin: OwnedFd,
    /// Undone before it runs.
    pub(super) blocked: &'a Blocked,
    /// Shows that somebody is at work, for as long as a descendant has it open.
    pub(super) liveness: Option<SharedLiveness>,
}

impl Running {
    /// Starts a process for `words`: the program, found in `PATH`, and its arguments. It has our standard streams, and
    /// the environment that `set` gives it, and does nothing before [`go`](Self::go).
    pub(super) fn start(
        words: &[OsString],
        legacy: Legacy<'_>,
        set: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (wait, go) = io::pipe()?;
        let (refusal, refuse) = io::pipe()?;
        rustix::io::ioctl_fionbio(&refusal, true)?;
        // The other end closes these two before the command runs.
        for inherited in [wait.as_fd(), refuse.as_fd()] {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }
        let Legacy { stdin, blocked, liveness } = legacy;
        // These stay open in all that the command starts, as the descriptor of flock does. Our copies are closed below.
        if let Some(SharedLiveness { lock, pipe }) = &liveness {
            fcntl_setfd(lock, FdFlags::empty())?;
            pipe.as_ref().map(|pipe| fcntl_setfd(pipe, FdFlags::empty())).transpose()?;
        }
        let numbers: Vec<_> = blocked.numbers().iter().map(ToString::to_string).collect();
        let mut command = Command::new(super::own_binary()?);
        command
            .arg0("holdtight")
            .arg(launch::ARGUMENT)
            .args([wait.as_raw_fd(), refuse.as_raw_fd()].map(|fd| fd.to_string()))
            .arg(numbers.join(","))
            .args(words)
            .stdin(stdin)
            .process_group(0);
        set(&mut command);
        let child = command.spawn()?;
        drop(liveness);
        let group = Group::led_by(child.id());
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match (pid, group) {
            (Some(pid), Some(group)) => Ok(Self { pid, group, go: Some(go), refusal, ended: None }),
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

    /// Its process group, while nobody else can have its number.
    pub(super) fn group(&self) -> Option<Group> {
        self.ended.is_none().then_some(self.group)
    }

    /// How the first process ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Reaps what has ended: the first process, and orphans that have become our children.
    pub(super) fn reap(&mut self) -> Left {
        let left = tree::reap(|pid, status| {
            if pid == self.pid.as_raw_pid() {
                let code = status.exit_status().map(Ended::Code);
                self.ended = code.or_else(|| status.terminating_signal().map(Ended::Signal));
            }
        });
        #[cfg(not(target_os = "linux"))]
        if left == Left::Nobody && !self.group.is_gone() {
            return Left::Somebody;
        }
        left
    }

    /// The signal that stopped the first process, if one did since the last look.
    pub(super) fn stopped(&self) -> Option<i32> {
        let what = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.pid), what).ok().flatten()?.stopping_signal()
    }
}
