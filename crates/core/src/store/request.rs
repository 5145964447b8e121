//! What the engine asks of a store.

use std::sync::Arc;
use std::time::Duration;

use crate::model::key::Key;
use crate::model::owner::Owner;
use crate::model::secret::Secret;

/// What should happen when the key is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intent {
    /// Only say so: the caller will not wait, or is not listening yet.
    Try,
    /// Keep a place in the store's queue, if it has one: the caller listens for wake-ups.
    Queue,
}

/// What keeps a lock alive besides its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// The holder's process as well: a store that can see it die frees the lock at once.
    Process,
    /// The lease alone: the holder may be a shell script between two commands.
    Lease,
}

/// One attempt to take one key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key, already in the store's [`KeyForm`](crate::KeyForm).
    pub key: Key,
    /// The owner id: one per acquire *call*, the same in all of its retries.
    pub secret: Secret,
    /// The lease to grant, within the store's limits.
    pub ttl: Duration,
    /// Who asks, for display.
    pub owner: Arc<Owner>,
    /// What to do when it is busy.
    pub intent: Intent,
    /// What keeps it alive.
    pub liveness: Liveness,
}

impl AcquireRequest {
    /// An attempt that does not queue, by a holder that lives as long as its process.
    pub fn new(key: Key, secret: Secret, ttl: Duration) -> Self {
        Self {
            key,
            secret,
            ttl,
            owner: Owner::shared(),
            intent: Intent::Try,
            liveness: Liveness::Process,
        }
    }

    /// The same with another intent.
    pub fn intent(mut self, intent: Intent) -> Self {
        self.intent = intent;
        self
    }

    /// The same with another owner.
    pub fn owner(mut self, owner: Arc<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// The same with another liveness.
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.liveness = liveness;
        self
    }
}

/// How to move the end of a lease. It never moves earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtendBy {
    /// To at least so much from now. Zero moves nothing: it asks whether the lock is still held.
    AtLeast(Duration),
    /// So much later than it is, as computed in the store, but at most 24 h from now.
    Add(Duration),
}

/// One lease to extend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExtendRequest {
    /// The key.
    pub key: Key,
    /// The owner id that must hold it.
    pub secret: Secret,
    /// How far.
    pub by: ExtendBy,
}

impl ExtendRequest {
    /// One lease to extend.
    pub fn new(key: Key, secret: Secret, by: ExtendBy) -> Self {
        Self { key, secret, by }
    }
}

/// A held key on its way from one owner to the next.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferRequest {
    /// The owner id that must hold the key.
    pub from: Secret,
    /// The key, and the next owner's secret, lease and metadata.
    pub to: AcquireRequest,
}

impl TransferRequest {
    /// Hands the key of `to` over from the owner `from`.
    pub fn new(from: Secret, to: AcquireRequest) -> Self {
        Self { from, to }
    }
}
