//! The embedded store of holdtight: locks between the processes of one machine, without a server.
//!
//! ```text
//! DIRECTORY/
//!   store            the ledger: last boot, highest fence swept away
//!   keys/ab/cdef…    one record per key, named by its SHA-256
//!   live/ID          one file per process, locked for its life; ID.wake is its pipe
//!   new/             files on their way to their place
//! ```
//!
//! Nothing else in the directory is touched: all is reached through descriptors, and no link is
//! followed. On the way to it, only root and this user may be able to put something else in its
//! place.
//!
//! A step locks the file of its key (`flock`) for microseconds, reads the record, decides, and
//! writes it back by one write inside one page. The lock of the user is what the record says, not
//! the `flock`.
//!
//! `FencedFile` is for what locks protect: a file that refuses the late write of a holder that was
//! paused past its lease.
//!
//! # What it promises
//! - A killed holder is replaced at once, one that hangs at the end of its lease. A reboot voids
//!   all leases.
//! - Fences increase per key through crashes, sweeps and reboots: by the record, by the ledger's
//!   high-water mark, and, if a power cut took both, by the wall clock, unless that was set back
//!   meanwhile (`?sync=1` closes this).
//! - Containers that share the directory exclude each other, whatever their pid, time and user
//!   namespaces.
//! - A process that is *stopped inside a step*, which takes bad luck, blocks that one key: others
//!   get [`Unavailable`](holdtight_core::ErrorKind::Unavailable) with the reason. Nobody is granted
//!   anything meanwhile.
//! - Whoever may write to the directory can break its locks; so can `rm`. It is refused on network
//!   file systems.

#[cfg(unix)]
mod backend;
#[cfg(unix)]
mod boot;
mod config;
#[cfg(unix)]
mod directory;
#[cfg(unix)]
mod error;
#[cfg(unix)]
mod failpoint;
#[cfg(unix)]
mod fenced;
#[cfg(unix)]
mod filesystem;
#[cfg(unix)]
mod folder;
#[cfg(unix)]
mod frame;
#[cfg(unix)]
mod groups;
#[cfg(unix)]
mod kept;
#[cfg(unix)]
mod ledger;
#[cfg(unix)]
mod liveness;
#[cfg(unix)]
mod look;
#[cfg(unix)]
mod maker;
#[cfg(unix)]
mod names;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod probe;
#[cfg(unix)]
mod record;
#[cfg(unix)]
mod rules;
#[cfg(unix)]
mod step;
#[cfg(unix)]
mod store;
#[cfg(unix)]
mod sweep;
#[cfg(unix)]
mod threads;
#[cfg(unix)]
mod trust;
#[cfg(not(unix))]
mod unsupported;
#[cfg(unix)]
mod wake;
#[cfg(unix)]
mod way;

pub use config::Config;
#[cfg(unix)]
pub use fenced::FencedFile;
#[cfg(unix)]
pub use liveness::SharedLiveness;
#[cfg(unix)]
pub use store::FileStore;
#[cfg(unix)]
pub use sweep::Swept;
#[cfg(not(unix))]
pub use unsupported::{FileStore, Swept};
