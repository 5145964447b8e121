//! The open file of one key, and what this process knows of its contents.
//!
//! A record that nobody else has written since is not decoded again: the first copy in the file is
//! compared, byte for byte, with what was read or written last. Who may use a file, and when, is
//! for `step`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use holdtight_core::{Key, LockError};

use crate::directory::{Directory, MOVED};
use crate::error;
use crate::failpoint;
use crate::frame::{COPY, PAGE};
use crate::ledger::unreadable;
use crate::look::{look_at, look_up};
use crate::record::Record;

/// The file of one key, open.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Which file it is, once it was looked at.
    identity: Option<(u64, u64)>,
    /// When the path was last seen to lead here, on the store's clock.
    seen_at: u64,
    /// What was read or written last.
    page: [u8; PAGE],
    /// How long the frame is that was written last, if all of it was: it stands in both halves of
    /// the page.
    frame: usize,
    /// What that frame says.
    known: Option<Record>,
}

impl Place {
    /// A file that was just opened, at the time `now`, by its path.
    pub(crate) fn new(file: File, path: PathBuf, now: u64) -> Box<Self> {
        Box::new(Self {
            file,
            path,
            identity: None,
            seen_at: now,
            page: [0; PAGE],
            frame: 0,
            known: None,
        })
    }

    /// Whether the path still leads to this file, which is locked, and not to a later one of the
    /// same name.
    ///
    /// A file that has no name any more was swept away, or removed from outside: seen in every
    /// step. That the whole directory was moved elsewhere, or the file, costs a walk along the
    /// path: seen within [`MOVED`].
    pub(crate) fn is_current(
        &mut self,
        directory: &Directory,
        now: u64,
    ) -> Result<bool, LockError> {
        let finding = |source| error::io("find", &self.path, source);
        let stale = now.saturating_sub(self.seen_at) >= MOVED;
        if !stale || self.identity.is_none() {
            let found = look_at(&self.file).map_err(finding)?;
            directory.check_file(&found, &self.path)?;
            self.identity = Some(found.identity);
            if !stale || !found.is_named {
                return Ok(found.is_named);
            }
        }
        match look_up(&self.path) {
            Ok(there) => {
                self.seen_at = now;
                Ok(Some(there.identity) == self.identity)
            }
            Err(source)
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(source) => Err(finding(source)),
        }
    }

    /// What the file says. The caller may change it, so it is not known here any more.
    pub(crate) fn read(&mut self, key: &Key) -> Result<Record, LockError> {
        if let Some(record) = self.known.take() {
            let (first, second) = self.page.split_at_mut(COPY);
            let (first, second) = (&mut first[..self.frame], &second[..self.frame]);
            if self.file.read_at(first, 0).is_ok_and(|length| length == second.len())
                && *first == *second
            {
                return Ok(record);
            }
        }
        self.frame = 0;
        let length = self
            .file
            .read_at(&mut self.page, 0)
            .map_err(|source| error::io("read", &self.path, source).with_key(key))?;
        let mut record = Record::decode_of(&self.page[..length], Some(key))
            .map_err(|damage| unreadable(&self.path, damage).with_key(key))?;
        check_key(&record, key, &self.path)?;
        if record.may_have_rest() {
            let file = &self.file;
            record.add_rest(|to, at| file.read_exact_at(to, PAGE as u64 + at).is_ok());
        }
        Ok(record)
    }

    /// Replaces what the file says, by one write inside one page.
    pub(crate) fn write(&mut self, record: &mut Record) -> Result<(), LockError> {
        (self.known, self.frame) = (None, 0);
        record.number = record.number.wrapping_add(1);
        let bytes = record.encode(&mut self.page);
        if let Some(rest) = record.encode_rest() {
            // If it cannot be written, it does not belong to what is, and nobody takes it for that.
            let _ = self.file.write_all_at(&rest, PAGE as u64);
        }
        failpoint::point("before a record is written");
        let outcome = self.file.write_at(bytes, 0);
        failpoint::point("after a record was written");
        match outcome {
            Ok(length) if length == bytes.len() => {
                self.frame = length - COPY;
                Ok(())
            }
            outcome => {
                // Cut short by a full disk. The two copies say which record counts now.
                let source = outcome.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into());
                let key = record.key.clone();
                let failed = match self.read(&key) {
                    Ok(found) if found == *record => return Ok(()),
                    Ok(_) => error::io("write", &self.path, source),
                    Err(_) => error::perhaps("write", &self.path, source),
                };
                Err(failed.with_key(&key))
            }
        }
    }

    /// Keeps what was just written, so that the next step need not decode it.
    pub(crate) fn remember(&mut self, written: Record) {
        if self.frame > 0 {
            self.known = Some(written);
        }
    }
}

/// A record in the wrong place says nothing about the key whose place it is.
pub(crate) fn check_key(record: &Record, key: &Key, path: &Path) -> Result<(), LockError> {
    if record.key == *key {
        return Ok(());
    }
    Err(misplaced(path).with_key(key))
}

/// A record that is not where it belongs.
#[cold]
pub(crate) fn misplaced(path: &Path) -> LockError {
    LockError::internal(format!(
        "{} holds the record of another key, so nothing is granted on its word; was it copied there?",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::BootId;

    const BOOT: BootId = BootId { id: [1; 16], genuine: true };

    fn key() -> Key {
        Key::new("k").unwrap()
    }

    /// A file with a fresh record, and so many openings of it.
    fn openings<const N: usize>(place: &tempfile::TempDir) -> [Box<Place>; N] {
        let path = place.path().join("record");
        std::fs::write(&path, Record::fresh(key(), BOOT, 0).encode(&mut [0; PAGE])).unwrap();
        [(); N].map(|()| {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            Place::new(file, path.clone(), 0)
        })
    }

    /// What a step does that mints `fence`.
    fn mint(place: &mut Place, fence: u64) {
        let mut record = place.read(&key()).unwrap();
        record.fence = fence;
        place.write(&mut record).unwrap();
        place.remember(record);
    }

    #[test]
    fn what_others_wrote_since_is_read_and_not_remembered() {
        let place = tempfile::tempdir().unwrap();
        let [mut one, mut two] = openings(&place);
        for fence in 1..50 {
            let (writer, reader) =
                if fence % 3 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
            mint(writer, fence);
            assert!(writer.known.is_some(), "it remembers, until it is a reader");
            assert_eq!(reader.read(&key()).unwrap().fence, fence);
        }
    }

    #[test]
    fn a_change_that_was_not_written_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let [mut one] = openings(&place);
        mint(&mut one, 7);
        let mut record = one.read(&key()).unwrap();
        record.fence = 8;
        drop(record);
        assert_eq!(one.read(&key()).unwrap().fence, 7);
    }

    #[test]
    fn damage_is_seen_by_who_remembers_and_one_whole_copy_is_enough() {
        let place = tempfile::tempdir().unwrap();
        let [mut one] = openings(&place);
        mint(&mut one, 7);
        let whole = std::fs::read(&one.path).unwrap();
        let frame = one.frame;
        for at in [0, 5, 12, frame - 1, COPY, COPY + frame - 1] {
            mint(&mut one, 7);
            let mut damaged = std::fs::read(&one.path).unwrap();
            damaged[at] ^= 0x41;
            std::fs::write(&one.path, &damaged).unwrap();
            assert_eq!(one.read(&key()).unwrap().fence, 7, "byte {at}");
            std::fs::write(&one.path, &whole).unwrap();
        }
        for length in [0, 3, frame - 1] {
            mint(&mut one, 7);
            std::fs::write(&one.path, &whole[..length]).unwrap();
            assert!(one.read(&key()).is_err(), "cut to {length}");
            std::fs::write(&one.path, &whole).unwrap();
        }
    }

    #[test]
    fn a_file_that_lost_its_name_or_gave_it_away_is_not_current() {
        let place = tempfile::tempdir().unwrap();
        let store = tempfile::tempdir().unwrap();
        let directory = Directory::open(store.path()).unwrap();
        let [mut one, mut two] = openings(&place);
        assert!(
            one.is_current(&directory, 1).unwrap() && one.is_current(&directory, MOVED).unwrap()
        );
        assert!(two.is_current(&directory, MOVED).unwrap(), "not looked at before");
        // Another file under the same name, while this one has a second one: seen by the walk
        // alone.
        std::fs::hard_link(&one.path, place.path().join("second")).unwrap();
        std::fs::rename(place.path().join("second"), place.path().join("elsewhere")).unwrap();
        std::fs::remove_file(&one.path).unwrap();
        std::fs::write(&one.path, b"").unwrap();
        assert!(!one.is_current(&directory, 2 * MOVED).unwrap());
        std::fs::remove_file(place.path().join("elsewhere")).unwrap();
        assert!(!two.is_current(&directory, MOVED + 1).unwrap(), "no name is left: seen at once");
    }
}
