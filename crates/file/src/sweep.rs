//! What keeps the directory small: files of keys long free go, and what dead processes left goes
//! with them.
//!
//! Before a key's file is removed, the ledger's high-water mark is at least its fence, on the disk;
//! so a later record of the same key begins above it. The first process after a boot clears
//! everything in the same way.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdtight_core::LockError;

use crate::boot::fence_floor;
use crate::directory::Directory;
use crate::error;
use crate::failpoint;
use crate::folder::Folder;
use crate::frame::{self, Magic, PAGE};
use crate::ledger::{self, Facts, Locked};
use crate::liveness;
use crate::look::look_at;
use crate::names::{InLive, InNew, Name, name_of, part_of, record_in};
use crate::record::{self, ProcessId};
use crate::step::{Absent, Try, peek};
use crate::store::{FileStore, SWEEP_EVERY, after};
use crate::threads;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Files of keys that were removed.
    pub removed: usize,
    /// Files of keys that stay: held, waited for, used lately, or not readable.
    pub kept: usize,
    /// Dead processes whose files were removed.
    pub buried: usize,
    /// Whether the whole store was looked at; not so if another sweep ran, or time was up.
    pub complete: bool,
}

/// How long a key must have been free before its file goes by itself.
const SWEEP_IDLE: Duration = Duration::from_secs(60);

/// After how many new files a process sweeps without waiting for the minute.
const SWEEP_FILES: u64 = 8192;

/// How long a sweep that nobody asked for may keep a thread busy.
const SWEEP_BUDGET: Duration = Duration::from_millis(250);

impl FileStore {
    /// Sweeps in the background, when `now` is the time for it.
    pub(crate) fn sweep_in_time(self: &Arc<Self>, now: u64) {
        let many = self.files.made.load(Ordering::Relaxed) >= SWEEP_FILES;
        if !many && now < self.next_sweep.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Somebody else will find a thread for it.
        if threads::must_start().is_err() || self.sweeping.swap(true, Ordering::Acquire) {
            return;
        }
        self.files.made.store(0, Ordering::Relaxed);
        self.next_sweep.store(after(now, SWEEP_EVERY), Ordering::Relaxed);
        let store = Arc::clone(self);
        runtime.spawn_blocking(move || {
            let swept = if many {
                // So many new keys will not all be used again: do not let them pile up for a
                // minute.
                store.sweep_until(Duration::from_secs(1), None)
            } else {
                store.sweep_when_due()
            };
            store.sweeping.store(false, Ordering::Release);
            match swept {
                Ok(swept) => tracing::debug!(?swept, "swept the file store"),
                Err(error) => tracing::warn!(%error, "the file store could not be swept"),
            }
        });
    }

    /// Sweeps unless some other process did within the last minute.
    fn sweep_when_due(&self) -> Result<Swept, LockError> {
        if self.boot.now() < after(self.ledger.read()?.swept_at, SWEEP_EVERY) {
            return Ok(Swept::default());
        }
        self.sweep_until(SWEEP_IDLE, Some(SWEEP_BUDGET))
    }

    /// Removes the files of keys that have been free for at least `idle`, and what dead processes
    /// left.
    ///
    /// Happens by itself now and then; call it to have it now. Fences go on increasing. Blocks on
    /// file access, for a time that grows with the number of files.
    ///
    /// # Errors
    /// When the directory cannot be read or the ledger cannot be written. Single files that cannot
    /// be read are kept and counted.
    pub fn sweep(&self, idle: Duration) -> Result<Swept, LockError> {
        self.sweep_until(idle, None)
    }

    /// A sweep that ends early when `budget` is used up.
    pub(crate) fn sweep_until(
        &self,
        idle: Duration,
        budget: Option<Duration>,
    ) -> Result<Swept, LockError> {
        let started = Instant::now();
        let mut swept = Swept::default();
        if self.ledger.read_only {
            return Ok(swept);
        }
        let Some(mut ledger) = self.ledger.try_lock()? else { return Ok(swept) };
        // A sweep needs a few descriptors itself, where those that are kept may be all that there
        // are.
        self.files.close_all();
        // Who is dead now cannot bind anything to itself any more.
        let dead = self.dead_processes()?;
        let parts = parts(&self.directory)?;
        // Begin anywhere: a sweep that ran out of time must not leave the same keys for ever.
        let first = if parts.is_empty() { 0 } else { started_somewhere(parts.len()) };
        swept.complete = true;
        for part in parts[first..].iter().chain(&parts[..first]) {
            if budget.is_some_and(|budget| started.elapsed() > budget) {
                swept.complete = false;
                return Ok(swept);
            }
            self.sweep_part(*part, idle, &mut ledger, &mut swept)?;
        }
        if swept.complete {
            for id in &dead {
                failpoint::point("before a dead process is buried");
                if liveness::bury(&self.directory, id).unwrap_or(false) {
                    swept.buried += 1;
                }
            }
            self.clear_unfinished(&dead)?;
            let facts = ledger.facts;
            ledger.write(Facts { swept_at: self.boot.now(), ..facts })?;
        }
        drop(ledger);
        self.files.close_all();
        Ok(swept)
    }

    fn sweep_part(
        &self,
        number: u8,
        idle: Duration,
        ledger: &mut Locked<'_>,
        swept: &mut Swept,
    ) -> Result<(), LockError> {
        let part = match self.directory.part(number, false) {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "a part of the store was not swept");
                return Ok(());
            }
        };
        let kept = swept.kept;
        for file in names(&part)? {
            let Some(name) = record_in(number, &file) else { continue };
            match self.sweep_file(&part, &file, &name, idle, ledger) {
                Ok(true) => swept.removed += 1,
                Ok(false) => swept.kept += 1,
                Err(error) => {
                    tracing::warn!(%error, "a file of the store was not swept");
                    swept.kept += 1;
                }
            }
        }
        if swept.kept == kept {
            // Only succeeds on an empty directory; whoever makes a file there makes it again.
            failpoint::point("before an empty part is removed");
            let _ = self.directory.keys.remove_empty(crate::names::hex(&[number]));
        }
        Ok(())
    }

    /// Removes one key's file, if its time has come.
    fn sweep_file(
        &self,
        part: &Folder,
        file: &OsStr,
        name: &Name,
        idle: Duration,
        ledger: &mut Locked<'_>,
    ) -> Result<bool, LockError> {
        // Looked at first without a lock: most files stay.
        let Some(record) = peek(&self.directory, name)? else { return Ok(false) };
        if name_of(&record.key) != *name || !self.scene(|scene| record.is_idle(idle, scene)) {
            return Ok(false);
        }
        let Try::Locked(mut page) =
            self.files.try_lock(&self.directory, &record.key, std::process::id(), Absent::Skip)?
        else {
            return Ok(false);
        };
        let record = page.read()?;
        if !self.scene(|scene| record.is_idle(idle, scene)) {
            return Ok(false);
        }
        self.raise(ledger, record.fence)?;
        page.remove(part, file)?;
        Ok(true)
    }

    /// Makes sure that the high-water mark is at least `fence`, and usually far above: one write
    /// serves all records that were granted before now.
    fn raise(&self, ledger: &mut Locked<'_>, fence: u64) -> Result<(), LockError> {
        if ledger.facts.high_water >= fence {
            return Ok(());
        }
        let facts = ledger.facts;
        ledger.write(Facts {
            boot: self.boot.id,
            written_at: self.boot.now(),
            high_water: fence.max(fence_floor()),
            ..facts
        })
    }

    fn dead_processes(&self) -> Result<Vec<ProcessId>, LockError> {
        let all = names(&self.directory.live)?;
        let processes = all.iter().filter_map(|name| match InLive::of(name) {
            Some(InLive::Process(id)) => Some(id),
            _ => None,
        });
        Ok(processes.filter(|id| liveness::is_dead(&self.directory, id)).collect())
    }

    /// Removes files that a dead process did not finish, and pipes without an owner.
    fn clear_unfinished(&self, dead: &[ProcessId]) -> Result<(), LockError> {
        let Directory { live, new, .. } = &self.directory;
        let is_gone = |id: &ProcessId| {
            let missing = |source: &io::Error| source.kind() == io::ErrorKind::NotFound;
            live.look(liveness::name_of(id)).is_err_and(|source| missing(&source))
        };
        for name in names(new)? {
            let gone = match InNew::of(&name) {
                Some(InNew::Record(maker)) => dead.contains(&maker) || is_gone(&maker),
                // A ledger that was not needed: there is one, or this sweep would not run.
                Some(InNew::Ledger) => true,
                None => false,
            };
            if gone {
                let _ = self.remove_unfinished(&name);
            }
        }
        for name in names(live)? {
            if let Some(InLive::Pipe(id)) = InLive::of(&name)
                && is_gone(&id)
            {
                crate::wake::remove(live, &id);
            }
        }
        Ok(())
    }

    /// Removes a file from `new` if it is ours: by its name, and by how it begins.
    fn remove_unfinished(&self, name: &OsStr) -> io::Result<bool> {
        match InNew::of(name) {
            Some(InNew::Record(_)) => self.remove_if(&self.directory.new, name, record::MAGIC),
            Some(InNew::Ledger) => self.remove_if(&self.directory.new, name, ledger::MAGIC),
            None => Ok(false),
        }
    }

    /// Removes a file that begins with `magic`, or of which nothing reached the disk; no other.
    fn remove_if(&self, folder: &Folder, name: &OsStr, magic: Magic) -> io::Result<bool> {
        let Some(text) = name.to_str() else { return Ok(false) };
        let file = folder.open_file(text, false)?;
        let path = folder.path_of(name);
        if self.directory.check_file(&look_at(&file)?, &path).is_err() {
            return Ok(false);
        }
        let mut start = [0; PAGE];
        let length = file.read_at(&mut start, 0)?;
        if !frame::may_be_ours(&start[..length], magic) {
            return Ok(false);
        }
        failpoint::point("before a file of an earlier boot is removed");
        folder.remove(name)?;
        Ok(true)
    }

    /// Clears what an earlier boot left, before anything is granted in this one.
    ///
    /// A power cut may leave empty or half-written files. Now they can be told from damage, because
    /// nobody has used the store since: all leases are void, and all fences go into the high-water
    /// mark.
    pub(crate) fn recover(&self, patience: Duration) -> Result<(), LockError> {
        let is_over =
            |facts: &Facts| facts.boot.is_over(self.boot.id, facts.written_at, self.boot.now());
        // Whoever may only look leaves it to the others; what a record says is void by its own boot
        // id.
        if self.ledger.read_only || !is_over(&self.ledger.read()?) {
            return Ok(());
        }
        let started = Instant::now();
        let mut ledger = loop {
            if let Some(ledger) = self.ledger.try_lock()? {
                break ledger;
            }
            if started.elapsed() > patience {
                return Err(LockError::unavailable(format!(
                    "another process has been clearing {} after a reboot for {patience:?}; if it is \
                     stopped, continue or kill it",
                    self.directory.path().display()
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let facts = ledger.facts;
        if !is_over(&facts) {
            return Ok(());
        }
        let mut high_water = facts.high_water;
        for name in records(&self.directory)? {
            if let Ok(Some(record)) = peek(&self.directory, &name) {
                high_water = high_water.max(record.fence);
            }
        }
        // Still in the name of the old boot: if this process dies now, the next one begins again.
        ledger.write(Facts { high_water, ..facts })?;
        let removed = self.clear_all()?;
        let now = self.boot.now();
        ledger.write(Facts {
            boot: self.boot.id,
            written_at: now,
            swept_at: now,
            ..ledger.facts
        })?;
        tracing::info!(removed, "cleared the locks of an earlier boot");
        Ok(())
    }

    /// Removes everything that an earlier boot left, and nothing that is not ours.
    fn clear_all(&self) -> Result<usize, LockError> {
        let mut removed = 0;
        let mut count = |outcome: io::Result<bool>, folder: &Folder, name: &OsStr| match outcome {
            Ok(done) => {
                removed += usize::from(done);
                Ok(())
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(error::io("remove", &folder.path_of(name), source)),
        };
        for number in parts(&self.directory)? {
            let Some(part) = self.directory.part(number, false)? else { continue };
            for name in names(&part)? {
                if record_in(number, &name).is_some() {
                    count(self.remove_if(&part, &name, record::MAGIC), &part, &name)?;
                }
            }
            let _ = self.directory.keys.remove_empty(crate::names::hex(&[number]));
        }
        let Directory { live, new, .. } = &self.directory;
        for name in names(live)? {
            if let Some(known) = InLive::of(&name) {
                count(remove_from_live(live, &name, known), live, &name)?;
            }
        }
        for name in names(new)? {
            count(self.remove_unfinished(&name), new, &name)?;
        }
        Ok(removed)
    }
}

/// Removes what a process of an earlier boot left, if it is what its name says.
fn remove_from_live(live: &Folder, name: &OsStr, known: InLive) -> io::Result<bool> {
    let found = live.look(name)?;
    let is_ours = match known {
        InLive::Process(_) => liveness::is_ours(&found),
        InLive::Pipe(_) => found.kind.is_fifo(),
    };
    if is_ours {
        failpoint::point("before a file of an earlier boot is removed");
        live.remove(name)?;
    }
    Ok(is_ours)
}

/// The names of all keys that have a file, for those who only look.
pub(crate) fn records(directory: &Directory) -> Result<Vec<Name>, LockError> {
    let mut records = Vec::new();
    for number in parts(directory)? {
        // A part that vanished meanwhile had no files; one that is not fit for use is told of by a
        // probe.
        let Ok(Some(part)) = directory.part(number, false) else { continue };
        records.extend(names(&part)?.iter().filter_map(|name| record_in(number, name)));
    }
    Ok(records)
}

/// The parts that there are.
pub(crate) fn parts(directory: &Directory) -> Result<Vec<u8>, LockError> {
    Ok(names(&directory.keys)?.iter().filter_map(|name| part_of(name)).collect())
}

/// The names of all that is in one directory of the store.
pub(crate) fn names(folder: &Folder) -> Result<Vec<std::ffi::OsString>, LockError> {
    folder.names().map_err(|source| error::io("read", folder.path(), source))
}

/// A place to begin among `count`: any will do, if it is not always the same.
fn started_somewhere(count: usize) -> usize {
    let mut random = [0; 4];
    let _ = getrandom::fill(&mut random);
    u32::from_le_bytes(random) as usize % count
}
