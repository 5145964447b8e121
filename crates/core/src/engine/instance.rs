//! The engine behind a [`DistributedLock`](crate::DistributedLock): the parts that work together,
//! and how a store's grant becomes a handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::background::Background;
use crate::engine::event::{EventKind, Events};
use crate::engine::fairness::Courtesy;
use crate::engine::grant::{Grant, LockFront, LockRequest};
use crate::engine::options::{AcquireOptions, LockOptions};
use crate::engine::queue::Queue;
use crate::engine::renew::Keeper;
use crate::engine::returning::Returning;
use crate::engine::runtime::EngineRuntime;
use crate::model::clock::{Clock, Moment};
use crate::model::error::LockError;
use crate::model::holder::{Holder, LockInfo};
use crate::model::key::Key;
use crate::store::{Backend, Capabilities, Lease};

/// One store and everything that this process does with it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<Events>,
    pub(crate) keeper: Keeper,
    pub(crate) background: Background,
    pub(crate) runtime: Arc<EngineRuntime>,
    pub(crate) queue: Arc<Queue<LockRequest>>,
    pub(crate) courtesy: Courtesy,
    pub(crate) returning: Arc<Returning>,
    /// Put before every key, in the form of the store's keys.
    pub(crate) prefix: String,
    pub(crate) defaults: Arc<AcquireOptions>,
    /// How long one step of the store may take.
    pub(crate) step_timeout: Duration,
    closed: AtomicBool,
    /// Whether somebody looks after the lines.
    patrolled: AtomicBool,
}

/// Whoever is at the front of a line, and has not said when it will be back, gets so long.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// How often lines are looked at while anybody stands in one.
const ROUND: Duration = Duration::from_millis(500);

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        events: Events,
        options: LockOptions,
    ) -> Arc<Self> {
        let store = backend.capabilities();
        let runtime = Arc::new(EngineRuntime::of(&*clock));
        let events = Arc::new(events.of(store.name));
        let keeper = Keeper::new(
            Arc::clone(&backend),
            Arc::clone(&clock),
            Arc::clone(&events),
            Arc::clone(&runtime),
            options.step_timeout,
        );
        Arc::new(Self {
            store,
            keeper,
            background: Background::new(Arc::clone(&runtime)),
            runtime,
            queue: Queue::new(),
            courtesy: Courtesy::default(),
            returning: Arc::default(),
            backend,
            clock,
            events,
            prefix: options.prefix,
            defaults: Arc::new(options.acquire),
            step_timeout: options.step_timeout,
            closed: AtomicBool::new(false),
            patrolled: AtomicBool::new(false),
        })
    }

    /// The key as the store knows it.
    pub(crate) fn key(&self, text: &str) -> Result<Key, LockError> {
        if self.prefix.is_empty() {
            return Key::with_form(text, self.store.key_form);
        }
        Key::behind(&self.prefix, text, self.store.key_form)
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

    /// Refuses to work in a forked child: the background work and the connections are the parent's.
    pub(crate) fn check_process(&self) -> Result<(), LockError> {
        if self.runtime.is_inherited() {
            return Err(LockError::closed(
                "it was made before this process was forked; connect again in the child",
            ));
        }
        Ok(())
    }

    pub(crate) fn check_open(&self) -> Result<(), LockError> {
        self.check_process()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(LockError::closed(
                "`shutdown` was called on it; make a new one to lock again",
            ));
        }
        Ok(())
    }

    /// Steps of a store need a runtime around them: without one they would panic somewhere in its
    /// client.
    pub(crate) fn check_runtime() -> Result<(), LockError> {
        tokio::runtime::Handle::try_current().map(drop).map_err(|_| {
            LockError::invalid_config(
                "locks need a tokio runtime; use the blocking API outside of one",
            )
        })
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.queue.close();
    }

    /// Sees to it that a caller at the front of a line that is not polled any more does not keep
    /// those behind it waiting.
    pub(crate) fn patrol(self: &Arc<Self>) {
        if self.patrolled.load(Ordering::Acquire) || self.patrolled.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = Arc::downgrade(self);
        let patrol = self.runtime.spawn(async move {
            let mut quiet = 0;
            loop {
                tokio::time::sleep(ROUND).await;
                let Some(engine) = engine.upgrade() else { return };
                let now = engine.clock.now();
                let look =
                    || engine.queue.patrol(now, GRACE, ROUND, |key| engine.keeper.holds(key));
                let anybody = look();
                quiet = if anybody { 0 } else { quiet + 1 };
                if quiet > 2 {
                    engine.patrolled.store(false, Ordering::Release);
                    // Whoever came in between saw that somebody was there.
                    if !look() || engine.patrolled.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
            }
        });
        if patrol.is_none() {
            self.patrolled.store(false, Ordering::Release);
        }
    }

    /// Makes a grant of a lease, and lets the keeper look after it.
    pub(crate) fn admit(
        &self,
        request: LockRequest,
        lease: Lease,
        sent_at: Moment,
        front: Option<LockFront>,
        attempts: u32,
    ) -> Arc<Grant> {
        let grant = Arc::new(Grant::new(request, lease, sent_at, front));
        self.keeper.admit(&grant);
        self.acquired(&grant, attempts);
        grant
    }

    /// The same for a lock that was handed over and lies ready: its holder has to come for it, and
    /// until then nobody is told of it.
    pub(crate) fn lay_ready(
        &self,
        request: LockRequest,
        lease: Lease,
        sent_at: Moment,
        front: LockFront,
    ) -> Arc<Grant> {
        let grant = Arc::new(Grant::new(request, lease, sent_at, Some(front)));
        grant.lay_ready();
        self.keeper.admit(&grant);
        grant
    }

    /// Tells that a holder has its lock. No attempts: another holder handed it over.
    pub(crate) fn acquired(&self, grant: &Grant, attempts: u32) {
        tracing::debug!(key = %grant.key, store = self.store.name, fence = %grant.fence, attempts, outcome = "acquired", "acquired");
        self.events.emit_attempts(EventKind::Acquired, &grant.key, Some(grant.fence), attempts);
    }
}
