//! The store of a run: its locks, the lock file that shows that we live, and what last went wrong
//! with it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdtight::store::{Backend, OpenStore as _};
use holdtight::{Builder, DistributedLock, Event, EventKind, LockError, StoreUrl};
use holdtight_file::{FileStore, SharedLiveness};

/// An open store.
pub(super) struct Store {
    pub(super) lock: DistributedLock,
    /// The store itself, if it is one that watches processes.
    files: Option<Arc<FileStore>>,
    failure: Arc<Mutex<Option<String>>>,
    place: String,
}

impl Store {
    /// Where the locks are kept, for people.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Opens the store that `url` names, within `patience` if it cannot be reached.
    pub(super) async fn open(url: &str, patience: Duration) -> Result<Self, LockError> {
        let url = StoreUrl::new(url)?;
        // Opened here rather than by its URL alone, because its liveness has to be shared.
        let files = crate::store::files(&url)?;
        let backend: Arc<dyn Backend> = match &files {
            Some(files) => Arc::clone(files) as _,
            None => url.open_within(patience).await?,
        };
        let failure = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&failure);
        // Shown to the one who named the key.
        let lock = Builder::shared(backend)
            .on_event(move |event| note(&heard, event))
            .reveal_keys(|_| true)
            .build()?;
        Ok(Self { lock, files, failure, place: url.to_string() })
    }

    /// What shows that we live, in a store that watches processes: to be shared with the guardian.
    pub(super) fn liveness(&self) -> Result<Option<SharedLiveness>, LockError> {
        self.files.as_ref().map(|files| files.share_liveness()).transpose()
    }

    /// Why the last renewal failed, if it did.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn note(failure: &Mutex<Option<String>>, event: &Event<'_>) {
    let text = match event.kind {
        EventKind::RenewalFailed => event.error.map(ToString::to_string),
        EventKind::Renewed => None,
        _ => return,
    };
    *failure.lock().unwrap_or_else(PoisonError::into_inner) = text;
}
