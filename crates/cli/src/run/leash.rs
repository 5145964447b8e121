//! The line from the wrapper to its guardian: small fixed records on a pipe, and the wrapper's end of it.
//!
//! The end of the pipe is a message too: it means that the wrapper is gone. What the guardian does with all this
//! stands in [`guardian`](super::guardian).

use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use holdtight::Moment;
use holdtight_file::SharedLiveness;
use rustix::io::{FdFlags, fcntl_setfd};

use super::group::Group;
use super::plan::Schedule;

/// The hidden argument that makes a guardian of us.
pub(super) const ARGUMENT: &str = "__guardian";

/// What the wrapper tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The command runs in this group; it gets this long between TERM and KILL if the wrapper dies.
    Group(Group, Duration),
    /// If nothing newer is heard, the group is stopped at these times.
    Schedule(Schedule),
    /// The group has been told to stop.
    Told,
    /// The command is over; there is nothing left to guard.
    Done,
}

/// The length of a note on the pipe: less than the kernel would ever split.
pub(super) const NOTE_BYTES: usize = 17;

impl Note {
    pub(super) fn encode(self) -> [u8; NOTE_BYTES] {
        let (tag, a, b) = match self {
            Self::Group(group, grace) => (
                b'G',
                u64::from(group.id().unsigned_abs()),
                u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX),
            ),
            Self::Schedule(schedule) => {
                (b'S', schedule.term_at.as_nanos(), schedule.kill_at.as_nanos())
            }
            Self::Told => (b'T', 0, 0),
            Self::Done => (b'D', 0, 0),
        };
        let mut bytes = [tag; NOTE_BYTES];
        bytes[1..9].copy_from_slice(&a.to_le_bytes());
        bytes[9..].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; NOTE_BYTES]) -> Option<Self> {
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        let (a, b) = (number(1), number(9));
        Some(match bytes[0] {
            b'G' => Self::Group(Group::led_by(u32::try_from(a).ok()?)?, Duration::from_nanos(b)),
            b'S' => Self::Schedule(Schedule {
                term_at: Moment::from_nanos(a),
                kill_at: Moment::from_nanos(b),
            }),
            b'T' => Self::Told,
            b'D' => Self::Done,
            _ => return None,
        })
    }
}

/// The wrapper's end.
#[derive(Debug)]
pub(super) struct Leash {
    guardian: Child,
    line: PipeWriter,
    sent: Option<Schedule>,
}

impl Leash {
    /// Starts a guardian, which shares `liveness` with us: whoever watches that sees us alive until both are gone.
    ///
    /// The guardian gets the line and the lock as standard input and output. The pipe it inherits as it is: it has
    /// nothing to do with it but to keep it open for as long as the lock, so that whoever waits for us is woken when
    /// the guardian ends, and not before.
    ///
    /// The `first` notes are on the line before it starts: if we are killed right then, it knows what to do.
    pub(super) fn start(liveness: Option<SharedLiveness>, first: &[Note]) -> io::Result<Self> {
        let (lock, pipe) = match liveness {
            Some(SharedLiveness { lock, pipe }) => (Some(lock), pipe),
            None => (None, None),
        };
        let (reader, mut line) = io::pipe()?;
        for note in first {
            line.write_all(&note.encode())?;
        }
        // A guardian that does not read must not keep us.
        rustix::io::ioctl_fionbio(&line, true)?;
        if let Some(pipe) = &pipe {
            // This copy is closed below: nothing that is started later inherits it.
            fcntl_setfd(pipe, FdFlags::empty())?;
        }
        let guardian = Command::new(own_binary()?)
            .arg0("holdtight")
            .args([ARGUMENT, &std::process::id().to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(reader)
            .stdout(lock.map_or_else(Stdio::null, Stdio::from))
            // Ctrl-C and Ctrl-Z reach a process group; the guardian must outlive all of them.
            .process_group(0)
            .spawn()?;
        drop(pipe);
        let sent = first.iter().rev().find_map(|note| match note {
            Note::Schedule(schedule) => Some(*schedule),
            _ => None,
        });
        Ok(Self { guardian, line, sent })
    }

    /// Says where the command runs.
    pub(super) fn guard(&mut self, group: Group, grace: Duration) -> io::Result<()> {
        self.send(Note::Group(group, grace))
    }

    /// Says when the group must be stopped, if that has changed.
    pub(super) fn schedule(&mut self, schedule: Schedule) -> io::Result<()> {
        if self.sent.is_some_and(|sent| sent.kill_at >= schedule.kill_at) {
            return Ok(());
        }
        self.send(Note::Schedule(schedule))?;
        self.sent = Some(schedule);
        Ok(())
    }

    /// Says that the group was told to stop.
    pub(super) fn told(&mut self) -> io::Result<()> {
        self.send(Note::Told)
    }

    fn send(&mut self, note: Note) -> io::Result<()> {
        match self.line.write(&note.encode()) {
            Ok(NOTE_BYTES) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            // Full: it has not read for thousands of notes. It is told again at the next change.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the guardian has ended although it was not told to.
    pub(super) fn is_cut(&mut self) -> bool {
        !matches!(self.guardian.try_wait(), Ok(None))
    }

    /// Lets the guardian go: the command is over. Close the returned process's account when there is time.
    pub(super) fn let_go(mut self) -> Child {
        let _ = self.send(Note::Done);
        self.guardian
    }
}

/// The file we were started from, even if another has taken its place since.
pub(super) fn own_binary() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_is_read_as_it_was_written() {
        let schedule =
            Schedule { term_at: Moment::from_nanos(u64::MAX - 1), kill_at: Moment::from_nanos(1) };
        let group = Group::led_by(4_194_304).unwrap();
        for note in [
            Note::Group(group, Duration::from_millis(1500)),
            Note::Schedule(schedule),
            Note::Told,
            Note::Done,
        ] {
            assert_eq!(Note::decode(note.encode()), Some(note));
        }
    }

    #[test]
    fn nonsense_is_not_a_note() {
        assert_eq!(Note::decode([b'?'; NOTE_BYTES]), None);
        let mut everybody = Note::Group(Group::led_by(2).unwrap(), Duration::ZERO).encode();
        everybody[1] = 1;
        assert_eq!(Note::decode(everybody), None, "group 1 would be every process");
    }
}
