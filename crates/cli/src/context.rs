//! What every command knows of the process that runs it.

use std::ffi::OsString;

use crate::config::Settings;
use crate::run::Role;

pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) json: bool,
    /// Which of our processes this is.
    pub(crate) role: Role,
    /// The whole command line.
    pub(crate) args: Vec<OsString>,
}
