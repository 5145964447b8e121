//! Holdtight on Redis and Valkey: fenced locks in one script per step, waiters that are woken, and
//! peace with the `SET NX` locks that already live there.
//!
//! Users depend on the crate `holdtight` and write a `redis://` URL. This crate is the store behind
//! it: [`RedisStore`] fulfils [`Backend`](holdtight_core::Backend), [`RedisConfig`] says where it
//! is.
//!
//! Features: `tls` (on by default) for `rediss://` URLs.

mod batch;
mod bounded;
mod cluster;
mod config;
mod connection;
mod dial;
mod error;
mod fabric;
mod fencing;
mod names;
mod probe;
mod reply;
mod scripts;
mod sentinel;
mod slots;
mod steps;
mod store;
mod stream;
mod syncguard;
#[cfg(feature = "tls")]
mod tls;
mod wake;

pub use config::{Layout, RedisConfig};
pub use store::RedisStore;
pub use syncguard::syncguard_hash;
