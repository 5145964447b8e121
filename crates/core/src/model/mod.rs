//! What locks are made of: values without I/O, which everything else builds on.

pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod fence;
pub(crate) mod health;
pub(crate) mod holder;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod loss;
pub(crate) mod owner;
mod parse;
pub(crate) mod retry;
pub(crate) mod secret;
#[cfg(feature = "serde")]
mod serial;
pub(crate) mod token;
