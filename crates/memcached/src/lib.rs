//! Holdtight on Memcached: locks whose owner is checked, with fences, over the meta protocol of
//! memcached 1.6.
//!
//! Users depend on the crate `holdtight` and write a `memcached://` URL. This crate is the store
//! behind it: [`MemcachedStore`] fulfils [`Backend`](holdtight_core::Backend), [`MemcachedConfig`]
//! says where it is.
//!
//! A cache forgets. Unless the server runs with `-M`, a lock here is advisory: good against doing
//! work twice, not against corruption, except where the resource checks the fence.

mod config;
mod connection;
mod error;
mod names;
mod probe;
mod protocol;
mod recent;
mod record;
mod steps;
mod store;
mod ticks;

pub use config::MemcachedConfig;
pub use store::MemcachedStore;
