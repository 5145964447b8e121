//! A file that refuses stale holders: its contents are replaced only under a fence that is not
//! older than the one recorded beside it.
//!
//! It knows nothing of locks and stores: any fence of any store will do, as long as one key
//! protects one file. The contents stay a plain file that every program can read; the fence has a
//! file of its own, `NAME.fence`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdtight_core::{Fence, LockError};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use sha2::{Digest as _, Sha256};

use crate::error;
use crate::failpoint;
use crate::filesystem;
use crate::folder::AS_DIRECTORY;
use crate::frame::{self, Damage, Magic, PAGE, Writer};
use crate::look::{look_at, look_in};
use crate::names::hex;
use crate::way::{Arrived, walk_to_file};

/// The first bytes of a file with a fence.
const MAGIC: Magic = *b"HTfc";

/// What the file with the fence adds to the name.
const SIDE: &str = ".fence";

/// How the names begin under which new contents are written.
const UNFINISHED: &str = ".fence-new-";

/// How long a write waits for another one of the same file.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks whether the other write is done.
const TICK: Duration = Duration::from_millis(2);

/// A file whose contents are replaced as a whole, by the newest holder of a lock and by nobody
/// older.
///
/// A write under a smaller fence than the largest one seen is refused: it comes from a holder that
/// was paused past its lease. The same holder may write as often as it likes.
///
/// ```
/// # fn main() -> Result<(), holdtight_core::LockError> {
/// # let place = std::env::temp_dir().join(format!("holdtight-fenced-{}", std::process::id()));
/// # std::fs::create_dir_all(&place).unwrap();
/// use holdtight_core::{ErrorKind, Fence};
/// use holdtight_file::FencedFile;
///
/// let report = FencedFile::new(place.join("report.json"))?;
/// report.replace(Fence::new(8), b"{\"by\": 8}")?;
///
/// let late = report.replace(Fence::new(7), b"{\"by\": 7}").unwrap_err();
/// assert_eq!(late.kind(), ErrorKind::NotHeld);
/// assert_eq!(report.read()?.unwrap(), b"{\"by\": 8}");
/// # std::fs::remove_dir_all(&place).unwrap();
/// # Ok(()) }
/// ```
///
/// # How it is done
/// Under a file lock on `NAME.fence`: compare the fence, record it and wait for the disk, write the
/// new contents to a file of their own and wait for the disk, rename it to `NAME`. That file is
/// called `.fence-new-` and 32 digits; half of them are random and recorded in `NAME.fence`, so
/// what a crash leaves is known again and nothing else is ever removed. So
///
/// - a reader sees the old contents or the new ones, never a part, and needs no lock;
/// - a crash at any moment, of the process or of the machine, leaves the old contents or the new
///   ones, and a fence that is not older than the contents; it may be newer, of a holder that died
///   before its contents were in place;
/// - a process that is frozen inside a write keeps others out until it goes on or dies. They get
///   `Unavailable` after five seconds; nobody can overtake it and be overwritten afterwards.
///
/// # What it asks for
/// - All writers use this type, or `NAME.fence` and its lock are worth nothing. Whoever may write
///   to the directory can get around it; so can `rm`.
/// - `NAME.fence` is its own. If something else stands there, every call but [`read`](Self::read)
///   is refused and leaves it as it is; and no fenced file can itself have a name that ends with
///   `.fence`.
/// - A local file system; those of the network are refused. The name is that of a regular file, not
///   of a link. Links on the way there are followed if they are this user's or root's: another user
///   could point them elsewhere.
/// - A new file gets the mode that the umask allows; one that is replaced keeps its mode, and
///   belongs to whoever replaced it.
/// - All calls block. In async code, use a thread for blocking work
///   (`tokio::task::spawn_blocking`).
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    name: OsString,
    directory: PathBuf,
    patience: Duration,
}

impl FencedFile {
    /// The file at `path`. It need not exist; its directory must.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if the path names no file, one
    /// on a network file system, or one that could be taken for a file beside another fenced one,
    /// or if another user's link leads there; what the file system reports otherwise.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, LockError> {
        let path = path.as_ref();
        let Some(name) = path.file_name() else {
            return Err(LockError::invalid_config(format!(
                "{} does not end with the name of a file",
                path.display()
            )));
        };
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(SIDE.as_bytes()) || bytes.starts_with(UNFINISHED.as_bytes()) {
            return Err(LockError::invalid_config(format!(
                "{} cannot be a fenced file: names that end with `{SIDE}` or begin with \
                 `{UNFINISHED}` are those of the files beside one; choose another name",
                path.display()
            )));
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent =
            std::path::absolute(parent).map_err(|source| error::io("open", parent, source))?;
        // Links on the way there must not change their mind between two writes.
        let Arrived { opened, path: directory } = arrive(&parent)?;
        let opening = |source| error::io("open", &directory, source);
        let file_system = filesystem::of(&open_here(&opened).map_err(opening)?);
        if let Err(name) = file_system.map_err(opening)? {
            return Err(error::remote(&directory, name));
        }
        let (path, name) = (directory.join(name), name.to_owned());
        Ok(Self { path, name, directory, patience: PATIENCE })
    }

    /// How long a write waits while another one of the same file is under way. Default 5 s.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Replaces the contents under `fence`.
    ///
    /// # Errors
    /// [`NotHeld`](holdtight_core::ErrorKind::NotHeld) if a later holder was here already: nothing
    /// was changed. [`Ambiguous`](holdtight_core::ErrorKind::Ambiguous) if the contents are in
    /// place, but perhaps not yet on the disk.
    /// [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if another write took too long;
    /// other kinds for what the file system reports: the contents are as before.
    pub fn replace(&self, fence: Fence, contents: impl AsRef<[u8]>) -> Result<(), LockError> {
        let guard = self.enter(fence)?;
        self.put(&guard, contents.as_ref())?;
        drop(guard);
        Ok(())
    }

    /// Changes the contents under `fence`: reads them (`None` if there is no file), and replaces
    /// them by what `change` makes of them, without anybody in between.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn update(
        &self,
        fence: Fence,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
    ) -> Result<(), LockError> {
        let guard = self.enter(fence)?;
        self.put(&guard, &change(self.read_in(&guard.place)?))?;
        drop(guard);
        Ok(())
    }

    /// The contents, read under `fence`: from now on every earlier holder is refused. For work that
    /// reads, thinks, and then [replaces](Self::replace): a late write of an earlier holder cannot
    /// come in between and be overwritten unseen.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn read_as(&self, fence: Fence) -> Result<Option<Vec<u8>>, LockError> {
        let guard = self.enter(fence)?;
        let contents = self.read_in(&guard.place)?;
        drop(guard);
        Ok(contents)
    }

    /// The contents, or `None` if there is no file. Takes no lock: they are whole, and may be old
    /// in a moment.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn read(&self) -> Result<Option<Vec<u8>>, LockError> {
        self.read_in(&self.place()?)
    }

    fn read_in(&self, place: &OwnedFd) -> Result<Option<Vec<u8>>, LockError> {
        let reading = |source| error::io("read", &self.path, source);
        let mut file = match open_file(place, &self.name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                // A link cannot be opened at all.
                self.check_name(place)?;
                return Err(reading(source));
            }
        };
        if !look_at(&file).map_err(reading)?.is_file() {
            return Err(self.not_a_file());
        }
        let mut contents = Vec::new();
        file.read_to_end(&mut contents).map_err(reading)?;
        Ok(Some(contents))
    }

    /// The largest fence that was seen, or `None` if nobody wrote yet.
    ///
    /// # Errors
    /// [`Internal`](holdtight_core::ErrorKind::Internal) if the record is damaged,
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if something else stands in its
    /// place; what the file system reports otherwise.
    pub fn fence(&self) -> Result<Option<Fence>, LockError> {
        match open_file(&self.place()?, &self.side_name(), OFlags::RDONLY) {
            // A write that is under way at this very moment may look like damage, once.
            Ok(file) if !look_at(&file).is_ok_and(|found| found.is_file()) => {
                Err(not_ours(&self.side()))
            }
            Ok(file) => {
                let recorded = self.recorded(&file).or_else(|_| {
                    std::thread::sleep(TICK);
                    self.recorded(&file)
                })?;
                Ok(recorded.map(|recorded| recorded.fence))
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(error::io("open", &self.side(), source)),
        }
    }

    /// The path of the file, its directory resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks, compares, and records. Afterwards no smaller fence gets in, whatever happens to us.
    fn enter(&self, fence: Fence) -> Result<Entered, LockError> {
        let place = self.place()?;
        self.check_name(&place)?;
        let side = self.lock(&place)?;
        let recorded = self.recorded(&side)?;
        let (last, known) = recorded.map_or((None, None), |it| (Some(it.fence), it.id));
        if let Some(last) = last.filter(|last| fence < *last) {
            return Err(LockError::not_held(format!(
                "the write to {} under fence {fence} is refused: a later holder was here under {last}; stop, and \
                 acquire the lock again",
                self.path.display()
            )));
        }
        let id = match known {
            Some(id) => id,
            None => fresh_id()?,
        };
        if last != Some(fence) || known.is_none() {
            self.record(&place, &side, Recorded { fence, id: Some(id) }, last.is_none())?;
        }
        Ok(Entered { _side: side, place, id })
    }

    /// The directory, gone to anew: somebody may have put a link on the way since.
    fn place(&self) -> Result<OwnedFd, LockError> {
        Ok(arrive(&self.directory)?.opened)
    }

    /// A link would be replaced by a file, and what it leads to would stay as it was.
    fn check_name(&self, place: &OwnedFd) -> Result<(), LockError> {
        match look_in(place, &self.name) {
            Ok(found) if found.is_file() => Ok(()),
            Ok(_) => Err(self.not_a_file()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(error::io("open", &self.path, source)),
        }
    }

    #[cold]
    fn not_a_file(&self) -> LockError {
        LockError::invalid_config(format!(
            "{} is not a regular file; name the file itself",
            self.path.display()
        ))
    }

    /// The file with the fence, locked, and still the one under that name.
    fn lock(&self, place: &OwnedFd) -> Result<File, LockError> {
        let (path, name) = (self.side(), self.side_name());
        let opening = |source| error::io("open", &path, source);
        // Too far away to be told means for ever.
        let deadline = Instant::now().checked_add(self.patience);
        loop {
            let file = open_file(place, &name, OFlags::RDWR | OFlags::CREATE).map_err(opening)?;
            match file.try_lock() {
                Ok(()) => {
                    let mine = look_at(&file).map_err(opening)?;
                    if !mine.is_file() {
                        return Err(not_ours(&path));
                    }
                    let named = look_in(place, &name);
                    if named.is_ok_and(|named| named.identity == mine.identity) {
                        return Ok(file);
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(error::io("lock", &path, source)),
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LockError::unavailable(format!(
                    "another write to {} has been under way for {:?}; if its process is stopped, let it go on or end it",
                    self.path.display(),
                    self.patience
                )));
            }
            std::thread::sleep(TICK);
        }
    }

    fn recorded(&self, side: &File) -> Result<Option<Recorded>, LockError> {
        let path = self.side();
        let mut page = [0; PAGE];
        let mut length = 0;
        while length < PAGE {
            match side.read_at(&mut page[length..], length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(error::io("read", &path, source)),
            }
        }
        if length == 0 {
            return Ok(None);
        }
        match frame::read(&page[..length], MAGIC) {
            // An earlier version recorded no id.
            Ok((fence, payload)) => {
                Ok(Some(Recorded { fence: Fence::new(fence), id: payload.try_into().ok() }))
            }
            Err(Damage::Newer) => Err(LockError::internal(format!(
                "{} was written by a later version; update this program",
                path.display()
            ))),
            Err(Damage::Unreadable) if !frame::may_be_ours(&page[..length], MAGIC) => {
                Err(not_ours(&path))
            }
            Err(Damage::Unreadable) => Err(LockError::internal(format!(
                "{} is damaged, so nobody knows whether this write comes too late; stop all writers, then remove it",
                path.display()
            ))),
        }
    }

    /// Waits for the disk: contents must never be there under a fence that is not.
    fn record(
        &self,
        place: &OwnedFd,
        side: &File,
        recorded: Recorded,
        first: bool,
    ) -> Result<(), LockError> {
        let path = self.side();
        let mut page = [0; PAGE];
        let mut to = Writer::new(&mut page);
        to.put(&recorded.id.unwrap_or_default());
        let bytes = to.finish(MAGIC, recorded.fence.get());
        failpoint::point("before the fence of a file is recorded");
        side.write_all_at(bytes, 0)
            .and_then(|()| side.sync_data())
            .map_err(|source| error::io("write", &path, source))?;
        failpoint::point("after the fence of a file was recorded");
        if first {
            let synced = open_here(place).and_then(|here| here.sync_all());
            synced.map_err(|source| error::io("sync", &self.directory, source))?;
        }
        Ok(())
    }

    /// Puts the contents in place, in one step for whoever reads.
    fn put(&self, entered: &Entered, contents: &[u8]) -> Result<(), LockError> {
        let (place, new) = (&entered.place, self.unfinished(entered.id));
        let creating = |source| error::io("create", &self.directory.join(&new), source);
        // What a crash left: nobody else knows this name. We hold the lock, so nobody is writing
        // it.
        let remove = || unlinkat(place, &*new, AtFlags::empty());
        match remove() {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(source) => return Err(creating(source.into())),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let all = Mode::from_raw_mode(0o666);
        let mut file = openat(place, &*new, flags | OFlags::NOFOLLOW, all)
            .map(File::from)
            .map_err(|source| creating(source.into()))?;
        failpoint::point("before new contents are written");
        let written = self
            .keep_mode(place, &file)
            .and_then(|()| file.write_all(contents))
            .and_then(|()| file.sync_all());
        failpoint::point("before new contents are put in place");
        let placed = written.and_then(|()| Ok(renameat(place, &*new, place, &self.name)?));
        if let Err(source) = placed {
            // Best effort: the next write removes it as well.
            let _ = remove();
            return Err(error::io("replace", &self.path, source));
        }
        failpoint::point("after new contents were put in place");
        let synced = open_here(place).and_then(|here| here.sync_all());
        synced.map_err(|source| error::perhaps("sync", &self.directory, source))
    }

    fn keep_mode(&self, place: &OwnedFd, file: &File) -> io::Result<()> {
        match look_in(place, &self.name) {
            Ok(old) => Ok(fchmod(file, Mode::from_raw_mode(old.mode & 0o7777))?),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(source),
        }
    }

    fn side_name(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(SIDE);
        name
    }

    /// The same as a path, for people.
    fn side(&self) -> PathBuf {
        self.directory.join(self.side_name())
    }

    /// Where new contents are written: a name that no other file has, not even one whose fence was
    /// copied from here.
    fn unfinished(&self, id: Id) -> String {
        let digest: [u8; 32] = Sha256::digest(self.name.as_encoded_bytes()).into();
        format!("{UNFINISHED}{}{}", hex(&id), hex(&digest[..8]))
    }
}

/// Sets the names of unfinished contents apart from those of all other files.
type Id = [u8; 8];

/// What stands in the file with the fence.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    fence: Fence,
    /// `None` if an earlier version wrote it.
    id: Option<Id>,
}

/// The right to write, until it is dropped.
struct Entered {
    /// Keeps the lock.
    _side: File,
    /// The directory in which it is.
    place: OwnedFd,
    id: Id,
}

fn fresh_id() -> Result<Id, LockError> {
    let mut id = Id::default();
    getrandom::fill(&mut id).map_err(|source| {
        LockError::internal("the operating system gave no random bytes").with_source(source)
    })?;
    Ok(id)
}

/// Something else has the name that the fence needs.
#[cold]
fn not_ours(side: &Path) -> LockError {
    LockError::invalid_config(format!(
        "{} is not holdtight's: another program's file has the name that the fence needs, and it \
         is left as it is; choose another name for the fenced file",
        side.display()
    ))
}

/// Goes to a directory. It is opened to reach what is in it, and perhaps for no more.
fn arrive(directory: &Path) -> Result<Arrived, LockError> {
    walk_to_file(directory, rustix::process::geteuid().as_raw())
}

/// The same directory, opened to be read and synced.
fn open_here(place: &OwnedFd) -> io::Result<File> {
    Ok(openat(place, c".", AS_DIRECTORY, Mode::empty())?.into())
}

/// Opens a file, never through a link and without waiting.
fn open_file(place: &OwnedFd, name: &OsStr, how: OFlags) -> io::Result<File> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(place, name, flags, Mode::from_raw_mode(0o660))?.into())
}
