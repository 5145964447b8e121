//! `run`: holds keys while a command runs, and stops the command before the lock can pass on.

use std::ffi::OsString;
use std::time::Duration;

/// What `run` was asked to do.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub(crate) struct RunOptions {
    /// The keys to hold, all or none; at least one.
    pub(crate) keys: Vec<String>,
    /// The command and its arguments; at least one word.
    pub(crate) command: Vec<OsString>,
    /// Give up at once if a key is busy.
    pub(crate) nonblock: bool,
    /// Wait at most so long; `None` is for ever.
    pub(crate) wait: Option<Duration>,
    /// The exit code if a key is busy.
    pub(crate) conflict_exit: Option<u8>,
    /// A busy key is exit 0 without a word.
    pub(crate) skip_ok: bool,
    /// The lease.
    pub(crate) ttl: Option<Duration>,
    /// Keep the keys held for at least so long.
    pub(crate) keep_for: Option<Duration>,
    /// Stop the command after so long.
    pub(crate) max_hold: Option<Duration>,
    /// From TERM to KILL.
    pub(crate) kill_after: Option<Duration>,
    /// Why, for whoever finds the keys held.
    pub(crate) reason: Option<String>,
    /// Let the command see a store URL that holds a password.
    pub(crate) pass_store: bool,
    /// The URL of the store, as chosen.
    pub(crate) store_url: String,
    /// Say how long waiting took.
    pub(crate) verbose: bool,
    /// Tell conflicts and errors as JSON.
    pub(crate) json: bool,
}

/// Runs the command under its keys; returns the exit code.
pub(crate) fn execute(options: RunOptions) -> u8 {
    drop(options);
    crate::exit::SOFTWARE
}
