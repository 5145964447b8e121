//! What happens to locks, for whoever wants to watch: one callback, in the order things happen.
//!
//! A callback that panics harms nobody. Logs go through `tracing` at the places where things happen.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::LockError;
use crate::fence::Fence;
use crate::grant::Loss;
use crate::key::Key;

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
    /// A lease was renewed.
    Renewed,
    /// A renewal failed; it is tried again until the lease ends.
    RenewalFailed,
    /// A held lock was lost.
    Lost(Loss),
    /// A lock was given back.
    Released,
    /// A release failed; it is tried again until the lease ends.
    ReleaseFailed,
}

/// One thing that happened to one lock. Never carries a secret.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// To which lock.
    pub key: &'a Key,
    /// The fence of the grant, once there is one.
    pub fence: Option<Fence>,
    /// What went wrong, if something did.
    pub error: Option<&'a LockError>,
}

type Sink = dyn Fn(&Event<'_>) + Send + Sync;

/// Where events go.
#[derive(Default)]
pub(crate) struct Events {
    sink: Option<Arc<Sink>>,
}

impl Events {
    pub(crate) fn to(sink: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self { sink: Some(Arc::new(sink)) }
    }

    pub(crate) fn emit(
        &self,
        kind: EventKind,
        key: &Key,
        fence: Option<Fence>,
        error: Option<&LockError>,
    ) {
        if let Some(sink) = &self.sink {
            let event = Event { kind, key, fence, error };
            if catch_unwind(AssertUnwindSafe(|| sink(&event))).is_err() {
                tracing::error!(%key, "the on_event callback panicked; the lock is not affected");
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("watched", &self.sink.is_some()).finish()
    }
}
