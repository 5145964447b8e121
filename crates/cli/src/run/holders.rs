//! The script that a lock of `hold` is for: its shell, and all who have its pipe open. None of them
//! descends from us.
//!
//! Found by looking at all processes, signalled one by one. That nobody has the pipe open any more
//! is told by the kernel, at the other end of it. A script that closes the pipe, or uses its number
//! for something else, is still known by its shell.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::tree::{self, Process};

/// How the names of the directories of pipes begin.
pub(crate) const PLACE: &str = "holdtight-hold-";

/// The name of the pipe in its directory.
pub(crate) const PIPE: &str = "pipe";

/// The name of the file beside it, in which our processes tell each other who the shell is.
pub(crate) const SHELL: &str = "shell";

/// The script opened the pipe; the shell's line of `/proc/PID/stat` follows.
pub(crate) const BOUND: u8 = b'b';

/// The script gives the lock back.
pub(crate) const RELEASE: u8 = b'r';

/// A script, as each of our processes that keep its lock sees it.
#[derive(Debug)]
pub(crate) struct Script {
    /// Open for reading.
    pipe: File,
    identity: (u64, u64),
    place: PathBuf,
    note: File,
    shell: Option<Process>,
    /// Read, but not whole yet.
    received: Vec<u8>,
    /// Who got a signal: one that has closed the pipe, and whose shell is gone, is found by this
    /// alone.
    told: Vec<Process>,
    sealed: bool,
}

/// What the script said.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    pub(crate) bound: bool,
    pub(crate) release: bool,
    /// Something was said, whole or not.
    pub(crate) anything: bool,
}

/// Removes the pipe and its directory: the script has it open, or never will.
pub(crate) fn remove(place: &Path) {
    let _ = fs::remove_file(place.join(PIPE));
    let _ = fs::remove_file(place.join(SHELL));
    let _ = fs::remove_dir(place);
}

impl Script {
    /// Opens what stands in the directory `place`, without waiting for somebody at the other end.
    pub(crate) fn open(place: &Path) -> io::Result<Self> {
        let flags = bits(OFlags::NONBLOCK | OFlags::NOFOLLOW);
        let pipe = OpenOptions::new().read(true).custom_flags(flags).open(place.join(PIPE))?;
        let mut both = OpenOptions::new();
        let note = both.read(true).write(true).custom_flags(flags).open(place.join(SHELL))?;
        let found = pipe.metadata()?;
        Ok(Self {
            pipe,
            identity: (found.dev(), found.ino()),
            place: place.to_owned(),
            note,
            shell: None,
            received: Vec::new(),
            told: Vec::new(),
            sealed: false,
        })
    }

    pub(crate) fn pipe(&self) -> &File {
        &self.pipe
    }

    /// The shell, once it is known.
    pub(crate) fn shell(&self) -> Option<Process> {
        self.shell
    }

    /// Reads what the script said since the last look.
    pub(crate) fn hear(&mut self) -> Said {
        let mut said = Said::default();
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = (&self.pipe).read(&mut chunk) {
            said.anything = true;
            self.received.extend_from_slice(&chunk[..read]);
        }
        while let Some(&first) = self.received.first() {
            let mut length = 1;
            if first == BOUND {
                let Some(end) = self.received.iter().position(|&byte| byte == b'\n') else { break };
                said.bound = true;
                self.shell = tree::identity(&self.received[1..end]);
                if let Some((pid, started)) = self.shell {
                    let _ = self.note.write_all_at(format!("{pid} {started}\n").as_bytes(), 0);
                }
                length = end + 1;
            }
            said.release |= first == RELEASE;
            self.received.drain(..length);
        }
        said
    }

    /// Lets nobody open the pipe from now on, so that it is known for certain who has.
    pub(crate) fn seal(&mut self) {
        if std::mem::replace(&mut self.sealed, true) {
            return;
        }
        remove(&self.place);
        // Also of a pipe that nobody has ever opened the kernel says from here on that nobody has
        // it open.
        let _ = self.reopen();
        self.hear();
        if self.shell.is_none() {
            let mut note = [0; 64];
            let read = self.note.read_at(&mut note, 0).unwrap_or(0);
            let note = String::from_utf8_lossy(&note[..read]);
            let numbers = note.trim_end_matches('\n').split_once(' ');
            self.shell =
                numbers.and_then(|(pid, started)| Some((pid.parse().ok()?, started.parse().ok()?)));
        }
    }

    /// Another descriptor of the pipe, for writing.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        use std::os::fd::AsRawFd as _;
        let path = format!("/proc/self/fd/{}", self.pipe.as_raw_fd());
        OpenOptions::new().write(true).custom_flags(bits(OFlags::NONBLOCK)).open(path)
    }

    /// Whether nobody has the pipe open any more. Only for one that was opened, or is sealed.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut watched = [PollFd::new(&self.pipe, PollFlags::IN)];
        let _ = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        watched[0].revents().contains(PollFlags::HUP)
    }

    /// Whether nobody is left of a script that must end.
    pub(crate) fn is_over(&mut self) -> bool {
        self.seal();
        let runs = |process: &Process| tree::started(process.0) == Some(process.1);
        self.is_abandoned() && !self.shell.iter().chain(&self.told).any(runs)
    }

    /// Sends `signal` to all of the script, and tells each of their terminals and logs why, once.
    pub(crate) fn signal_all(&mut self, signal: Signal, why: &str) {
        self.seal();
        let speak = self.told.is_empty();
        let mut seen = Vec::new();
        let mut streams = Vec::new();
        let mut told = Vec::new();
        // In two steps: to look at the descriptors of all processes takes its time, and it may be
        // late.
        for find in [Self::known, Self::holders] {
            let mut found = find(self);
            found.retain(|process| !told.contains(process));
            if speak {
                streams.extend(errors_of(&found, &mut seen));
            }
            for &(pid, started) in &found {
                tree::signal_one(pid, started, signal);
                if signal == Signal::SIGTERM {
                    // One that was stopped can only obey if it runs.
                    tree::signal_one(pid, started, Signal::SIGCONT);
                }
            }
            told.append(&mut found);
        }
        for mut stream in streams {
            let _ = stream.write_all(format!("holdtight: {why}\n").as_bytes());
        }
        self.told = told;
    }

    /// The shell, what it has started since we are there, and who got a signal before. Background
    /// jobs of before, which do not have the pipe, were never covered.
    fn known(&self) -> Vec<Process> {
        let us = i32::try_from(std::process::id()).unwrap_or(0);
        let ours = tree::started(us).unwrap_or(0);
        let runs = |process: &&Process| tree::started(process.0) == Some(process.1);
        let mut known: Vec<Process> =
            self.shell.iter().chain(&self.told).filter(runs).copied().collect();
        if let Some(shell) = self.shell.as_ref().filter(runs) {
            known.extend(tree::below(shell.0).into_iter().filter(|process| process.1 >= ours));
        }
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Who has the pipe open.
    fn holders(&self) -> Vec<Process> {
        let us = i32::try_from(std::process::id()).unwrap_or(0);
        tree::all().into_iter().filter(|one| one.0 != us && self.is_open_in(one.0)).collect()
    }

    fn is_open_in(&self, pid: i32) -> bool {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let path = self.place.join(PIPE);
        descriptors.flatten().any(|entry| {
            let link = entry.path();
            // The name first: looking through a link can mean to wait for a server that is away.
            let named = fs::read_link(&link)
                .is_ok_and(|target| target.to_string_lossy().starts_with(&*path.to_string_lossy()));
            let writes = || fs::symlink_metadata(&link).is_ok_and(|link| link.mode() & 0o200 != 0);
            let same = || {
                fs::metadata(&link).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
            };
            named && writes() && same()
        })
    }
}

/// The standard errors of these processes, each once, without those that were seen before.
fn errors_of(members: &[Process], seen: &mut Vec<(u64, u64)>) -> Vec<File> {
    let open = |member: &Process| {
        let flags = bits(OFlags::NONBLOCK | OFlags::NOCTTY);
        let path = format!("/proc/{}/fd/2", member.0);
        let found = fs::metadata(&path).ok()?;
        let identity = (found.dev(), found.ino());
        if seen.contains(&identity) {
            return None;
        }
        seen.push(identity);
        OpenOptions::new().append(true).custom_flags(flags).open(path).ok()
    };
    members.iter().filter_map(open).collect()
}

#[expect(clippy::cast_possible_wrap, reason = "flags are a set of bits")]
pub(crate) fn bits(flags: OFlags) -> i32 {
    flags.bits() as i32
}
