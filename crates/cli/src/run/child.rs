//! The first process of the command: started without a shell in a process group of its own,
//! released by a word, and reaped with whatever else has ended.
//!
//! The process is first another copy of ours, which waits for that word: see `launch`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use holdtight_file::SharedLiveness;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use super::launch::{self, Word, Words};
use super::line;
use super::signals::Blocked;
use super::tree::{self, Group, Left};

/// A process that waits to become the command. Dropped, it ends, and nothing runs.
#[derive(Debug)]
pub(crate) struct Launcher {
    pid: Pid,
    group: Group,
    /// Where the word is given, and where it is told that there is no such command.
    line: UnixStream,
    /// It was told to become the command, and is waited for by whoever told it.
    told: bool,
}

impl Launcher {
    /// Starts a process that does nothing yet. `args` is the command line in which it will find its
    /// command.
    pub(crate) fn start(args: &[OsString]) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let child = Command::new(super::own_binary()?)
            .arg0("holdtight")
            .arg(launch::ARGUMENT)
            .args(args.iter().skip(1))
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        let group = Group::led_by(child.id());
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        match (pid, group) {
            (Some(pid), Some(group)) => Ok(Self { pid, group, line, told: false }),
            _ => Err(io::Error::other("the system gave the command an impossible process id")),
        }
    }

    /// Whether it still waits: it may have done so for hours, and somebody may have killed it.
    pub(super) fn is_there(&self) -> bool {
        let what = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.pid), what), Ok(None))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if !self.told {
            let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// A command that was started, or is about to be.
#[derive(Debug)]
pub(super) struct Running {
    launcher: Launcher,
    /// What is said to let it run.
    word: Option<(Word, Vec<OwnedFd>)>,
    /// Why it could not be said.
    unsaid: Option<io::Error>,
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
    /// What it finds, or does not find, in its environment.
    pub(super) environment: Vec<(String, Option<String>)>,
}

impl Running {
    /// A command that `launcher` will become. It has our standard output and error, and does
    /// nothing before [`go`](Self::go).
    pub(super) fn new(launcher: Launcher, command: Words, legacy: Legacy<'_>) -> Self {
        let Legacy { stdin, blocked, liveness, environment } = legacy;
        let word = Word { command, blocked: blocked.numbers(), environment };
        let mut descriptors = vec![stdin];
        if let Some(SharedLiveness { lock, pipe }) = liveness {
            // In this order: of what is closed by the kernel, the lock has to be first, and that
            // has the higher number.
            descriptors.extend(pipe.into_iter().chain([lock]));
        }
        Self { launcher, word: Some((word, descriptors)), unsaid: None, ended: None }
    }

    /// Lets it run.
    pub(super) fn go(&mut self) {
        let Some((word, descriptors)) = self.word.take() else { return };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.launcher.told = true;
        if let Err(error) = line::send(&self.launcher.line, &word, &descriptors) {
            // It ends without having run anything, and we shall hear of that.
            let _ = self.launcher.line.shutdown(std::net::Shutdown::Both);
            self.unsaid = Some(error);
        }
    }

    /// Why there was nothing to run, if so. To be asked when it has ended.
    pub(super) fn refusal(&mut self) -> Option<io::Error> {
        if let Some(error) = self.unsaid.take() {
            return Some(error);
        }
        let mut errno = [0; 4];
        self.launcher.line.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    /// Its process group, while nobody else can have its number.
    pub(super) fn group(&self) -> Option<Group> {
        self.ended.is_none().then_some(self.launcher.group)
    }

    /// How the first process ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Reaps what has ended: the first process, and orphans that have become our children.
    pub(super) fn reap(&mut self) -> Left {
        let first = self.launcher.pid.as_raw_pid();
        let left = tree::reap(|pid, status| {
            if pid == first {
                let code = status.exit_status().map(Ended::Code);
                self.ended = code.or_else(|| status.terminating_signal().map(Ended::Signal));
                self.launcher.told = true;
            }
        });
        #[cfg(not(target_os = "linux"))]
        if left == Left::Nobody && !self.launcher.group.is_gone() {
            return Left::Somebody;
        }
        left
    }

    /// The signal that stopped the first process, if one did since the last look.
    pub(super) fn stopped(&self) -> Option<i32> {
        let what = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.launcher.pid), what).ok().flatten()?.stopping_signal()
    }
}
