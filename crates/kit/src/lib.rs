//! What every store needs besides its own protocol: for authors of stores, not for users of locks.
//!
//! A store implements [`Backend`](holdtight_core::Backend) of `holdtight-core`. Nothing here is
//! required for that, but all stores of holdtight use it, so that the same option, the same outage
//! and the same mistake in a URL look the same on each of them.
//!
//! - [`url`]: a store URL in parts, and its options with their types.
//! - [`duration`]: durations as people type them.
//! - `tls` (feature `tls`): trust roots from a PEM file or the system, under one option name.
//! - [`Reconnecting`]: a connection that is opened again when it breaks, with the same behaviour in
//!   an outage for all stores; [`Attempts`] is the part of it that limits attempts.
//! - [`WaiterRegistry`]: the waiters of this process by key, and whom to notify.
//! - [`Batcher`]: requests that come while a connection is busy are sent together.
//! - [`lock`]: locks a mutex, poisoned or not.

#![warn(missing_docs)]

mod batch;
pub mod duration;
mod mutex;
mod reconnect;
#[cfg(feature = "tls")]
pub mod tls;
pub mod url;
mod waiters;

pub use batch::{BatchConfig, BatchOp, Batcher};
pub use mutex::lock;
pub use reconnect::{
    Admission, Attempts, Connected, Connection, DuringPause, Exclusive, Reconnecting, pause,
};
pub use waiters::WaiterRegistry;

/// The examples of the README are compiled too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
