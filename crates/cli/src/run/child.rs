//! The command: started without a shell in a process group of its own, and watched without being reaped too early.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::group::Group;

/// A command that was started.
#[derive(Debug)]
pub(super) struct Running {
    pid: Pid,
    pub(super) group: Group,
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

/// Prepares `words`: the program, found in `PATH`, and its arguments. It inherits our three standard streams.
pub(super) fn prepare(words: &[OsString]) -> Option<Command> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    Some(command)
}

impl Running {
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        let group = Group::led_by(child.id());
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match (pid, group) {
            (Some(pid), Some(group)) => Ok(Self { pid, group }),
            _ => Err(io::Error::other("the system gave the command an impossible process id")),
        }
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
