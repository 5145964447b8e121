//! One open directory of the store: files in it are opened, made, listed and removed through its
//! descriptor.
//!
//! A name is a single component and is never followed if it is a link, so whatever somebody puts
//! into the directory, or in the place of the directory itself, nothing outside of it is reached.
//! Which names are ours is for `names`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, openat, unlinkat};
use rustix::io::Errno;

use crate::look::{Found, look_at, look_in};
use crate::trust::Access;

/// Reading must not write: an access time would be noted after every change of a record.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const QUIET: OFlags = OFlags::NOATIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) const QUIET: OFlags = OFlags::empty();

/// How directories are opened: as what they are, or not at all.
pub(crate) const AS_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Folder {
    opened: OwnedFd,
    /// For people; nothing is opened by it.
    path: PathBuf,
    pub(crate) identity: (u64, u64),
    access: Access,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }
}

impl Folder {
    /// A directory that was opened and found fit.
    pub(crate) fn new(opened: OwnedFd, path: PathBuf, found: &Found, access: Access) -> Self {
        Self { opened, path, identity: found.identity, access }
    }

    /// Where it was when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, for people.
    pub(crate) fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Opens a file that is there, without waiting and without leaving a trace.
    pub(crate) fn open_file(&self, name: &str, write: bool) -> io::Result<File> {
        let open = |quiet| self.open(name, mode_of(write) | quiet, Mode::empty());
        match open(QUIET) {
            // Only the owner of a file may read it without a trace; in a shared directory others do
            // as well.
            Err(Errno::PERM | Errno::ACCESS) => Ok(open(OFlags::empty())?),
            opened => Ok(opened?),
        }
    }

    /// Opens what has this name, for a file that may be a pipe.
    pub(crate) fn open_as(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(self.open(name, flags, Mode::empty())?)
    }

    fn open(&self, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        let safely = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(&self.opened, name, flags | safely, mode).map(File::from)
    }

    /// Creates a file that was not there, for those who may use the store.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | QUIET;
        let file = self.open(name, flags, Mode::RUSR | Mode::WUSR)?;
        self.open_to_group(&file)?;
        Ok(file)
    }

    /// The process's umask must not take away what the group needs.
    pub(crate) fn open_to_group(&self, file: &File) -> io::Result<()> {
        match self.access {
            Access::Own => Ok(()),
            Access::Shared => Ok(fchmod(file, Mode::from_raw_mode(0o660))?),
        }
    }

    /// Looks at what has this name, be it a link.
    pub(crate) fn look(&self, name: impl AsRef<OsStr>) -> io::Result<Found> {
        look_in(self, name.as_ref())
    }

    /// Removes a file; a directory is not removed.
    pub(crate) fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.opened, name.as_ref(), AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.opened, name.as_ref(), AtFlags::REMOVEDIR)?)
    }

    /// The names of all that is in it.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        names_in(self)
    }

    /// Waits until what is in it is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.opened)?)
    }

    /// Gives a finished file its place in `to`, in one step: it is complete under its name, or not
    /// there. Fails with [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the name is taken.
    pub(crate) fn move_unless_taken(&self, made: &str, to: &Self, name: &str) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        {
            use rustix::fs::{RenameFlags, renameat_with};
            match renameat_with(&self.opened, made, &to.opened, name, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
                outcome => return Ok(outcome?),
            }
        }
        rustix::fs::linkat(&self.opened, made, &to.opened, name, AtFlags::empty())?;
        self.remove(made)
    }
}

/// Whether a file is opened for reading alone.
pub(crate) fn mode_of(write: bool) -> OFlags {
    if write { OFlags::RDWR } else { OFlags::RDONLY }
}

/// The names of all that is in an open directory.
pub(crate) fn names_in(directory: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Opens a directory inside another one, never through a link.
pub(crate) fn open_directory(
    parent: impl AsFd,
    name: impl AsRef<OsStr>,
) -> io::Result<(OwnedFd, Found)> {
    let opened = openat(parent, name.as_ref(), AS_DIRECTORY, Mode::empty())?;
    let found = look_at(&opened)?;
    Ok((opened, found))
}
