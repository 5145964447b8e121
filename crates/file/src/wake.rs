//! Wake-ups between processes: each process that waits has a named pipe, and a release writes the
//! name of the key into the pipe of *one* waiter, the first in the record's list that lives.
//!
//! The same pipe tells of death: whoever waits for a holder keeps the writing end of the holder's
//! pipe open and is told by the kernel when its reader is gone. Where there are no pipes, waiters
//! are rung every 50 ms. Nothing but speed depends on any of this.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use holdtight_core::Bell;
use holdtight_kit::{WaiterRegistry, lock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use crate::directory::Directory;
use crate::folder::Folder;
use crate::look::look_at;
use crate::names::{Name, hex};
use crate::record::ProcessId;

/// What is written to a pipe only to have its reader look again. No key has this name: it is no
/// digest.
const LOOK_AGAIN: Name = [0; 32];

/// How often waiters are rung where there are no pipes.
const WITHOUT_PIPES: Duration = Duration::from_millis(50);

/// The name of the pipe by which process `id` hears of releases, beside its liveness file.
pub(crate) fn name_of(id: &ProcessId) -> String {
    let mut name = hex(id);
    name.push_str(".wake");
    name
}

/// Removes the pipe of process `id`, if it is one.
pub(crate) fn remove(live: &Folder, id: &ProcessId) {
    let name = name_of(id);
    if live.look(&name).is_ok_and(|found| found.kind.is_fifo()) {
        let _ = live.remove(&name);
    }
}

/// Makes the pipe of process `id` and opens both its ends, so that it always has a reader and a
/// writer.
///
/// `None` where there are no pipes: then others poll.
pub(crate) fn make_pipe(live: &Folder, id: &ProcessId) -> Option<File> {
    make_fifo(live, &name_of(id)).ok()?;
    let pipe = open_pipe(live, id, true).ok()?;
    live.open_to_group(&pipe).ok()?;
    Some(pipe)
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn make_fifo(live: &Folder, name: &str) -> io::Result<()> {
    use rustix::fs::{Mode, mkfifoat};
    Ok(mkfifoat(live, name, Mode::RUSR | Mode::WUSR)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn make_fifo(_live: &Folder, _name: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens a pipe without waiting. For writing only, it fails if there is no reader.
fn open_pipe(live: &Folder, id: &ProcessId, both_ends: bool) -> io::Result<File> {
    let ends = if both_ends { OFlags::RDWR } else { OFlags::WRONLY };
    let pipe = live.open_as(&name_of(id), ends)?;
    if look_at(&pipe)?.kind.is_fifo() { Ok(pipe) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Tells process `id` that the key `name` was released. `false` if nobody listens there.
pub(crate) fn poke(directory: &Directory, id: &ProcessId, name: &Name) -> bool {
    let live = &directory.live;
    // The first opening fails if there is no reader. The second *is* a reader: without it, a waiter
    // that dies just now would have the kernel send us SIGPIPE.
    let Ok(_reader_exists) = open_pipe(live, id, false) else { return false };
    let Ok(mut pipe) = open_pipe(live, id, true) else { return false };
    // A full pipe means that its reader has enough to do.
    let _ = pipe.write(name);
    true
}

/// Whether somebody reads the pipe of process `id`.
pub(crate) fn listens(directory: &Directory, id: &ProcessId) -> bool {
    open_pipe(&directory.live, id, false).is_ok()
}

/// Who waits in this process, and for what.
#[derive(Debug, Default)]
pub(crate) struct Board {
    waiters: WaiterRegistry<Name, Waiting>,
    /// Locked first by whoever needs both.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The pipes of processes that hold what somebody here waits for.
    watched: HashMap<ProcessId, Arc<File>>,
    listening: bool,
    closed: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whether the record of the key lists this process, as far as we know.
    listed: bool,
    holder: Option<ProcessId>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a waiter for `name`, and starts to listen if nobody does.
    pub(crate) fn add(self: &Arc<Self>, name: Name, bell: Bell, pipe: Option<&Arc<File>>) {
        let mut state = self.state();
        self.waiters.add(name, bell);
        if state.listening {
            return;
        }
        let (board, pipe) = (Arc::clone(self), pipe.cloned());
        let thread = std::thread::Builder::new().name("holdtight-wake".into());
        // Without a thread there are no wake-ups, and waiters ask again by their timers.
        state.listening = thread.spawn(move || board.listen(pipe.as_deref())).is_ok();
    }

    /// Whether the record was told of us: then the last waiter that leaves takes the entry back.
    pub(crate) fn set_listed(&self, name: &Name, listed: bool) {
        self.waiters.with(name, |waiting| waiting.listed = listed);
    }

    /// How many wait for `name` here.
    pub(crate) fn waiters(&self, name: &Name) -> usize {
        self.waiters.count(name)
    }

    /// Forgets waiters that left. `true` if the last one did while the record lists us.
    pub(crate) fn forget(&self, name: &Name) -> bool {
        let mut state = self.state();
        let Some(last) = self.waiters.remove_dropped(name) else { return false };
        state.watched.retain(|id, _| self.waiters.any(|waiting| waiting.holder == Some(*id)));
        last.listed
    }

    /// Rings for one waiter of `name`, and the next time for another one.
    pub(crate) fn ring(&self, name: &Name) {
        self.waiters.notify_one(name);
    }

    /// Watches the process that holds `name`, so that its death is heard.
    pub(crate) fn watch(
        &self,
        directory: &Directory,
        name: &Name,
        holder: ProcessId,
        own_pipe: Option<&Arc<File>>,
    ) {
        let Some(own_pipe) = own_pipe else { return };
        let mut state = self.state();
        let before = self.waiters.with(name, |waiting| waiting.holder.replace(holder));
        let Some(before) = before else { return };
        let first_time = before != Some(holder);
        if state.watched.contains_key(&holder) {
            return;
        }
        match open_pipe(&directory.live, &holder, false) {
            Ok(pipe) => {
                state.watched.insert(holder, Arc::new(pipe));
                drop(state);
                look_again(own_pipe);
            }
            // It died since it was looked at, which is news once: its liveness may have been shared
            // with a process that lives on. A missing pipe is no such proof, and rings for nobody.
            Err(error)
                if first_time
                    && error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) =>
            {
                self.waiters.notify_one(name);
            }
            Err(_) => {}
        }
    }

    /// Ends the listening thread.
    pub(crate) fn close(&self, own_pipe: Option<&Arc<File>>) {
        self.state().closed = true;
        if let Some(pipe) = own_pipe {
            look_again(pipe);
        }
    }

    fn listen(&self, pipe: Option<&File>) {
        match pipe {
            Some(pipe) => while self.listen_once(pipe) {},
            None => while self.ring_everybody() {},
        }
    }

    /// Waits for news and passes it on. `false` when it is over.
    fn listen_once(&self, pipe: &File) -> bool {
        let watched: Vec<(ProcessId, Arc<File>)> = {
            let state = self.state();
            if state.closed {
                return false;
            }
            state.watched.iter().map(|(id, pipe)| (*id, Arc::clone(pipe))).collect()
        };
        let mut events = Vec::with_capacity(watched.len() + 1);
        events.push(PollFd::new(pipe, PollFlags::IN));
        // The end of a reader is reported without being asked for.
        events.extend(watched.iter().map(|(_, pipe)| PollFd::new(&**pipe, PollFlags::empty())));
        match poll(&mut events, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => {
                self.state().listening = false;
                return false;
            }
        }
        let dead: Vec<ProcessId> = events[1..]
            .iter()
            .zip(&watched)
            .filter(|(event, _)| !event.revents().is_empty())
            .map(|(_, (id, _))| *id)
            .collect();
        let mut news = [0; 4096];
        let mut reader = pipe;
        // Messages are shorter than PIPE_BUF, so they are never cut or mixed.
        let length = reader.read(&mut news).unwrap_or(0);
        for name in news[..length].chunks_exact(LOOK_AGAIN.len()) {
            if let Ok(name) = Name::try_from(name)
                && name != LOOK_AGAIN
            {
                self.ring(&name);
            }
        }
        if !dead.is_empty() {
            let mut state = self.state();
            for id in dead {
                state.watched.remove(&id);
                self.waiters.notify_one_where(|waiting| waiting.holder == Some(id));
            }
        }
        true
    }

    fn ring_everybody(&self) -> bool {
        std::thread::sleep(WITHOUT_PIPES);
        let mut state = self.state();
        if state.closed || self.waiters.is_empty() {
            state.listening = false;
            return false;
        }
        self.waiters.notify_one_where(|_| true);
        true
    }
}

fn look_again(own_pipe: &File) {
    let mut pipe = own_pipe;
    let _ = pipe.write(&LOOK_AGAIN);
}
