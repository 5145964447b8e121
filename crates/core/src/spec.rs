//! How a lock is to be taken and kept: the options of one acquire call, checked before any I/O.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{AcquireRequest, Capabilities, Intent, Liveness};
use crate::error::LockError;
use crate::handle::LockHandle;
use crate::key::Key;
use crate::lease::{DEFAULT_TTL, check_ttl};
use crate::owner::Owner;
use crate::queue::{Seat, Waiter};
use crate::retry::RetryPolicy;
use crate::secret::Secret;

/// How long to wait for a busy lock when nothing else is said.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(5);

/// The options of one acquire call.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) ttl: Duration,
    /// `None` waits for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) retry: RetryPolicy,
    pub(crate) auto_renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Arc<Owner>,
    pub(crate) liveness: Liveness,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            wait: Some(DEFAULT_WAIT),
            retry: RetryPolicy::default(),
            auto_renew: true,
            max_hold: None,
            owner: Owner::shared(),
            liveness: Liveness::Process,
        }
    }
}

impl Spec {
    pub(crate) fn check(&self, store: &Capabilities) -> Result<(), LockError> {
        check_ttl(self.ttl, store.min_ttl, store.max_ttl)?;
        self.retry.check()?;
        if self.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(LockError::invalid_config(
                "a `max_hold` of zero would never hold anything",
            ));
        }
        Ok(())
    }

    /// Whether a busy answer is the end of it.
    pub(crate) fn tries_once(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_zero())
    }
}

/// What one acquire call wants: a key, under a secret of its own, in a certain way. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Wish(Arc<Wanted>);

#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) secret: Secret,
    pub(crate) spec: Arc<Spec>,
    seat: Seat<LockHandle>,
}

impl Deref for Wish {
    type Target = Wanted;

    fn deref(&self) -> &Wanted {
        &self.0
    }
}

impl Wish {
    pub(crate) fn new(key: Key, secret: Secret, spec: Arc<Spec>) -> Self {
        Self(Arc::new(Wanted { key, secret, spec, seat: Seat::default() }))
    }

    pub(crate) fn request(&self, intent: Intent) -> AcquireRequest {
        AcquireRequest {
            key: self.key.clone(),
            secret: self.secret.clone(),
            ttl: self.spec.ttl,
            owner: Arc::clone(&self.spec.owner),
            intent,
            liveness: self.spec.liveness,
        }
    }
}

impl Waiter for Wish {
    type Lock = LockHandle;

    fn seat(&self) -> &Seat<LockHandle> {
        &self.seat
    }
}
