//! The engine of holdtight: what a lock is, how it is waited for, kept, and given back.
//!
//! Users depend on the crate `holdtight`, which adds the stores and URLs. Whoever writes a store of
//! their own depends on this crate and implements [`Backend`].
//!
//! Four layers, none of which knows those below it in this list: `model` is what locks are made of,
//! `store` what a store is, `engine` what this process does with one, `api` what users hold in
//! their hands.
//!
//! A request walks one way: [`DistributedLock`] → in-process queue → wait loop → [`Backend`] →
//! store. Its answer becomes a [`LockHandle`], renewed by the keeper and, when dropped, released in
//! the background.

mod api;
mod engine;
mod model;
mod store;

pub use api::acquire::{Acquire, Acquiring, TryAcquire};
pub use api::builder::Builder;
pub use api::election::{Election, Leadership};
pub use api::fenced_register::FencedRegister;
pub use api::handle::LockHandle;
pub use api::lock::{DistributedLock, LIST_LIMIT};
pub use api::multi::{AcquireAll, LockSet};
pub use api::once_per::Turn;
pub use engine::event::{Event, EventKind, Operation};
pub use engine::held::Held;
pub use engine::options::{AcquireOptions, LockOptions};
pub use model::clock::{BootClock, Clock, ManualClock, Moment, TokioClock};
pub use model::error::{ErrorKind, LockError};
pub use model::fence::Fence;
pub use model::health::{Finding, Guarantees, Level};
pub use model::holder::{Holder, LockInfo};
pub use model::key::{Key, KeyForm};
pub use model::lease::{DEFAULT_TTL, MAX_TTL, MIN_TTL, margin, valid_until};
pub use model::loss::Loss;
pub use model::owner::{Owner, OwnerText};
pub use model::retry::{Jitter, RetryPolicy};
pub use model::secret::Secret;
pub use model::token::LockToken;
pub use store::memory::MemoryStore;
pub use store::runtime::{background, spawn_lasting};
pub use store::{
    AcquireRequest, Attempt, Backend, Bell, Busy, Capabilities, ExtendBy, ExtendRequest, Extension,
    Intent, Lease, Liveness, ManyAttempt, OpenStore, Release, Reply, Subscription, Transfer,
    TransferRequest, WakeUps,
};

/// The examples of README.md, which are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
