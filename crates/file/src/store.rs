//! The store itself: opening it, the scene of a step, and how long a step is tried.
//!
//! Steps are microseconds of work in the page cache and run where they are called; only a contended
//! file is waited for, and only a store that syncs goes to a thread for blocking work. What each
//! call does is in `backend`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdtight_core::{Key, LockError};

use crate::boot::{Boot, BootId, fence_floor};
use crate::config::Config;
use crate::directory::Directory;
use crate::failpoint;
use crate::ledger::Ledger;
use crate::liveness::{self, Own, Presence};
use crate::names::{Name, name_of};
use crate::record::{ProcessId, Record};
use crate::rules::{Change, Scene};
use crate::step::{Absent, Files, Try};
use crate::threads;
use crate::wake::{self, Board};

/// How often the store is swept, whichever process does it.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long the first process after a boot may take to clear the store.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(60);

/// Locks between the processes of one machine, in a directory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// use std::{sync::Arc, time::Duration};
/// use holdtight_core::{AcquireRequest, Attempt, Backend, Key, Secret};
/// use holdtight_file::{Config, FileStore};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// let store = Arc::new(FileStore::open(Config::new(directory)).await?);
/// let (key, secret) = (Key::new("nightly backup")?, Secret::generate()?);
/// let request = AcquireRequest::new(key.clone(), secret.clone(), Duration::from_secs(30));
/// assert!(matches!(Arc::clone(&store).acquire(request).await?, Attempt::Granted(_)));
/// Arc::clone(&store).release(key, secret).await?;
/// # Ok(()) }
/// ```
pub struct FileStore {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) boot: Boot,
    pub(crate) ledger: Ledger,
    pub(crate) files: Files,
    pub(crate) own: Own,
    pub(crate) board: Arc<Board>,
    /// Grants that were bound to this process and not given back through it.
    pub(crate) bound: AtomicI64,
    pub(crate) next_sweep: AtomicU64,
    pub(crate) sweeping: AtomicBool,
}

/// Who takes a step. Asked for once: the first is a system call, the second a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Me {
    pub(crate) process: u32,
    /// In the store, if it was announced there.
    pub(crate) id: Option<ProcessId>,
}

/// What came of one try at a step; `None` if the file is contended.
pub(crate) type Tried<T> = Result<Option<T>, LockError>;

impl FileStore {
    /// Opens the store, and creates its directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a directory that is not fit
    /// for locks: writable for others, not one's own, on a network file system;
    /// [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if no thread can be started;
    /// otherwise what the file system answers.
    ///
    /// # Cancel safety
    /// Cancel-safe: opening goes on in the background and is then forgotten.
    pub async fn open(config: Config) -> Result<Self, LockError> {
        threads::must_start()?;
        tokio::task::spawn_blocking(move || Self::open_blocking(config))
            .await
            .map_err(|source| LockError::internal("the store was not opened").with_source(source))?
    }

    /// The same for a thread that may block.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_blocking(config: Config) -> Result<Self, LockError> {
        let mut boot = Boot::current()?;
        if let Some(id) = failpoint::boot() {
            boot.id = BootId { id, genuine: true };
        }
        Self::open_in(config, boot)
    }

    pub(crate) fn open_in(config: Config, boot: Boot) -> Result<Self, LockError> {
        let directory = Directory::open(config.directory())?;
        directory.seen(boot.now());
        let ledger = Ledger::open(&directory, boot.id, boot.now())?;
        let files = Files::new(config.sync, boot);
        let store = Self {
            config,
            directory,
            boot,
            ledger,
            files,
            own: Own::default(),
            board: Arc::default(),
            bound: AtomicI64::new(0),
            next_sweep: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
        };
        store.recover(RECOVERY_PATIENCE)?;
        let swept_at = store.ledger.read()?.swept_at;
        store.next_sweep.store(after(swept_at, SWEEP_EVERY), Ordering::Relaxed);
        Ok(store)
    }

    /// The directory of this store, with all links resolved.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Second descriptors of what shows others that this process lives.
    ///
    /// Locks that are bound to this process stay bound until every copy is closed. Hand them to a
    /// process that must outlive this one, and locks pass on only when both have ended, and then at
    /// once: `holdtight run` gives them to the guardian, which first stops the command.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn share_liveness(&self) -> Result<liveness::SharedLiveness, LockError> {
        self.presence()?.1.share()
    }

    /// This process in the store; announced there if it was not.
    pub(crate) fn presence(&self) -> Result<(Me, Arc<Presence>), LockError> {
        let process = std::process::id();
        let presence = self.own.get(&self.directory, process)?;
        Ok((Me { process, id: Some(presence.id) }, presence))
    }

    /// This process, whether or not it was announced.
    pub(crate) fn me(&self) -> Me {
        Me { process: std::process::id(), id: self.own.id() }
    }

    /// Shows `look` what a step sees now.
    pub(crate) fn scene<T>(&self, look: impl FnOnce(&Scene<'_>) -> T) -> T {
        self.scene_at(self.boot.now(), self.own.id(), look)
    }

    /// The same at the time `now` for the process `me`: both cost something to ask for.
    fn scene_at<T>(
        &self,
        now: u64,
        me: Option<ProcessId>,
        look: impl FnOnce(&Scene<'_>) -> T,
    ) -> T {
        let scene = Scene {
            now,
            boot: self.boot.id,
            alive: &|id| Some(*id) == me || !liveness::is_dead(&self.directory, id),
            listens: &|id| wake::listens(&self.directory, id),
            high_water: &|| self.ledger.read().map(|facts| facts.high_water),
            floor: &fence_floor,
        };
        look(&scene)
    }

    /// One try at a step: the outer `None` if the file is contended, the inner one if there is
    /// none.
    pub(crate) fn step<T>(
        &self,
        key: &Key,
        absent: Absent,
        rule: impl FnOnce(&mut Record, &Scene<'_>) -> Result<(T, Change), LockError>,
    ) -> Tried<Option<T>> {
        self.step_of(self.me(), key, absent, rule)
    }

    /// The same where it is known who takes it.
    pub(crate) fn step_of<T>(
        &self,
        me: Me,
        key: &Key,
        absent: Absent,
        rule: impl FnOnce(&mut Record, &Scene<'_>) -> Result<(T, Change), LockError>,
    ) -> Tried<Option<T>> {
        let mut page = match self.files.try_lock(&self.directory, key, me.process, absent)? {
            Try::Locked(page) => page,
            Try::Contended => return Ok(None),
            Try::Absent => return Ok(Some(None)),
        };
        let mut record = page.read()?;
        let (answer, change) =
            self.scene_at(page.locked_at, me.id, |scene| rule(&mut record, scene))?;
        if change == Change::Write {
            record.boot = self.boot.id;
            record.written_at = page.locked_at;
            page.write(&mut record)?;
            page.remember(record);
        }
        page.finish()?;
        Ok(Some(Some(answer)))
    }

    /// Tries a step until it is done or patience is over.
    pub(crate) async fn drive<T: Send + 'static>(
        self: Arc<Self>,
        key: Key,
        mut attempt: impl FnMut(&Self) -> Tried<T> + Send + 'static,
    ) -> Result<T, LockError> {
        if self.config.sync {
            let work = move || match self.insist(self.config.patience, &mut attempt)? {
                Some(done) => Ok(done),
                None => Err(self.frozen(&key)),
            };
            threads::must_start()?;
            return tokio::task::spawn_blocking(work).await.map_err(|source| {
                LockError::ambiguous("the thread that wrote to the disk was stopped")
                    .with_source(source)
            })?;
        }
        let mut waits = 0;
        let mut started = None;
        loop {
            if let Some(done) = attempt(&self)? {
                return Ok(done);
            }
            let started = *started.get_or_insert_with(Instant::now);
            if started.elapsed() > self.config.patience {
                return Err(self.frozen(&key));
            }
            waits += 1;
            // Whoever is inside has microseconds to go, unless the scheduler has other plans.
            if waits <= 3 {
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(Duration::from_millis(1 << (waits / 4).min(3))).await;
            }
        }
    }

    /// The same on this thread; `None` when patience is over.
    pub(crate) fn insist<T>(
        &self,
        patience: Duration,
        attempt: &mut dyn FnMut(&Self) -> Tried<T>,
    ) -> Tried<T> {
        let mut waits = 0;
        let mut started = None;
        loop {
            if let Some(done) = attempt(self)? {
                return Ok(Some(done));
            }
            let started = *started.get_or_insert_with(Instant::now);
            if started.elapsed() > patience {
                return Ok(None);
            }
            waits += 1;
            if waits <= 8 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50 << (waits / 8).min(6)));
            }
        }
    }

    #[cold]
    pub(crate) fn frozen(&self, key: &Key) -> LockError {
        LockError::unavailable(format!(
            "some process has been inside a step of this key for more than {:?}: it is probably \
             stopped (SIGSTOP, Ctrl-Z, a debugger); find it with `fuser {}` and continue or kill it",
            self.config.patience,
            self.directory.path_of(&name_of(key)).display()
        ))
        .with_key(key)
    }

    /// Wakes the first of `called` that lives. The record is unlocked by now, so it will not be in
    /// its way.
    pub(crate) fn call(&self, key: &Key, called: &[ProcessId]) {
        if called.is_empty() {
            return;
        }
        let name = name_of(key);
        let me = self.own.known().map(|presence| presence.id);
        let (mut deaf, mut reached) = (Vec::new(), None);
        for id in called {
            if Some(*id) == me && self.board.waiters(&name) > 0 {
                self.board.ring(&name);
                reached = Some(*id);
                break;
            }
            if Some(*id) != me && wake::poke(&self.directory, id, &name) {
                reached = Some(*id);
                break;
            }
            deaf.push(*id);
        }
        if !deaf.is_empty() {
            // Only tidiness: if the file is contended just now, somebody else does it later.
            let _ = self
                .step(key, Absent::Skip, |record, _| Ok(((), record.delist_deaf(&deaf, reached))));
        }
    }

    /// A waiter left. If it was the last one here, the record need not call us any more; and if we
    /// were called and did not come, the next one is.
    pub(crate) fn leave(&self, key: &Key, name: &Name) {
        if !self.board.forget(name) {
            return;
        }
        let Some(me) = self.own.known().map(|presence| presence.id) else { return };
        let mut withdraw = |store: &Self| {
            store.step(key, Absent::Skip, |record, scene| {
                let change = record.delist(me);
                let called = if record.live(scene).is_none() {
                    record.call_waiters(scene)
                } else {
                    Vec::new()
                };
                Ok((called, change))
            })
        };
        // If it cannot be done at once, the entry stays until it is found to be deaf.
        if let Ok(Some(Some(called))) = self.insist(Duration::from_millis(1), &mut withdraw) {
            self.call(key, &called);
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Some(presence) = self.own.known() {
            let held = self.bound.load(Ordering::Relaxed) != 0;
            presence.leave_behind.store(held, Ordering::Relaxed);
            self.board.close(presence.pipe.as_ref());
        }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("directory", &self.directory.path())
            .field("sync", &self.config.sync)
            .finish_non_exhaustive()
    }
}

/// A moment on the store's clock, moved later.
pub(crate) fn after(at: u64, by: Duration) -> u64 {
    at.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
}
