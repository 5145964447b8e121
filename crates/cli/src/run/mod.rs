//! `run`: holds keys while a command runs, and stops the command before the lock can pass on.
//!
//! In order: [`plan`] checks the times, [`hold`] gets the keys, [`leash`] starts the guardian, [`child`] the command,
//! [`supervise`] watches both, [`give_back`] ends it. This file only leads from one to the next.

mod child;
mod environment;
mod give_back;
mod group;
mod guardian;
mod hold;
mod launch;
mod leash;
mod plan;
mod signals;
mod store;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::process::Child;
use std::time::Duration;

use holdtight::{BootClock, Clock, ErrorKind, Held, LockError, LockHandle, Moment};
use nix::sys::signal::Signal;

use self::child::{Ended, Running};
use self::hold::Taken;
use self::leash::{Leash, Note};
use self::plan::Plan;
use self::signals::{Blocked, Signals};
use self::store::Store;
use self::supervise::{Cause, Supervisor};
use self::terminal::Terminal;
use crate::conflict::{self, quoted};
use crate::disposition;
use crate::exit::{self, Failure};
use crate::output::{self, Span};

/// The command was found, but it, or what guards it, could not be started.
const CANNOT_START: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// How long a store may take to hear that nobody waits any more.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// What `run` was asked to do.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub(crate) struct RunOptions {
    /// The keys to hold, all or none; at least one.
    pub(crate) keys: Vec<String>,
    /// The command and its arguments; at least one word.
    pub(crate) command: Vec<OsString>,
    /// Give up at once if a key is busy.
    pub(crate) nonblock: bool,
    /// Wait at most so long; `None` is for ever.
    pub(crate) wait: Option<Duration>,
    /// The exit code if a key is busy.
    pub(crate) conflict_exit: Option<u8>,
    /// A busy key is exit 0 without a word.
    pub(crate) skip_ok: bool,
    /// The lease.
    pub(crate) ttl: Option<Duration>,
    /// Keep the keys held for at least so long.
    pub(crate) keep_for: Option<Duration>,
    /// Stop the command after so long.
    pub(crate) max_hold: Option<Duration>,
    /// From TERM to KILL.
    pub(crate) kill_after: Option<Duration>,
    /// Why, for whoever finds the keys held.
    pub(crate) reason: Option<String>,
    /// Let the command see a store URL that holds a password.
    pub(crate) pass_store: bool,
    /// The URL of the store, as chosen.
    pub(crate) store_url: String,
    /// Say how long waiting took.
    pub(crate) verbose: bool,
    /// Tell conflicts and errors as JSON.
    pub(crate) json: bool,
}

/// The exit code of this process if it was started by another one of ours, as guardian or to become a command.
///
/// To be asked before anything else: such a process has to be quick, and reads no settings.
pub(crate) fn other_self() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()?.to_str()? {
        leash::ARGUMENT => Some(guardian::guard()),
        launch::ARGUMENT => Some(launch::launch(arguments)),
        _ => None,
    }
}

/// Holds the keys while the command runs. Returns the exit code of all of it.
pub(crate) fn execute(options: RunOptions) -> Result<u8, Failure> {
    let plan = Plan::new(&options).map_err(Failure::usage)?;
    // Before the runtime: its threads must not take signals either.
    let blocked = signals::block().map_err(|error| cannot("block signals", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| cannot("start", &error))?;
    let run = Run { options, plan };
    let end = runtime.block_on(run.execute(&blocked));
    // A step that hangs in a dead store, or a dead disk, does not keep us.
    runtime.shutdown_background();
    match end? {
        End::Code(code) => Ok(code),
        End::By(signal) => {
            // A shell that runs us in a loop or a script stops only if it sees the signal itself.
            disposition::die_of(signal);
            Ok(exit::signalled(signal as i32))
        }
    }
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::new(CANNOT_START, format!("cannot {what}: {error}"))
}

/// How a run ends, errors aside.
enum End {
    Code(u8),
    /// By a signal: one that ended the wait, or Ctrl-C on the command's terminal.
    By(Signal),
}

/// One run.
struct Run {
    options: RunOptions,
    plan: Plan,
}

impl Run {
    async fn execute(&self, blocked: &Blocked) -> Result<End, Failure> {
        let mut signals =
            Signals::listen(blocked).map_err(|error| cannot("listen to signals", &error))?;
        let store = Store::open(&self.options.store_url).await?;
        let started = BootClock.now();
        let taken = hold::take_all(&store.lock, &self.plan, &self.options, &mut signals).await;
        let handles = match taken {
            Taken::All(handles) => handles,
            Taken::Failed(error) => {
                let _ = store.lock.shutdown_within(WITHDRAWAL).await;
                return self.not_taken(error);
            }
            Taken::Interrupted(signal) => {
                let _ = store.lock.shutdown_within(WITHDRAWAL).await;
                return Ok(End::By(signal));
            }
        };
        if self.options.verbose {
            let waited = Span(BootClock.now().since(started));
            for handle in &handles {
                let (key, fence) = (quoted(handle.key().as_str()), handle.fence());
                let got = format_args!("got {key} after {waited}, fence {fence}");
                output::note(self.options.json, "note", got);
            }
        }
        self.under(&store, handles, &mut signals).await
    }

    /// What a busy key, or a failed store, means.
    fn not_taken(&self, error: LockError) -> Result<End, Failure> {
        if error.kind() != ErrorKind::Timeout {
            return Err(error.into());
        }
        if self.options.skip_ok {
            return Ok(End::Code(exit::OK));
        }
        let code = self.options.conflict_exit.unwrap_or(exit::BUSY);
        conflict::report(&error, code, self.options.json);
        Ok(End::Code(code))
    }

    /// Runs the command under the locks, and gives them back.
    async fn under(
        &self,
        store: &Store,
        handles: Vec<LockHandle>,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let new_leash = |first: &[Note]| Leash::start(store.liveness()?, first);
        let started = BootClock.now();
        let (child, leash) = match self.start(&handles, &new_leash) {
            Ok(started) => started,
            Err(error) => {
                self.warn(give_back::give_back(&store.lock, handles, None).await);
                return Err(cannot("start another process", &error));
            }
        };
        let locks: Vec<Held> = handles.iter().map(LockHandle::held).collect();
        let hold_until = self.plan.max_hold.map_or(Moment::FAR_FUTURE, |most| started.after(most));
        let supervisor = Supervisor {
            plan: self.plan,
            locks: &locks,
            hold_until,
            signals,
            terminal: Terminal::open(),
            leash,
            new_leash: &new_leash,
            child,
            verbose: self.options.verbose,
        };
        let outcome = supervisor.watch().await;
        let lost = matches!(outcome.cause, Some(Cause::Lost { .. }));
        let rest = self.plan.rest(BootClock.now().since(started));
        let rest = rest.filter(|_| !lost && outcome.refusal.is_none());
        let warnings = give_back::give_back(&store.lock, handles, rest).await;
        if !lost {
            self.warn(warnings);
        }
        if let Some(guardian) = outcome.guardian {
            dismiss(guardian);
        }
        if let Some(error) = outcome.refusal {
            let program = self.options.command.first().map(|program| program.to_string_lossy());
            let program = quoted(&program.unwrap_or_default());
            return Err(Failure::new(refused(&error), format!("cannot run {program}: {error}")));
        }
        Ok(self.conclude(store, outcome.cause.as_ref(), outcome.ended, outcome.on_terminal))
    }

    /// Starts the guardian, and a process that waits to become the command.
    fn start(
        &self,
        handles: &[LockHandle],
        new_leash: &dyn Fn(&[Note]) -> io::Result<Leash>,
    ) -> io::Result<(Running, Leash)> {
        let mut leash = new_leash(&[])?;
        let locks: Vec<_> = handles.iter().map(|handle| (handle.key(), handle.fence())).collect();
        let ends = self.plan.max_hold.and_then(|most| output::now().checked_add(most));
        let RunOptions { command, store_url, pass_store, .. } = &self.options;
        let child = Running::start(command, |process| {
            environment::set(process, &locks, ends, store_url, *pass_store);
        })?;
        leash.guard(child.group, self.plan.kill_after)?;
        Ok((child, leash))
    }

    fn warn(&self, warnings: Vec<String>) {
        for warning in warnings {
            output::note(self.options.json, "warning", warning);
        }
    }

    fn conclude(
        &self,
        store: &Store,
        cause: Option<&Cause>,
        ended: Option<Ended>,
        on_terminal: bool,
    ) -> End {
        let Some(cause) = cause else {
            return match ended {
                Some(Ended::Signal(signal)) if signal == Signal::SIGINT as i32 && on_terminal => {
                    End::By(Signal::SIGINT)
                }
                Some(ended) => End::Code(ended.code()),
                None => End::Code(exit::SOFTWARE),
            };
        };
        let (key, reason) = match cause {
            Cause::Lost { key, loss } => {
                let reason = match loss {
                    Some(loss) => loss.to_string(),
                    None => "it could not be renewed before its lease ran out".to_owned(),
                };
                let last = store.last_failure().map(|error| format!(" (last answer: {error})"));
                (key.clone(), reason + last.as_deref().unwrap_or_default())
            }
            Cause::MaxHold => {
                let most = Span(self.plan.max_hold.unwrap_or_default());
                (
                    self.options.keys.join(", "),
                    format!("it was held as long as --max-hold allows ({most})"),
                )
            }
        };
        if self.options.json {
            output::complain_json(&serde_json::json!({
                "error": "lost", "key": key, "reason": reason, "exit": exit::LOST,
            }));
        } else {
            output::complain(format_args!(
                "lost {}: {reason}; the command was stopped",
                quoted(&key)
            ));
        }
        End::Code(exit::LOST)
    }
}

/// The exit code for a command that could not be run.
fn refused(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }
}

/// Waits for a guardian that was told to go. It has nothing left to do, so it need not end by itself.
fn dismiss(mut guardian: Child) {
    let _ = guardian.kill();
    // Not by the runtime's timer, which counts in milliseconds: whoever called us waits for this.
    let mut pause = Duration::from_micros(20);
    while matches!(guardian.try_wait(), Ok(None)) && pause < Duration::from_secs(1) {
        std::thread::sleep(pause);
        pause *= 2;
    }
}

#[cfg(test)]
impl RunOptions {
    /// The options of `run -k … -- true`.
    fn for_keys<const N: usize>(keys: [&str; N]) -> Self {
        Self {
            keys: keys.map(str::to_owned).to_vec(),
            command: vec!["true".into()],
            nonblock: false,
            wait: None,
            conflict_exit: None,
            skip_ok: false,
            ttl: None,
            keep_for: None,
            max_hold: None,
            kill_after: None,
            reason: None,
            pass_store: false,
            store_url: "memory:".to_owned(),
            verbose: false,
            json: false,
        }
    }
}
