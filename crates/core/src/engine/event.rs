//! What happens to locks, for whoever wants to watch: one callback, in the order things happen.
//!
//! Keys may name customers, so an event carries a hash of its key unless the user lets it show
//! more. A callback that panics harms nobody. Logs go through `tracing` at the places where things
//! happen, counts through the meter.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sha2::{Digest as _, Sha256};
use tracing::Span;

use crate::engine::grant::Grant;
use crate::engine::meter;
use crate::model::clock::Moment;
use crate::model::error::{ErrorKind, LockError};
use crate::model::fence::Fence;
use crate::model::key::Key;
use crate::model::loss::Loss;
use crate::store::runtime::let_block;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A lock was granted.
    Acquired,
    /// An attempt found the lock busy.
    Busy,
    /// An acquire call gave up or failed.
    AcquireFailed,
    /// A lease was renewed in the background.
    Renewed,
    /// A renewal failed; it is tried again until the lease ends.
    RenewalFailed,
    /// A holder extended its lease.
    Extended,
    /// A holder could not extend its lease.
    ExtendFailed,
    /// A held lock was lost.
    Lost(Loss),
    /// A lock was given back.
    Released,
    /// A release failed; it is tried again until the lease ends.
    ReleaseFailed,
    /// Somebody asked whether a lock is held.
    Checked {
        /// The answer; `false` also if the store did not give one.
        held: bool,
    },
    /// Somebody asked who holds a lock.
    LookedUp {
        /// Whether anybody does; `false` also if the store did not say.
        held: bool,
    },
}

/// What was to be done when something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking a lock.
    Acquire,
    /// Keeping it, by the holder or in the background.
    Extend,
    /// Giving it back.
    Release,
    /// Asking whether it is held.
    IsLocked,
    /// Asking who holds it.
    Lookup,
}

/// One thing that happened to one lock. Never carries a secret.
#[non_exhaustive]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// In which kind of store.
    pub store: &'static str,
    /// To which lock; `None` unless [`reveal_keys`](crate::Builder::reveal_keys) allows it.
    pub key: Option<&'a Key>,
    /// The fence of the grant, once there is one. It identifies the grant, so that no trace of the
    /// secret is needed.
    pub fence: Option<Fence>,
    /// How often the store was asked so far, where that is known.
    pub attempts: Option<u32>,
    /// What went wrong, if something did. Names the key only if [`key`](Self::key) does.
    pub error: Option<&'a LockError>,
    subject: &'a Key,
}

impl Event<'_> {
    /// A stand-in for the key: 24 hexadecimal digits of SHA-256. The same key has the same hash in
    /// every process.
    ///
    /// It hides keys from casual readers, not from those who can guess them.
    pub fn key_hash(&self) -> String {
        let mut hash = Sha256::new_with_prefix(b"holdtight key\0");
        hash.update(self.subject.as_str().as_bytes());
        hash.finalize()[..12]
            .iter()
            .fold(String::with_capacity(24), |text, byte| text + &format!("{byte:02x}"))
    }

    /// What was to be done.
    pub fn operation(&self) -> Operation {
        match self.kind {
            EventKind::Acquired | EventKind::Busy | EventKind::AcquireFailed => Operation::Acquire,
            EventKind::Renewed
            | EventKind::RenewalFailed
            | EventKind::Extended
            | EventKind::ExtendFailed
            | EventKind::Lost(_) => Operation::Extend,
            EventKind::Released | EventKind::ReleaseFailed => Operation::Release,
            EventKind::Checked { .. } => Operation::IsLocked,
            EventKind::LookedUp { .. } => Operation::Lookup,
        }
    }

    /// Whether it went well. A question about a lock that nobody holds counts as a no.
    pub fn is_ok(&self) -> bool {
        matches!(
            self.kind,
            EventKind::Acquired
                | EventKind::Renewed
                | EventKind::Extended
                | EventKind::Released
                | EventKind::Checked { held: true }
                | EventKind::LookedUp { held: true }
        )
    }

    /// Why it did not go well, in a word: `locked`, `expired`, `not-found`; `error` for what the
    /// store or the caller got wrong, of which [`error`](Self::error) says more.
    pub fn reason(&self) -> Option<&'static str> {
        match (self.kind, self.error.map(LockError::kind)) {
            (EventKind::Busy, _) | (EventKind::AcquireFailed, Some(ErrorKind::Timeout)) => {
                Some("locked")
            }
            (EventKind::Lost(Loss::TakenAway), _)
            | (_, Some(ErrorKind::Lost | ErrorKind::NotHeld)) => Some("not-found"),
            (EventKind::Lost(_), _) => Some("expired"),
            (_, Some(_)) => Some("error"),
            (_, None) => None,
        }
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("kind", &self.kind)
            .field("store", &self.store)
            .field("key", &self.key)
            .field("key_hash", &self.key_hash())
            .field("fence", &self.fence)
            .field("attempts", &self.attempts)
            .field("error", &self.error)
            .finish()
    }
}

/// Whether anybody may watch the spans of acquires and releases.
#[inline]
pub(crate) fn spans_are_on() -> bool {
    tracing::level_enabled!(tracing::Level::DEBUG)
}

/// A span that somebody watches. One word, and one look at the level if nobody does: it lives in
/// the futures of every acquire and release.
#[inline]
pub(crate) fn watched(span: impl FnOnce() -> Span) -> Option<Box<Span>> {
    if !spans_are_on() {
        return None;
    }
    Some(Box::new(span())).filter(|span| !span.is_disabled())
}

type Sink = dyn Fn(&Event<'_>) + Send + Sync;
type Show = dyn Fn(&Event<'_>) -> bool + Send + Sync;

/// Where events go.
#[derive(Default)]
pub(crate) struct Events {
    store: &'static str,
    sink: Option<Box<Sink>>,
    show: Option<Box<Show>>,
}

impl Events {
    pub(crate) fn watch(&mut self, sink: impl Fn(&Event<'_>) + Send + Sync + 'static) {
        self.sink = Some(Box::new(sink));
    }

    pub(crate) fn reveal(&mut self, show: impl Fn(&Event<'_>) -> bool + Send + Sync + 'static) {
        self.show = Some(Box::new(show));
    }

    pub(crate) fn of(mut self, store: &'static str) -> Self {
        self.store = store;
        self
    }

    pub(crate) fn store(&self) -> &'static str {
        self.store
    }

    /// Who is told, if anybody. `cargo xtask telemetry-cost` compares with a build that tells
    /// nobody.
    #[inline]
    fn sink(&self) -> Option<&Sink> {
        if cfg!(holdtight_silent) { None } else { self.sink.as_deref() }
    }

    /// Tells of many things at once. Whoever listens may block; in the background nobody else has
    /// to wait for that.
    pub(crate) fn aside(&self, tell: impl FnOnce()) {
        if self.sink().is_some() { let_block(tell) } else { tell() }
    }

    #[inline]
    pub(crate) fn emit(
        &self,
        kind: EventKind,
        key: &Key,
        fence: Option<Fence>,
        error: Option<&LockError>,
    ) {
        if let Some(sink) = self.sink() {
            self.tell(sink, kind, key, fence, error.and_then(LockError::attempts), error);
        }
    }

    #[inline]
    pub(crate) fn emit_attempts(
        &self,
        kind: EventKind,
        key: &Key,
        fence: Option<Fence>,
        attempts: u32,
    ) {
        if let Some(sink) = self.sink() {
            self.tell(sink, kind, key, fence, Some(attempts), None);
        }
    }

    /// A grant ended: given back or left alone, or lost. Of one that nobody came for, nobody knew.
    pub(crate) fn ended(&self, grant: &Grant, now: Moment, lost: Option<Loss>) {
        if !grant.is_taken() {
            return;
        }
        meter::held(self.store, || now.since(grant.acquired_at));
        if let Some(loss) = lost {
            meter::lost(self.store, loss);
            tracing::warn!(key = %grant.key, store = self.store, fence = %grant.fence, reason = %loss, "the lock was lost");
            self.emit(EventKind::Lost(loss), &grant.key, Some(grant.fence), None);
        }
    }

    /// The store failed to do a step.
    #[cold]
    pub(crate) fn store_error(&self, step: &'static str, key: Option<&Key>, error: &LockError) {
        meter::store_error(self.store, error.kind());
        let key = key.map(tracing::field::display);
        tracing::debug!(key, store = self.store, step, outcome = "failed", %error, "a step failed");
    }

    #[cold]
    fn tell(
        &self,
        sink: &Sink,
        kind: EventKind,
        key: &Key,
        fence: Option<Fence>,
        attempts: Option<u32>,
        error: Option<&LockError>,
    ) {
        let told = catch_unwind(AssertUnwindSafe(|| {
            let redacted = error.map(LockError::without_key);
            let mut event = Event {
                kind,
                store: self.store,
                key: None,
                fence,
                attempts,
                error: redacted.as_ref(),
                subject: key,
            };
            let show = |show: &Show| catch_unwind(AssertUnwindSafe(|| show(&event)));
            if self.show.as_deref().is_some_and(|ask| show(ask).unwrap_or(false)) {
                event.key = Some(key);
                event.error = error;
            }
            let_block(|| sink(&event));
        }));
        if told.is_err() {
            tracing::error!(%key, "the on_event callback panicked; the lock is not affected");
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("watched", &self.sink.is_some()).finish_non_exhaustive()
    }
}
