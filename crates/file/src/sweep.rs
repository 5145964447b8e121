//! What keeps the directory small: files of keys long free go, and what dead processes left goes with them.
//!
//! Before a key's file is removed, the ledger's high-water mark is at least its fence, on the disk; so a later
//! record of the same key begins above it. The first process after a boot clears everything in the same way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdtight_core::LockError;

use crate::boot::fence_floor;
use crate::directory::{Name, name_of, unhex};
use crate::error;
use crate::failpoint;
use crate::ledger::{Facts, Locked};
use crate::liveness;
use crate::record::ProcessId;
use crate::step::{Absent, Try, peek};
use crate::store::FileStore;

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

impl FileStore {
    /// Removes the files of keys that have been free for at least `idle`, and what dead processes left.
    ///
    /// Happens by itself now and then; call it to have it now. Fences go on increasing. Blocks on file
    /// access, for a time that grows with the number of files.
    ///
    /// # Errors
    /// When the directory cannot be read or the ledger cannot be written. Single files that cannot be
    /// read are kept and counted.
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
        let Some(mut ledger) = self.ledger.try_lock()? else { return Ok(swept) };
        // Who is dead now cannot bind anything to itself any more.
        let dead = self.dead_processes()?;
        let parts = entries(&self.directory.keys())?;
        // Begin anywhere: a sweep that ran out of time must not leave the same keys for ever.
        let first = if parts.is_empty() { 0 } else { started_somewhere(parts.len()) };
        swept.complete = true;
        for part in parts[first..].iter().chain(&parts[..first]) {
            if budget.is_some_and(|budget| started.elapsed() > budget) {
                swept.complete = false;
                return Ok(swept);
            }
            if unhex::<1>(part.file_name().unwrap_or_default()).is_some() {
                self.sweep_part(part, idle, &mut ledger, &mut swept)?;
            }
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
        part: &Path,
        idle: Duration,
        ledger: &mut Locked<'_>,
        swept: &mut Swept,
    ) -> Result<(), LockError> {
        let kept = swept.kept;
        for path in entries(part)? {
            match self.sweep_file(&path, idle, ledger) {
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
            let _ = fs::remove_dir(part);
        }
        Ok(())
    }

    /// Removes one key's file, if its time has come.
    fn sweep_file(
        &self,
        path: &Path,
        idle: Duration,
        ledger: &mut Locked<'_>,
    ) -> Result<bool, LockError> {
        // Looked at first without a lock: most files stay.
        let Some(record) = peek(path)? else { return Ok(false) };
        if self.directory.record(&name_of(&record.key)) != path
            || !self.scene(|scene| record.is_idle(idle, scene))
        {
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
        page.remove()?;
        Ok(true)
    }

    /// Makes sure that the high-water mark is at least `fence`, and usually far above: one write serves
    /// all records that were granted before now.
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
        let known = |path: &PathBuf| unhex(path.file_name().unwrap_or_default());
        let all = entries(&self.directory.live())?;
        Ok(all
            .iter()
            .filter_map(known)
            .filter(|id| liveness::is_dead(&self.directory, id))
            .collect())
    }

    /// Removes files that a dead process did not finish, and pipes without an owner.
    fn clear_unfinished(&self, dead: &[ProcessId]) -> Result<(), LockError> {
        for path in entries(&self.directory.new_files())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let maker = name.split('-').next().unwrap_or_default();
            let gone = match unhex::<16>(maker.as_ref()) {
                Some(maker) => {
                    dead.contains(&maker) || !liveness::path_of(&self.directory, &maker).exists()
                }
                // A ledger that was not needed: there is one, or this sweep would not run.
                None => maker == "store",
            };
            if gone {
                let _ = fs::remove_file(&path);
            }
        }
        for path in entries(&self.directory.live())? {
            let is_pipe = path.extension().is_some_and(|extension| extension == "wake");
            if is_pipe && !path.with_extension("").exists() {
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    /// Clears what an earlier boot left, before anything is granted in this one.
    ///
    /// A power cut may leave empty or half-written files. Now they can be told from damage, because
    /// nobody has used the store since: all leases are void, and all fences go into the high-water mark.
    pub(crate) fn recover(&self, patience: Duration) -> Result<(), LockError> {
        let is_over =
            |facts: &Facts| facts.boot.is_over(self.boot.id, facts.written_at, self.boot.now());
        if !is_over(&self.ledger.read()?) {
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
                    self.directory.root().display()
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let facts = ledger.facts;
        if !is_over(&facts) {
            return Ok(());
        }
        let mut files: Vec<PathBuf> = Vec::new();
        let mut high_water = facts.high_water;
        let parts = entries(&self.directory.keys())?;
        for part in &parts {
            for path in entries(part).unwrap_or_default() {
                if let Ok(Some(record)) = peek(&path) {
                    high_water = high_water.max(record.fence);
                }
                files.push(path);
            }
        }
        // Still in the name of the old boot: if this process dies now, the next one begins again.
        ledger.write(Facts { high_water, ..facts })?;
        files.extend(entries(&self.directory.live())?);
        files.extend(entries(&self.directory.new_files())?);
        for path in &files {
            failpoint::point("before a file of an earlier boot is removed");
            fs::remove_file(path).map_err(|source| error::io("remove", path, source))?;
        }
        for part in &parts {
            let _ = fs::remove_dir(part);
        }
        let now = self.boot.now();
        ledger.write(Facts {
            boot: self.boot.id,
            written_at: now,
            swept_at: now,
            ..ledger.facts
        })?;
        tracing::info!(files = files.len(), "cleared the locks of an earlier boot");
        Ok(())
    }
}

/// The paths of all files of keys, for those who only look.
pub(crate) fn record_paths(
    keys: &Path,
) -> Result<impl Iterator<Item = (Name, PathBuf)> + use<>, LockError> {
    let parts = entries(keys)?;
    Ok(parts.into_iter().flat_map(|part| {
        let first = unhex::<1>(part.file_name().unwrap_or_default());
        // A part that vanished meanwhile had no files.
        let files = if first.is_some() { entries(&part).unwrap_or_default() } else { Vec::new() };
        files.into_iter().filter_map(move |path| {
            let rest: [u8; 31] = unhex(path.file_name().unwrap_or_default())?;
            let mut name = [0; 32];
            name[0] = first?[0];
            name[1..].copy_from_slice(&rest);
            Some((name, path))
        })
    }))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, LockError> {
    let reading = |source| error::io("read", directory, source);
    let listed = match fs::read_dir(directory) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(reading)?,
    };
    listed.map(|entry| entry.map(|entry| entry.path()).map_err(reading)).collect()
}

/// A place to begin among `count`: any will do, if it is not always the same.
fn started_somewhere(count: usize) -> usize {
    let mut random = [0; 4];
    let _ = getrandom::fill(&mut random);
    u32::from_le_bytes(random) as usize % count
}
