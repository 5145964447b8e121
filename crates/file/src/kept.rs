//! What stays open between steps, by key: so many at most, and the one that was unused for longest
//! goes first.
//!
//! Whoever needs one takes it out and has it alone, because two threads with one open file would
//! share its lock. What is kept, and whether it is still the right file, is for `place` and `step`.

use std::sync::{Mutex, MutexGuard};

use holdtight_core::Key;
use holdtight_kit::lock;

/// How many stay. A program may have no more than a thousand files open, and wants most of them for
/// itself.
const MOST: usize = 64;

/// Kept values, the latest last: a key that is released was mostly acquired just before.
#[derive(Debug)]
pub(crate) struct Kept<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    /// Few enough to be looked through: keys differ by a number that they carry.
    values: Vec<(Key, T)>,
    /// A forked child shares its parent's open files, and with them the locks: it must open its
    /// own.
    process: u32,
}

impl<T> Kept<T> {
    pub(crate) fn new(process: u32) -> Self {
        Self(Mutex::new(State { values: Vec::new(), process }))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.0)
    }

    /// Takes out what is kept for `key` by this process, whose id is `process`.
    pub(crate) fn take(&self, key: &Key, process: u32) -> Option<(Key, T)> {
        let mut state = self.state();
        if state.process != process {
            state.values.clear();
            state.process = process;
        }
        let at = state.values.iter().rposition(|(kept, _)| kept == key)?;
        Some(state.values.remove(at))
    }

    /// Keeps `value`, in the place of an earlier one of the same key.
    pub(crate) fn keep(&self, key: Key, value: T) {
        let mut state = self.state();
        let same = state.values.iter().rposition(|(kept, _)| *kept == key);
        let gone = match same {
            Some(at) => Some(state.values.remove(at)),
            None if state.values.len() >= MOST => Some(state.values.remove(0)),
            None => None,
        };
        state.values.push((key, value));
        drop(state);
        // Closing is a system call: not under the mutex.
        drop(gone);
    }

    /// Drops everything that is not in use, and says how many that were.
    pub(crate) fn clear(&self) -> usize {
        let values = std::mem::take(&mut self.state().values);
        values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new(&format!("key {n}")).unwrap()
    }

    fn taken<T>(kept: &Kept<T>, n: usize, process: u32) -> Option<T> {
        kept.take(&key(n), process).map(|(_, value)| value)
    }

    #[test]
    fn what_was_unused_for_longest_makes_room() {
        let kept = Kept::new(1);
        for n in 0..MOST {
            kept.keep(key(n), n);
        }
        assert_eq!(taken(&kept, 0, 1), Some(0));
        kept.keep(key(0), 0);
        kept.keep(key(MOST), MOST);
        assert_eq!(taken(&kept, 1, 1), None, "the first, since key 0 was used again");
        for n in (2..=MOST).chain([0]) {
            assert_eq!(taken(&kept, n, 1), Some(n));
        }
        assert_eq!(kept.clear(), 0);
    }

    #[test]
    fn a_value_is_taken_by_one_and_a_second_one_of_its_key_replaces_it() {
        let kept = Kept::new(1);
        kept.keep(key(1), "first");
        kept.keep(key(1), "second");
        assert_eq!(taken(&kept, 1, 1), Some("second"));
        assert_eq!(taken(&kept, 1, 1), None);
    }

    #[test]
    fn a_forked_child_finds_nothing_of_its_parent() {
        let kept = Kept::new(1);
        kept.keep(key(1), ());
        assert_eq!(taken(&kept, 1, 2), None);
        kept.keep(key(1), ());
        assert_eq!(taken(&kept, 1, 2), Some(()));
    }
}
