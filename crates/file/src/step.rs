//! One step on one key: open its file, lock it for microseconds, make sure that it is still the file under
//! that name, read the record, write the record, unlock.
//!
//! Nothing here waits: a contended file is an answer, and the caller decides how long to try again.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdtight_core::{Key, LockError};

use crate::boot::BootId;
use crate::directory::{Directory, has_name, hex, name_of, open_file};
use crate::error;
use crate::failpoint;
use crate::frame::{Damage, PAGE};
use crate::ledger::unreadable;
use crate::record::{ProcessId, Record};

/// How many files of keys stay open between steps.
const KEPT_OPEN: usize = 64;

/// How long a step may rely on an earlier one that the path of an open file leads to it.
const MOVED: Duration = Duration::from_millis(10);

/// The files of keys, and those of them that are open.
#[derive(Debug)]
pub(crate) struct Files {
    open: Mutex<Open>,
    /// Files that this process made since the last sweep.
    pub(crate) made: AtomicU64,
    next_name: AtomicU64,
    sync: bool,
    /// A sync failed, so nobody knows what is on the disk: nothing more is written.
    poisoned: AtomicBool,
}

#[derive(Debug)]
struct Open {
    files: HashMap<Key, Place>,
    /// A forked child shares its parent's open files, and with them the locks: it must open its own.
    process: u32,
}

/// The file of one key, open. Whoever has it uses it alone: it is taken out while in use, because two
/// threads with one open file would share its lock.
#[derive(Debug)]
struct Place {
    file: File,
    path: PathBuf,
    identity: (u64, u64),
    /// When the path was last seen to lead here.
    seen_at: Option<Instant>,
    /// What was read or written last, so that no step clears four kilobytes first.
    page: Box<[u8; PAGE]>,
}

/// What came of trying to lock a key's file.
#[derive(Debug)]
pub(crate) enum Try<'f> {
    Locked(Page<'f>),
    /// Somebody else is inside a step of this key.
    Contended,
    /// There is no file, and none was to be made.
    Absent,
}

/// What to do for a key that has no file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absent {
    Skip,
    /// Make one, in the name of this process.
    Make {
        process: ProcessId,
        boot: BootId,
        now: u64,
    },
}

/// The locked file of one key. Dropping it unlocks.
#[derive(Debug)]
pub(crate) struct Page<'f> {
    files: &'f Files,
    place: Option<Place>,
    key: Key,
    written: bool,
}

impl Files {
    pub(crate) fn new(sync: bool) -> Self {
        Self {
            open: Mutex::new(Open { files: HashMap::new(), process: std::process::id() }),
            made: AtomicU64::new(0),
            next_name: AtomicU64::new(0),
            sync,
            poisoned: AtomicBool::new(false),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &Key) -> Option<Place> {
        let mut open = self.open();
        if open.process != std::process::id() {
            open.files.clear();
            open.process = std::process::id();
        }
        open.files.remove(key)
    }

    fn keep(&self, key: &Key, place: Place) {
        let mut open = self.open();
        let replaced = if open.files.len() >= KEPT_OPEN && !open.files.contains_key(key) {
            let any = open.files.keys().next().cloned();
            any.and_then(|any| open.files.remove(&any))
        } else {
            None
        };
        let double = open.files.insert(key.clone(), place);
        drop(open);
        // Closing is a system call: not under the mutex.
        drop((replaced, double));
    }

    /// Closes all files that are not in use, so that removed ones take no space.
    pub(crate) fn close_all(&self) {
        let files = std::mem::take(&mut self.open().files);
        drop(files);
    }

    /// Locks the file of `key`, if that is possible at once.
    pub(crate) fn try_lock(
        &self,
        directory: &Directory,
        key: &Key,
        absent: Absent,
    ) -> Result<Try<'_>, LockError> {
        self.try_lock_place(directory, key, absent).map_err(|error| error.with_key(key))
    }

    fn try_lock_place(
        &self,
        directory: &Directory,
        key: &Key,
        absent: Absent,
    ) -> Result<Try<'_>, LockError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(LockError::unavailable(
                "an earlier write could not be brought to the disk, so nothing more is written; \
                 check the disk and open the store again",
            ));
        }
        let mut kept = self.take(key);
        // Each turn means that a sweep removed the file in between: more than a few cannot happen.
        for _ in 0..64 {
            let place = match kept.take() {
                Some(place) => place,
                None => match self.open_or_make(directory, key, absent)? {
                    Some(place) => place,
                    None => return Ok(Try::Absent),
                },
            };
            match place.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    self.keep(key, place);
                    return Ok(Try::Contended);
                }
                Err(TryLockError::Error(source)) => {
                    return Err(error::io("lock", &place.path, source));
                }
            }
            let mut page =
                Page { files: self, place: Some(place), key: key.clone(), written: false };
            if page.is_current()? {
                return Ok(Try::Locked(page));
            }
            page.forget();
        }
        Err(LockError::unavailable("the file of this key keeps disappearing; who removes it?"))
    }

    fn open_or_make(
        &self,
        directory: &Directory,
        key: &Key,
        absent: Absent,
    ) -> Result<Option<Place>, LockError> {
        let path = directory.record(&name_of(key));
        for _ in 0..64 {
            match open_file(&path, true) {
                Ok(file) => return Place::new(file, path).map(Some),
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(error::io("open", &path, source)),
            }
            let Absent::Make { process, boot, now } = absent else { return Ok(None) };
            let made =
                self.make(directory, process, &Record::fresh(key.clone(), boot, now), &path)?;
            if let Some(file) = made {
                return Place::new(file, path).map(Some);
            }
        }
        Err(LockError::unavailable("the file of this key keeps disappearing; who removes it?"))
    }

    /// Makes a key's file complete and only then visible: an empty one would be taken for damage.
    fn make(
        &self,
        directory: &Directory,
        process: ProcessId,
        record: &Record,
        path: &Path,
    ) -> Result<Option<File>, LockError> {
        let number = self.next_name.fetch_add(1, Ordering::Relaxed);
        let made = directory.new_files().join(format!("{}-{number}", hex(&process)));
        failpoint::point("before a new file is made");
        let file = match directory.create_file(&made) {
            Ok(file) => file,
            Err(source) => {
                directory.check_still_there()?;
                return Err(error::io("create", &made, source));
            }
        };
        failpoint::point("before a new file is written");
        let mut written = file.write_all_at(record.encode(&mut [0; PAGE]), 0);
        if self.sync {
            written = written.and_then(|()| file.sync_all());
        }
        if let Err(source) = written {
            let _ = fs::remove_file(&made);
            return Err(error::io("write", &made, source));
        }
        if !directory.place(&made, path)? {
            return Ok(None);
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        if self.sync {
            for directory in path.ancestors().skip(1).take(2) {
                File::open(directory)
                    .and_then(|directory| directory.sync_all())
                    .map_err(|source| error::io("sync", directory, source))?;
            }
        }
        Ok(Some(file))
    }
}

impl Place {
    fn new(file: File, path: PathBuf) -> Result<Self, LockError> {
        let found = file.metadata().map_err(|source| error::io("read", &path, source))?;
        if !found.is_file() {
            return Err(LockError::internal(format!(
                "{} is not a file; remove it: nothing but holdtight writes there",
                path.display()
            )));
        }
        let identity = (found.dev(), found.ino());
        Ok(Self { file, identity, path, seen_at: None, page: Box::new([0; PAGE]) })
    }
}

impl Page<'_> {
    fn place(&self) -> Result<&Place, LockError> {
        self.place.as_ref().ok_or_else(after_the_end)
    }

    fn place_mut(&mut self) -> Result<&mut Place, LockError> {
        self.place.as_mut().ok_or_else(after_the_end)
    }

    /// Whether the path still leads to the file that is locked, and not to a later one of the same name.
    ///
    /// A file that has no name any more was swept away, or removed from outside: seen in every step. That the
    /// whole directory was moved elsewhere, or the file, costs a walk along the path: seen within [`MOVED`].
    fn is_current(&mut self) -> Result<bool, LockError> {
        let place = self.place_mut()?;
        let finding = |source| error::io("find", &place.path, source);
        if let Some(seen_at) = place.seen_at
            && seen_at.elapsed() < MOVED
        {
            return has_name(&place.file).map_err(finding);
        }
        match fs::symlink_metadata(&place.path) {
            Ok(found) => {
                place.seen_at = Some(Instant::now());
                Ok((found.dev(), found.ino()) == place.identity)
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(finding(source)),
        }
    }

    /// What the file says.
    pub(crate) fn read(&mut self) -> Result<Record, LockError> {
        let key = self.key.clone();
        let place = self.place_mut()?;
        let length = place
            .file
            .read_at(&mut *place.page, 0)
            .map_err(|source| error::io("read", &place.path, source).with_key(&key))?;
        let record = Record::decode_of(&place.page[..length], Some(&key))
            .map_err(|damage| unreadable(&place.path, damage).with_key(&key))?;
        check_key(&record, &key, &place.path)?;
        Ok(record)
    }

    /// Replaces what the file says, by one write inside one page.
    pub(crate) fn write(&mut self, record: &mut Record) -> Result<(), LockError> {
        record.number = record.number.wrapping_add(1);
        let place = self.place_mut()?;
        let bytes = record.encode(&mut place.page);
        failpoint::point("before a record is written");
        let outcome = place.file.write_at(bytes, 0);
        failpoint::point("after a record was written");
        match outcome {
            Ok(length) if length == bytes.len() => {
                self.written = true;
                Ok(())
            }
            outcome => {
                // Cut short by a full disk. The two copies say which record counts now.
                let source = outcome.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into());
                let found = self.read();
                let path = &self.place()?.path;
                let failed = match found {
                    Ok(found) if found == *record => return Ok(()),
                    Ok(_) => error::io("write", path, source),
                    Err(_) => error::perhaps("write", path, source),
                };
                Err(failed.with_key(&self.key))
            }
        }
    }

    /// Unlocks, and with `?sync=1` waits for the disk. Others may go on meanwhile: what they build on this
    /// write is in the same file, and reaches the disk no earlier.
    pub(crate) fn finish(mut self) -> Result<(), LockError> {
        let Some(place) = self.place.take() else { return Ok(()) };
        failpoint::point("before a step unlocks");
        if let Err(source) = place.file.unlock() {
            // Closing it, which drops `place`, unlocks as well.
            return Err(error::perhaps("unlock", &place.path, source).with_key(&self.key));
        }
        if self.written
            && self.files.sync
            && let Err(source) = place.file.sync_data()
        {
            self.files.poisoned.store(true, Ordering::Release);
            return Err(error::perhaps("sync", &place.path, source).with_key(&self.key));
        }
        self.files.keep(&self.key, place);
        Ok(())
    }

    /// Removes the file. Whoever has it open finds out when it has locked it.
    pub(crate) fn remove(self) -> Result<(), LockError> {
        let path = &self.place()?.path;
        failpoint::point("before a key's file is removed");
        fs::remove_file(path).map_err(|source| error::io("remove", path, source))?;
        failpoint::point("after a key's file was removed");
        self.forget();
        Ok(())
    }

    /// Unlocks and closes a file that is not under its name any more.
    fn forget(mut self) {
        if let Some(place) = self.place.take() {
            let _ = place.file.unlock();
        }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take()
            && place.file.unlock().is_ok()
        {
            self.files.keep(&self.key, place);
        }
    }
}

#[cold]
fn after_the_end() -> LockError {
    LockError::internal("a step went on after its end")
}

/// Reads a key's file without locking it: for those who only look. `None` if there is none.
pub(crate) fn peek(path: &Path) -> Result<Option<Record>, LockError> {
    let file = match open_file(path, false) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(error::io("open", path, source)),
    };
    let reading = |source| error::io("read", path, source);
    if !file.metadata().map_err(reading)?.is_file() {
        return Ok(None);
    }
    let mut damage = Damage::Unreadable;
    // A record that is being written may look damaged for the microsecond that it takes.
    for attempt in 0..20 {
        let mut page = [0; PAGE];
        let length = file.read_at(&mut page, 0).map_err(reading)?;
        match Record::decode(&page[..length]) {
            Ok(record) => return Ok(Some(record)),
            Err(found) => damage = found,
        }
        if attempt > 5 {
            std::thread::yield_now();
        }
    }
    Err(unreadable(path, damage))
}

/// A record in the wrong place says nothing about the key whose place it is.
pub(crate) fn check_key(record: &Record, key: &Key, path: &Path) -> Result<(), LockError> {
    if record.key == *key {
        return Ok(());
    }
    Err(LockError::internal(format!(
        "{} holds the record of another key, so nothing is granted on its word; was it copied there?",
        path.display()
    ))
    .with_key(key))
}
