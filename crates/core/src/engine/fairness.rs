//! Letting others go first: whoever has just given a lock back that other processes wait for does
//! not snatch it again.
//!
//! A waiter of another process has to hear of the release before it can ask. Its rival here could
//! ask at once, and would win nearly every time: the waiter would be woken in vain, again and
//! again. So the rival waits for a moment.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::model::clock::Moment;
use crate::model::key::{Key, KeyMap};

/// How long others have to be quicker, about.
pub(crate) const STEP_BACK: Duration = Duration::from_millis(10);

/// So many keys are remembered before old ones are looked for.
const MANY: usize = 64;

/// The locks that were just given back for the sake of others.
#[derive(Debug, Default)]
pub(crate) struct Courtesy {
    given_back: Mutex<KeyMap<Moment>>,
}

impl Courtesy {
    /// `key` was given back while other processes waited for it.
    pub(crate) fn owe(&self, key: &Key, now: Moment) {
        let mut given_back = self.given_back.lock().unwrap_or_else(PoisonError::into_inner);
        if given_back.len() >= MANY {
            given_back.retain(|_, since| is_recent(*since, now));
        }
        given_back.insert(key.clone(), now);
    }

    /// Whether whoever asks for `key` now should let others go first. Says so once.
    pub(crate) fn is_owed(&self, key: &Key, now: impl FnOnce() -> Moment) -> bool {
        let mut given_back = self.given_back.lock().unwrap_or_else(PoisonError::into_inner);
        if given_back.is_empty() {
            return false;
        }
        given_back.remove(key).is_some_and(|since| is_recent(since, now()))
    }
}

fn is_recent(since: Moment, now: Moment) -> bool {
    now.since(since) < STEP_BACK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new(&format!("k{n}")).unwrap()
    }

    #[test]
    fn it_is_owed_once_and_not_for_long() {
        let (courtesy, then) = (Courtesy::default(), Moment::from_nanos(0));
        assert!(!courtesy.is_owed(&key(0), || then));
        courtesy.owe(&key(0), then);
        assert!(!courtesy.is_owed(&key(1), || then));
        assert!(courtesy.is_owed(&key(0), || then));
        assert!(!courtesy.is_owed(&key(0), || then));
        courtesy.owe(&key(0), then);
        assert!(!courtesy.is_owed(&key(0), || then.after(STEP_BACK)));
    }

    #[test]
    fn what_is_long_over_is_forgotten() {
        let courtesy = Courtesy::default();
        for n in 0..10_000 {
            courtesy
                .owe(&key(n), Moment::from_nanos(0).after(STEP_BACK * u32::try_from(n).unwrap()));
        }
        assert!(courtesy.given_back.lock().unwrap().len() <= MANY);
    }
}
