//! The guardian: a second process of ours that outlives a killed wrapper, and stops the command in its place.
//!
//! It shares the wrapper's liveness lock (as its standard output) and its wake pipe, so a store that watches processes
//! sees the holder alive until the group is empty and the guardian has ended, and wakes the next one then. It also keeps the wrapper's schedule: a wrapper
//! that is stopped or starved does not keep the group alive past the lease.

use std::io;
use std::time::Duration;

use holdtight::{BootClock, Clock, Moment};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use super::group::Group;
use super::leash::{NOTE_BYTES, Note};
use super::plan::{Schedule, Step};
use crate::output;

/// Timers stop while the machine sleeps, so the boot clock is read at least this often.
const TICK: Duration = Duration::from_millis(250);

/// How often a dying group is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Guards until the wrapper lets go or is gone.
pub(super) fn guard() -> u8 {
    // Whoever ends a job ends all its processes; this one has to be the last.
    if SigSet::all().thread_block().is_err() {
        return 1;
    }
    let mut guard = Guard { group: None, grace: Duration::ZERO, schedule: None, told: false };
    if let End::Abandoned = guard.watch() {
        guard.finish();
        // Nobody but us has it any more. Before we end, because the kernel may close the pipe first when we do, and
        // whoever it wakes must find the lock free.
        let _ = flock(io::stdout(), FlockOperation::Unlock);
    }
    0
}

/// What is known of the command.
struct Guard {
    group: Option<Group>,
    grace: Duration,
    schedule: Option<Schedule>,
    told: bool,
}

/// Why the watch is over.
enum End {
    LetGo,
    Abandoned,
}

impl Guard {
    /// Listens to the wrapper, and keeps its schedule.
    fn watch(&mut self) -> End {
        let mut notes = Notes::default();
        loop {
            let now = BootClock.now();
            self.keep_schedule(now);
            let pause = self.schedule.map_or(TICK, |schedule| {
                schedule.next(now, self.told).clamp(Duration::from_millis(1), TICK)
            });
            if !readable(pause) {
                continue;
            }
            match notes.read() {
                Ok(Some(batch)) => {
                    for note in batch {
                        match note {
                            Note::Group(group, grace) => {
                                (self.group, self.grace) = (Some(group), grace);
                            }
                            Note::Schedule(schedule) => self.schedule = Some(schedule.for_second()),
                            Note::Told => self.told = true,
                            Note::Done => return End::LetGo,
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(None) | Err(_) => return End::Abandoned,
            }
        }
    }

    fn keep_schedule(&mut self, now: Moment) {
        let (Some(group), Some(schedule)) = (self.group, self.schedule) else { return };
        match schedule.due(now, self.told) {
            Some(Step::Term) => {
                group.signal(Signal::SIGTERM);
                self.told = true;
            }
            Some(Step::Kill) => {
                group.signal(Signal::SIGKILL);
                // Once is enough: what can be killed is dead. The wrapper, when it wakes, will see to the rest.
                self.schedule = None;
            }
            None => {}
        }
    }

    /// The wrapper is gone: stops the group, and returns when it is empty.
    fn finish(&mut self) {
        let Some(group) = self.group else { return };
        if group.is_empty() {
            return;
        }
        // Nobody may be left to read it. That must not end us.
        output::complain("the process that held the lock was killed; stopping its command");
        let now = BootClock.now();
        let kill_at = self.schedule.map_or(Moment::FAR_FUTURE, |schedule| schedule.kill_at);
        let kill_at = kill_at.min(now.after(self.grace));
        if !self.told && now < kill_at {
            group.signal(Signal::SIGTERM);
            // One that was stopped can only obey if it runs. It may: until then the lock is held.
            group.signal(Signal::SIGCONT);
        }
        while !group.is_empty() {
            if BootClock.now() >= kill_at {
                group.signal(Signal::SIGKILL);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Waits until there is something to read, or until `pause` is over.
fn readable(pause: Duration) -> bool {
    let stdin = io::stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
    let pause = Timespec::try_from(pause).ok();
    matches!(poll(&mut watched, pause.as_ref()), Ok(ready) if ready > 0)
}

/// Puts notes together from whatever the pipe gives.
#[derive(Default)]
struct Notes {
    buffer: Vec<u8>,
}

impl Notes {
    /// The notes that have come; `None` at the end of the pipe. Must be readable.
    fn read(&mut self) -> io::Result<Option<Vec<Note>>> {
        let mut chunk = [0; NOTE_BYTES * 64];
        let read = rustix::io::read(io::stdin(), &mut chunk)?;
        if read == 0 {
            return Ok(None);
        }
        self.buffer.extend_from_slice(&chunk[..read]);
        let (whole, rest) = self.buffer.as_chunks::<NOTE_BYTES>();
        let notes = whole.iter().copied().filter_map(Note::decode).collect();
        self.buffer = rest.to_vec();
        Ok(Some(notes))
    }
}
