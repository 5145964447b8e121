//! The wrapper: the process that the user started. It starts the guardian, passes signals on to it,
//! stops and ends with the command, and stops the work itself if the guardian is killed or stands
//! still.
//!
//! It touches no store. What it shares with the guardian is what shows others that the lock is
//! held, and a child subreaper's place above it: the work of a guardian that is gone becomes the
//! wrapper's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use holdtight::{BootClock, Clock, Moment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::WaitStatus;

use super::ahead::Ahead;
use super::alarm::Alarm;
use super::asker::Asker;
use super::holders::{self, Script};
use super::line::{Ending, Heard, Line, ToGuardian, ToWrapper};
use super::plan::Plan;
use super::signals::{self, Signals};
use super::tree::{self, Left, Obeyed};
use super::{RunOptions, cannot, end};
use crate::conflict::quoted;
use crate::disposition;
use crate::exit::{self, Failure};
use crate::output;

/// How often at least the boot clock is read: a guardian that stands still is found by it.
const TICK: Duration = Duration::from_millis(250);

/// How often a work that must end is looked at: first, and at last.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long killed processes may take to disappear.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Runs the command under a guardian, and returns the exit code of all of it.
pub(super) fn run(
    options: &RunOptions,
    plan: Plan,
    ahead: Option<io::Result<Ahead>>,
) -> Result<u8, Failure> {
    let none = || Err(io::Error::other("this is no run"));
    let ahead =
        ahead.unwrap_or_else(none).map_err(|error| cannot("start another process", &error))?;
    let script = super::open_script(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| cannot("start", &error))?;
    let ending = runtime.block_on(async {
        let wrapper = Wrapper::start(options, plan, ahead);
        let mut wrapper = wrapper.map_err(|error| cannot("start another process", &error))?;
        if script.is_some() {
            wrapper.asker = Asker::at_our_input().map_err(|error| cannot("listen", &error))?;
        }
        wrapper.script = script;
        Ok::<_, Failure>(wrapper.watch().await)
    })?;
    for line in &ending.lines {
        output::print_line(line);
    }
    if let Some(signal) = ending.signal.and_then(|signal| Signal::try_from(signal).ok()) {
        if ending.to_group {
            // The terminal sent it to the command alone. Shells and `make` around us stop only if
            // they get it too.
            let _ = signals::send_to_our_group(signal);
        }
        if let Some(place) = &options.script {
            // Whoever called us would do it, if we came back.
            holders::remove(place);
        }
        disposition::die_of(signal);
        return Ok(exit::signalled(signal as i32));
    }
    Ok(ending.code)
}

struct Wrapper<'a> {
    options: &'a RunOptions,
    plan: Plan,
    signals: Signals,
    alarm: Alarm,
    line: Line,
    guardian: Pid,
    /// How the guardian ended.
    ended: Option<WaitStatus>,
    /// What shows others that the lock is held.
    liveness: Vec<OwnedFd>,
    /// The process group of the command.
    group: Option<i32>,
    /// How the command's first process ended, if it became ours.
    first: Option<WaitStatus>,
    /// What else is at work under the lock; the command is then the one that reads its pipe.
    script: Option<Script>,
    /// For whom the lock of a script is taken.
    asker: Asker,
    /// When nobody may be at work any more.
    dead_by: Option<Moment>,
}

impl<'a> Wrapper<'a> {
    /// Lets the guardian begin. All that can go wrong on our side comes before that: if we are
    /// gone, it never does.
    fn start(options: &'a RunOptions, plan: Plan, ahead: Ahead) -> io::Result<Self> {
        let blocked = ahead.blocked();
        let signals = Signals::listen(blocked)?;
        let alarm = Alarm::new()?;
        let hello = ToGuardian::Hello {
            group: nix::unistd::getpgrp().as_raw(),
            blocked: blocked.numbers(),
        };
        let (guardian, line) = ahead.take(Line::of)?;
        // A guardian that is gone is found to be.
        let _ = line.send(&hello, &[io::stdin().as_fd()]);
        Ok(Self {
            options,
            plan,
            signals,
            alarm,
            line,
            guardian,
            ended: None,
            liveness: Vec::new(),
            group: None,
            first: None,
            script: None,
            asker: Asker::nobody(),
            dead_by: None,
        })
    }

    async fn watch(mut self) -> Ending {
        let mut end = None;
        let mut open = true;
        while end.is_none() && self.ended.is_none() {
            let now = BootClock.now();
            if self.is_late(now) {
                // It may be that we stood still, and have not read what it said since.
                let heard = self.line.take();
                end = self.hear(heard);
            }
            if end.is_none() && self.is_late(now) {
                // It stands still, or has been starved. It must not wake up after the lock has
                // passed on.
                self.send(Signal::SIGKILL);
                break;
            }
            let pause = self.dead_by.map_or(TICK, |moment| moment.since(now));
            tokio::select! {
                biased;
                signal = self.signals.next() => self.pass_on(signal),
                heard = self.line.next(), if open => {
                    open = !heard.closed;
                    end = self.hear(heard);
                }
                // The guardian hears that nobody wants the lock any more, and does as if we were
                // gone.
                () = self.asker.gone() => self.line.hang_up(),
                () = self.alarm.after(pause.clamp(Duration::from_millis(1), TICK)) => {}
            }
            self.reap();
        }
        if end.is_none() {
            let last = self.line.take();
            end = self.hear(last);
        }
        match (end, self.ended) {
            (Some(end), _) => {
                // Nothing of ours may show that somebody is at work when it is not so.
                self.liveness.clear();
                if !end.stays {
                    self.dismiss();
                }
                end
            }
            // It has told by itself what there was to tell.
            (None, Some(status)) if status.exit_status().is_some() && self.group.is_none() => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                Ending { code: code.unwrap_or(exit::SOFTWARE), ..Ending::default() }
            }
            (None, _) => self.take_over().await,
        }
    }

    fn is_late(&self, now: Moment) -> bool {
        self.dead_by.is_some_and(|moment| now >= moment)
    }

    fn hear(&mut self, heard: Heard<ToWrapper>) -> Option<Ending> {
        for message in heard.messages {
            match message {
                ToWrapper::Liveness => self.liveness = self.line.descriptors(),
                ToWrapper::Started { group } => self.group = Some(group),
                ToWrapper::DeadBy(moment) => self.dead_by = Some(Moment::from_nanos(moment)),
                ToWrapper::Stop(signal) => {
                    let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTSTP);
                    let stopped = self.signals.stop_group(signal).unwrap_or(false);
                    let _ = self.line.send(&ToGuardian::Continued(stopped), &[]);
                }
                ToWrapper::End(end) => return Some(end),
            }
        }
        None
    }

    fn pass_on(&self, signal: Signal) {
        if signal != Signal::SIGCHLD {
            self.send(signal);
        }
    }

    /// Sends the guardian a signal, while nobody else can have its number.
    fn send(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(self.guardian, signal);
        }
    }

    /// Reaps what has ended: the guardian, or orphans, if we are the first process of a container.
    fn reap(&mut self) -> Left {
        tree::reap(|pid, status| {
            if pid == self.guardian.as_raw() {
                self.ended = Some(status);
            } else if Some(pid) == self.group {
                self.first = Some(status);
            }
        })
    }

    /// Waits for a guardian that has nothing left to do, so it need not end by itself.
    fn dismiss(&mut self) {
        self.send(Signal::SIGKILL);
        // Not by the runtime's timer, which counts in milliseconds: whoever called us waits for
        // this.
        end::wait_for(self.guardian.as_raw(), Duration::from_secs(1));
        self.reap();
    }

    /// The guardian is gone, and what it had started has become ours: stops it, and returns when
    /// nobody is left.
    async fn take_over(&mut self) -> Ending {
        let mut kill_at = BootClock.now().after(self.plan.kill_after);
        if let Some(moment) = self.dead_by {
            kill_at = kill_at.min(moment);
        }
        let mut told = false;
        let mut pause = LOOK.0;
        let started = BootClock.now();
        let (mut script_told, mut refused) = (false, false);
        loop {
            let left = self.reap();
            if left == Left::Nobody && self.script_is_over() {
                break;
            }
            let now = BootClock.now();
            if now >= kill_at {
                // The tree first: its reader would take the end of the script for one by itself.
                refused |= tree::signal_all(Signal::SIGKILL, None) == Obeyed::No;
                self.signal_script(Signal::SIGKILL);
            } else if left == Left::Nobody {
                // Its reader is gone, which would have done it.
                if !std::mem::replace(&mut script_told, true) {
                    self.signal_script(Signal::SIGTERM);
                    kill_at = kill_at.min(now.after(self.plan.kill_after * 3 / 5));
                }
            } else if !std::mem::replace(&mut told, true) && self.ended.is_some() {
                tree::signal_all(Signal::SIGTERM, None);
                tree::signal_all(Signal::SIGCONT, None);
            } else if self.ended.is_none() {
                told = false;
            }
            if now.since(started) > self.plan.kill_after + LAST_WAIT {
                break;
            }
            let next = if now < kill_at { kill_at.since(now).min(pause) } else { pause };
            pause = (pause * 2).min(LOOK.1);
            tokio::select! {
                biased;
                // Only the end of a child is of interest now.
                _ = self.signals.next() => {}
                () = self.alarm.after(next.max(Duration::from_millis(1))) => {}
            }
        }
        let left = tree::descendants();
        self.take_terminal_back();
        self.liveness.clear();
        self.lost(&left, refused)
    }

    /// Whether nobody is left of the script, or its reader said that it has ended or gave the lock
    /// back.
    fn script_is_over(&mut self) -> bool {
        let done = self.first.is_some_and(|status| status.exit_status() == Some(0));
        done || self.script.as_mut().is_none_or(Script::is_over)
    }

    fn signal_script(&mut self, signal: Signal) {
        if let Some(script) = &mut self.script {
            let keys: Vec<_> = self.options.keys.iter().map(|key| quoted(key)).collect();
            let keys = keys.join(", ");
            let why = format!("lost {keys}: its keeper was killed or stood still");
            script.signal_all(signal, &why);
        }
    }

    fn take_terminal_back(&self) {
        let Some(group) = self.group else { return };
        if let Some(mut terminal) =
            super::terminal::Terminal::open(nix::unistd::getpgrp().as_raw(), &io::stdin())
        {
            terminal.take_from(group);
        }
    }

    fn lost(&self, left: &[tree::Descendant], refused: bool) -> Ending {
        let keys: Vec<_> = self.options.keys.iter().map(|key| quoted(key)).collect();
        let keys = keys.join(", ");
        let (code, reason) = if self.group.is_none() {
            (exit::LOST, "the process that was to hold it was killed; nothing was run".to_owned())
        } else if left.is_empty() && refused {
            (
                exit::LOST,
                "the process that held it was killed or stood still; a process of the command could not be stopped, \
                 and has ended by itself"
                    .to_owned(),
            )
        } else if left.is_empty() {
            (
                exit::LOST,
                "the process that held it was killed or stood still; the command was stopped"
                    .to_owned(),
            )
        } else {
            let left = tree::list(left);
            (
                exit::LOST,
                format!("the process that held it was killed, and {left} could not be stopped"),
            )
        };
        let line = if self.options.json {
            let key = self.options.keys.join(", ");
            serde_json::json!({ "error": "lost", "key": key, "reason": reason, "exit": code })
                .to_string()
        } else {
            format!("holdtight: lost {keys}: {reason}")
        };
        Ending { code, lines: vec![line], ..Ending::default() }
    }
}
