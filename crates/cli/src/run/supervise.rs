//! The time between the grant and the end of the command: signals in, lease in; TERM, KILL and job control out.
//!
//! Whatever wakes it, it looks at the lease first. A group that may have lost its lock does not get to run another
//! instruction, also when the wrapper itself stood still.

use std::process::Child;
use std::time::Duration;

use holdtight::{BootClock, Clock, Held, Loss, Moment};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use super::child::{Ended, Running};
use super::leash::{Leash, Note};
use super::plan::{Plan, Schedule, Step};
use super::signals::Signals;
use super::terminal::Terminal;
use crate::output;

/// How often a dying group is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long a killed group may take to disappear before we leave it to the guardian.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Why a command was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// This lock is gone, or could not be renewed in time.
    Lost { key: String, loss: Option<Loss> },
    /// It ran as long as `--max-hold` allows.
    MaxHold,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ended: Option<Ended>,
    /// Set if we stopped it.
    pub(super) cause: Option<Cause>,
    /// Whether it had the terminal when it ended.
    pub(super) on_terminal: bool,
    /// Set if there was nothing to run.
    pub(super) refusal: Option<std::io::Error>,
    /// The guardian, on its way out.
    pub(super) guardian: Option<Child>,
}

/// How far the stopping of the group has come.
#[derive(Debug)]
enum Stage {
    Running,
    /// TERM was sent.
    Told {
        kill_at: Moment,
        cause: Cause,
    },
    /// KILL was sent.
    Killed {
        at: Moment,
        cause: Cause,
    },
}

/// A command under its locks.
pub(super) struct Supervisor<'a> {
    pub(super) plan: Plan,
    pub(super) locks: &'a [Held],
    /// When `--max-hold` ends.
    pub(super) hold_until: Moment,
    pub(super) signals: &'a mut Signals,
    pub(super) terminal: Option<Terminal>,
    pub(super) leash: Leash,
    /// Makes another guardian, if one is killed.
    pub(super) new_leash: &'a dyn Fn(&[Note]) -> std::io::Result<Leash>,
    pub(super) child: Running,
    pub(super) verbose: bool,
}

enum Event {
    Signal(Signal),
    Lost,
    Tick,
}

impl Supervisor<'_> {
    /// Watches until the command has ended and, if it was stopped, until its whole group is gone.
    pub(super) async fn watch(mut self) -> Outcome {
        let mut stage = Stage::Running;
        let mut losses = self.watch_losses();
        let mut ended = None;
        let group = self.child.group;
        self.enforce(&mut stage, BootClock.now());
        if matches!(stage, Stage::Running) {
            self.tell_guardian(&stage);
            if let Some(terminal) = &mut self.terminal
                && terminal.is_wanted()
            {
                terminal.give(group);
            }
            self.child.go();
        }
        loop {
            let now = BootClock.now();
            self.enforce(&mut stage, now);
            if ended.is_none() {
                ended = self.child.ended();
            }
            if self.is_over(&mut stage, ended, now) {
                break;
            }
            self.tell_guardian(&stage);
            let pause = self.pause(&stage, ended.is_some(), BootClock.now());
            let event = tokio::select! {
                biased;
                signal = self.signals.next() => Event::Signal(signal),
                Some(()) = losses.recv() => Event::Lost,
                () = tokio::time::sleep(pause) => Event::Tick,
            };
            // We may have slept much longer than we meant to.
            self.enforce(&mut stage, BootClock.now());
            if let Event::Signal(signal) = event {
                self.heard(signal, &mut stage);
            }
        }
        self.finish(stage, ended)
    }

    /// Wakes the loop as soon as the engine knows of a loss.
    fn watch_losses(&self) -> mpsc::UnboundedReceiver<()> {
        let (tell, losses) = mpsc::unbounded_channel();
        for held in self.locks {
            let (held, tell) = (held.clone(), tell.clone());
            tokio::spawn(async move {
                held.lost().await;
                let _ = tell.send(());
            });
        }
        losses
    }

    /// What the leases and `--max-hold` allow now, and which of them ends first.
    fn outlook(&self, now: Moment) -> (Schedule, Cause) {
        let first =
            self.locks.iter().map(|held| (held.remaining(), held)).min_by_key(|(left, _)| *left);
        let lease_end = first.as_ref().map_or(Moment::FAR_FUTURE, |(left, _)| now.after(*left));
        if self.hold_until <= lease_end {
            return (self.plan.schedule(self.hold_until), Cause::MaxHold);
        }
        let key = first.map(|(_, held)| held.key().to_string()).unwrap_or_default();
        (self.plan.schedule(lease_end), Cause::Lost { key, loss: None })
    }

    /// The first lock that is gone for certain.
    fn lost(&self) -> Option<Cause> {
        let held = self.locks.iter().find(|held| !held.is_held())?;
        let loss = std::pin::pin!(held.lost());
        let loss = match poll_once(loss) {
            std::task::Poll::Ready(loss) => Some(loss),
            std::task::Poll::Pending => None,
        };
        Some(Cause::Lost { key: held.key().to_string(), loss })
    }

    /// Does to the group what is due.
    fn enforce(&mut self, stage: &mut Stage, now: Moment) {
        let group = self.child.group;
        if matches!(stage, Stage::Killed { .. }) {
            group.signal(Signal::SIGKILL);
            return;
        }
        if let Some(cause) = self.lost() {
            // Somebody else may have it already: no grace.
            group.signal(Signal::SIGKILL);
            *stage = Stage::Killed { at: now, cause };
            return;
        }
        match stage {
            Stage::Running => {
                let (schedule, cause) = self.outlook(now);
                match schedule.due(now, false) {
                    None => {}
                    Some(Step::Term) => {
                        group.signal(Signal::SIGTERM);
                        let _ = self.leash.told();
                        *stage = Stage::Told { kill_at: schedule.kill_at, cause };
                    }
                    Some(Step::Kill) => {
                        group.signal(Signal::SIGKILL);
                        *stage = Stage::Killed { at: now, cause };
                    }
                }
            }
            Stage::Told { kill_at, cause } if now >= *kill_at => {
                group.signal(Signal::SIGKILL);
                *stage = Stage::Killed { at: now, cause: cause.clone() };
            }
            Stage::Told { .. } | Stage::Killed { .. } => {}
        }
    }

    /// Whether there is nothing more to wait for.
    fn is_over(&self, stage: &mut Stage, ended: Option<Ended>, now: Moment) -> bool {
        match stage {
            Stage::Running => match ended {
                None => false,
                // The guardian stopped it, because we were not there in time.
                Some(Ended::Signal(signal))
                    if [Signal::SIGTERM as i32, Signal::SIGKILL as i32].contains(&signal)
                        && now >= self.outlook(now).0.term_at =>
                {
                    let (schedule, cause) = self.outlook(now);
                    *stage = Stage::Told { kill_at: schedule.kill_at, cause };
                    self.child.group.is_empty()
                }
                // It is over, in time. What it leaves in the background goes on, without the lock.
                Some(_) => true,
            },
            Stage::Told { .. } => ended.is_some() && self.child.group.is_empty(),
            Stage::Killed { at, .. } => {
                self.child.group.is_empty() && ended.is_some() || now.since(*at) > LAST_WAIT
            }
        }
    }

    fn pause(&self, stage: &Stage, leader_is_gone: bool, now: Moment) -> Duration {
        let tick = self.plan.tick();
        let next = match stage {
            Stage::Running => self.outlook(now).0.next(now, false),
            Stage::Told { .. } if leader_is_gone => LOOK,
            Stage::Told { kill_at, .. } => kill_at.since(now),
            Stage::Killed { .. } => LOOK,
        };
        next.clamp(Duration::from_millis(1), tick)
    }

    /// Keeps the guardian informed; a guardian that was killed is replaced.
    fn tell_guardian(&mut self, stage: &Stage) {
        let told = match stage {
            Stage::Running => {
                let (schedule, _) = self.outlook(BootClock.now());
                self.leash.schedule(schedule)
            }
            Stage::Told { .. } | Stage::Killed { .. } => Ok(()),
        };
        if told.is_ok() && !self.leash.is_cut() {
            return;
        }
        let (schedule, _) = self.outlook(BootClock.now());
        let mut notes =
            vec![Note::Group(self.child.group, self.plan.kill_after), Note::Schedule(schedule)];
        if !matches!(stage, Stage::Running) {
            notes.push(Note::Told);
        }
        match (self.new_leash)(&notes) {
            Ok(leash) => self.leash = leash,
            Err(error) if self.verbose => {
                output::complain(format_args!(
                    "the guardian is gone and could not be replaced: {error}"
                ));
            }
            Err(_) => {}
        }
    }

    fn heard(&mut self, signal: Signal, stage: &mut Stage) {
        match signal {
            Signal::SIGCHLD => {
                if let Some(by) = self.child.stopped() {
                    self.stopped(by, stage);
                }
            }
            _ if matches!(stage, Stage::Killed { .. }) => {}
            _ => self.child.group.signal(signal),
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it wants the terminal.
    fn stopped(&mut self, by: i32, stage: &mut Stage) {
        let group = self.child.group;
        let by = Signal::try_from(by).unwrap_or(Signal::SIGSTOP);
        let wants_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        // Without a terminal nobody would continue us: a stopped command is then just a slow one.
        let Some(terminal) = &mut self.terminal else { return };
        if wants_terminal && (terminal.is_ours() || terminal.is_given()) {
            terminal.give(group);
            group.signal(Signal::SIGCONT);
            return;
        }
        terminal.take_back();
        // We stop with it, as a shell expects of a job. From here on nothing is renewed; the guardian has the schedule.
        let own = if wants_terminal { by } else { Signal::SIGTSTP };
        let continued = self.signals.stop_group(own).unwrap_or(false);
        // First of all: is it still ours?
        self.enforce(stage, BootClock.now());
        if matches!(stage, Stage::Killed { .. }) {
            return;
        }
        if !continued {
            // We have no shell that could stop us. What the kernel does to such groups is done to the command.
            match by {
                Signal::SIGTTIN | Signal::SIGTTOU => group.signal(Signal::SIGHUP),
                Signal::SIGTSTP => {}
                _ => return,
            }
        }
        if let Some(terminal) = &mut self.terminal
            && terminal.is_wanted()
        {
            terminal.give(group);
        }
        group.signal(Signal::SIGCONT);
    }

    fn finish(mut self, stage: Stage, ended: Option<Ended>) -> Outcome {
        let on_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
        let killed = matches!(stage, Stage::Killed { .. });
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
            if killed {
                terminal.reset_modes();
            }
        }
        let cause = match stage {
            Stage::Running => None,
            Stage::Told { cause, .. } | Stage::Killed { cause, .. } => Some(cause),
        };
        // While somebody is left, the guardian stays, and with it whatever shows that we live.
        let guardian =
            (cause.is_none() || self.child.group.is_empty()).then(|| self.leash.let_go());
        let refusal = self.child.refusal();
        // Only now may its number be used again.
        self.child.reap();
        Outcome { ended, cause, on_terminal, refusal, guardian }
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
