//! `hold`: a lock for the rest of a script, bound to its shell.
//!
//! The script opens a named pipe and keeps it open, and so does everything that it starts: when the
//! last copy is closed, however that came, the kernel tells. The shell also says which process it
//! is, and is watched by a descriptor of it, so that a script which closes the pipe still holds.
//! Three parts:
//!
//! - [`take`] is what the script calls: it starts a keeper, waits for the lock, and prints [`code`]
//!   for the shell;
//! - the keeper is a `run` of ours in a session of its own, with wrapper and guardian, so that one
//!   that is killed is noticed by the other, and both stop the script before the lock is let go;
//!   its command is
//! - [`keep`], which reads the pipe until the script has ended, and stops it when the lock must go.

mod code;
mod held;
mod keep;
mod take;

pub(crate) use code::{VARIABLE, give_up, holds};
pub(crate) use held::{check, release};
pub(crate) use keep::{KEEP, KEEPER, keep, keeper};
pub(crate) use take::take;
