//! What a waiting user sees: on a terminal one moving line with the holder, elsewhere one line after a while.
//!
//! The holder is looked up about once a second, only while somebody watches. Everything goes to standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use holdtight::{BootClock, Clock, DistributedLock, LockInfo};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::conflict::quoted;
use crate::output::{Span, clean};

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Shorter waits are not worth a word.
const PATIENCE_TERMINAL: Duration = Duration::from_millis(250);
const PATIENCE_PIPE: Duration = Duration::from_secs(1);

const FRAME: Duration = Duration::from_millis(100);
const LOOK_UP: Duration = Duration::from_secs(1);

/// The holder, as last seen.
type Seen = Arc<Mutex<Option<LockInfo>>>;

/// The display of one wait.
pub(super) struct Waiting<'a> {
    lock: &'a DistributedLock,
    terminal: bool,
    key: String,
    next: Option<Instant>,
    seen: Seen,
    looking: Option<AbortHandle>,
    frame: usize,
    shown: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(lock: &'a DistributedLock) -> Self {
        Self {
            lock,
            terminal: io::stderr().is_terminal(),
            key: String::new(),
            next: None,
            seen: Seen::default(),
            looking: None,
            frame: 0,
            shown: false,
        }
    }

    /// A wait for `key` begins.
    pub(super) fn begin(&mut self, key: &str) {
        key.clone_into(&mut self.key);
        let patience = if self.terminal { PATIENCE_TERMINAL } else { PATIENCE_PIPE };
        self.next = Some(Instant::now() + patience);
        *self.seen() = None;
    }

    /// When there is something to show next; never, if there is not.
    pub(super) async fn next(&self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Shows it.
    pub(super) fn show(&mut self) {
        if self.looking.is_none() {
            self.looking = Some(self.look());
            // The first look-up takes a moment; without it there is nothing to say.
            self.next = Some(Instant::now() + FRAME);
            return;
        }
        let seen = self.seen().clone();
        if !self.terminal {
            if !std::mem::replace(&mut self.shown, true) {
                let _ = writeln!(io::stderr(), "holdtight: {}", line(&self.key, seen.as_ref()));
            }
            self.stop_looking();
            self.next = None;
            return;
        }
        let frame = FRAMES[self.frame % FRAMES.len()];
        self.frame += 1;
        let text = format!("{frame} {}", line(&self.key, seen.as_ref()));
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| size.ws_col);
        let fitting: String = text.chars().take(usize::from(width.max(20)) - 1).collect();
        let _ = write!(io::stderr(), "\r{fitting}\x1b[K");
        self.shown = true;
        self.next = Some(Instant::now() + FRAME);
    }

    /// Removes the line, for whatever is printed next.
    pub(super) fn clear(&mut self) {
        if self.terminal && std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// The wait is over.
    pub(super) fn end(&mut self) {
        self.clear();
        self.stop_looking();
        self.next = None;
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<LockInfo>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> AbortHandle {
        let (lock, key, seen) = (self.lock.clone(), self.key.clone(), Arc::clone(&self.seen));
        let looking = tokio::spawn(async move {
            loop {
                // A store that does not answer is the business of whoever waits for it.
                if let Ok(info) = lock.lookup(&key).await {
                    *seen.lock().unwrap_or_else(PoisonError::into_inner) = info;
                }
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
        self.end();
    }
}

/// Who is waited for: `waiting for "deploy": held by pid 42 on web-1 (ann, ship.sh): release 7, for 2 min 5 s, …`.
fn line(key: &str, holder: Option<&LockInfo>) -> String {
    let mut text = format!("waiting for {}", quoted(key));
    let Some(info) = holder else { return text };
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
    text
}
