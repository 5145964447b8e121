//! The time between the grant and the end of the work: signals in, lease in; TERM, KILL and job
//! control out.
//!
//! Whatever wakes it, it looks at the lease first. Work that may have lost its lock does not get to
//! run another instruction, also when this process itself stood still. The work is over when nobody
//! is left of all that the command started; whoever called is let go when its first process has
//! ended.

use std::time::Duration;

use holdtight::{BootClock, Clock, Held, Loss, Moment};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use super::alarm::Alarm;
use super::caller::Caller;
use super::child::{Ended, Running};
use super::holders::Script;
use super::line::Ending;
use super::plan::{Plan, Schedule, Step};
use super::signals::Signals;
use super::terminal::Terminal;
use super::tree::{self, Left, Obeyed};
use crate::conflict::quoted;
use crate::exit;
use crate::output;

/// What ends so soon after the first process was not left behind.
const SETTLE: Duration = Duration::from_millis(100);

/// How often those are killed again who do not die: first, and at last.
const AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// How long killed processes may take to disappear before whoever called is told that they do not.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// How often is looked whether a script that must end has.
const SCRIPT_LOOK: Duration = Duration::from_millis(20);

/// Why the work was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// This lock is gone, or could not be renewed in time.
    Lost { key: String, loss: Option<Loss> },
    /// It ran as long as `--max-hold` allows.
    MaxHold,
    /// It was stopped by Ctrl-Z until the lease that it had then was over.
    Slept,
    /// Somebody sent TERM.
    Asked,
    /// A signal ended the first process.
    Died,
    /// The wrapper was killed.
    Abandoned,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ended: Option<Ended>,
    /// Set if we stopped it.
    pub(super) cause: Option<Cause>,
    /// Whether it had the terminal when it ended.
    pub(super) on_terminal: bool,
    /// The last signal that was sent to us to be passed on.
    pub(super) passed_on: Option<Signal>,
    /// Set if something of it could not be stopped, and has ended by itself.
    pub(super) refused: bool,
    /// Set if there was nothing to run.
    pub(super) refusal: Option<std::io::Error>,
}

/// How far the stopping has come.
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
        again: Moment,
        pause: Duration,
        cause: Cause,
    },
}

/// A command under its locks.
pub(super) struct Supervisor<'a> {
    pub(super) plan: Plan,
    pub(super) locks: &'a [Held],
    /// When `--max-hold` ends.
    pub(super) hold_until: Moment,
    /// Let go at the end of the first process.
    pub(super) close: bool,
    pub(super) json: bool,
    pub(super) signals: &'a mut Signals,
    pub(super) alarm: Alarm,
    pub(super) terminal: Option<Terminal>,
    pub(super) caller: &'a mut Caller,
    pub(super) child: Running,
    /// What else is at work under these locks; the child is then the one that reads its pipe.
    pub(super) script: Option<Script>,
    /// Somebody may not be signalled, so whatever ends of itself was not stopped.
    pub(super) refused: bool,
    /// The end of the lease of a job that Ctrl-Z has stopped: renewals do not count until it goes
    /// on.
    pub(super) sleeps_until: Option<Moment>,
}

impl Supervisor<'_> {
    /// Watches until nobody is left at work, or, with `--close`, until the first process has ended.
    pub(super) async fn watch(mut self) -> Outcome {
        let mut stage = Stage::Running;
        let mut losses = self.watch_losses();
        let mut ended_at = None;
        let mut on_terminal = false;
        let mut passed_on = None;
        self.enforce(&mut stage, BootClock.now());
        if matches!(stage, Stage::Running) {
            self.tell_wrapper();
            if let (Some(terminal), Some(group)) = (&mut self.terminal, self.child.group())
                && terminal.is_wanted()
            {
                terminal.give(group);
            }
            self.child.go();
        }
        loop {
            let now = BootClock.now();
            self.enforce(&mut stage, now);
            let left = self.child.reap();
            if self.child.ended().is_some() && ended_at.is_none() {
                ended_at = Some(now);
                on_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
                if let Some(terminal) = &mut self.terminal {
                    terminal.take_back();
                }
            }
            if left == Left::Nobody && self.script_is_over(&mut stage) {
                break;
            }
            if let Some(ended_at) = ended_at
                && self.first_is_gone(&mut stage, ended_at, now)
            {
                break;
            }
            self.give_up_waiting(&stage, now);
            self.tell_wrapper();
            let pause = self.pause(&stage, ended_at, BootClock.now());
            let signal = tokio::select! {
                biased;
                signal = self.signals.next() => Some(signal),
                () = self.caller.gone() => None,
                Some(()) = losses.recv() => None,
                () = self.alarm.after(pause) => None,
            };
            // We may have slept much longer than we meant to.
            self.enforce(&mut stage, BootClock.now());
            match signal {
                Some(Signal::SIGCHLD) => {
                    if let Some(by) = self.child.stopped() {
                        self.stopped(by, &mut stage);
                    }
                }
                Some(signal) => {
                    passed_on = Some(signal);
                    self.heard(signal, &mut stage);
                }
                None => {}
            }
        }
        self.finish(stage, on_terminal, passed_on)
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

    /// What the leases allow now, and which of them ends first.
    fn outlook(&self, now: Moment) -> (Schedule, String) {
        let first =
            self.locks.iter().map(|held| (held.remaining(), held)).min_by_key(|(left, _)| *left);
        let lease_end = first.as_ref().map_or(Moment::FAR_FUTURE, |(left, _)| now.after(*left));
        let lease_end = lease_end.min(self.sleeps_until.unwrap_or(Moment::FAR_FUTURE));
        let key = first.map(|(_, held)| held.key().to_string()).unwrap_or_default();
        (self.plan.schedule(lease_end), key)
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

    /// Does to the work what is due.
    fn enforce(&mut self, stage: &mut Stage, now: Moment) {
        if let Stage::Killed { again, pause, .. } = stage {
            if now >= *again {
                self.signal_all(Signal::SIGKILL);
                *pause = (*pause * 2).min(AGAIN.1);
                *again = now.after(*pause);
            }
            return;
        }
        if let Some(cause) = self.lost() {
            // Somebody else may have it already: no grace.
            self.kill(stage, now, cause);
            return;
        }
        let (schedule, key) = self.outlook(now);
        let told = matches!(stage, Stage::Told { .. });
        let sleeps = self.sleeps_until.is_some();
        let lost = if sleeps { Cause::Slept } else { Cause::Lost { key, loss: None } };
        match (schedule.due(now, told), &stage) {
            (Some(Step::Kill), _) => self.kill(stage, now, lost),
            (Some(Step::Term), _) => {
                self.signal_all(Signal::SIGTERM);
                *stage = Stage::Told { kill_at: schedule.kill_at, cause: lost };
            }
            (None, Stage::Told { kill_at, cause }) if now >= *kill_at => {
                let cause = cause.clone();
                self.kill(stage, now, cause);
            }
            (None, Stage::Running) if now >= self.hold_until => {
                self.stop(stage, self.plan.kill_after, Cause::MaxHold);
            }
            (None, Stage::Running) if self.caller.was_killed() => {
                self.stop(stage, self.plan.kill_after, Cause::Abandoned);
            }
            (None, _) => {}
        }
    }

    /// Whether nobody is left of the script. If its reader ended otherwise than because the script
    /// has, or gave the locks back, it is stopped.
    fn script_is_over(&mut self, stage: &mut Stage) -> bool {
        let Some(script) = &mut self.script else { return true };
        if self.child.ended() == Some(Ended::Code(0)) || script.is_over() {
            return true;
        }
        if matches!(stage, Stage::Running) {
            // As long as the reader would have left it.
            self.stop(stage, self.plan.kill_after * 3 / 5, Cause::Died);
        }
        false
    }

    fn signal_all(&mut self, signal: Signal) {
        self.refused |= tree::signal_all(signal, self.child.group()) == Obeyed::No;
        // The reader passes TERM on, and says why.
        if let Some(script) = &mut self.script
            && (signal == Signal::SIGKILL || self.child.ended().is_some())
        {
            let keys: Vec<_> = self.locks.iter().map(|held| quoted(held.key().as_str())).collect();
            let lost = if self.locks.iter().all(Held::is_held) { "cannot keep" } else { "lost" };
            let keys = keys.join(", ");
            script
                .signal_all(signal, &format!("{lost} {keys}; the script that held it is stopped"));
        }
    }

    /// Asks all to end, while the lock is safe, and leaves them some time.
    fn stop(&mut self, stage: &mut Stage, grace: Duration, cause: Cause) {
        self.signal_all(Signal::SIGTERM);
        // One that was stopped can only obey if it runs.
        self.signal_all(Signal::SIGCONT);
        *stage = Stage::Told { kill_at: BootClock.now().after(grace), cause };
    }

    fn kill(&mut self, stage: &mut Stage, now: Moment, cause: Cause) {
        self.signal_all(Signal::SIGKILL);
        *stage = Stage::Killed { at: now, again: now.after(AGAIN.0), pause: AGAIN.0, cause };
    }

    /// The first process has ended and others are left. Returns whether that is the end.
    fn first_is_gone(&mut self, stage: &mut Stage, ended_at: Moment, now: Moment) -> bool {
        if !matches!(stage, Stage::Running) {
            return false;
        }
        if self.close {
            return true;
        }
        match self.child.ended() {
            Some(Ended::Signal(_)) => {
                self.stop(stage, self.plan.patience, Cause::Died);
            }
            Some(ended) if now.since(ended_at) >= SETTLE && self.caller.is_there() => {
                let left = tree::list(&tree::descendants());
                let keys: Vec<_> =
                    self.locks.iter().map(|held| quoted(held.key().as_str())).collect();
                let keys = keys.join(", ");
                let line = output::line(
                    self.json,
                    "note",
                    format_args!(
                        "the command has ended, but {left} still runs and keeps {keys} until it ends; with -o the lock \
                         is let go at the end of the command"
                    ),
                );
                self.let_go_of_caller(Ending {
                    code: ended.code(),
                    lines: vec![line],
                    ..Ending::default()
                });
            }
            _ => {}
        }
        false
    }

    /// Whoever called does not wait for what cannot be killed: another user's process, or one deep
    /// in the kernel.
    fn give_up_waiting(&mut self, stage: &Stage, now: Moment) {
        let Stage::Killed { at, cause, .. } = stage else { return };
        if now.since(*at) < LAST_WAIT || !self.caller.is_there() {
            return;
        }
        let left = tree::list(&tree::descendants());
        let keys: Vec<_> = self.locks.iter().map(|held| quoted(held.key().as_str())).collect();
        let keys = keys.join(", ");
        let told = match cause {
            Cause::Lost { .. } => {
                format!(
                    "lost {keys}, and {left} could not be stopped: it may be at work without the lock"
                )
            }
            _ => format!("{left} could not be stopped and keeps {keys} until it ends"),
        };
        let code = match (cause, self.child.ended()) {
            (Cause::Asked | Cause::Died, Some(ended)) => ended.code(),
            _ => exit::LOST,
        };
        let line = output::line(self.json, "error", told);
        self.let_go_of_caller(Ending { code, lines: vec![line], ..Ending::default() });
    }

    fn let_go_of_caller(&mut self, ending: Ending) {
        if let Some(mut terminal) = self.terminal.take() {
            terminal.take_back();
        }
        self.caller.let_go(Ending { stays: true, ..ending });
    }

    fn pause(&self, stage: &Stage, ended_at: Option<Moment>, now: Moment) -> Duration {
        let next = match stage {
            Stage::Told { kill_at, .. } if self.script.is_some() => {
                // The kernel tells us of the end of children only.
                kill_at.since(now).min(SCRIPT_LOOK)
            }
            Stage::Running => {
                let (schedule, _) = self.outlook(now);
                let settled = ended_at.filter(|_| self.caller.is_there());
                let settled = settled.map_or(Moment::FAR_FUTURE, |at| at.after(SETTLE));
                schedule.next(now, false).min(self.hold_until.min(settled).since(now))
            }
            Stage::Told { kill_at, .. } => kill_at.since(now),
            Stage::Killed { again, .. } => again.since(now),
        };
        next.clamp(Duration::from_millis(1), self.plan.tick())
    }

    /// Tells the wrapper when it must see to it itself.
    fn tell_wrapper(&mut self) {
        let (schedule, _) = self.outlook(BootClock.now());
        self.caller.dead_by(self.plan.dead_by(schedule));
    }

    fn heard(&mut self, signal: Signal, stage: &mut Stage) {
        match (signal, &stage) {
            (_, Stage::Killed { .. }) => {}
            (Signal::SIGTERM, Stage::Running) => self.stop(stage, self.plan.patience, Cause::Asked),
            _ => {
                if let Some(group) = self.child.group() {
                    group.signal(signal);
                }
            }
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it wants the terminal.
    fn stopped(&mut self, by: i32, stage: &mut Stage) {
        let Some(group) = self.child.group() else { return };
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
        // The wrapper stops with it, as a shell expects of a job.
        let own = if wants_terminal { by } else { Signal::SIGTSTP };
        let Some(continued) = self.stop_with_wrapper(own, stage) else { return };
        if !continued {
            // It has no shell that could stop it. What the kernel does to such groups is done to
            // the command.
            match by {
                Signal::SIGTTIN | Signal::SIGTTOU => _ = group.signal(Signal::SIGHUP),
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

    /// Has the wrapper stop, and waits until it goes on: whether it was stopped. `None` if there is
    /// nothing to go on with.
    ///
    /// A stopped job does not keep others waiting for longer than its lease: whatever is renewed
    /// meanwhile, the schedule is that of the moment in which it was stopped.
    fn stop_with_wrapper(&mut self, by: Signal, stage: &mut Stage) -> Option<bool> {
        self.caller.ask_to_stop(by);
        let now = BootClock.now();
        let left = self.locks.iter().map(Held::remaining).min().unwrap_or_default();
        self.sleeps_until = Some(now.after(left));
        let continued = loop {
            let now = BootClock.now();
            self.enforce(stage, now);
            if !matches!(stage, Stage::Running) {
                break None;
            }
            let pause = self.pause(stage, None, now);
            if let Some(continued) = self.caller.wait_for_continue(pause) {
                // First of all: is it still ours?
                self.enforce(stage, BootClock.now());
                break matches!(stage, Stage::Running).then_some(continued);
            }
        };
        // Told to end while it sleeps, it still has to be dead by then.
        if continued.is_some() {
            self.sleeps_until = None;
        }
        continued
    }

    fn finish(mut self, stage: Stage, on_terminal: bool, passed_on: Option<Signal>) -> Outcome {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
            if matches!(stage, Stage::Killed { .. }) {
                terminal.reset_modes();
            }
        }
        // Nobody is left to be stopped, however long the store takes from here on.
        self.caller.dead_by(Moment::FAR_FUTURE);
        let cause = match stage {
            Stage::Running => None,
            Stage::Told { cause, .. } | Stage::Killed { cause, .. } => Some(cause),
        };
        let refusal = self.child.refusal();
        let (ended, refused) = (self.child.ended(), self.refused);
        Outcome { ended, cause, on_terminal, passed_on, refused, refusal }
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
