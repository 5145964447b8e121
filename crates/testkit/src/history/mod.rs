//! Random load over the public interface, written down as a history, and a check of what must never
//! stand in one.
//!
//! Tests of one step each cannot find what only many at once bring about: a wait that ends in the
//! very moment in which the lock is being handed over, a token that two resume. So [`Load`] plays
//! whatever users can do, at random from a seed, on
//! [`DistributedLock`](holdtight_core::DistributedLock)s that the caller gives it; a [`Recorder`]
//! writes down when each asked, what each was told and for how long each believed in its lock; and
//! [`check`] says what of that cannot be right:
//!
//! - two holders of one key that both certainly held it at one moment,
//! - a fence that is not unique, or smaller than one granted before it was asked for,
//! - a lock that is gone although its lease is not over and nobody ended it,
//! - a token that is resumed twice, work without a lock that is called done,
//! - a lock that stays behind, a waiter that is never served.
//!
//! The conformance suite does this for seconds on every store; [`Load::grants`] decides how long it
//! goes on.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), holdtight_core::LockError> {
//! use holdtight_core::{DistributedLock, MemoryStore};
//! use holdtight_testkit::history::{Load, Recorder, Rules, check};
//!
//! let seed = 4711;
//! let lock = DistributedLock::builder(MemoryStore::new()).build()?;
//! let recorder = Recorder::new(format!("memory, seed {seed}"));
//! let load = Load::rush(seed).grants(50);
//! load.run(&[lock.clone()], &recorder).await;
//! load.settle(&lock, &recorder).await;
//!
//! let report = check(&recorder.history(), Rules::CALM);
//! report.assert_clean(&[("grants", report.counts.grants)]);
//! # Ok(()) }
//! ```
//!
//! Several processes write their histories as lines ([`Recorder::of_process`]), and
//! [`History::merge`] puts them together: the boot clock is one for all processes of a machine.

mod cancel;
mod check;
mod elections;
mod event;
mod load;
mod long;
mod moves;
mod player;
mod record;
mod report;
mod story;
mod tokens;

pub use check::{Rules, check};
pub use event::{Answer, Event, Foreign, Form, LetGo, NotAnEvent, Patience, Refusal, What};
pub use load::Load;
pub use record::{Claim, History, Holding, Parting, Recorder};
pub use report::{Broken, Counts, Report, Violation};
