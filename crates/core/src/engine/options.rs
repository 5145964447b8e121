//! How locks are to be taken and kept: plain options, checked before any I/O.

use std::sync::Arc;
use std::time::Duration;

use crate::model::error::LockError;
use crate::model::lease::{DEFAULT_TTL, check_ttl};
use crate::model::owner::Owner;
use crate::model::retry::RetryPolicy;
use crate::store::{Capabilities, Liveness};

/// How long to wait for a busy lock when nothing else is said.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(5);

/// How one lock is to be taken and kept.
///
/// Plain data, for programs that read their options from elsewhere. Give it with
/// [`Acquire::options`](crate::Acquire::options), or as what all locks of one object begin with.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// use std::time::Duration;
/// use holdtight_core::{AcquireOptions, DistributedLock, MemoryStore};
///
/// let lock = DistributedLock::builder(MemoryStore::new()).build()?;
/// let options = AcquireOptions { ttl: Duration::from_secs(10), ..AcquireOptions::default() };
/// let handle = lock.acquire("user:123").options(options).await?;
/// handle.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AcquireOptions {
    /// The lease: how long the lock lasts if nothing is heard from its holder. 30 s.
    pub ttl: Duration,
    /// How long to wait if it is busy; `None` waits for ever, zero makes one attempt. 5 s.
    pub wait: Option<Duration>,
    /// How a busy lock is rechecked.
    pub retry: RetryPolicy,
    /// Whether it is renewed in the background while the handle lives. It is.
    pub auto_renew: bool,
    /// Ends it after so long, however often it is renewed. Never.
    pub max_hold: Option<Duration>,
    /// Who takes it, for those who find it held. This process.
    pub owner: Arc<Owner>,
    /// What keeps it alive besides its lease. This process.
    pub liveness: Liveness,
}

/// What all locks of one [`DistributedLock`](crate::DistributedLock) share.
#[derive(Clone, Debug)]
pub struct LockOptions {
    /// Put before every key: see [`Builder::prefix`](crate::Builder::prefix). Nothing.
    pub prefix: String,
    /// What every acquire call begins with.
    pub acquire: AcquireOptions,
    /// How long one step of the store may take before its outcome counts as unknown. 5 s.
    pub step_timeout: Duration,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            acquire: AcquireOptions::default(),
            step_timeout: Duration::from_secs(5),
        }
    }
}

impl Default for AcquireOptions {
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

impl AcquireOptions {
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
