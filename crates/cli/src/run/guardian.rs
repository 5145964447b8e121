//! The guardian: a second process of ours, which takes the locks, starts the command, and keeps the
//! locks until the last of all that the command started is gone.
//!
//! It outlives a wrapper that is killed, and stops the work then; and it outlives one that has
//! ended because the command's first process has, for as long as something is left of the command,
//! or for `--keep-for`.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use holdtight::{BootClock, Clock, ErrorKind, Held, LockError, LockHandle, Moment};
use nix::sys::signal::Signal;

use super::alarm::Alarm;
use super::caller::{Caller, Hello};
use super::child::{Ended, Launcher, Legacy, Running};
use super::hold::{self, Taken};
use super::holders::Script;
use super::launch::Words;
use super::line::Ending;
use super::plan::Plan;
use super::signals::{Blocked, Signals};
use super::store::Store;
use super::supervise::{Cause, Outcome, Supervisor};
use super::terminal::Terminal;
use super::{RunOptions, cannot, environment, give_back, refused};
use crate::conflict::{self, quoted};
use crate::exit::{self, Failure};
use crate::output::{self, Span};
use crate::threads;

/// The hidden argument that makes a guardian of us: `ARGUMENT PID`, with the number of the wrapper,
/// and the wrapper's own arguments.
pub(crate) const ARGUMENT: &str = "__guardian";

/// How long a store may take to hear that nobody waits any more.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// Does all of a run but to stand for it.
pub(super) fn run(
    options: RunOptions,
    plan: Plan,
    launcher: io::Result<Launcher>,
    args: &[OsString],
) -> Result<u8, Failure> {
    super::take_our_name();
    let launcher = launcher.map_err(|error| cannot("start another process", &error))?;
    if !options.store_url.starts_with("file:") {
        threads::must_start(threads::FOR_A_SERVER)?;
    }
    // Before anything is taken: without it nothing could be kept.
    holdtight::store::background()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| cannot("start", &error))?;
    let ending = runtime.block_on(async {
        // Before anything is taken: later its name is gone.
        let script = super::open_script(&options)?;
        let greeted = Caller::greet().await.map_err(|error| cannot("guard", &error))?;
        // Nobody is there to hear that nobody is there.
        let (mut caller, hello) = greeted.ok_or_else(|| Failure::silent(exit::SOFTWARE))?;
        let run = Run { options, plan, script, launcher: Some(launcher), args };
        let ending = run.execute(&mut caller, hello).await?;
        Ok::<_, Failure>((caller, ending))
    });
    // A step that hangs in a dead store, or a dead disk, does not keep us.
    runtime.shutdown_background();
    let (mut caller, ending) = ending?;
    let code = ending.code;
    if caller.is_there() {
        caller.let_go(ending);
    } else {
        for line in &ending.lines {
            output::print_line(line);
        }
    }
    Ok(code)
}

/// One run.
struct Run<'a> {
    options: RunOptions,
    plan: Plan,
    /// What is at work under the locks without being the command.
    script: Option<Script>,
    /// What will become the command.
    launcher: Option<Launcher>,
    /// The command line of the wrapper.
    args: &'a [OsString],
}

impl Run<'_> {
    async fn execute(mut self, caller: &mut Caller, hello: Hello) -> Result<Ending, Failure> {
        let blocked = Blocked::from_numbers(&hello.blocked);
        let mut signals =
            Signals::listen(&blocked).map_err(|error| cannot("listen to signals", &error))?;
        let by = |signal: Signal| Ending {
            code: exit::signalled(signal as i32),
            signal: Some(signal as i32),
            ..Ending::default()
        };
        let patience = crate::store::patience(self.options.nonblock, self.options.wait);
        let opening = Store::open(&self.options.store_url, patience);
        let store = match hold::or_interrupted(opening, &mut signals, caller).await {
            Ok(opened) => opened?,
            Err(signal) => return Ok(by(signal)),
        };
        let started = BootClock.now();
        let (lock, options) = (&store.lock, &self.options);
        let taken =
            hold::take_all(lock, &self.plan, options, &mut signals, caller, hello.group).await;
        let handles = match taken {
            Taken::All(handles) => handles,
            Taken::Failed(error) => {
                let _ = store.lock.shutdown_within(WITHDRAWAL).await;
                return self.not_taken(error);
            }
            Taken::Interrupted(signal) => {
                let _ = store.lock.shutdown_within(WITHDRAWAL).await;
                return Ok(by(signal));
            }
        };
        if self.options.verbose {
            let waited = Span(BootClock.now().since(started));
            for handle in &handles {
                let (key, fence) = (quoted(handle.key().as_str()), handle.fence());
                let place = store.place();
                let got = format_args!("got {key} after {waited}, fence {fence}, in {place}");
                output::note_if_heard(self.options.json, "note", got);
            }
        }
        self.under(&store, handles, &mut signals, caller, hello, &blocked).await
    }

    /// What a busy key, or a failed store, means.
    fn not_taken(&self, error: LockError) -> Result<Ending, Failure> {
        if error.kind() != ErrorKind::Timeout {
            return Err(error.into());
        }
        if self.options.skip_ok {
            return Ok(Ending::default());
        }
        let code = self.options.conflict_exit.unwrap_or(exit::BUSY);
        let line = conflict::told(&error, code, self.options.json, &self.options.place);
        Ok(Ending { code, lines: vec![line], ..Ending::default() })
    }

    /// Runs the command under the locks, and gives them back.
    async fn under(
        &mut self,
        store: &Store,
        handles: Vec<LockHandle>,
        signals: &mut Signals,
        caller: &mut Caller,
        hello: Hello,
        blocked: &Blocked,
    ) -> Result<Ending, Failure> {
        let terminal = hello.stdin.try_clone().ok();
        let terminal =
            terminal.and_then(|stdin| Terminal::open(hello.group, &std::fs::File::from(stdin)));
        let started = BootClock.now();
        let made = Alarm::new()
            .map_err(|error| cannot("set an alarm", &error))
            .and_then(|alarm| Ok((alarm, self.start(store, &handles, caller, hello, blocked)?)));
        let (alarm, child) = match made {
            Ok(made) => made,
            Err(failure) => {
                self.warn(give_back::give_back(&store.lock, handles, None).await);
                return Err(failure);
            }
        };
        let locks: Vec<Held> = handles.iter().map(LockHandle::held).collect();
        let hold_until = self.plan.max_hold.map_or(Moment::FAR_FUTURE, |most| started.after(most));
        let supervisor = Supervisor {
            plan: self.plan,
            locks: &locks,
            hold_until,
            close: self.options.close,
            json: self.options.json,
            signals,
            alarm,
            terminal,
            caller,
            child,
            script: self.script.take(),
            refused: false,
            sleeps_until: None,
        };
        let outcome = supervisor.watch().await;
        let lost = matches!(outcome.cause, Some(Cause::Lost { .. }));
        let rest = self.plan.rest(BootClock.now().since(started));
        let mut rest = rest.filter(|_| !lost && outcome.refusal.is_none());
        let mut ending = self.conclude(store, &outcome);
        let left = locks.iter().map(Held::remaining).min().unwrap_or_default();
        if let Some(short) = rest.filter(|rest| *rest < left) {
            // A lease is never shortened in the store, so we stay and give it back when it is time.
            if caller.is_there() {
                caller.let_go(Ending { stays: true, ..ending.clone() });
            }
            self.stay(short, signals, &locks).await;
            rest = None;
        }
        let warnings = give_back::give_back(&store.lock, handles, rest).await;
        if !lost {
            let json = self.options.json;
            let lines = warnings.into_iter().map(|text| output::line(json, "warning", text));
            ending.lines = lines.chain(ending.lines).collect();
        }
        if let Some(error) = outcome.refusal {
            let program = self.options.command.first().map(|program| program.to_string_lossy());
            let program = quoted(&program.unwrap_or_default());
            let told = format!("cannot run {program}: {error}");
            ending.code = refused(&error);
            ending.lines.push(if self.options.json {
                serde_json::json!({ "error": told, "exit": ending.code }).to_string()
            } else {
                format!("holdtight: {told}")
            });
        }
        Ok(ending)
    }

    /// Prepares the process that waits to become the command, and shares with it and the wrapper
    /// what shows that we live.
    fn start(
        &mut self,
        store: &Store,
        handles: &[LockHandle],
        caller: &mut Caller,
        hello: Hello,
        blocked: &Blocked,
    ) -> Result<Running, Failure> {
        if let Some(liveness) = store.liveness()? {
            caller.share(&liveness);
        }
        let locks: Vec<_> = handles.iter().map(|handle| (handle.key(), handle.fence())).collect();
        let ends = self.plan.max_hold.and_then(|most| output::now().checked_add(most));
        let RunOptions { command, store_url, pass_store, close, by_line, .. } = &self.options;
        let launcher = match self.launcher.take().filter(Launcher::is_there) {
            Some(launcher) => launcher,
            None => Launcher::start(self.args)
                .map_err(|error| cannot("start another process", &error))?,
        };
        let liveness = if *close { None } else { store.liveness()? };
        let environment = environment::of(&locks, ends, store_url, *pass_store);
        let legacy = Legacy { stdin: hello.stdin, blocked, liveness, environment };
        let words = if *by_line { Words::Line } else { Words::Last(command.len()) };
        let child = Running::new(launcher, words, legacy);
        if let Some(group) = child.group() {
            caller.started(group.id());
        }
        Ok(child)
    }

    /// Keeps the locks for `rest`, unless somebody asks us to end or they are lost.
    async fn stay(&self, rest: Duration, signals: &mut Signals, locks: &[Held]) {
        let until = BootClock.now().after(rest);
        loop {
            let left = until.since(BootClock.now());
            if left.is_zero() || locks.iter().any(|held| !held.is_held()) {
                return;
            }
            tokio::select! {
                biased;
                signal = signals.next() => if signal == Signal::SIGTERM { return },
                () = tokio::time::sleep(left.min(self.plan.tick())) => {}
            }
        }
    }

    fn warn(&self, warnings: Vec<String>) {
        for warning in warnings {
            output::note(self.options.json, "warning", warning);
        }
    }

    /// What whoever called gets to know.
    fn conclude(&self, store: &Store, outcome: &Outcome) -> Ending {
        let ended = outcome.ended;
        let (key, reason) = match &outcome.cause {
            None | Some(Cause::Asked | Cause::Died) => return Self::ended(outcome),
            Some(Cause::Abandoned) => {
                let told =
                    "the process that ran the command was killed, so the command was stopped";
                let lines = vec![output::line(self.options.json, "warning", told)];
                return Ending {
                    code: ended.map_or(exit::LOST, Ended::code),
                    lines,
                    ..Ending::default()
                };
            }
            Some(Cause::Lost { key, loss }) => {
                let reason = match loss {
                    Some(loss) => loss.to_string(),
                    None => "it could not be renewed before its lease ran out".to_owned(),
                };
                let last = store.last_failure().map(|error| format!(" (last answer: {error})"));
                (key.clone(), reason + last.as_deref().unwrap_or_default())
            }
            Some(Cause::Slept) => {
                let reason = "it was stopped for as long as its lease lasted".to_owned();
                (self.options.keys.join(", "), reason)
            }
            Some(Cause::MaxHold) => {
                let most = Span(self.plan.max_hold.unwrap_or_default());
                let reason = format!("it was held as long as --max-hold allows ({most})");
                (self.options.keys.join(", "), reason)
            }
        };
        let line = if self.options.json {
            serde_json::json!({
                "error": "lost", "key": key, "reason": reason, "exit": exit::LOST,
            })
            .to_string()
        } else {
            let end = if outcome.refused {
                "a process of the command could not be stopped, and has ended by itself"
            } else {
                "the command was stopped"
            };
            format!("holdtight: lost {}: {reason}; {end}", quoted(&key))
        };
        Ending { code: exit::LOST, lines: vec![line], ..Ending::default() }
    }

    /// The command's own end.
    fn ended(outcome: &Outcome) -> Ending {
        let Some(ended) = outcome.ended else {
            return Ending { code: exit::SOFTWARE, ..Ending::default() };
        };
        let mut ending = Ending { code: ended.code(), ..Ending::default() };
        for signal in [Signal::SIGINT, Signal::SIGQUIT] {
            // A shell or a `make` around us goes on with its next line unless it sees that we died
            // of it.
            let heard = outcome.on_terminal || outcome.passed_on == Some(signal);
            if ended == Ended::Signal(signal as i32) && heard {
                ending.signal = Some(signal as i32);
                ending.to_group = outcome.on_terminal;
            }
        }
        ending
    }
}
