//! Which requests may still arrive: a cut connection or a pooler's queue can keep a request longer
//! than its caller waits.
//!
//! A release of such a secret says so, and the store then bars the request for good
//! (`locks_release` in `sql/schema.sql`). Otherwise it could be granted after its own release and
//! hold the key for nobody.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use holdtight_core::{LockError, Secret};
use holdtight_kit::lock;
use tokio::time::Instant;

use crate::pool::hash;

/// Longer than the store bars a secret, so that a release that is asked again is barred again.
const MEMORY: Duration = Duration::from_secs(600);

/// What is remembered at most: an outage must not cost unbounded memory. Beyond it a lease ends a
/// straggler.
const MOST: usize = 65_536;

/// Secrets under which a grant was asked for without an answer.
#[derive(Default)]
pub(crate) struct Unresolved {
    known: Mutex<Known>,
}

/// Hashes only: the secret itself must not stand where it is not needed. Two with one hash cost a
/// needless mark.
#[derive(Default)]
struct Known {
    hashes: HashSet<u64>,
    by_age: VecDeque<(Instant, u64)>,
}

/// Requests for grants on their way. Dropped without an answer, they are unresolved.
pub(crate) struct Asking<'a> {
    unresolved: &'a Unresolved,
    hashes: Vec<u64>,
}

impl Unresolved {
    /// Call before the request leaves.
    pub(crate) fn asking<'s>(&self, secrets: impl IntoIterator<Item = &'s Secret>) -> Asking<'_> {
        let hashes = secrets.into_iter().map(named).collect();
        Asking { unresolved: self, hashes }
    }

    /// Whether a request with this secret may still arrive.
    pub(crate) fn may_arrive(&self, secret: &Secret) -> bool {
        self.known().hashes.contains(&named(secret))
    }

    fn remember(&self, hashes: impl IntoIterator<Item = u64>, now: Instant) {
        let mut known = self.known();
        for hash in hashes {
            if known.hashes.insert(hash) {
                known.by_age.push_back((now, hash));
            }
        }
        while let Some(&(since, hash)) = known.by_age.front() {
            if now.duration_since(since) < MEMORY && known.by_age.len() <= MOST {
                break;
            }
            known.by_age.pop_front();
            known.hashes.remove(&hash);
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Asking<'_> {
    /// An answer came, or an error that says for sure that nothing was done.
    pub(crate) fn answered<T>(mut self, answer: Result<T, LockError>) -> Result<T, LockError> {
        if answer.as_ref().err().is_none_or(|error| error.kind().is_definite()) {
            self.hashes.clear();
        }
        answer
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.hashes.is_empty() {
            self.unresolved.remember(self.hashes.drain(..), Instant::now());
        }
    }
}

fn named(secret: &Secret) -> u64 {
    hash(secret.expose().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::generate().unwrap()
    }

    #[test]
    fn only_requests_without_a_definite_answer_are_remembered() {
        let unresolved = Unresolved::default();
        let (sure, refused, lost, dropped) = (secret(), secret(), secret(), secret());
        unresolved.asking([&sure]).answered(Ok(())).unwrap();
        let nothing_done: Result<(), _> = Err(LockError::unavailable("refused"));
        unresolved.asking([&refused]).answered(nothing_done).unwrap_err();
        let unknown: Result<(), _> = Err(LockError::ambiguous("cut"));
        unresolved.asking([&lost]).answered(unknown).unwrap_err();
        drop(unresolved.asking([&dropped]));
        for (secret, expected) in
            [(&sure, false), (&refused, false), (&lost, true), (&dropped, true)]
        {
            assert_eq!(unresolved.may_arrive(secret), expected);
        }
    }

    #[test]
    fn memory_is_bounded_in_time_and_in_number() {
        let (unresolved, now) = (Unresolved::default(), Instant::now());
        unresolved.remember([1], now);
        unresolved.remember([2], now + MEMORY);
        assert!(!unresolved.known().hashes.contains(&1), "too old");
        unresolved.remember(3..=MOST as u64 + 2, now + MEMORY);
        assert!(!unresolved.known().hashes.contains(&2), "one too many");
        assert_eq!(unresolved.known().hashes.len(), MOST);
        assert_eq!(unresolved.known().by_age.len(), MOST);
    }
}
