//! What a file is, without asking for its times.
//!
//! Who asks for the times of a file makes its next write note them precisely, which costs as much
//! as the rest of a step.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType};

/// What there is to know about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The same for all names of one file, and for no other file.
    pub(crate) identity: (u64, u64),
    pub(crate) kind: FileType,
    /// Whether it still has a name.
    pub(crate) is_named: bool,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    /// The permissions, with setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

impl Found {
    pub(crate) fn is_file(&self) -> bool {
        self.kind.is_file()
    }

    /// What it is, for people.
    pub(crate) fn what(&self) -> &'static str {
        match self.kind {
            FileType::RegularFile => "a file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            _ => "a device",
        }
    }
}

/// Looks at an open file.
pub(crate) fn look_at(file: impl AsFd) -> io::Result<Found> {
    look(file.as_fd(), c"", AtFlags::EMPTY_PATH)
}

/// Looks at what stands at `path`, be it a link.
pub(crate) fn look_up(path: &Path) -> io::Result<Found> {
    look(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// Looks at what has this name in a directory, be it a link.
pub(crate) fn look_in(directory: impl AsFd, name: impl rustix::path::Arg) -> io::Result<Found> {
    look(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn look(at: impl AsFd, path: impl rustix::path::Arg, flags: AtFlags) -> io::Result<Found> {
    use rustix::fs::{StatxFlags, statx};
    const WITHOUT_TIMES: StatxFlags = StatxFlags::TYPE
        .union(StatxFlags::MODE)
        .union(StatxFlags::INO)
        .union(StatxFlags::NLINK)
        .union(StatxFlags::UID)
        .union(StatxFlags::GID)
        .union(StatxFlags::SIZE);
    let found = statx(at, path, flags, WITHOUT_TIMES)?;
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    Ok(Found {
        identity: (device, found.stx_ino),
        kind: FileType::from_raw_mode(found.stx_mode.into()),
        is_named: found.stx_nlink > 0,
        owner: found.stx_uid,
        group: found.stx_gid,
        mode: u32::from(found.stx_mode) & 0o7777,
        size: found.stx_size,
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::unnecessary_cast, clippy::cast_lossless, reason = "widths differ between systems")]
#[allow(clippy::cast_sign_loss, reason = "devices and sizes are not negative")]
fn look(at: impl AsFd, path: impl rustix::path::Arg, flags: AtFlags) -> io::Result<Found> {
    // No system but Linux takes an empty path for the open file itself.
    let found = match path.as_cow_c_str()?.is_empty() {
        true => rustix::fs::fstat(at)?,
        false => rustix::fs::statat(at, path, flags)?,
    };
    Ok(Found {
        identity: (found.st_dev as u64, found.st_ino as u64),
        kind: FileType::from_raw_mode(found.st_mode),
        is_named: found.st_nlink > 0,
        owner: found.st_uid,
        group: found.st_gid,
        mode: found.st_mode as u32 & 0o7777,
        size: found.st_size as u64,
    })
}
