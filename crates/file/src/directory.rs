//! The store's directory: who may use it, what is in it, and how files are put there.
//!
//! Its own directory belongs to one user, mode 0700. A shared one is made by root: group-writable and setgid.
//! Everything else is refused, because whoever can write here can break every lock.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdtight_core::{Key, LockError};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::error;
use crate::failpoint;
use crate::filesystem::{self, FileSystem};

/// The name of a key in the store: its SHA-256. No text of a user ever becomes part of a path.
pub(crate) type Name = [u8; 32];

/// The name of `key`.
pub(crate) fn name_of(key: &Key) -> Name {
    Sha256::digest(key.as_str().as_bytes()).into()
}

/// Who may use a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One user.
    Own,
    /// All members of the directory's group.
    Shared,
}

/// A directory that was found fit for locks.
#[derive(Debug)]
pub(crate) struct Directory {
    root: PathBuf,
    identity: (u64, u64),
    /// Kept open, so that no other directory can get the number of this one while we go by it.
    _opened: File,
    pub(crate) access: Access,
    pub(crate) file_system: FileSystem,
}

impl Directory {
    /// Creates what is missing, and checks what is there.
    pub(crate) fn open(path: &Path) -> Result<Self, LockError> {
        if !path.exists() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|source| error::no_directory(path, source))?;
        }
        // Links on the way there are the user's affair; what counts is the directory at the end.
        let root = path.canonicalize().map_err(|source| error::io("open", path, source))?;
        let opening = |source| error::io("open", &root, source);
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(flags(OFlags::DIRECTORY | OFlags::NOFOLLOW))
            .open(&root)
            .map_err(opening)?;
        let found = directory.metadata().map_err(opening)?;
        let file_system = filesystem::of(&directory).map_err(opening)??;
        let me = rustix::process::geteuid().as_raw();
        let access = judge(found.uid(), found.mode(), me).map_err(|why| {
            LockError::invalid_config(format!("the directory {} {why}", root.display()))
        })?;
        let identity = (found.dev(), found.ino());
        let this = Self { identity, _opened: directory, root, access, file_system };
        for part in [this.keys(), this.live(), this.new_files()] {
            this.make_directory(&part)?;
        }
        Ok(this)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the records are, in up to 256 parts.
    pub(crate) fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    /// Where processes show that they live.
    pub(crate) fn live(&self) -> PathBuf {
        self.root.join("live")
    }

    /// Where files are made before they get their place.
    pub(crate) fn new_files(&self) -> PathBuf {
        self.root.join("new")
    }

    /// The file with the facts about the whole store.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The file of one key.
    pub(crate) fn record(&self, name: &Name) -> PathBuf {
        let hex = hex(name);
        let mut path = String::with_capacity(6 + hex.len());
        let _ = write!(path, "keys/{}/{}", &hex[..2], &hex[2..]);
        self.root.join(path)
    }

    /// Whether the path still leads to the directory that was opened.
    pub(crate) fn check_still_there(&self) -> Result<(), LockError> {
        match fs::metadata(&self.root) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => Ok(()),
            Ok(_) => Err(LockError::unavailable(format!(
                "the directory {} was replaced while in use: locks in the old one are void; open \
                 the store again",
                self.root.display()
            ))),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(LockError::unavailable(format!(
                    "the directory {} was removed while in use: its locks are void; create it and \
                     open the store again",
                    self.root.display()
                )))
            }
            Err(source) => Err(error::io("open", &self.root, source)),
        }
    }

    /// Creates a file that was not there, readable for those who may use the store.
    pub(crate) fn create_file(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags(QUIET))
            .open(path)?;
        self.open_to_group(&file)?;
        Ok(file)
    }

    /// The process's umask must not take away what the group needs.
    pub(crate) fn open_to_group(&self, file: &File) -> io::Result<()> {
        match self.access {
            Access::Own => Ok(()),
            Access::Shared => file.set_permissions(Permissions::from_mode(0o660)),
        }
    }

    /// Makes one directory inside the store, if it is missing.
    pub(crate) fn make_directory(&self, path: &Path) -> Result<(), LockError> {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => match self.access {
                Access::Own => Ok(()),
                Access::Shared => fs::set_permissions(path, Permissions::from_mode(0o2770))
                    .map_err(|source| error::io("open to the group", path, source)),
            },
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(source) => Err(error::io("create", path, source)),
        }
    }

    /// Gives a finished file its place. `Ok(false)` if somebody else was there first.
    pub(crate) fn place(&self, made: &Path, path: &Path) -> Result<bool, LockError> {
        failpoint::point("before a new file gets its place");
        let mut outcome = move_unless_taken(made, path);
        // The part that holds this key was never made, or was empty and swept away, perhaps once more.
        for _ in 0..64 {
            match &outcome {
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
            self.check_still_there()?;
            self.make_directory(&self.keys())?;
            if let Some(part) = path.parent() {
                self.make_directory(part)?;
            }
            outcome = move_unless_taken(made, path);
        }
        failpoint::point("after a new file got its place");
        match outcome {
            Ok(()) => Ok(true),
            Err(source) => {
                let _ = fs::remove_file(made);
                if source.kind() == io::ErrorKind::AlreadyExists {
                    Ok(false)
                } else {
                    Err(error::io("create", path, source))
                }
            }
        }
    }
}

/// One step: the file is either complete under its name, or not there.
fn move_unless_taken(made: &Path, path: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, made, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            outcome => return Ok(outcome?),
        }
    }
    fs::hard_link(made, path)?;
    fs::remove_file(made)
}

/// Opens a file of the store, never through a link.
pub(crate) fn open_file(path: &Path, write: bool) -> io::Result<File> {
    let open = |quiet: OFlags| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | quiet))
            .open(path)
    };
    match open(QUIET) {
        // Only the owner of a file may read it without a trace; in a shared directory others do as well.
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => open(OFlags::empty()),
        opened => opened,
    }
}

/// Reading must not write: an access time would be noted after every change of a record.
#[cfg(any(target_os = "linux", target_os = "android"))]
const QUIET: OFlags = OFlags::NOATIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const QUIET: OFlags = OFlags::empty();

/// What there is to know about a file without asking for its times.
///
/// Who asks for the times of a file makes its next write note them precisely, which costs as much as the rest of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The same for all names of one file, and for no other file.
    pub(crate) identity: (u64, u64),
    pub(crate) is_file: bool,
    /// Whether it still has a name.
    pub(crate) is_named: bool,
}

/// Looks at an open file.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn look_at(file: &File) -> io::Result<Found> {
    use rustix::fs::{AtFlags, statx};
    Ok(found(&statx(file, c"", AtFlags::EMPTY_PATH, WITHOUT_TIMES)?))
}

/// Looks at what stands at `path`, be it a link.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn look_up(path: &Path) -> io::Result<Found> {
    use rustix::fs::{AtFlags, CWD, statx};
    Ok(found(&statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, WITHOUT_TIMES)?))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const WITHOUT_TIMES: rustix::fs::StatxFlags = rustix::fs::StatxFlags::TYPE
    .union(rustix::fs::StatxFlags::INO)
    .union(rustix::fs::StatxFlags::NLINK);

#[cfg(any(target_os = "linux", target_os = "android"))]
fn found(statx: &rustix::fs::Statx) -> Found {
    let device = u64::from(statx.stx_dev_major) << 32 | u64::from(statx.stx_dev_minor);
    Found {
        identity: (device, statx.stx_ino),
        is_file: rustix::fs::FileType::from_raw_mode(statx.stx_mode.into()).is_file(),
        is_named: statx.stx_nlink > 0,
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn look_at(file: &File) -> io::Result<Found> {
    Ok(found(&file.metadata()?))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn look_up(path: &Path) -> io::Result<Found> {
    Ok(found(&fs::symlink_metadata(path)?))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn found(metadata: &fs::Metadata) -> Found {
    Found {
        identity: (metadata.dev(), metadata.ino()),
        is_file: metadata.is_file(),
        is_named: metadata.nlink() > 0,
    }
}

#[expect(clippy::cast_possible_wrap, reason = "flags are a set of bits")]
pub(crate) fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

/// Whether a directory with this owner and mode can be trusted by `me`, or what is wrong with it.
fn judge(owner: u32, mode: u32, me: u32) -> Result<Access, String> {
    if mode & 0o002 != 0 {
        return Err(
            "is writable for everybody, so anybody could break its locks; run `chmod o-w` on \
                    it, or choose another"
                .into(),
        );
    }
    if owner == 0 && mode & 0o2020 == 0o2020 {
        return Ok(Access::Shared);
    }
    if owner != me {
        return Err(format!(
            "belongs to user {owner}, not to you (user {me}): choose your own, or let root make one \
             for a group with `install -d -o root -g GROUP -m 2770 DIRECTORY`"
        ));
    }
    if mode & 0o020 != 0 {
        return Err("is writable for its group; run `chmod g-w` on it to keep it to yourself, or let \
                    root make one for the group with `install -d -o root -g GROUP -m 2770 DIRECTORY`"
            .into());
    }
    Ok(Access::Own)
}

/// Bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Reads what [`hex`] wrote, and nothing else.
pub(crate) fn unhex<const N: usize>(text: &OsStr) -> Option<[u8; N]> {
    let text = text.as_encoded_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ones_own_directory_or_roots_shared_one_is_trusted() {
        assert_eq!(judge(1000, 0o40700, 1000), Ok(Access::Own));
        assert_eq!(judge(1000, 0o40755, 1000), Ok(Access::Own));
        assert_eq!(judge(0, 0o42770, 1000), Ok(Access::Shared));
        assert_eq!(judge(0, 0o42775, 0), Ok(Access::Shared));
        for (owner, mode, me, why) in [
            (1000, 0o40777, 1000, "everybody"),
            (0, 0o41777, 1000, "everybody"),
            (0, 0o42777, 0, "everybody"),
            (1001, 0o40700, 1000, "belongs to user 1001"),
            (1001, 0o42770, 1000, "belongs to user 1001"),
            (1000, 0o40700, 0, "belongs to user 1000"),
            (1000, 0o40770, 1000, "its group"),
            (1000, 0o42770, 1000, "its group"),
        ] {
            let text = judge(owner, mode, me).unwrap_err();
            assert!(text.contains(why), "{mode:o}: {text}");
        }
    }

    #[test]
    fn names_round_trip_and_strange_ones_are_not_ours() {
        let name: Name = name_of(&Key::new("../../etc/passwd").unwrap());
        assert_eq!(unhex(OsStr::new(&hex(&name))), Some(name));
        for strange in ["", "AB", "g0", "0", "..", "0é"] {
            assert_eq!(unhex::<1>(OsStr::new(strange)), None, "{strange:?}");
        }
    }
}
