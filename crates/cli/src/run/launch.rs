//! The last step before the command: a copy of ours, already in the command's process group, that
//! waits for a word.
//!
//! It is started while the guardian is still busy with the store, and gives it time to tell the
//! wrapper about the group and to hand over the terminal: a command never runs unguarded, not even
//! for an instant. If the guardian dies first, the command never runs at all. With the word comes
//! what the command inherits; it also undoes what was done to signals, and then becomes the
//! command.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use serde::{Deserialize, Serialize};

use super::CANNOT_START;
use super::line;
use super::signals::Blocked;
use crate::args;
use crate::output;

/// The hidden argument: `ARGUMENT …`, with all that the wrapper was called with.
pub(crate) const ARGUMENT: &str = "__launch";

/// Scripts use small numbers of descriptors for themselves.
const HIGH: i32 = 20;

/// The word. Beside it come descriptors: the standard input, and what stays open in all that the
/// command starts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Word {
    pub(super) command: Words,
    /// The signals to unblock, by number.
    pub(super) blocked: Vec<i32>,
    /// Variables that the command finds, or does not find, in its environment.
    pub(super) environment: Vec<(String, Option<String>)>,
}

/// Where the command is to be found. It is not sent: it may be longer than what can be sent without
/// waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Words {
    /// So many words at the end of the command line.
    Last(usize),
    /// A line for the shell somewhere in the command line.
    Line,
}

/// Waits for the word and becomes the command. Returns only if that is not possible.
pub(crate) fn launch(program: OsString, arguments: impl Iterator<Item = OsString>) -> u8 {
    super::take_our_name();
    let line = [program].into_iter().chain(arguments).collect();
    match become_command(line) {
        Ok(code) => code,
        Err(error) => {
            output::complain(format_args!("cannot start the command: {error}"));
            CANNOT_START
        }
    }
}

fn become_command(arguments: Vec<OsString>) -> io::Result<u8> {
    let mut line = line::inherited()?;
    let Some((word, descriptors)) = hear(&line)? else { return Ok(CANNOT_START) };
    let mut descriptors = descriptors.into_iter();
    if let Some(stdin) = descriptors.next() {
        rustix::stdio::dup2_stdin(stdin)?;
    }
    let mut lowest = HIGH;
    for descriptor in descriptors {
        lowest = leave_open(descriptor, lowest)? + 1;
    }
    Blocked::from_numbers(&word.blocked).undo()?;
    let mut words = words(word.command, arguments)?.into_iter();
    let program = words.next().ok_or_else(|| io::Error::other("this is for holdtight itself"))?;
    let mut command = Command::new(program);
    command.args(words);
    for (name, value) in word.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let error = command.exec();
    let _ = line.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
    Ok(super::refused(&error))
}

/// The word, when it has come; nothing, if the guardian is gone.
fn hear(line: &UnixStream) -> io::Result<Option<(Word, Vec<OwnedFd>)>> {
    let (mut received, mut descriptors) = (Vec::new(), Vec::new());
    while !received.ends_with(b"\n") {
        match line::read(line, &mut received, &mut descriptors) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut watched = [PollFd::from_borrowed_fd(line.as_fd(), PollFlags::IN)];
                match poll(&mut watched, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some((serde_json::from_slice(&received)?, descriptors)))
}

/// Has the command inherit a descriptor, as it would that of flock: under its number, which is at
/// least `lowest`.
fn leave_open(descriptor: OwnedFd, lowest: i32) -> io::Result<i32> {
    let placed = match fcntl_dupfd_cloexec(&descriptor, lowest) {
        Ok(placed) => placed,
        // There can be no such number.
        Err(Errno::INVAL | Errno::MFILE) => descriptor,
        Err(error) => return Err(error.into()),
    };
    fcntl_setfd(&placed, FdFlags::empty())?;
    // It is closed with the command, which is what we are about to become.
    Ok(placed.into_raw_fd())
}

fn words(command: Words, mut arguments: Vec<OsString>) -> io::Result<Vec<OsString>> {
    let nonsense = || io::Error::other("this is for holdtight itself");
    match command {
        Words::Last(number) => {
            let start = arguments.len().checked_sub(number).ok_or_else(nonsense)?;
            Ok(arguments.split_off(start))
        }
        Words::Line => {
            let cli =
                args::parse(&arguments).map_err(|failure| io::Error::other(failure.to_string()))?;
            let args::Command::Run(run) = cli.command else { return Err(nonsense()) };
            Ok(args::RunArgs::command(run.line, run.words))
        }
    }
}
