//! What this process remembers of documents: those that it wrote, and those that were just busy.
//!
//! It saves reads, which Firestore bills and which double the time of a step. Nothing here decides
//! who holds a lock: every write still carries its precondition, and one that does not hold is
//! followed by a read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use holdtight_core::{BootClock, Clock as _, Moment, Secret};
use holdtight_kit::lock;

use crate::time::Micros;

/// How many documents are remembered, of each kind. More cost a read each.
const MOST: usize = 16_384;

/// How long a busy answer is taken as a hint that the next may be busy too.
const BUSY_HINT: Duration = Duration::from_secs(5);

/// What this process remembers.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: HashMap<String, Written>,
    busy: HashMap<String, Moment>,
    /// A time that the server said, and when it did.
    clock: Option<(Micros, Moment)>,
}

/// A lock as this process wrote it last.
#[derive(Debug)]
pub(crate) struct Written {
    secret: Secret,
    /// The `updateTime` of that write, for preconditions.
    pub(crate) version: String,
    /// When its lease is over, with the grace.
    pub(crate) over: Micros,
}

impl Memory {
    /// The server said what time it is.
    pub(crate) fn saw(&self, time: Micros) {
        self.state().clock = Some((time, BootClock.now()));
    }

    /// About what the server's clock says now; not exact enough for a lease.
    pub(crate) fn now(&self) -> Option<Micros> {
        // Runs on while the machine sleeps.
        let (time, since) = self.state().clock?;
        Some(time.after(BootClock.now().since(since)))
    }

    /// `secret` wrote the document `name`, and so holds it until `over`.
    pub(crate) fn wrote(&self, name: &str, secret: &Secret, version: String, over: Micros) {
        let mut state = self.state();
        if state.written.len() >= MOST {
            state.written.clear();
        }
        let written = Written { secret: secret.clone(), version, over };
        state.written.insert(name.to_owned(), written);
    }

    /// What `secret` wrote to the document `name`, and forgets it.
    pub(crate) fn take(&self, name: &str, secret: &Secret) -> Option<Written> {
        let mut state = self.state();
        state.written.get(name).filter(|written| written.secret == *secret)?;
        state.written.remove(name)
    }

    /// Somebody holds the lock of the document `name`.
    pub(crate) fn note_busy(&self, name: &str) {
        let (mut state, now) = (self.state(), BootClock.now());
        if state.busy.len() >= MOST {
            state.busy.clear();
        }
        state.busy.insert(name.to_owned(), now);
    }

    /// Whether somebody held it a moment ago.
    pub(crate) fn was_busy(&self, name: &str) -> bool {
        let seen = self.state().busy.get(name).copied();
        seen.is_some_and(|seen| BootClock.now().since(seen) < BUSY_HINT)
    }

    /// Nothing can panic while this is held.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap()
    }

    #[test]
    fn only_the_owner_takes_what_it_wrote_and_only_once() {
        let memory = Memory::default();
        memory.wrote("d", &secret("a"), "v1".into(), Micros(5));
        assert!(
            memory.take("d", &secret("b")).is_none() && memory.take("e", &secret("a")).is_none()
        );
        memory.wrote("d", &secret("a"), "v2".into(), Micros(9));
        let written = memory.take("d", &secret("a")).unwrap();
        assert_eq!((written.version.as_str(), written.over), ("v2", Micros(9)));
        assert!(memory.take("d", &secret("a")).is_none());
    }

    #[test]
    fn a_busy_document_is_known_as_such_for_a_while() {
        let memory = Memory::default();
        memory.note_busy("d");
        assert!(memory.was_busy("d") && !memory.was_busy("e"));
    }

    #[test]
    fn it_is_bounded() {
        let memory = Memory::default();
        for n in 0..=MOST {
            memory.wrote(&n.to_string(), &secret("a"), "v".into(), Micros(1));
            memory.note_busy(&n.to_string());
        }
        let state = memory.state();
        assert!(state.written.len() <= MOST && state.busy.len() <= MOST);
    }

    #[test]
    fn the_servers_clock_goes_on() {
        let memory = Memory::default();
        assert_eq!(memory.now(), None);
        memory.saw(Micros(1_000_000));
        assert!(memory.now().unwrap() >= Micros(1_000_000));
    }
}
