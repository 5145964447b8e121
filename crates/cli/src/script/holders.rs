//! Those who have a pipe open for writing: the shell that holds a lock, and what it started.
//!
//! Found by looking at the descriptors of all processes, signalled one by one; that nobody is left is told by the
//! kernel, at the other end of the pipe.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::run::tree;

/// The pipe, open for reading.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) file: File,
    path: PathBuf,
    identity: (u64, u64),
}

/// One process that has it open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    pid: i32,
    started: u64,
}

impl Pipe {
    /// Opens the pipe at `path`, without waiting for somebody at the other end.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(bits(OFlags::NONBLOCK | OFlags::NOFOLLOW))
            .open(path)?;
        let found = file.metadata()?;
        Ok(Self { file, path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }

    /// Whether nobody has it open any more. Only for one that somebody has had open.
    pub(super) fn is_abandoned(&self) -> bool {
        let mut watched = [PollFd::new(&self.file, PollFlags::IN)];
        let _ = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        watched[0].revents().contains(PollFlags::HUP)
    }

    /// Sends `signal` to all who have it open, and tells each of their terminals and logs why, if `why` is said.
    pub(super) fn signal_all(&self, signal: Signal, why: Option<&str>) {
        let holders = self.holders();
        let streams = why.map(|_| errors_of(&holders)).unwrap_or_default();
        for holder in holders {
            tree::signal_one(holder.pid, holder.started, signal);
            if signal == Signal::SIGTERM {
                // One that was stopped can only obey if it runs.
                tree::signal_one(holder.pid, holder.started, Signal::SIGCONT);
            }
        }
        for (mut stream, why) in streams.into_iter().zip(why.into_iter().cycle()) {
            let _ = stream.write_all(format!("holdtight: {why}\n").as_bytes());
        }
    }

    /// Kills all who have it open, until nobody is left or `limit` is over: one who cannot be killed works on.
    pub(super) fn clear(&self, limit: Duration, why: &str) {
        let (mut waited, mut pause, mut why) =
            (Duration::ZERO, Duration::from_millis(2), Some(why));
        // Whoever is not seen here could not be killed either.
        while waited < limit && !self.is_abandoned() && self.has_holders() {
            self.signal_all(Signal::SIGKILL, why.take());
            std::thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Whether somebody has it open, as far as `/proc` shows.
    pub(super) fn has_holders(&self) -> bool {
        !self.holders().is_empty()
    }

    fn holders(&self) -> Vec<Holder> {
        let us = i32::try_from(std::process::id()).unwrap_or(0);
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers
            .filter(|pid| *pid != us)
            .filter_map(|pid| {
                // Before its descriptors: whoever has its number later is not meant.
                let started = tree::started(pid)?;
                self.is_open_in(pid).then_some(Holder { pid, started })
            })
            .collect()
    }

    fn is_open_in(&self, pid: i32) -> bool {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().any(|entry| {
            let link = entry.path();
            // The name first: looking through a link can mean to wait for a server that is away.
            let named = fs::read_link(&link).is_ok_and(|target| {
                target.to_string_lossy().starts_with(&*self.path.to_string_lossy())
            });
            let writes = || fs::symlink_metadata(&link).is_ok_and(|link| link.mode() & 0o200 != 0);
            let same = || {
                fs::metadata(&link).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
            };
            named && writes() && same()
        })
    }
}

/// The standard errors of these processes, each once.
fn errors_of(holders: &[Holder]) -> Vec<File> {
    let mut seen = Vec::new();
    let open = |holder: &Holder| {
        let flags = bits(OFlags::NONBLOCK | OFlags::NOCTTY);
        let path = format!("/proc/{}/fd/2", holder.pid);
        let found = fs::metadata(&path).ok()?;
        let identity = (found.dev(), found.ino());
        if seen.contains(&identity) {
            return None;
        }
        seen.push(identity);
        OpenOptions::new().append(true).custom_flags(flags).open(path).ok()
    };
    holders.iter().filter_map(open).collect()
}

#[expect(clippy::cast_possible_wrap, reason = "flags are a set of bits")]
pub(super) fn bits(flags: OFlags) -> i32 {
    flags.bits() as i32
}
