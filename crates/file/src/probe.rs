//! What this store promises as it is set up here: read from the directory and all that is in it,
//! the clock and the file system.

use std::ffi::OsStr;
use std::path::PathBuf;

use holdtight_core::{Finding, Guarantees, Level, LockError};

use crate::directory::{Directory, LEDGER};
use crate::error;
use crate::folder::Folder;
use crate::names::{InLive, InNew, name_of, part_of, record_in};
use crate::place::misplaced;
use crate::step::peek;
use crate::store::FileStore;
use crate::sweep::{names, parts, records};
use crate::trust::Access;

impl FileStore {
    /// Looks at everything that decides safety.
    pub(crate) fn examine(&self) -> Result<Guarantees, LockError> {
        self.directory.check_still_there()?;
        let facts = self.ledger.read()?;
        let mut findings = vec![self.scope(), self.access()];
        findings.extend(self.rights());
        findings.extend(self.records_found()?);
        findings.extend(self.foreign_found()?);
        findings.extend([self.durability(), self.clock(), self.wake_ups()]);
        tracing::debug!(high_water = facts.high_water, "probed the file store");
        Ok(Guarantees::new(error::name_of(self.directory.path()), findings))
    }

    fn scope(&self) -> Finding {
        Finding::new(
            Level::Good,
            "file system",
            format!(
                "{}: excludes all processes of this machine, in every container that mounts this \
                 directory, and nobody on other machines",
                self.directory.file_system.name
            ),
        )
    }

    /// The records that cannot be read, each as an error with its path and what to do about it.
    ///
    /// Nothing is granted for their keys, whose names are in the records and so are not known: a
    /// list of holders has no place for them. Blocks on file access, for a time that grows with the
    /// number of files.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// use holdtight_file::{Config, FileStore};
    /// let store = FileStore::open_blocking(Config::new(directory.path()))?;
    /// assert!(store.damaged()?.is_empty());
    /// # Ok::<(), holdtight_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn damaged(&self) -> Result<Vec<LockError>, LockError> {
        self.directory.check_still_there()?;
        let mut damaged = Vec::new();
        for part in parts(&self.directory)? {
            if let Err(error) = self.directory.part(part, false) {
                damaged.push(error);
            }
        }
        for name in records(&self.directory)? {
            match peek(&self.directory, &name) {
                Ok(Some(record)) if name_of(&record.key) != name => {
                    damaged.push(misplaced(&self.directory.path_of(&name)));
                }
                Ok(_) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok(damaged)
    }

    fn records_found(&self) -> Result<Option<Finding>, LockError> {
        let damaged = self.damaged()?;
        let Some(first) = damaged.first() else { return Ok(None) };
        let found = format!(
            "{} of the store cannot be read, and nothing is granted for what is in it: {first}",
            if damaged.len() == 1 { "one file".into() } else { format!("{} files", damaged.len()) },
        );
        let fix = "if nobody can hold a lock of its key, remove the file";
        Ok(Some(Finding::new(Level::Warning, "records", found).fix(fix)))
    }

    /// What is in the directory and is not the store's.
    fn foreign_found(&self) -> Result<Option<Finding>, LockError> {
        let Directory { root, keys, live, new, .. } = &self.directory;
        let mut foreign: Vec<PathBuf> = Vec::new();
        let ours_in_root =
            |name: &OsStr| [LEDGER, "keys", "live", "new"].iter().any(|ours| name == *ours);
        let mut look = |folder: &Folder, is_ours: &dyn Fn(&OsStr) -> bool| {
            let others = names(folder)?.into_iter().filter(|name| !is_ours(name));
            foreign.extend(others.map(|name| folder.path_of(name)));
            Ok::<_, LockError>(())
        };
        look(root, &ours_in_root)?;
        look(keys, &|name| part_of(name).is_some())?;
        look(live, &|name| InLive::of(name).is_some())?;
        look(new, &|name| InNew::of(name).is_some())?;
        for number in parts(&self.directory)? {
            if let Ok(Some(part)) = self.directory.part(number, false) {
                look(&part, &|name| record_in(number, name).is_some())?;
            }
        }
        let Some(first) = foreign.first() else { return Ok(None) };
        let more = match foreign.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let found = format!("not holdtight's, and left alone: {}{more}", first.display());
        let fix = "keep other files elsewhere";
        Ok(Some(Finding::new(Level::Warning, "contents", found).fix(fix)))
    }

    fn rights(&self) -> Option<Finding> {
        self.ledger.read_only.then(|| {
            Finding::new(
                Level::Warning,
                "rights",
                "this process may only look: who holds what is shown, and no lock can be taken",
            )
            .fix("to take locks, give this user the right to write to the directory")
        })
    }

    fn access(&self) -> Finding {
        if let Err(error) = self.directory.judge_again() {
            if let Some(found) = error.guarantees().and_then(|found| found.findings.first()) {
                return found.clone();
            }
            let found = format!("not only those who should can touch the locks: {error}");
            return Finding::new(Level::Unsafe, "access", found);
        }
        match self.directory.access {
            Access::Own => {
                Finding::new(Level::Good, "access", "only this user and root can touch the locks")
            }
            Access::Shared => Finding::new(
                Level::Warning,
                "access",
                "every member of the directory's group can take, and also break, every lock",
            )
            .fix("let only those into the group whom you would trust with the locks"),
        }
    }

    fn durability(&self) -> Finding {
        let volatile = self.directory.file_system.volatile;
        let (level, found) = match (self.config.sync, volatile) {
            (_, true) => (
                Level::Warning,
                "the file system lives in memory: a reboot forgets all fences, and new ones go on \
                 from the wall clock",
            ),
            (true, false) => (
                Level::Good,
                "every step is on the disk before it is answered; a reboot voids all leases and \
                 fences go on increasing",
            ),
            (false, false) => (
                Level::Good,
                "steps are not synced: a reboot voids all leases anyway, and fences go on from the \
                 wall clock",
            ),
        };
        let finding = Finding::new(level, "durability", found);
        match (self.config.sync, volatile) {
            (_, true) => finding.fix("choose a directory on a disk"),
            (false, false) => finding.fix(
                "only if the clock may be set back across a power cut: ?sync=1, at the price of a \
                 disk write per step",
            ),
            (true, false) => finding,
        }
    }

    fn clock(&self) -> Finding {
        let zone = match self.boot.shift {
            0 => String::new(),
            shift => format!(
                ", corrected by {} s for this time namespace",
                shift.unsigned_abs() / 1_000_000_000
            ),
        };
        if self.boot.id.genuine {
            return Finding::new(
                Level::Good,
                "clock",
                format!("the kernel's boot clock{zone}; the wall clock ends no lease"),
            );
        }
        Finding::new(
            Level::Good,
            "clock",
            format!(
                "the kernel's boot clock{zone}; the boot id is not the kernel's own here, so after \
                 a reboot a lease without a process may last up to its TTL"
            ),
        )
    }

    fn wake_ups(&self) -> Finding {
        let piped = cfg!(any(target_os = "linux", target_os = "android", target_os = "freebsd"))
            && self.own.known().is_none_or(|presence| presence.pipe.is_some());
        if piped {
            Finding::new(
                Level::Good,
                "wake-ups",
                "a release, and the death of a holder, wake one waiter through its named pipe",
            )
        } else {
            Finding::new(
                Level::Warning,
                "wake-ups",
                "no named pipes here: waiters look every 50 ms",
            )
        }
    }
}
