//! A value that refuses stale holders: what every resource behind a lock should do, in memory, for
//! tests and as a model.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::error::LockError;
use crate::model::fence::Fence;

/// A value together with the largest fence that was seen with it.
///
/// A write under a smaller fence is refused: it comes from a holder that was paused past its lease.
/// The same holder may write as often as it likes.
///
/// ```
/// use holdtight_core::{Fence, FencedRegister};
/// let balance = FencedRegister::new(100);
/// balance.write(Fence::new(7), |b| *b -= 30)?;
/// assert!(balance.write(Fence::new(6), |b| *b -= 30).is_err(), "a late write of an earlier holder");
/// assert_eq!(balance.read(), 70);
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Debug)]
pub struct FencedRegister<T> {
    inner: Mutex<(Option<Fence>, T)>,
}

impl<T> FencedRegister<T> {
    /// A register that nobody has written yet.
    pub fn new(value: T) -> Self {
        Self { inner: Mutex::new((None, value)) }
    }

    /// Changes the value under `fence`. If `change` panics, the value stays as that left it.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if a later holder was here already; the value is as
    /// before.
    pub fn write<R>(&self, fence: Fence, change: impl FnOnce(&mut T) -> R) -> Result<R, LockError> {
        Ok(change(&mut self.enter(fence)?.1))
    }

    /// The value, read under `fence`: from now on every earlier holder is refused. For work that
    /// reads, thinks, and then [writes](Self::write): a late write of an earlier holder cannot come
    /// in between and be overwritten unseen.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read_as(&self, fence: Fence) -> Result<T, LockError>
    where
        T: Clone,
    {
        Ok(self.enter(fence)?.1.clone())
    }

    fn enter(&self, fence: Fence) -> Result<MutexGuard<'_, (Option<Fence>, T)>, LockError> {
        let mut inner = self.lock();
        if let Some(last) = inner.0
            && fence < last
        {
            return Err(LockError::not_held(format!(
                "the write under fence {fence} is refused: a later holder was here under {last}"
            )));
        }
        inner.0 = Some(fence);
        Ok(inner)
    }

    /// The value.
    pub fn read(&self) -> T
    where
        T: Clone,
    {
        self.lock().1.clone()
    }

    /// The largest fence that was seen.
    pub fn fence(&self) -> Option<Fence> {
        self.lock().0
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Fence>, T)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
