//! What a store is: the trait that store authors implement, what it is asked and answers, and the
//! store that lives in this process.

mod backend;
mod capabilities;
pub(crate) mod memory;
mod open;
mod reply;
mod request;
pub(crate) mod runtime;
mod shared;
mod wake;

pub use backend::{Backend, Reply};
pub use capabilities::{Capabilities, WakeUps};
pub use open::OpenStore;
pub use reply::{Attempt, Busy, Extension, Lease, ManyAttempt, Release, Transfer};
pub use request::{AcquireRequest, ExtendBy, ExtendRequest, Intent, Liveness, TransferRequest};
pub use wake::{Bell, Subscription};
