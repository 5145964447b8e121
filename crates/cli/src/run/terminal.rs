//! The terminal, and who has it: our process group or the command's.
//!
//! A command that owns the terminal on both sides gets it at once. In a pipeline it gets it when it
//! asks (by reading, or by changing modes), because the other members of the pipeline may need it
//! too: `… | less`.

use std::fs::File;
use std::io::IsTerminal;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::tree::Group;

/// Our controlling terminal. `TTOU` is blocked in this process, so it can be moved from the
/// background too.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// How it was set when the command got it first.
    modes: Option<Termios>,
    given: bool,
    /// The process group of the wrapper, which has it as long as the command has not.
    ours: Pid,
    /// Whether the command talks to the terminal on both sides.
    both_sides: bool,
}

impl Terminal {
    /// The controlling terminal, if there is one, of the process group `ours`, for a command that
    /// reads from `stdin`.
    pub(super) fn open(ours: i32, stdin: &impl IsTerminal) -> Option<Self> {
        let ours = Pid::from_raw(ours)?;
        let both_sides = stdin.is_terminal() && std::io::stdout().is_terminal();
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty: tty.into(), modes: None, given: false, ours, both_sides })
    }

    /// Whether the process group of the wrapper is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == self.ours)
    }

    /// Whether we gave it to the command, and did not take it back.
    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Whether a command should have it from the start: it talks to the terminal on both sides, and
    /// we may give it.
    pub(super) fn is_wanted(&self) -> bool {
        self.both_sides && self.is_ours()
    }

    /// Puts the command's group into the foreground.
    pub(super) fn give(&mut self, group: Group) {
        let Some(group) = Pid::from_raw(group.id()) else { return };
        if self.modes.is_none() {
            self.modes = tcgetattr(&self.tty).ok();
        }
        if tcsetpgrp(&self.tty, group).is_ok() {
            self.given = true;
        }
    }

    /// Puts the wrapper's group into the foreground again, if we gave it away.
    pub(super) fn take_back(&mut self) {
        if std::mem::take(&mut self.given) {
            let _ = tcsetpgrp(&self.tty, self.ours);
        }
    }

    /// Puts our group into the foreground, if `group`, of which nobody is left, still has it.
    pub(super) fn take_from(&mut self, group: i32) {
        self.given = tcgetpgrp(&self.tty).is_ok_and(|now| now.as_raw_pid() == group);
        self.take_back();
    }

    /// Undoes what a command that was killed could not undo: raw mode, no echo.
    pub(super) fn reset_modes(&mut self) {
        if let Some(modes) = self.modes.take()
            && self.is_ours()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, &modes);
        }
    }
}
