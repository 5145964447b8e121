//! How the command ends: one table of exit codes, and the failure that carries one to `main`.
//!
//! The codes follow sysexits and shells; scripts depend on them, so they never change.

use std::fmt;
use std::path::Path;

use holdtight::{ErrorKind, LockError};

/// It was done.
pub(crate) const OK: u8 = 0;
/// The answer is no: `status` found the key free, `doctor` found the store unsafe.
pub(crate) const NO: u8 = 1;
/// The command line, a setting or the environment is wrong.
pub(crate) const USAGE: u8 = 64;
/// A key or a token is malformed.
pub(crate) const DATA: u8 = 65;
/// The store cannot be reached, or refuses to serve.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A bug.
pub(crate) const SOFTWARE: u8 = 70;
/// A later holder was here already: what this one wanted to write was refused.
pub(crate) const TOO_LATE: u8 = 73;
/// The lock was lost: it is not, or no longer, held under this token.
pub(crate) const LOST: u8 = 74;
/// The lock is busy, or waiting for it took too long.
pub(crate) const BUSY: u8 = 75;

/// The code of something that a signal ended, as shells count.
pub(crate) fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(SOFTWARE)
}

/// The code for an error of the library.
pub(crate) fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Timeout => BUSY,
        ErrorKind::Lost | ErrorKind::NotHeld => LOST,
        ErrorKind::Unavailable
        | ErrorKind::Ambiguous
        | ErrorKind::AuthFailed
        | ErrorKind::RateLimited => UNAVAILABLE,
        ErrorKind::InvalidKey | ErrorKind::InvalidToken => DATA,
        ErrorKind::InvalidConfig | ErrorKind::Unsupported => USAGE,
        _ => SOFTWARE,
    }
}

/// Why the command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) what: What,
    /// The store that failed, and who chose it.
    pub(crate) store: Option<String>,
}

/// What there is to tell of a failure.
#[derive(Debug)]
pub(crate) enum What {
    Said(String),
    Lock(LockError),
    Silent,
}

impl Failure {
    /// A failure that is told in these words: what happened, and what to do next.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, what: What::Said(message.into()), store: None }
    }

    /// A mistake in the command line, a setting or the environment.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// A file that should have been read or written and was not.
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::usage(format!("{}: {error}", path.display()))
    }

    /// An end that needs no words, because the user caused it or was told already.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, what: What::Silent, store: None }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self { code: code(error.kind()), what: What::Lock(error), store: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Said(message) => f.write_str(message),
            What::Lock(error) => error.fmt(f),
            What::Silent => Ok(()),
        }
    }
}
