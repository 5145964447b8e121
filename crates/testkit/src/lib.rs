//! What a store must pass to be one, and the means to hurt it on the way.
//!
//! Whoever writes a [`Backend`](holdtight_core::Backend) says in a [`Fixture`] how a test gets a
//! store, and runs the whole suite with three lines in a test file with `harness = false`:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use holdtight_core::{Backend, MemoryStore};
//! # use holdtight_testkit::Fixture;
//! # struct MyFixture(Arc<MemoryStore>);
//! # impl Fixture for MyFixture {
//! #     const NAME: &'static str = "mine";
//! #     async fn start() -> Self { Self(Arc::default()) }
//! #     async fn open(&self) -> Arc<dyn Backend> { Arc::clone(&self.0) as _ }
//! # }
//! fn main() {
//!     holdtight_testkit::conformance::run::<MyFixture>();
//! }
//! ```
//!
//! - [`conformance`]: the suite; each trial has its own store, its own runtime and a hard time
//!   limit.
//! - [`history`]: random load over the public interface, and a check of the histories it leaves.
//! - [`Chaos`]: any store, made unreliable by script or by seed.
//! - [`Proxy`]: a TCP proxy that delays, drops, cuts and counts, between a store and its server.
//! - `servers` (feature `servers`, Unix): real Redis, PostgreSQL, memcached, etcd and Firestore on
//!   free ports.

mod chaos;
pub mod conformance;
mod fixture;
pub mod history;
mod proxy;
#[cfg(all(unix, feature = "servers"))]
pub mod servers;

pub use chaos::{Call, CallOutcome, Chaos, Fault, Method};
pub use fixture::Fixture;
pub use proxy::{Flow, Proxy, Traffic};
