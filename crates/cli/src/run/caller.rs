//! Whoever called, as the guardian sees it: the wrapper, which stands for the process that the user
//! started.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use holdtight::Moment;
use holdtight_file::SharedLiveness;
use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::line::{Ending, Heard, Line, ToGuardian, ToWrapper};

/// The wrapper, if it is there.
#[derive(Debug)]
pub(super) struct Caller {
    line: Option<Line>,
    /// It was let go, and did not just disappear.
    let_go: bool,
    told: Option<Moment>,
}

/// What the wrapper says first.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) group: i32,
    pub(super) blocked: Vec<i32>,
    pub(super) stdin: OwnedFd,
}

impl Caller {
    /// Greets the wrapper at the other end of our standard input. `None` if nobody is there.
    pub(super) async fn greet() -> io::Result<Option<(Self, Hello)>> {
        let mut line = Line::inherited()?;
        loop {
            let Heard { messages, closed } = line.next().await;
            for message in messages {
                if let ToGuardian::Hello { group, blocked } = message {
                    // It was sent, so there was no room for it here.
                    let stdin = line.descriptors().into_iter().next().ok_or(Errno::MFILE)?;
                    let caller = Self { line: Some(line), let_go: false, told: None };
                    return Ok(Some((caller, Hello { group, blocked, stdin })));
                }
            }
            if closed {
                return Ok(None);
            }
        }
    }

    /// Whether it is there and waits for us.
    pub(super) fn is_there(&self) -> bool {
        self.line.is_some()
    }

    /// Whether it is gone without having been let go.
    pub(super) fn was_killed(&self) -> bool {
        self.line.is_none() && !self.let_go
    }

    /// Returns when it is found to be gone; never, if that is known already.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub(super) async fn gone(&mut self) {
        let Some(line) = &mut self.line else { return std::future::pending().await };
        loop {
            // Nothing else is said to us at these times.
            let heard: Heard<ToGuardian> = line.next().await;
            if heard.closed {
                self.line = None;
                return;
            }
        }
    }

    fn send(&self, message: &ToWrapper) {
        if let Some(line) = &self.line {
            // One that is gone is heard of; one that does not read hears the next message.
            let _ = line.send(message, &[]);
        }
    }

    /// Gives it a share in what shows that the lock is held.
    pub(super) fn share(&self, liveness: &SharedLiveness) {
        let Some(line) = &self.line else { return };
        // In this order: what is received later gets the higher number, and is closed first.
        let pipe = liveness.pipe.as_ref().map(AsFd::as_fd);
        let both: Vec<_> = pipe.into_iter().chain([liveness.lock.as_fd()]).collect();
        let _ = line.send(&ToWrapper::Liveness, &both);
    }

    pub(super) fn started(&self, group: i32) {
        self.send(&ToWrapper::Started { group });
    }

    /// Says when nobody may be at work any more, if that has changed.
    pub(super) fn dead_by(&mut self, moment: Moment) {
        if self.told.is_none_or(|told| told < moment) {
            self.send(&ToWrapper::DeadBy(moment.as_nanos()));
            self.told = Some(moment);
        }
    }

    pub(super) fn ask_to_stop(&self, by: Signal) {
        self.send(&ToWrapper::Stop(by as i32));
    }

    /// Waits at most `pause` for the end of a stop: whether there was one. Nothing else happens in
    /// this thread meanwhile.
    pub(super) fn wait_for_continue(&mut self, pause: Duration) -> Option<bool> {
        let line = self.line.as_mut()?;
        let heard: Heard<ToGuardian> = line.wait(pause);
        if heard.closed {
            self.line = None;
        }
        heard.messages.into_iter().find_map(|message| match message {
            ToGuardian::Continued(continued) => Some(continued),
            ToGuardian::Hello { .. } => None,
        })
    }

    /// Lets it end, and keeps nothing of its terminal, its pipes and its directory if we stay.
    pub(super) fn let_go(&mut self, ending: Ending) {
        let stays = ending.stays;
        if stays {
            // Before it ends: whoever reads from it to the end must not wait for us.
            leave_streams();
        }
        self.send(&ToWrapper::End(ending));
        self.line = None;
        self.let_go = true;
    }
}

/// Waits for the first message of the wrapper, and leaves it where it is; `false` if there is no
/// wrapper any more.
///
/// Whatever is wrong with the command line, or the settings, it has found then: we would only tell
/// it again.
pub(crate) fn was_greeted() -> bool {
    loop {
        match rustix::net::recv(io::stdin(), &mut [0], RecvFlags::PEEK) {
            Ok((read, _)) => return read > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn leave_streams() {
    if let Ok(nothing) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
}
