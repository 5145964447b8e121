//! What users of the library hold in their hands.

pub(crate) mod acquire;
pub(crate) mod builder;
pub(crate) mod election;
pub(crate) mod fenced_register;
pub(crate) mod handle;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod once_per;
