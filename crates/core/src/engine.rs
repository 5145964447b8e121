//! The engine behind a [`DistributedLock`](crate::DistributedLock): the parts that work together, and how a
//! store's grant becomes a handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::{Backend, Capabilities, Lease};
use crate::clock::{Clock, Moment};
use crate::courtesy::Courtesy;
use crate::error::LockError;
use crate::event::{EventKind, Events};
use crate::grant::{Grant, LockFront};
use crate::handle::LockHandle;
use crate::info::{Holder, LockInfo};
use crate::keeper::Keeper;
use crate::key::Key;
use crate::queue::Queue;
use crate::reaper::Reaper;
use crate::runtimes::Runtimes;
use crate::spec::{Spec, Wish};

/// One store and everything that this process does with it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<Events>,
    pub(crate) keeper: Keeper,
    pub(crate) reaper: Reaper,
    pub(crate) queue: Arc<Queue<Wish>>,
    pub(crate) courtesy: Courtesy,
    /// Put before every key.
    pub(crate) prefix: String,
    pub(crate) defaults: Arc<Spec>,
    /// How long one step of the store may take.
    pub(crate) step_timeout: Duration,
    closed: AtomicBool,
}

/// What the builder decided.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Events,
    pub(crate) prefix: String,
    pub(crate) defaults: Spec,
    pub(crate) step_timeout: Duration,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let store = parts.backend.capabilities();
        let runtimes = Runtimes::new();
        let events = Arc::new(parts.events.of(store.name));
        Arc::new(Self {
            store,
            keeper: Keeper::new(
                Arc::clone(&parts.backend),
                Arc::clone(&parts.clock),
                Arc::clone(&events),
                Arc::clone(&runtimes),
                parts.step_timeout,
            ),
            reaper: Reaper::new(runtimes),
            queue: Queue::new(),
            courtesy: Courtesy::default(),
            backend: parts.backend,
            clock: parts.clock,
            events,
            prefix: parts.prefix,
            defaults: Arc::new(parts.defaults),
            step_timeout: parts.step_timeout,
            closed: AtomicBool::new(false),
        })
    }

    /// The key as the store knows it.
    pub(crate) fn key(&self, text: &str) -> Result<Key, LockError> {
        if self.prefix.is_empty() {
            return Key::with_form(text, self.store.key_form);
        }
        // The user's part is checked first, so that the message names places the user knows.
        let key = Key::with_form(text, self.store.key_form)?;
        Key::with_form(&format!("{}{key}", self.prefix), self.store.key_form)
    }

    /// The key as the user knows it.
    pub(crate) fn user_key(&self, key: &Key) -> Key {
        match key.as_str().strip_prefix(&self.prefix) {
            Some(rest) if !self.prefix.is_empty() => {
                Key::with_form(rest, self.store.key_form).unwrap_or_else(|_| key.clone())
            }
            _ => key.clone(),
        }
    }

    pub(crate) fn info(&self, mut holder: Holder) -> LockInfo {
        holder.key = self.user_key(&holder.key);
        LockInfo::from_holder(holder, self.clock.wall())
    }

    pub(crate) fn check_open(&self) -> Result<(), LockError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LockError::closed(
                "`shutdown` was called on it; make a new one to lock again",
            ));
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.queue.close();
    }

    /// Makes a handle of a grant, and lets the keeper look after it. No attempts: another holder handed it over.
    pub(crate) fn admit(
        self: &Arc<Self>,
        wish: Wish,
        lease: Lease,
        sent_at: Moment,
        front: Option<LockFront>,
        attempts: u32,
    ) -> LockHandle {
        let grant = Arc::new(Grant::new(wish, lease, sent_at, front));
        self.keeper.admit(&grant);
        tracing::debug!(key = %grant.key, store = self.store.name, fence = %grant.fence, attempts, outcome = "acquired", "acquired");
        self.events.emit_attempts(EventKind::Acquired, &grant.key, Some(grant.fence), attempts);
        LockHandle::new(Arc::clone(self), grant)
    }
}
