//! One step on one key: open its file, lock it for microseconds, make sure that it is still the
//! file under that name, read the record, write the record, unlock.
//!
//! Nothing here waits: a contended file is an answer, and the caller decides how long to try again.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdtight_core::{Key, LockError};
use rustix::io::Errno;

use crate::boot::Boot;
use crate::directory::{Directory, MOVED, Whereabouts};
use crate::error;
use crate::failpoint;
use crate::folder::Folder;
use crate::frame::{Damage, PAGE};
use crate::kept::Kept;
use crate::ledger::unreadable;
use crate::look::look_at;
use crate::names::{Name, hex, name_of};
use crate::place::Place;
use crate::record::{ProcessId, Record};

/// The files of keys, and those of them that are open.
#[derive(Debug)]
pub(crate) struct Files {
    open: Kept<Box<Place>>,
    boot: Boot,
    /// Files that this process made since the last sweep.
    pub(crate) made: AtomicU64,
    next_name: AtomicU64,
    sync: bool,
    /// A sync failed, so nobody knows what is on the disk: nothing more is written.
    poisoned: AtomicBool,
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
    Make(ProcessId),
}

/// The locked file of one key. Dropping it unlocks.
#[derive(Debug)]
pub(crate) struct Page<'f> {
    files: &'f Files,
    place: Option<(Key, Box<Place>)>,
    /// When it was locked: what is decided inside must not rely on an earlier time.
    pub(crate) locked_at: u64,
    written: bool,
}

impl Files {
    pub(crate) fn new(sync: bool, boot: Boot) -> Self {
        Self {
            open: Kept::new(std::process::id()),
            boot,
            made: AtomicU64::new(0),
            next_name: AtomicU64::new(0),
            sync,
            poisoned: AtomicBool::new(false),
        }
    }

    /// Closes all files that are not in use, so that removed ones take no space.
    pub(crate) fn close_all(&self) {
        self.open.clear();
    }

    /// Opens a file. Where this process may have no more of them, those that wait for their next
    /// step make room.
    fn with_room<T>(&self, open: impl Fn() -> Result<T, LockError>) -> Result<T, LockError> {
        match open() {
            Err(error) if is_too_many(&error) && self.open.clear() > 0 => open(),
            opened => opened,
        }
    }

    /// Locks the file of `key`, if that is possible at once. `process` is the id of this process.
    pub(crate) fn try_lock(
        &self,
        directory: &Directory,
        key: &Key,
        process: u32,
        absent: Absent,
    ) -> Result<Try<'_>, LockError> {
        self.try_lock_place(directory, key, process, absent).map_err(|error| error.with_key(key))
    }

    fn try_lock_place(
        &self,
        directory: &Directory,
        key: &Key,
        process: u32,
        absent: Absent,
    ) -> Result<Try<'_>, LockError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(LockError::unavailable(
                "an earlier write could not be brought to the disk, so nothing more is written; \
                 check the disk and open the store again",
            ));
        }
        let mut kept = self.open.take(key, process);
        // Each turn means that a sweep removed the file in between: more than a few cannot happen.
        for _ in 0..64 {
            let (key, mut place) = match kept.take() {
                Some(kept) => kept,
                None => match self.open_or_make(directory, key, absent)? {
                    Some(place) => (key.clone(), place),
                    None => return Ok(Try::Absent),
                },
            };
            match place.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    self.open.keep(key, place);
                    return Ok(Try::Contended);
                }
                Err(TryLockError::Error(source)) => {
                    return Err(error::io("lock", &place.path, source));
                }
            }
            let locked_at = self.boot.now();
            let current = place.is_current(directory, locked_at);
            let page = Page { files: self, place: Some((key, place)), locked_at, written: false };
            if matches!(current, Ok(true)) {
                return Ok(Try::Locked(page));
            }
            // Whatever is wrong with it, the next step opens what is there then.
            page.forget();
            current?;
            directory.seen(locked_at.saturating_sub(MOVED));
        }
        Err(LockError::unavailable("the file of this key keeps disappearing; who removes it?"))
    }

    fn open_or_make(
        &self,
        directory: &Directory,
        key: &Key,
        absent: Absent,
    ) -> Result<Option<Box<Place>>, LockError> {
        let name = name_of(key);
        let path = directory.path_of(&name);
        for _ in 0..64 {
            // Before it is opened: this is when the path is known to lead there.
            let now = self.boot.now();
            let seen_at = match (directory.check_lately(now), absent) {
                (Ok(seen_at), _) => seen_at,
                // What was held in a directory that is not there any more is not held.
                (Err(_), Absent::Skip)
                    if directory.whereabouts().is_ok_and(|at| at != Whereabouts::Here) =>
                {
                    return Ok(None);
                }
                (Err(error), _) => return Err(error),
            };
            if let Some(file) = self.with_room(|| directory.open_record(&name, true))? {
                return Ok(Some(Place::new(file, path, seen_at)));
            }
            let Absent::Make(process) = absent else { return Ok(None) };
            let record = Record::fresh(key.clone(), self.boot.id, now);
            if let Some(file) = self.make(directory, process, &record, &name)? {
                return Ok(Some(Place::new(file, path, seen_at)));
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
        name: &Name,
    ) -> Result<Option<File>, LockError> {
        let number = self.next_name.fetch_add(1, Ordering::Relaxed);
        let made = format!("{}-{number}", hex(&process));
        let new = &directory.new;
        let creating = |source| error::io("create", &new.path_of(&made), source);
        failpoint::point("before a new file is made");
        let create = || new.create_file(&made).map_err(creating);
        let file = match self.with_room(create) {
            Ok(file) => file,
            Err(error) => {
                directory.check_still_there()?;
                return Err(error);
            }
        };
        failpoint::point("before a new file is written");
        let mut written = file.write_all_at(record.encode(&mut [0; PAGE]), 0);
        if self.sync {
            written = written.and_then(|()| file.sync_all());
        }
        if let Err(source) = written {
            let _ = new.remove(&made);
            return Err(error::io("write", &new.path_of(&made), source));
        }
        failpoint::point("before a new file gets its place");
        let placed = self.with_room(|| directory.place_record(&made, name));
        failpoint::point("after a new file got its place");
        if !matches!(placed, Ok(Some(_))) {
            let _ = new.remove(&made);
        }
        let Some(part) = placed? else { return Ok(None) };
        self.made.fetch_add(1, Ordering::Relaxed);
        if self.sync {
            for folder in [&part, &directory.keys] {
                folder.sync().map_err(|source| error::io("sync", folder.path(), source))?;
            }
        }
        Ok(Some(file))
    }
}

impl Page<'_> {
    fn place(&mut self) -> Result<(&Key, &mut Place), LockError> {
        match &mut self.place {
            Some((key, place)) => Ok((key, place)),
            None => Err(LockError::internal("a step went on after its end")),
        }
    }

    /// What the file says.
    pub(crate) fn read(&mut self) -> Result<Record, LockError> {
        let (key, place) = self.place()?;
        place.read(key)
    }

    /// Replaces what the file says.
    pub(crate) fn write(&mut self, record: &mut Record) -> Result<(), LockError> {
        self.place()?.1.write(record)?;
        self.written = true;
        Ok(())
    }

    /// Keeps what was just written, so that the next step need not decode it.
    pub(crate) fn remember(&mut self, written: Record) {
        if let Some((_, place)) = &mut self.place {
            place.remember(written);
        }
    }

    /// Unlocks, and with `?sync=1` waits for the disk. Others may go on meanwhile: what they build
    /// on this write is in the same file, and reaches the disk no earlier.
    pub(crate) fn finish(mut self) -> Result<(), LockError> {
        let Some((key, place)) = self.place.take() else { return Ok(()) };
        failpoint::point("before a step unlocks");
        if let Err(source) = place.file.unlock() {
            // Closing it, which drops `place`, unlocks as well.
            return Err(error::perhaps("unlock", &place.path, source).with_key(&key));
        }
        if self.written
            && self.files.sync
            && let Err(source) = place.file.sync_data()
        {
            self.files.poisoned.store(true, Ordering::Release);
            return Err(error::perhaps("sync", &place.path, source).with_key(&key));
        }
        self.files.open.keep(key, place);
        Ok(())
    }

    /// Removes the file, which has this name in `part`. Whoever has it open finds out when it has
    /// locked it.
    pub(crate) fn remove(mut self, part: &Folder, name: &OsStr) -> Result<(), LockError> {
        let path = &self.place()?.1.path;
        failpoint::point("before a key's file is removed");
        part.remove(name).map_err(|source| error::io("remove", path, source))?;
        failpoint::point("after a key's file was removed");
        self.forget();
        Ok(())
    }

    /// Unlocks and closes a file that is not under its name any more.
    fn forget(mut self) {
        if let Some((_, place)) = self.place.take() {
            let _ = place.file.unlock();
        }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if let Some((key, place)) = self.place.take()
            && place.file.unlock().is_ok()
        {
            self.files.open.keep(key, place);
        }
    }
}

/// Whether a file could not be opened because this process, or the machine, has too many open.
fn is_too_many(error: &LockError) -> bool {
    let source = error.underlying().and_then(|source| source.downcast_ref());
    let code = source.and_then(io::Error::raw_os_error).map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Reads a key's file without locking it: for those who only look. `None` if there is none.
pub(crate) fn peek(directory: &Directory, name: &Name) -> Result<Option<Record>, LockError> {
    let Some(file) = directory.open_record(name, false)? else { return Ok(None) };
    let path = directory.path_of(name);
    let path = path.as_path();
    let reading = |source| error::io("read", path, source);
    directory.check_file(&look_at(&file).map_err(reading)?, path)?;
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
