//! How a lock is to be taken and kept: the options of one acquire call, checked before any I/O.

use std::sync::Arc;
use std::time::Duration;

use crate::model::error::LockError;
use crate::model::lease::{DEFAULT_TTL, check_ttl};
use crate::model::owner::Owner;
use crate::model::retry::RetryPolicy;
use crate::store::{Capabilities, Liveness};

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
