//! `run`: holds keys while a command runs, and stops the command before the lock can pass on.
//!
//! Two processes do it. The [`wrapper`] is what the user started; it starts the [`guardian`], which
//! does the work, and each stops the command if the other is killed. In the guardian: [`hold`] gets
//! the keys, [`child`] starts the command, [`supervise`] watches it, [`give_back`] ends it.

mod ahead;
mod alarm;
pub(crate) mod asker;
mod caller;
mod child;
mod end;
mod environment;
mod give_back;
mod guardian;
mod hold;
pub(crate) mod holders;
mod launch;
mod line;
mod options;
mod plan;
mod signals;
mod store;
mod supervise;
mod terminal;
pub(crate) mod tree;
mod wrapper;

use std::ffi::OsString;
use std::io;

pub(crate) use self::ahead::Role;
pub(crate) use self::caller::was_greeted;
pub(crate) use self::guardian::ARGUMENT as GUARDIAN;
pub(crate) use self::launch::{ARGUMENT as LAUNCH, launch};
pub(crate) use self::options::RunOptions;
use self::plan::Plan;
use crate::exit::Failure;

/// The command was found, but it, or what guards it, could not be started.
pub(crate) const CANNOT_START: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// Holds the keys while the command runs, as the process that `args` have started or as its
/// guardian. Returns the exit code of all of it.
pub(crate) fn execute(options: RunOptions, role: Role, args: &[OsString]) -> Result<u8, Failure> {
    let plan = Plan::new(&options).map_err(Failure::usage)?;
    match role {
        Role::Wrapper(ahead) => wrapper::run(&options, plan, ahead),
        Role::Guardian(launcher) => guardian::run(options, plan, launcher, args),
    }
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::new(CANNOT_START, format!("cannot {what}: {error}"))
}

/// The script that the keys are held for, if it is one.
fn open_script(options: &RunOptions) -> Result<Option<holders::Script>, Failure> {
    let open = |place| holders::Script::open(place).map_err(|error| Failure::file(place, &error));
    options.script.as_deref().map(open).transpose()
}

/// The file we were started from, even if another has taken its place since.
pub(crate) fn own_binary() -> io::Result<std::path::PathBuf> {
    if !cfg!(target_os = "linux") {
        return std::env::current_exe();
    }
    let path = "/proc/self/exe";
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(path.into()),
        Err(error) => {
            let told = format!("{path}: {error}; is /proc mounted? It is needed");
            Err(io::Error::new(error.kind(), told))
        }
    }
}

/// Has `ps` and `top` show what we are: we were executed from a file called `exe`.
fn take_our_name() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"holdtight");
}

/// The exit code for a command that could not be run.
fn refused(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }
}
