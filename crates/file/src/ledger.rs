//! The facts about the whole store, in one file: which boot used it last, and the highest fence
//! swept away.
//!
//! Read without a lock, because both copies of a frame cannot be caught half-written by a patient
//! reader; written only under its lock, by a sweep or by the first process after a boot.

use std::fs::File;
use std::fs::TryLockError;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError as InTurn};
use std::time::Duration;

use holdtight_core::LockError;

use crate::boot::BootId;
use crate::directory::{Directory, LEDGER};
use crate::error;
use crate::failpoint;
use crate::frame::{self, Damage, Magic, PAGE, Writer};
use crate::look::look_at;
use crate::names::hex;

/// The first bytes of a ledger.
pub(crate) const MAGIC: Magic = *b"HTst";

/// What the ledger says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Counts the writes.
    pub(crate) number: u64,
    pub(crate) boot: BootId,
    pub(crate) written_at: u64,
    /// No key without a record ever had a fence above this.
    pub(crate) high_water: u64,
    /// When the last sweep of the whole store ended, on this boot's clock.
    pub(crate) swept_at: u64,
}

/// The open ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    path: PathBuf,
    /// The file's lock belongs to the open file, which all threads of a store share: it does not
    /// keep them apart.
    turn: Mutex<()>,
    /// Whether this process may look, and not write.
    pub(crate) read_only: bool,
}

/// The ledger, locked: one sweep at a time.
#[derive(Debug)]
pub(crate) struct Locked<'l> {
    ledger: &'l Ledger,
    /// What it says, since it was locked.
    pub(crate) facts: Facts,
    /// Given up after the file's lock.
    _turn: MutexGuard<'l, ()>,
}

impl Ledger {
    /// Opens the ledger, or makes one that says that nothing happened yet.
    pub(crate) fn open(directory: &Directory, boot: BootId, now: u64) -> Result<Self, LockError> {
        let path = directory.root.path_of(LEDGER);
        for _ in 0..16 {
            let opened = match directory.root.open_file(LEDGER, true) {
                // Whoever may only look needs no more.
                Err(source) if is_denied(&source) => {
                    directory.root.open_file(LEDGER, false).map(|file| (file, true))
                }
                opened => opened.map(|file| (file, false)),
            };
            match opened {
                Ok((file, read_only)) => {
                    let found =
                        look_at(&file).map_err(|source| error::io("open", &path, source))?;
                    directory.check_ledger(&found, &path)?;
                    return Ok(Self { file, path, turn: Mutex::new(()), read_only });
                }
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => {
                    // A link, a socket or a directory cannot even be opened as a file.
                    if let Ok(found) = directory.root.look(LEDGER) {
                        directory.check_ledger(&found, &path)?;
                    }
                    return Err(error::io("open", &path, source));
                }
            }
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|source| {
                LockError::internal("the operating system gave no random bytes").with_source(source)
            })?;
            let made = format!("store-{}", hex(&random));
            let facts = Facts { number: 0, boot, written_at: now, high_water: 0, swept_at: now };
            let creating = |source| error::io("create", &directory.new.path_of(&made), source);
            failpoint::point("before the ledger is made");
            let file = directory.new.create_file(&made).map_err(creating)?;
            // Once in the life of a store: an empty ledger must not be what a power cut leaves.
            let written =
                file.write_all_at(facts.encode(&mut [0; PAGE]), 0).and_then(|()| file.sync_all());
            if let Err(source) = written {
                let _ = directory.new.remove(&made);
                return Err(creating(source));
            }
            failpoint::point("before the ledger gets its place");
            match directory.new.move_unless_taken(&made, &directory.root, LEDGER) {
                Ok(()) => {
                    failpoint::point("after the ledger got its place");
                    let _ = directory.root.sync();
                    return Ok(Self { file, path, turn: Mutex::new(()), read_only: false });
                }
                // Somebody else's ledger came first, and its sweep may have taken ours away.
                Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                    let _ = directory.new.remove(&made);
                }
                Err(_) if directory.root.look(LEDGER).is_ok() => {}
                Err(source) => return Err(error::io("create", &path, source)),
            }
        }
        Err(LockError::unavailable(format!("{} keeps disappearing", path.display())))
    }

    /// What the ledger says now.
    pub(crate) fn read(&self) -> Result<Facts, LockError> {
        let mut damage = Damage::Unreadable;
        // A frame that is being written may look damaged for the microsecond that it takes.
        for attempt in 0..100 {
            let mut page = [0; PAGE];
            let length = self
                .file
                .read_at(&mut page, 0)
                .map_err(|source| error::io("read", &self.path, source))?;
            match Facts::decode(&page[..length]) {
                Ok(facts) => return Ok(facts),
                Err(Damage::Newer) => {
                    damage = Damage::Newer;
                    break;
                }
                Err(other) => damage = other,
            }
            if attempt > 10 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Err(unreadable(&self.path, damage))
    }

    /// Takes the ledger for writing; `None` if somebody else has it.
    pub(crate) fn try_lock(&self) -> Result<Option<Locked<'_>>, LockError> {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            // The mutex guards no data of its own.
            Err(InTurn::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(InTurn::WouldBlock) => return Ok(None),
        };
        match self.file.try_lock() {
            Ok(()) => match self.read() {
                Ok(facts) => Ok(Some(Locked { ledger: self, facts, _turn: turn })),
                Err(error) => {
                    let _ = self.file.unlock();
                    Err(error)
                }
            },
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(error::io("lock", &self.path, source)),
        }
    }
}

/// Whether a file could not be opened for writing because this user may not, or nobody may.
fn is_denied(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

impl Locked<'_> {
    /// Writes new facts, and waits until they are on the disk: what follows relies on them.
    pub(crate) fn write(&mut self, facts: Facts) -> Result<(), LockError> {
        let facts = Facts {
            number: self.facts.number + 1,
            high_water: facts.high_water.max(self.facts.high_water),
            ..facts
        };
        let Ledger { file, path, .. } = self.ledger;
        failpoint::point("before the ledger is written");
        file.write_all_at(facts.encode(&mut [0; PAGE]), 0)
            .map_err(|source| error::io("write", path, source))?;
        failpoint::point("after the ledger was written");
        file.sync_data().map_err(|source| error::perhaps("sync", path, source))?;
        self.facts = facts;
        Ok(())
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // By hand and not by closing: a forked child may have the same open file.
        let _ = self.ledger.file.unlock();
    }
}

impl Facts {
    fn encode<'p>(&self, page: &'p mut [u8; PAGE]) -> &'p [u8] {
        let mut to = Writer::new(page);
        to.put(&self.boot.id);
        to.put(&[u8::from(self.boot.genuine)]);
        for number in [self.written_at, self.high_water, self.swept_at] {
            to.put(&number.to_le_bytes());
        }
        to.finish(MAGIC, self.number)
    }

    fn decode(page: &[u8]) -> Result<Self, Damage> {
        let (number, payload) = frame::read(page, MAGIC)?;
        let payload: &[u8; 41] = payload.try_into().map_err(|_| Damage::Unreadable)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&payload[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let mut id = [0; 16];
        id.copy_from_slice(&payload[..16]);
        Ok(Self {
            number,
            boot: BootId { id, genuine: payload[16] == 1 },
            written_at: word(17),
            high_water: word(25),
            swept_at: word(33),
        })
    }
}

/// What to say about a file that cannot be relied on.
#[cold]
pub(crate) fn unreadable(path: &std::path::Path, damage: Damage) -> LockError {
    match damage {
        Damage::Newer => LockError::unsupported(format!(
            "{} was written by a later version of holdtight; upgrade this program",
            path.display()
        )),
        Damage::Unreadable => LockError::internal(format!(
            "{} is damaged, so nothing is granted on its word; if nobody can hold a lock that it \
             guards, remove it",
            path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId { id: [1; 16], genuine: true };

    #[test]
    fn the_high_water_mark_never_falls_and_survives_any_damaged_byte() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let ledger = Ledger::open(&directory, BOOT, 1).unwrap();
        let mut locked = ledger.try_lock().unwrap().unwrap();
        let facts = locked.facts;
        locked.write(Facts { high_water: 500, ..facts }).unwrap();
        locked.write(Facts { high_water: 3, swept_at: 9, ..facts }).unwrap();
        let other = Ledger::open(&directory, BOOT, 1).unwrap();
        assert!(other.try_lock().unwrap().is_none());
        assert!(
            ledger.try_lock().unwrap().is_none(),
            "nor does another thread of this store get it"
        );
        drop(locked);
        assert!(other.try_lock().unwrap().is_some());
        let whole = std::fs::read(&ledger.path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xFF;
            std::fs::write(&ledger.path, &damaged).unwrap();
            let facts = ledger.read().unwrap();
            assert_eq!((facts.high_water, facts.swept_at), (500, 9));
        }
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        std::fs::write(directory.root.path_of(LEDGER), b"nonsense").unwrap();
        let error = Ledger::open(&directory, BOOT, 1).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("/store is damaged"), "{error}");
    }
}
