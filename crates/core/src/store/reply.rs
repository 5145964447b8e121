//! What a store answers. Every struct has a constructor, so that stores outside this project can
//! build it.

use std::time::Duration;

use crate::model::fence::Fence;
use crate::model::holder::Holder;
use crate::model::key::Key;

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// Minted in the step that granted.
    pub fence: Fence,
    /// How much of the lease was left when the store answered: what was asked for, or what it
    /// rounded to.
    pub ttl: Duration,
    /// Whether others wait for this key in the store; `None` if the store cannot tell.
    pub contended: Option<bool>,
}

impl Lease {
    /// A grant with a fence for a time.
    pub fn new(fence: Fence, ttl: Duration) -> Self {
        Self { fence, ttl, contended: None }
    }

    /// Adds whether others wait.
    pub fn contended(mut self, contended: bool) -> Self {
        self.contended = Some(contended);
        self
    }
}

/// The outcome of one attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// The key is ours.
    Granted(Lease),
    /// Somebody else has it.
    Busy(Busy),
}

/// Why an attempt was refused, and when to come back.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Busy {
    /// When the store will have news at the latest: usually the rest of the holder's lease.
    pub retry_after: Option<Duration>,
    /// Who has it.
    pub holder: Option<Holder>,
}

impl Busy {
    /// Busy, and nothing more is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Busy because of `holder`; comes back when that lease ends.
    pub fn held_by(holder: Holder) -> Self {
        Self { retry_after: holder.remaining, holder: Some(holder) }
    }

    /// Adds when to come back.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// We held it, and this step freed it.
    Released,
    /// We did not hold it; nothing was changed but a queue entry of ours, if there was one.
    NotHeld,
}

/// The outcome of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension {
    /// Still ours: the fence of the grant, and what is left of the lease now.
    Extended(Lease),
    /// Not ours: expired, released, taken, or never was.
    NotHeld,
}

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// The next owner holds it, with a new fence.
    Transferred(Lease),
    /// The first owner did not hold it; nothing was changed.
    NotHeld,
}

/// The outcome of an attempt at several keys.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "moved once per attempt, and a box would only add to that"
)]
pub enum ManyAttempt {
    /// All keys are ours; leases in the order of the requests.
    Granted(Vec<Lease>),
    /// This key was busy; none was taken.
    Busy(Key, Busy),
}
