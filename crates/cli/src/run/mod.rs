//! `run`: holds keys while a command runs, and stops the command before the lock can pass on.
//!
//! Two processes do it. The [`wrapper`] is what the user started; it starts the [`guardian`], which does the work, and
//! each stops the command if the other is killed. In the guardian: [`hold`] gets the keys, [`child`] starts the command,
//! [`supervise`] watches it, [`give_back`] ends it.

mod alarm;
mod caller;
mod child;
mod environment;
mod give_back;
mod guardian;
mod hold;
mod launch;
mod line;
mod plan;
mod signals;
mod store;
mod supervise;
mod terminal;
pub(crate) mod tree;
mod wrapper;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

pub(crate) use self::guardian::ARGUMENT as GUARDIAN;
pub(crate) use self::launch::{ARGUMENT as LAUNCH, launch};
use self::plan::Plan;
use crate::exit::Failure;

/// The command was found, but it, or what guards it, could not be started.
const CANNOT_START: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// Which of our processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What the user started.
    Wrapper,
    /// What the wrapper of a run started.
    Guardian,
}

/// What `run` was asked to do.
#[derive(Clone, Debug)]
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

/// Holds the keys while the command runs, as the process that `args` have started or as its guardian. Returns the exit
/// code of all of it.
pub(crate) fn execute(options: RunOptions, role: Role, args: &[OsString]) -> Result<u8, Failure> {
    let plan = Plan::new(&options).map_err(Failure::usage)?;
    match role {
        Role::Wrapper => wrapper::run(&options, plan, args),
        Role::Guardian => guardian::run(options, plan),
    }
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::new(CANNOT_START, format!("cannot {what}: {error}"))
}

/// The file we were started from, even if another has taken its place since.
fn own_binary() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// The exit code for a command that could not be run.
fn refused(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }
}

#[cfg(test)]
impl RunOptions {
    /// The options of `run -k … -- true`.
    fn for_keys<const N: usize>(keys: [&str; N]) -> Self {
        Self {
            keys: keys.map(str::to_owned).to_vec(),
            command: vec!["true".into()],
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
            pass_store: false,
            store_url: "memory:".to_owned(),
            place: "memory:".to_owned(),
            verbose: false,
            json: false,
        }
    }
}
