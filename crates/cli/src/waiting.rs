//! What a waiting user sees: on a terminal one moving line with the holder, elsewhere one line
//! after a while.
//!
//! The holder is looked up about once a second, only while somebody watches. Everything goes to
//! standard error.

use std::fmt::Write as _;
use std::future::Future;
use std::io::{self, IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use holdtight::{BootClock, Clock, DistributedLock, LockInfo};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::conflict::quoted;
use crate::facts::is_around_us;
use crate::output::{self, Span, clean};

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Shorter waits are not worth a word.
const PATIENCE_TERMINAL: Duration = Duration::from_millis(250);
const PATIENCE_PIPE: Duration = Duration::from_secs(1);

const FRAME: Duration = Duration::from_millis(100);
const LOOK_UP: Duration = Duration::from_secs(1);

/// The holder, as last seen.
type Seen = Arc<Mutex<Option<LockInfo>>>;

/// The display of one wait.
pub(crate) struct Waiting<'a> {
    lock: &'a DistributedLock,
    keys: &'a [String],
    json: bool,
    terminal: bool,
    next: Option<Instant>,
    seen: Seen,
    looking: Option<AbortHandle>,
    frame: usize,
    shown: bool,
    /// The process group for which it is shown, if that is not our own.
    group: Option<i32>,
}

impl<'a> Waiting<'a> {
    /// A wait for `keys` begins. With `json` nothing moves: whoever reads that is a program.
    pub(crate) fn new(lock: &'a DistributedLock, keys: &'a [String], json: bool) -> Self {
        let terminal = !json && io::stderr().is_terminal();
        let patience = if terminal { PATIENCE_TERMINAL } else { PATIENCE_PIPE };
        Self {
            lock,
            keys,
            json,
            terminal,
            next: Some(Instant::now() + patience),
            seen: Seen::default(),
            looking: None,
            frame: 0,
            shown: false,
            group: None,
        }
    }

    /// The same display for the process group `group`, which is what a shell has in the foreground
    /// or not.
    pub(crate) fn for_group(mut self, group: i32) -> Self {
        self.group = Some(group);
        self
    }

    /// The end of `work`, which waits for the keys; meanwhile it is shown.
    pub(crate) async fn during<T>(mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.next() => self.show(),
            }
        }
    }

    /// When there is something to show next; never, if there is not.
    pub(crate) async fn next(&self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Shows it.
    pub(crate) fn show(&mut self) {
        if self.looking.is_none() {
            self.looking = Some(self.look());
            // The first look-up takes a moment; without it there is nothing to say.
            self.next = Some(Instant::now() + FRAME);
            return;
        }
        let seen = self.seen().clone();
        if !self.terminal {
            if !std::mem::replace(&mut self.shown, true) {
                output::note(self.json, "waiting", line(self.keys, seen.as_ref()));
            }
            self.stop_looking();
            self.next = None;
            return;
        }
        self.next = Some(Instant::now() + FRAME);
        if !is_in_foreground(self.group) {
            // The line of a shell that is being typed into is not ours to draw over.
            return;
        }
        let frame = FRAMES[self.frame % FRAMES.len()];
        self.frame += 1;
        let text = format!("{frame} {}", line(self.keys, seen.as_ref()));
        let fitting: String = text.chars().take(usize::from(width().max(20)) - 1).collect();
        let _ = write!(io::stderr(), "\r{fitting}\x1b[K");
        self.shown = true;
    }

    /// Removes the line, for whatever is printed next.
    pub(crate) fn clear(&mut self) {
        if self.terminal && std::mem::take(&mut self.shown) && is_in_foreground(self.group) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<LockInfo>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> AbortHandle {
        let (lock, keys, seen) = (self.lock.clone(), self.keys.to_vec(), Arc::clone(&self.seen));
        let looking = tokio::spawn(async move {
            loop {
                let mut found = None;
                for key in &keys {
                    // A store that does not answer is the business of whoever waits for it.
                    found = lock.lookup(key).await.ok().flatten();
                    if found.is_some() {
                        break;
                    }
                }
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = found;
                tokio::time::sleep(LOOK_UP).await;
            }
        });
        looking.abort_handle()
    }

    fn stop_looking(&mut self) {
        if let Some(looking) = self.looking.take() {
            looking.abort();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.clear();
        self.stop_looking();
    }
}

/// How many characters fit on a line of the terminal.
#[cfg(unix)]
fn width() -> u16 {
    // Many terminals of CI systems say that they have no columns at all.
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col,
        _ => 80,
    }
}

/// Whether `group`, or our own, has the terminal.
#[cfg(unix)]
fn is_in_foreground(group: Option<i32>) -> bool {
    // Zero, for a group outside of our pid namespace, is nobody's number.
    let group = group.unwrap_or_else(|| nix::unistd::getpgrp().as_raw());
    // A terminal that is not the one of our session tells nothing, and is nobody's prompt.
    rustix::termios::tcgetpgrp(io::stderr()).map_or(true, |front| front.as_raw_pid() == group)
}

#[cfg(not(unix))]
fn is_in_foreground(_: Option<i32>) -> bool {
    true
}

#[cfg(not(unix))]
fn width() -> u16 {
    80
}

/// Who is waited for: `waiting for "deploy": held by pid 42 on web-1 (ann, ship.sh): release 7, for
/// 2 min 5 s, …`.
fn line(keys: &[String], holder: Option<&LockInfo>) -> String {
    let Some(info) = holder else {
        let keys: Vec<_> = keys.iter().map(|key| quoted(key)).collect();
        return format!("waiting for {}", keys.join(", "));
    };
    let mut text = format!("waiting for {}", quoted(info.key.as_str()));
    let _ = write!(text, ": held by {}", clean(&info.owner.to_string()));
    let now = BootClock.wall();
    let between =
        |from: SystemTime, to: SystemTime| Span(to.duration_since(from).unwrap_or_default());
    if let Some(since) = info.acquired_at {
        let _ = write!(text, ", for {}", between(since, now));
    }
    match info.expires_at {
        Some(end) => {
            let _ = write!(text, ", {} left", between(now, end));
        }
        None => text.push_str(", expires: never"),
    }
    if info.fence.is_some_and(|fence| is_around_us(info.key.as_str(), fence)) {
        text.push_str("; that is the run around this one, so this waits for itself");
    }
    text
}
