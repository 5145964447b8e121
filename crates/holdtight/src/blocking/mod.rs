//! Locks for code without async: the same names, and calls that wait.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), holdtight::LockError> {
//! let lock = holdtight::blocking::connect("memory:")?;
//!
//! let handle = lock.acquire("user:123").ttl(Duration::from_secs(60)).get()?;
//! println!("pass {} to whatever the lock protects", handle.fence());
//! handle.release()?;
//!
//! let Some(handle) = lock.try_acquire("job:7").get()? else { return Ok(()) }; // busy is not an error
//! drop(handle);
//!
//! let receipt = lock.with_lock("invoice:7", |held| format!("paid under fence {}", held.fence()))?;
//! # assert!(receipt.starts_with("paid"));
//! lock.shutdown()
//! # }
//! ```
//!
//! # How it differs from the async API
//!
//! - Builders end with `.get()` where async code writes `.await`; everything else waits by itself.
//! - Work cannot be stopped from outside. [`with_lock`](DistributedLock::with_lock) gives it a
//!   [`Held`]: call [`check`](Held::check) before every side effect, and let what is written to
//!   check the fence.
//! - Waits that async code ends by dropping a future have a limit here:
//!   [`lost_within`](LockHandle::lost_within), [`campaign_within`](Election::campaign_within).
//! - Renewal and background releases run on one thread of this crate, started by the first call. A
//!   program that ends right after dropping a handle calls [`shutdown`](DistributedLock::shutdown)
//!   first.
//! - A call made inside of async code does not panic, but it blocks that thread: use
//!   [`crate::DistributedLock`] there if you can. A child made by `fork` has
//!   no such thread: its parent's locks are not held there, and it has to connect again.
//! - A call made *on* the background thread (in `on_event`) is refused with
//!   [`InvalidConfig`](crate::ErrorKind::InvalidConfig), because nobody would be left to answer it.

mod acquire;
mod background;
mod connect;
mod election;
mod handle;
mod lock;
mod set;

pub use acquire::{Acquire, AcquireAll, TryAcquire};
pub use connect::{IntoBuilder, connect, connect_within};
pub use election::{Election, Leadership};
pub use handle::{Held, LockHandle};
pub use lock::DistributedLock;
pub use set::LockSet;
