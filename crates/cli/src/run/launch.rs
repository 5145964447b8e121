//! The last step before the command: a copy of ours, already in the command's process group, that waits for a word.
//!
//! It gives the wrapper time to tell the guardian about the group and to hand over the terminal: a command never runs
//! unguarded, not even for an instant. If the wrapper dies first, the command never runs at all. It also undoes what
//! the wrapper did to signals, and then becomes the command.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use super::{CANNOT_START, signals};

/// The hidden argument: `ARGUMENT WAIT REFUSE PROGRAM…`, two numbers of inherited descriptors and the command.
pub(super) const ARGUMENT: &str = "__launch";

/// The word.
pub(super) const GO: u8 = b'!';

/// Waits for the word and becomes the command. Returns only if that is not possible.
pub(super) fn launch(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let mut number = || arguments.next()?.to_str()?.parse::<RawFd>().ok();
    let (Some(wait), Some(refuse)) = (number(), number()) else { return CANNOT_START };
    // Opened anew, these close by themselves when we become the command.
    let ends = inherited(wait, false).and_then(|wait| Ok((wait, inherited(refuse, true)?)));
    let (Ok((mut wait, mut refuse)), Some(program)) = (ends, arguments.next()) else {
        return CANNOT_START;
    };
    if !matches!(heard(&mut wait), Ok(true)) || signals::unblock().is_err() {
        return CANNOT_START;
    }
    let error = Command::new(program).args(arguments).exec();
    let _ = refuse.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
    super::refused(&error)
}

/// Our own descriptor of a pipe whose number we were told; the inherited one is closed.
fn inherited(number: RawFd, write: bool) -> io::Result<File> {
    // Without NONBLOCK, opening the reading end would wait for a wrapper that is gone.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let opened = OpenOptions::new()
        .read(!write)
        .write(write)
        .custom_flags(flags)
        .open(format!("/dev/fd/{number}"));
    nix::unistd::close(number)?;
    opened
}

/// Whether the word came; not, if the wrapper is gone.
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
