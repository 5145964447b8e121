//! The last step before the command: a copy of ours, already in the command's process group, that waits for a word.
//!
//! It gives the guardian time to tell the wrapper about the group and to hand over the terminal: a command never runs
//! unguarded, not even for an instant. If the guardian dies first, the command never runs at all. It also undoes what
//! was done to signals, and then becomes the command.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use super::CANNOT_START;
use super::signals::Blocked;
use crate::output;

/// The hidden argument: `ARGUMENT WAIT REFUSE BLOCKED PROGRAM…`, two numbers of inherited descriptors, the numbers of
/// the signals to unblock, and the command.
pub(crate) const ARGUMENT: &str = "__launch";

/// The word.
pub(super) const GO: u8 = b'!';

/// Waits for the word and becomes the command. Returns only if that is not possible.
pub(crate) fn launch(arguments: impl Iterator<Item = OsString>) -> u8 {
    match become_command(arguments) {
        Ok(code) => code,
        Err(error) => {
            output::complain(format_args!("cannot start the command: {error}"));
            CANNOT_START
        }
    }
}

fn become_command(mut arguments: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let nonsense = || io::Error::other("this is for holdtight itself");
    let mut number = || arguments.next()?.to_str()?.parse::<RawFd>().ok();
    let (wait, refuse) = number().zip(number()).ok_or_else(nonsense)?;
    let blocked = arguments.next().and_then(|list| list.into_string().ok()).ok_or_else(nonsense)?;
    let program = arguments.next().ok_or_else(nonsense)?;
    // Opened anew, these close by themselves when we become the command.
    let (mut wait, mut refuse) = (inherited(wait, false)?, inherited(refuse, true)?);
    if !heard(&mut wait)? {
        return Ok(CANNOT_START);
    }
    let blocked: Vec<i32> = blocked.split(',').filter_map(|number| number.parse().ok()).collect();
    Blocked::from_numbers(&blocked).undo()?;
    let error = Command::new(program).args(arguments).exec();
    let _ = refuse.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
    Ok(super::refused(&error))
}

/// Our own descriptor of a pipe whose number we were told; the inherited one is closed.
fn inherited(number: RawFd, write: bool) -> io::Result<File> {
    // Without NONBLOCK, opening the reading end would wait for a guardian that is gone.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    // On Linux /proc is needed anyway, and /dev/fd may be missing.
    let directory = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let opened = OpenOptions::new()
        .read(!write)
        .write(write)
        .custom_flags(flags)
        .open(format!("{directory}/{number}"));
    nix::unistd::close(number)?;
    opened
}

/// Whether the word came; not, if the guardian is gone.
fn heard(wait: &mut File) -> io::Result<bool> {
    let mut word = [0];
    loop {
        match wait.read(&mut word) {
            Ok(read) => return Ok(read == 1 && word[0] == GO),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut watched = [PollFd::new(&*wait, PollFlags::IN)];
                match poll(&mut watched, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
