//! The operating system's errors as errors of a lock: one place that decides which kind each one
//! is.
//!
//! Paths of the store's own directory may appear in messages; secrets never come here.

use std::io::{self, ErrorKind as Io};
use std::path::Path;

use holdtight_core::{ErrorKind, Finding, Guarantees, Level, LockError};

use crate::trust::Doubt;

/// A system call on `path` failed before it changed anything.
#[cold]
pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> LockError {
    let (kind, hint) = kind_of(&source);
    LockError::new(kind, format!("cannot {doing} {}: {hint}", path.display())).with_source(source)
}

/// The directory of a store could not be made: nothing is gone, and nothing was ever there.
#[cold]
pub(crate) fn no_directory(path: &Path, source: io::Error) -> LockError {
    let (kind, why) = match source.kind() {
        Io::NotFound => (
            ErrorKind::Unavailable,
            "no directory can be made there; choose another place for the store",
        ),
        Io::NotADirectory => (
            ErrorKind::InvalidConfig,
            "a file stands where a directory is needed; choose another place for the store",
        ),
        Io::AlreadyExists => (
            ErrorKind::InvalidConfig,
            "a symbolic link stands there that leads nowhere; remove it, or make what it names",
        ),
        _ => return io("create", path, source),
    };
    LockError::new(kind, format!("cannot create {}: {why}", path.display())).with_source(source)
}

/// The store in `store` is not fit for locks because of `what`: refused, with what `doctor` has to
/// say about it.
#[cold]
pub(crate) fn unfit(store: &Path, what: &str, doubt: &Doubt) -> LockError {
    refused(store, "access", &format!("{what} {}", doubt.why), &doubt.fix)
}

/// The same because of the file system that it is on.
#[cold]
pub(crate) fn remote(store: &Path, file_system: &str) -> LockError {
    let why = format!(
        "the directory is on {file_system}, where file locks and cached records of several \
         machines may disagree and two holders could be granted"
    );
    let fix =
        "use a directory on a local disk, or a store that has a server (redis:, postgres:, etcd:)";
    refused(store, "file system", &why, fix)
}

fn refused(store: &Path, subject: &str, why: &str, fix: &str) -> LockError {
    let finding = Finding::new(Level::Unsafe, subject, why).fix(fix);
    LockError::invalid_config(format!("{why}; {fix}"))
        .with_guarantees(Guarantees::new(name_of(store), vec![finding]))
}

/// What a store is called in a report about it.
pub(crate) fn name_of(store: &Path) -> String {
    format!("file store in {}", store.display())
}

/// A system call failed after the change was handed to the file system.
#[cold]
pub(crate) fn perhaps(doing: &str, path: &Path, source: io::Error) -> LockError {
    LockError::ambiguous(format!(
        "cannot {doing} {}: the step may have been done; check the disk",
        path.display()
    ))
    .with_source(source)
}

/// The kind of an error, and what to do about it.
fn kind_of(error: &io::Error) -> (ErrorKind, &'static str) {
    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => {
            (ErrorKind::RateLimited, "the disk or the quota is full; free some space")
        }
        Io::OutOfMemory => (ErrorKind::RateLimited, "the machine is out of memory"),
        Io::PermissionDenied => (
            ErrorKind::AuthFailed,
            "this user may not do that; check who owns the directory and its mode",
        ),
        Io::ReadOnlyFilesystem => (
            ErrorKind::AuthFailed,
            "the file system is read-only; choose a writable directory for the store",
        ),
        Io::NotFound => (
            ErrorKind::Unavailable,
            "it is gone; if the store's directory was removed, open the store again",
        ),
        Io::NotADirectory | Io::IsADirectory | Io::InvalidInput | Io::InvalidFilename => {
            (ErrorKind::InvalidConfig, "this is not what a store's directory holds")
        }
        _ => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                (ErrorKind::RateLimited, "too many files are open; raise the limit (`ulimit -n`)")
            }
            Some(rustix::io::Errno::LOOP) => (
                ErrorKind::InvalidConfig,
                "a symbolic link stands where the store keeps a file; remove it",
            ),
            _ => (ErrorKind::Unavailable, "the file system refused"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn every_common_failure_has_a_kind_and_a_hint() {
        let expect = [
            (Errno::NOSPC, ErrorKind::RateLimited),
            (Errno::DQUOT, ErrorKind::RateLimited),
            (Errno::MFILE, ErrorKind::RateLimited),
            (Errno::ACCESS, ErrorKind::AuthFailed),
            (Errno::PERM, ErrorKind::AuthFailed),
            (Errno::ROFS, ErrorKind::AuthFailed),
            (Errno::NOENT, ErrorKind::Unavailable),
            (Errno::IO, ErrorKind::Unavailable),
            (Errno::LOOP, ErrorKind::InvalidConfig),
            (Errno::NOTDIR, ErrorKind::InvalidConfig),
        ];
        for (errno, kind) in expect {
            let error = io("write", Path::new("/d/store"), errno.into());
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("cannot write /d/store"), "{error}");
        }
        assert_eq!(perhaps("sync", Path::new("/d"), Errno::IO.into()).kind(), ErrorKind::Ambiguous);
    }
}
