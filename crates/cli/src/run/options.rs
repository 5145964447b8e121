//! What `run` was asked to do, from the command line and the settings.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What `run` was asked to do.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub(crate) struct RunOptions {
    /// The keys to hold, all or none; at least one.
    pub(crate) keys: Vec<String>,
    /// The command and its arguments; at least one word.
    pub(crate) command: Vec<OsString>,
    /// The command is a line for the shell, and not the end of the command line.
    pub(crate) by_line: bool,
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
    /// From TERM to KILL, as asked for this run.
    pub(crate) kill_after: Option<Duration>,
    /// From TERM to KILL, as set for all runs.
    pub(crate) usual_kill_after: Option<Duration>,
    /// Let go at the end of the command's first process.
    pub(crate) close: bool,
    /// Why, for whoever finds the keys held.
    pub(crate) reason: Option<String>,
    /// What the holder is called instead of by its command.
    pub(crate) told_as: Option<String>,
    /// Where the pipe of a script is that these keys are held for: it must end before they are
    /// given back.
    pub(crate) script: Option<PathBuf>,
    /// Let the command see a store URL that holds a password.
    pub(crate) pass_store: bool,
    /// The URL of the store, as chosen.
    pub(crate) store_url: String,
    /// The store and who chose it, for people.
    pub(crate) place: String,
    /// Say how long waiting took.
    pub(crate) verbose: bool,
    /// Tell conflicts and errors as JSON.
    pub(crate) json: bool,
}

#[cfg(test)]
impl RunOptions {
    /// The options of `run -k … -- true`.
    pub(super) fn for_keys<const N: usize>(keys: [&str; N]) -> Self {
        Self {
            keys: keys.map(str::to_owned).to_vec(),
            command: vec!["true".into()],
            by_line: false,
            nonblock: false,
            wait: None,
            conflict_exit: None,
            skip_ok: false,
            ttl: None,
            keep_for: None,
            max_hold: None,
            kill_after: None,
            usual_kill_after: None,
            close: false,
            reason: None,
            told_as: None,
            script: None,
            pass_store: false,
            store_url: "memory:".to_owned(),
            place: "memory:".to_owned(),
            verbose: false,
            json: false,
        }
    }
}
