//! What every command knows of the process that runs it.

use std::ffi::OsString;

use crate::config::Settings;

pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) json: bool,
    /// The whole command line.
    pub(crate) args: Vec<OsString>,
}
