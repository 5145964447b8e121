//! The terminal, and who has it: our process group or the command's.
//!
//! A command that owns the terminal on both sides gets it at once. In a pipeline it gets it when it asks (by
//! reading, or by changing modes), because the other members of the pipeline may need it too: `… | less`.

use std::fs::File;
use std::io::IsTerminal;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::group::Group;

/// Our controlling terminal. `TTOU` is blocked in this process, so it can be moved from the background too.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// How it was set when the command got it first.
    modes: Option<Termios>,
    given: bool,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(super) fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty: tty.into(), modes: None, given: false })
    }

    /// Whether our process group is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Whether we gave it to the command, and did not take it back.
    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Whether a command should have it from the start: it talks to the terminal on both sides, and we may give it.
    pub(super) fn is_wanted(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && self.is_ours()
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

    /// Puts our group into the foreground again, if we gave it away.
    pub(super) fn take_back(&mut self) {
        if std::mem::take(&mut self.given) {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
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
