//! What this process does with a store: it waits for locks, renews them, and gives them back.
//!
//! In the order in which things build on each other: [`grant`] is one lock, [`renew`] keeps it,
//! [`instance`] has all that works together. A [`claim`] asks the store and is [settled](settle) if
//! nothing becomes of it; [`acquire`], [`resume`], [`release`] and [`detach`] are the ways of a
//! lock.

pub(crate) mod acquire;
pub(crate) mod background;
pub(crate) mod claim;
mod detach;
pub(crate) mod event;
pub(crate) mod fairness;
pub(crate) mod grant;
pub(crate) mod held;
pub(crate) mod instance;
pub(crate) mod meter;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod resume;
pub(crate) mod returning;
pub(crate) mod runtime;
pub(crate) mod schedule;
pub(crate) mod settle;
mod sync;
pub(crate) mod timeout;
