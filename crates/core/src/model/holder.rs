//! What can be told about a held lock: the store's answer in relative times, and the user's view of
//! it.

use std::time::{Duration, SystemTime};

use crate::model::fence::Fence;
use crate::model::key::Key;
use crate::model::owner::Owner;

/// Who holds a key, as a store answers it.
///
/// Times are spans measured by the store's own clock: no two clocks are ever compared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The key that is held.
    pub key: Key,
    /// The fence of the grant; `None` for a lock that some other program took.
    pub fence: Option<Fence>,
    /// Who took it, as far as is known.
    pub owner: Owner,
    /// How long ago it was granted, if the store knows.
    pub age: Option<Duration>,
    /// How much of the lease is left; `None` if it never expires.
    pub remaining: Option<Duration>,
}

impl Holder {
    /// A holder of `key` of whom nothing more is known: a foreign lock without an end.
    pub fn of(key: Key) -> Self {
        Self { key, fence: None, owner: Owner::unknown(), age: None, remaining: None }
    }

    /// Adds the fence of the grant.
    pub fn fence(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Adds who took it.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Adds how long ago it was granted.
    pub fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }

    /// Adds how much of the lease is left.
    pub fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }
}

/// A held lock, for display and logs: from [`lookup`](crate::DistributedLock::lookup),
/// [`list`](crate::DistributedLock::list) and [`info`](crate::LockHandle::info).
///
/// The two times are this machine's wall clock plus spans that the store measured. They are for
/// people; whether a handle still holds is [`is_held`](crate::LockHandle::is_held).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key that is held.
    pub key: Key,
    /// The fence of the grant; `None` for a lock that some other program took.
    pub fence: Option<Fence>,
    /// When it was granted, if the store knows.
    pub acquired_at: Option<SystemTime>,
    /// When the lease ends; `None` if it never does.
    pub expires_at: Option<SystemTime>,
    /// Whether it was held when this was read.
    pub is_held: bool,
    /// Who took it.
    pub owner: Owner,
}

impl LockInfo {
    pub(crate) fn from_holder(holder: Holder, wall: SystemTime) -> Self {
        Self {
            key: holder.key,
            fence: holder.fence,
            acquired_at: holder.age.and_then(|age| wall.checked_sub(age)),
            expires_at: holder.remaining.and_then(|left| wall.checked_add(left)),
            is_held: true,
            owner: holder.owner,
        }
    }
}
