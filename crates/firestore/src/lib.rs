//! Holdtight on Firestore: each step is one commit with a precondition, and only the server's times
//! decide.
//!
//! Users depend on the crate `holdtight` and write a `firestore://` URL. This crate is the store
//! behind it: [`FirestoreStore`] fulfils [`Backend`](holdtight_core::Backend), [`FirestoreConfig`]
//! says where it is.
//!
//! Written on the REST interface: it needs half of the crates that a gRPC client does, and all it
//! lacks is Listen, which would cost a stream per waiter to save polls of at most two small reads a
//! second.

mod client;
mod config;
mod document;
mod error;
#[cfg(feature = "tls")]
mod google;
#[cfg(not(feature = "tls"))]
#[path = "no_google.rs"]
mod google;
mod list;
mod memory;
mod names;
mod place;
mod probe;
mod record;
mod steps;
mod store;
mod syncguard;
mod time;

pub use config::{FirestoreConfig, Layout};
pub use store::FirestoreStore;
