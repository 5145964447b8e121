//! The two processes of a held script that are not plain `run`: the keeper, which is the wrapper of
//! that run, in a session of its own; and the run's command, which reads the pipe.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use holdtight::{BootClock, Clock as _, Moment};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::conflict::quoted;
use crate::exit;
use crate::run::holders::{Said, Script, remove};
use crate::run::tree;

/// The hidden argument of the keeper: `KEEPER DIRECTORY run …`.
pub(crate) const KEEPER: &str = "__keeper";

/// The hidden argument of what it runs: `KEEP DIRECTORY MILLISECONDS`, with the time from TERM to
/// KILL.
pub(crate) const KEEP: &str = "__keep";

/// How long a shell may take from the answer of `hold` to opening the pipe: one that never
/// evaluated it never does.
const BINDING: Duration = Duration::from_secs(20);

/// Runs the keeper. `run` does what a command line says, and returns its exit code.
pub(crate) fn keeper(
    program: OsString,
    mut arguments: impl Iterator<Item = OsString>,
    run: impl FnOnce(&[OsString]) -> u8,
) -> u8 {
    let Some(place) = arguments.next().map(PathBuf::from) else { return exit::USAGE };
    // The script's terminal is no business of ours, nor is what is typed there.
    let _ = rustix::process::setsid();
    let line: Vec<OsString> = [program].into_iter().chain(arguments).collect();
    let code = run(&line);
    remove(&place);
    code
}

/// Tells that the lock is held, and stays until the script has ended.
pub(crate) fn keep(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let _ = std::fs::write("/proc/self/comm", "holdtight");
    let place = arguments.next().map(PathBuf::from);
    let grace = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(place), Some(grace)) = (place, grace) else { return exit::USAGE };
    // One that has lost its guardian stops the script, also if nobody is left who would tell it to.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let script = Script::open(&place);
    let kept = script
        .and_then(|script| Keep::start(script, Duration::from_millis(grace)))
        .and_then(Keep::watch);
    remove(&place);
    kept.unwrap_or(exit::SOFTWARE)
}

struct Keep {
    script: Script,
    /// The shell, once it is known.
    shell: Option<OwnedFd>,
    /// The other end of the pipe, if nobody else has it: a shell that has closed it may still give
    /// the lock back.
    own: Option<File>,
    signals: SignalFd,
    grace: Duration,
    key: String,
}

impl Keep {
    fn start(script: Script, grace: Duration) -> io::Result<Self> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT]
            .into_iter()
            .collect();
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
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
        let key = quoted(&variable("HOLDTIGHT_KEY"));
        Ok(Self { script, shell: None, own: None, signals, grace, key })
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
            let (said, signal) = self.wait(pause)?;
            let now = BootClock.now();
            let late = bound_by.is_some_and(|moment| now >= moment);
            if bound_by.is_some() && (said.bound || signal || late) {
                // From here on nobody can open it, so whoever has not done it by now never does.
                self.script.seal();
                self.know_shell();
                if !said.bound && self.script.is_over() {
                    return Ok(exit::LOST);
                }
                bound_by = None;
            }
            if said.release && kill_at.is_none() {
                return Ok(exit::OK);
            }
            if signal && kill_at.is_none() {
                self.own = None;
                let why = format!(
                    "the lock {} cannot be kept; the script that holds it gets TERM",
                    self.key
                );
                self.script.signal_all(Signal::SIGTERM, &why);
                kill_at = Some(now.after(self.grace * 3 / 5));
            }
            if kill_at.is_some() && self.script.is_over() {
                return Ok(exit::LOST);
            }
            // Also of one that opened it and ended before it could say so.
            if kill_at.is_none() && self.has_ended() && !said.anything {
                return Ok(exit::OK);
            }
            if kill_at.is_some_and(|moment| now >= moment) {
                self.script.signal_all(Signal::SIGKILL, "");
            }
        }
    }

    /// Has the end of the shell wake us.
    fn know_shell(&mut self) {
        let Some((pid, started)) = self.script.shell() else { return };
        let opened = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The descriptor keeps the process, so what is looked at now is what is watched.
        self.shell = opened.filter(|_| tree::started(pid) == Some(started));
    }

    /// Whether the shell has ended, and everybody who has the pipe open.
    fn has_ended(&mut self) -> bool {
        if let Some(shell) = &self.shell {
            let mut watched = [PollFd::new(shell, PollFlags::IN)];
            let _ = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if watched[0].revents().is_empty() {
                return false;
            }
            self.shell = None;
        }
        self.own = None;
        self.script.is_abandoned()
    }

    /// Waits for something to happen: what the script said, and whether a signal came.
    fn wait(&mut self, pause: Duration) -> io::Result<(Said, bool)> {
        if self.shell.is_some() && self.own.is_none() && self.script.is_abandoned() {
            self.own = self.script.reopen().ok();
        }
        let mut watched = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        watched.extend(self.shell.as_ref().map(|shell| PollFd::new(shell, PollFlags::IN)));
        // A pipe that nobody has open is always ready.
        if self.shell.is_none() || !self.script.is_abandoned() {
            watched.push(PollFd::new(self.script.pipe(), PollFlags::IN));
        }
        let pause = pause.max(Duration::from_millis(1));
        match poll(&mut watched, Timespec::try_from(pause).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let signal = matches!(self.signals.read_signal(), Ok(Some(_)));
        Ok((self.script.hear(), signal))
    }
}

/// The words of the command that reads the pipe.
pub(super) fn words(place: &OsStr, grace: Duration) -> [OsString; 4] {
    let grace = grace.as_millis().to_string();
    ["/proc/self/exe".into(), KEEP.into(), place.to_owned(), grace.into()]
}
