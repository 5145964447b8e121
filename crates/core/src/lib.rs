//! The engine of holdtight: what a lock is, how it is waited for, kept, and given back.
//!
//! Users depend on the crate `holdtight`, which adds the stores and URLs. Whoever writes a store of their own
//! depends on this crate and implements [`Backend`].
//!
//! A request walks one way: [`DistributedLock`] → in-process queue → wait loop → [`Backend`] → store. Its answer
//! becomes a [`LockHandle`], renewed by the keeper and, when dropped, released by the reaper.

mod acquire;
mod backend;
mod clock;
mod courtesy;
mod election;
mod engine;
mod error;
mod event;
mod fence;
mod grant;
mod handle;
mod home;
mod info;
mod keeper;
mod key;
mod lease;
mod lock;
mod memory;
mod meter;
mod owner;
mod period;
mod queue;
mod reaper;
mod register;
mod release;
mod resume;
mod retry;
mod secret;
#[cfg(feature = "serde")]
mod serial;
mod set;
mod spec;
mod sync;
mod token;
mod wait;
mod within;

pub use acquire::{Acquire, Acquiring, TryAcquire};
pub use backend::{
    AcquireRequest, Attempt, Backend, Bell, Busy, Capabilities, ExtendBy, ExtendRequest, Extension,
    Finding, Guarantees, Intent, Lease, Level, Liveness, ManyAttempt, Release, Reply, Subscription,
    Transfer, TransferRequest, WakeUps,
};
pub use clock::{BootClock, Clock, ManualClock, Moment, TokioClock};
pub use election::{Election, Leadership};
pub use error::{ErrorKind, LockError};
pub use event::{Event, EventKind, Operation};
pub use fence::Fence;
pub use grant::Loss;
pub use handle::{Held, LockHandle};
pub use home::{background, spawn_lasting};
pub use info::{Holder, LockInfo};
pub use key::{Key, KeyForm};
pub use lease::{DEFAULT_TTL, MAX_TTL, MIN_TTL, margin, valid_until};
pub use lock::{Builder, DistributedLock, LIST_LIMIT};
pub use memory::MemoryStore;
pub use owner::{Owner, OwnerText};
pub use period::Turn;
pub use register::FencedRegister;
pub use retry::{Jitter, RetryPolicy};
pub use secret::Secret;
pub use set::{AcquireAll, LockSet};
pub use token::LockToken;
