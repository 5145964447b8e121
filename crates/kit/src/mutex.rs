//! A mutex that recovers from poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, whether or not a thread panicked while it held it.
///
/// For data that is valid between any two statements of its critical sections, so that a panic in
/// one caller does not become a panic in all.
///
/// ```
/// let count = std::sync::Mutex::new(1);
/// *holdtight_kit::lock(&count) += 1;
/// assert_eq!(*holdtight_kit::lock(&count), 2);
/// ```
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
