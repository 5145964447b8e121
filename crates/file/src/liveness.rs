//! How one process knows that another one lives: a file per process, locked for as long as it does.
//!
//! The kernel lets go of the lock when the process dies, however it dies, in whatever namespace:
//! nobody is taken for alive by a process id, which may have been given out again. Only where the
//! lock is kept by somebody else, a forked child, does the id tell that the process is dead; that
//! is for `maker`. Beside the file is a pipe for wake-ups.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use holdtight_core::LockError;
use holdtight_kit::lock;

use crate::directory::Directory;
use crate::error;
use crate::failpoint;
use crate::folder::Folder;
use crate::look::{Found, look_at};
use crate::maker;
use crate::names::hex;
use crate::record::ProcessId;
use crate::wake;

/// No file of a process is longer.
const LONGEST: u64 = 64;

/// This process in the store. Dropping it removes its files.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) id: ProcessId,
    /// Keeps the lock.
    locked: File,
    /// Where others announce releases; `None` where there are no named pipes.
    pub(crate) pipe: Option<Arc<File>>,
    /// Where its files are.
    live: Arc<Folder>,
    /// A forked child shares the lock with its parent, so it must not use this.
    process: u32,
    /// Whether something in the store may still be bound to this id.
    pub(crate) leave_behind: std::sync::atomic::AtomicBool,
}

/// Second descriptors of what shows others that a process lives, for a process that must outlive
/// it.
///
/// Both are closed on exec, so they must be passed on deliberately. Whoever has them at the end
/// closes `lock` first, or ends: then those who are told by the pipe find the lock free.
#[derive(Debug)]
pub struct SharedLiveness {
    /// Locked: what was bound to the process stays bound until every copy of it is closed.
    pub lock: OwnedFd,
    /// The pipe by which waiters hear that the process is gone: they are told when every copy of it
    /// is closed. Without it they find out by asking again. `None` where there are no named pipes.
    pub pipe: Option<OwnedFd>,
}

/// The name of the file that process `id` keeps locked, among those that live.
pub(crate) fn name_of(id: &ProcessId) -> String {
    hex(id)
}

impl Presence {
    fn announce(directory: &Directory) -> Result<Self, LockError> {
        // A sweep may find the file before it is locked, and take it for a dead one: then try
        // again.
        for _ in 0..16 {
            let mut id = ProcessId::default();
            getrandom::fill(&mut id).map_err(|source| {
                LockError::internal("the operating system gave no random bytes").with_source(source)
            })?;
            let (live, name) = (&directory.live, name_of(&id));
            let path = live.path_of(&name);
            failpoint::point("before a process announces itself");
            let file = match live.create_file(&name) {
                Ok(file) => file,
                Err(source) => {
                    directory.check_still_there()?;
                    return Err(error::io("create", &path, source));
                }
            };
            failpoint::point("before a process locks its file");
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(source)) => {
                    let _ = live.remove(&name);
                    return Err(error::io("lock", &path, source));
                }
            }
            if !look_at(&file).map_err(|source| error::io("read", &path, source))?.is_named {
                continue;
            }
            maker::sign(&file);
            failpoint::point("before a process makes its pipe");
            let pipe = wake::make_pipe(live, &id).map(Arc::new);
            let locked = match &pipe {
                Some(pipe) => {
                    above(&file, pipe).map_err(|source| error::io("lock", &path, source))?
                }
                None => file,
            };
            return Ok(Self {
                id,
                locked,
                pipe,
                live: Arc::clone(live),
                process: std::process::id(),
                leave_behind: false.into(),
            });
        }
        Err(LockError::unavailable("another process keeps removing this one's liveness file"))
    }

    /// Second descriptors of the locked file and of the pipe.
    pub(crate) fn share(&self) -> Result<SharedLiveness, LockError> {
        let share = |file: &File| {
            let shared = file.try_clone().map(OwnedFd::from);
            shared
                .map_err(|source| error::io("share", &self.live.path_of(name_of(&self.id)), source))
        };
        let given = maker::unsign(&self.locked);
        given
            .map_err(|source| error::io("share", &self.live.path_of(name_of(&self.id)), source))?;
        let pipe = self.pipe.as_deref().map(share).transpose()?;
        Ok(SharedLiveness { lock: share(&self.locked)?, pipe })
    }
}

/// The same locked file under a higher number than that of the pipe.
///
/// Linux closes the descriptors of a dying process from the highest down. Whoever the end of the
/// pipe wakes must find the lock free: with the lower number, two of five waiters were too early
/// and went back to sleep (measured).
fn above(file: &File, pipe: &File) -> io::Result<File> {
    match rustix::io::fcntl_dupfd_cloexec(file, pipe.as_raw_fd() + 1) {
        Ok(above) => Ok(above.into()),
        // This is how it says that there can be no such number.
        Err(rustix::io::Errno::INVAL) => Err(rustix::io::Errno::MFILE.into()),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // In a forked child the file is the parent's. And a record that is still bound to this id
        // tells the dead from the living by it: the next sweep takes both away.
        if self.process != std::process::id()
            || self.leave_behind.load(std::sync::atomic::Ordering::Relaxed)
        {
            return;
        }
        let _ = self.live.remove(name_of(&self.id));
        let _ = self.live.remove(wake::name_of(&self.id));
    }
}

/// The presence of this process, announced when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Own(Mutex<Option<Arc<Presence>>>);

impl Own {
    fn own(&self) -> MutexGuard<'_, Option<Arc<Presence>>> {
        lock(&self.0)
    }

    /// The presence of this process, whose id is `process`.
    pub(crate) fn get(
        &self,
        directory: &Directory,
        process: u32,
    ) -> Result<Arc<Presence>, LockError> {
        let mut own = self.own();
        if let Some(presence) = &*own
            && presence.process == process
        {
            return Ok(Arc::clone(presence));
        }
        let presence = Arc::new(Presence::announce(directory)?);
        // In a forked child this closes its copies of what shows that the parent lives.
        *own = Some(Arc::clone(&presence));
        Ok(presence)
    }

    /// The presence, if one was announced.
    pub(crate) fn known(&self) -> Option<Arc<Presence>> {
        self.own().clone()
    }

    /// Its id alone.
    pub(crate) fn id(&self) -> Option<ProcessId> {
        self.own().as_ref().map(|presence| presence.id)
    }
}

/// Whether process `id` is known to be dead. Every doubt is a no: then its lease decides.
///
/// In particular a missing file proves nothing: somebody may have removed the file of a living
/// process.
pub(crate) fn is_dead(directory: &Directory, id: &ProcessId) -> bool {
    let Ok(file) = directory.live.open_file(&name_of(id), false) else { return false };
    match file.try_lock_shared() {
        Ok(()) => {
            // Unlocked by hand: if this process forks now, the child would keep the lock for a
            // moment.
            let _ = file.unlock();
            true
        }
        Err(TryLockError::WouldBlock) => maker::is_dead(&file),
        Err(TryLockError::Error(_)) => false,
    }
}

/// Removes what a dead process left, keeping its lock meanwhile so that nobody comes in between.
pub(crate) fn bury(directory: &Directory, id: &ProcessId) -> io::Result<bool> {
    let (live, name) = (&directory.live, name_of(id));
    let file = live.open_file(&name, false)?;
    match file.try_lock() {
        Ok(()) => {
            // Ours by its name, and by what it is: somebody else's file stays, whatever it is
            // called.
            let ours = is_ours(&look_at(&file)?);
            if ours {
                live.remove(&name)?;
                wake::remove(live, id);
            }
            let _ = file.unlock();
            Ok(ours)
        }
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(source),
    }
}

/// Whether this can be the file of a process.
pub(crate) fn is_ours(found: &Found) -> bool {
    found.is_file() && found.size <= LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_presence_is_alive_until_it_is_dropped_and_then_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let presence = Presence::announce(&directory).unwrap();
        let id = presence.id;
        assert!(!is_dead(&directory, &id));
        assert!(!bury(&directory, &id).unwrap());
        drop(presence);
        assert_eq!(directory.live.names().unwrap().len(), 0);
        assert!(!is_dead(&directory, &id), "a missing file proves nothing");
    }

    #[test]
    fn a_shared_presence_is_alive_until_both_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let presence = Presence::announce(&directory).unwrap();
        presence.leave_behind.store(true, std::sync::atomic::Ordering::Relaxed);
        let (id, shared) = (presence.id, presence.share().unwrap());
        drop(presence);
        assert!(!is_dead(&directory, &id));
        drop(shared.lock);
        assert!(is_dead(&directory, &id));
        if cfg!(target_os = "linux") {
            assert!(wake::listens(&directory, &id), "who waits for it is not told yet");
            drop(shared.pipe.unwrap());
            assert!(!wake::listens(&directory, &id));
        }
    }

    #[test]
    fn what_is_left_behind_tells_that_its_process_is_dead_until_it_is_buried() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let presence = Presence::announce(&directory).unwrap();
        presence.leave_behind.store(true, std::sync::atomic::Ordering::Relaxed);
        let id = presence.id;
        drop(presence);
        assert!(is_dead(&directory, &id));
        assert!(bury(&directory, &id).unwrap());
        assert_eq!(directory.live.names().unwrap().len(), 0);
    }
}
