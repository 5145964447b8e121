//! The two processes of a held script that are not plain `run`: the keeper, which is the wrapper of that run and stops
//! what is left of the script when the run ended in another way than by the script's end; and the run's command, which
//! reads the pipe.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdtight::{BootClock, Clock as _, Moment};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::holders::Pipe;
use crate::conflict::quoted;
use crate::exit;
use crate::run::tree;

/// The hidden argument of the keeper: `KEEPER DIRECTORY run …`.
pub(crate) const KEEPER: &str = "__keeper";

/// The hidden argument of what it runs: `KEEP DIRECTORY MILLISECONDS`, with the time from TERM to KILL.
pub(crate) const KEEP: &str = "__keep";

/// The name of the pipe in its directory.
pub(super) const PIPE: &str = "pipe";

/// The script opened the pipe.
const BOUND: u8 = b'b';

/// The script gives the lock back.
pub(super) const RELEASE: u8 = b'r';

/// How long a shell may take from the answer of `hold` to opening the pipe: one that never evaluated it never does.
const BINDING: Duration = Duration::from_secs(20);

/// How long those may take to disappear who are killed because the lock is gone.
const CLEARING: Duration = Duration::from_secs(5);

/// Runs the keeper. `run` does what a command line says, and returns its exit code.
pub(crate) fn keeper(
    program: OsString,
    mut arguments: impl Iterator<Item = OsString>,
    run: impl FnOnce(&[OsString]) -> u8,
) -> u8 {
    let Some(place) = arguments.next().map(PathBuf::from) else { return exit::USAGE };
    // The script's terminal is no business of ours, nor is what is typed there.
    let _ = rustix::process::setsid();
    let pipe = Pipe::open(&place.join(PIPE));
    let line: Vec<OsString> = [program].into_iter().chain(arguments).collect();
    let key = line.iter().find_map(|word| word.to_str()?.strip_prefix("--key="));
    let key = quoted(key.unwrap_or_default());
    let code = run(&line);
    remove(&place);
    if let (Ok(pipe), true) = (pipe, code != exit::OK) {
        // The lock is gone, so nobody may go on.
        let why =
            format!("lost {key}, or its keeper was killed; the script that held it was killed");
        pipe.clear(CLEARING, &why);
    }
    code
}

/// Removes the pipe and its directory: the script has it open, or never will.
pub(super) fn remove(place: &Path) {
    let _ = std::fs::remove_file(place.join(PIPE));
    let _ = std::fs::remove_dir(place);
}

/// Tells that the lock is held, and stays until the script has ended.
pub(crate) fn keep(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let _ = std::fs::write("/proc/self/comm", "holdtight");
    let place = arguments.next().map(PathBuf::from);
    let grace = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(place), Some(grace)) = (place, grace) else { return exit::USAGE };
    let kept = Keep::start(&place, Duration::from_millis(grace)).and_then(Keep::watch);
    remove(&place);
    kept.unwrap_or(exit::SOFTWARE)
}

struct Keep<'a> {
    place: &'a Path,
    pipe: Pipe,
    signals: SignalFd,
    grace: Duration,
    key: String,
}

impl<'a> Keep<'a> {
    fn start(place: &'a Path, grace: Duration) -> io::Result<Self> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT]
            .into_iter()
            .collect();
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let pipe = Pipe::open(&place.join(PIPE))?;
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let pid = std::process::id();
        let started = i32::try_from(pid).ok().and_then(tree::started);
        let started =
            started.ok_or_else(|| io::Error::other("/proc does not show this process"))?;
        // If nobody reads it, nobody will open the pipe.
        let mut out = io::stdout();
        writeln!(out, "{pid} {started} {}", variable("HOLDTIGHT_FENCE"))?;
        out.flush()?;
        let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        Ok(Self { place, pipe, signals, grace, key: quoted(&variable("HOLDTIGHT_KEY")) })
    }

    fn watch(mut self) -> io::Result<u8> {
        let mut bound_by = Some(BootClock.now().after(BINDING));
        let mut kill_at: Option<Moment> = None;
        loop {
            let now = BootClock.now();
            let next = [bound_by, kill_at].into_iter().flatten().min();
            let pause = next.map_or(Duration::from_secs(60), |moment| moment.since(now));
            let pause =
                if kill_at.is_some() { pause.min(Duration::from_millis(20)) } else { pause };
            let heard = self.wait(pause)?;
            let now = BootClock.now();
            let late = bound_by.is_some_and(|moment| now >= moment);
            if bound_by.is_some() && (heard.bytes.contains(&BOUND) || heard.signal || late) {
                // From here on nobody can open it, so whoever has not done it by now never does.
                remove(self.place);
                if !heard.bytes.contains(&BOUND) && !self.pipe.has_holders() {
                    return Ok(exit::LOST);
                }
                bound_by = None;
            }
            if heard.signal && kill_at.is_none() {
                let why = format!(
                    "the lock {} cannot be kept; the script that holds it gets TERM",
                    self.key
                );
                self.pipe.signal_all(Signal::SIGTERM, Some(&why));
                kill_at = Some(now.after(self.grace * 3 / 5));
            }
            if heard.bytes.contains(&RELEASE) && kill_at.is_none() {
                return Ok(exit::OK);
            }
            // Also of one that opened it and ended before it could say so.
            if self.pipe.is_abandoned() && heard.bytes.is_empty() {
                return Ok(if kill_at.is_some() { exit::LOST } else { exit::OK });
            }
            if kill_at.is_some_and(|moment| now >= moment) {
                self.pipe.signal_all(Signal::SIGKILL, None);
            }
        }
    }

    fn wait(&mut self, pause: Duration) -> io::Result<Heard> {
        let mut watched = [
            PollFd::new(&self.pipe.file, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        let pause = pause.max(Duration::from_millis(1));
        match poll(&mut watched, Timespec::try_from(pause).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = vec![0; 64];
        let read = (&self.pipe.file).read(&mut bytes).unwrap_or(0);
        bytes.truncate(read);
        let signal = matches!(self.signals.read_signal(), Ok(Some(_)));
        Ok(Heard { bytes, signal })
    }
}

struct Heard {
    bytes: Vec<u8>,
    signal: bool,
}

/// The words of the command that reads the pipe.
pub(super) fn words(place: &OsStr, grace: Duration) -> [OsString; 4] {
    let grace = grace.as_millis().to_string();
    ["/proc/self/exe".into(), KEEP.into(), place.to_owned(), grace.into()]
}
