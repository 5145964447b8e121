//! Holdtight on etcd: locks that hold through the loss of any minority of servers, served in the
//! order of asking.
//!
//! Users depend on the crate `holdtight` and write an `etcd://` URL. This crate is the store behind
//! it: [`EtcdStore`] fulfils [`Backend`](holdtight_core::Backend), [`EtcdConfig`] says where it is.
//!
//! Building needs no protocol compiler: the stubs are made by `cargo xtask codegen` and committed.
//!
//! Features: `tls` (on by default) for `etcds://` URLs.

mod acquire;
mod config;
mod endpoint;
mod entry;
mod error;
mod extend;
mod inspect;
mod lease;
mod line;
mod link;
mod many;
mod names;
mod probe;
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::all, reason = "written by a program")]
mod proto;
mod resume;
mod store;
mod txn;
mod watch;

pub use config::EtcdConfig;
pub use store::EtcdStore;
