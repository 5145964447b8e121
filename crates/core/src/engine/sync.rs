//! The mutex that the queue uses: std's, or shuttle's when its schedules are explored (`--cfg
//! shuttle`).

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

/// Locks, whatever a panicking thread left: no code under these locks can stop half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
