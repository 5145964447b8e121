//! Getting the locks: one, or all of several, while signals stay heard and the user sees who is
//! waited for.
//!
//! How to wait, and how to take several without deadlock, is the library's business.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use holdtight::store::Reply;
use holdtight::{DistributedLock, LockError, LockHandle, Owner};
use nix::sys::signal::Signal;

use super::RunOptions;
use super::caller::Caller;
use super::plan::Plan;
use super::signals::{self, Signals};
use crate::disposition::is_ignored;
use crate::facts;
use crate::waiting::Waiting;

/// How long to stand still before looking again whether the wrapper goes on.
const STANDSTILL: Duration = Duration::from_secs(1);

/// How the wait ended.
pub(super) enum Taken {
    All(Vec<LockHandle>),
    /// Busy to the end, or the store failed.
    Failed(LockError),
    /// A signal ended it.
    Interrupted(Signal),
}

/// Takes all keys as the options say.
pub(super) async fn take_all(
    lock: &DistributedLock,
    plan: &Plan,
    options: &RunOptions,
    signals: &mut Signals,
    caller: &mut Caller,
    group: i32,
) -> Taken {
    let mut waiting = Waiting::new(lock, &options.keys, options.json).for_group(group);
    let mut acquiring = acquire(lock, plan, options);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                if let Some(end) = on_signal(signal, caller, &mut waiting) {
                    return Taken::Interrupted(end);
                }
            }
            // Nobody waits any more.
            () = caller.gone() => return Taken::Interrupted(Signal::SIGHUP),
            got = &mut acquiring => return got.map_or_else(Taken::Failed, Taken::All),
            () = waiting.next() => waiting.show(),
        }
    }
}

/// The library's call for these options.
fn acquire(lock: &DistributedLock, plan: &Plan, options: &RunOptions) -> Reply<Vec<LockHandle>> {
    let wait = if options.nonblock { Some(Duration::ZERO) } else { options.wait };
    let owner = owner(options);
    // One key has a queue, which several at once cannot have.
    if let [key] = &*options.keys {
        let wish = lock.acquire(key).ttl(plan.ttl).owner(owner);
        let wish = match wait {
            Some(wait) => wish.wait(wait),
            None => wish.wait_forever(),
        };
        return Box::pin(async move { Ok(vec![wish.into_future().await?]) });
    }
    let wish = lock.acquire_all(options.keys.iter().cloned()).ttl(plan.ttl).owner(owner);
    let wish = match wait {
        Some(wait) => wish.wait(wait),
        None => wish.wait_forever(),
    };
    Box::pin(async move { Ok(wish.into_future().await?.into_handles()) })
}

/// Who we are, for whoever finds the key held: the command's name without its arguments, which may
/// hold passwords.
fn owner(options: &RunOptions) -> Owner {
    let mut owner = crate::owner::current();
    let program = options.command.first().map(std::path::Path::new);
    if let Some(name) = &options.told_as {
        owner = owner.with_command(name);
    } else if let Some(name) = program.and_then(std::path::Path::file_name) {
        owner = owner.with_command(name.to_string_lossy());
    }
    let kept = options.keep_for.filter(|keep| !keep.is_zero());
    match (kept, &options.reason) {
        (Some(time), reason) => owner.with_reason(facts::kept(reason.as_deref(), time)),
        (None, Some(reason)) => owner.with_reason(reason),
        (None, None) => owner,
    }
}

/// What a signal does to somebody who waits. Returns it if it ends the wait.
fn on_signal(signal: Signal, caller: &mut Caller, waiting: &mut Waiting<'_>) -> Option<Signal> {
    if signal == Signal::SIGTSTP {
        waiting.clear();
        caller.ask_to_stop(signal);
        // We stand still as the wrapper does, so that a stopped job takes no lock.
        while caller.is_there() && caller.wait_for_continue(STANDSTILL).is_none() {}
        return None;
    }
    (signals::ends_a_process(signal) && !is_ignored(signal)).then_some(signal)
}

/// The end of `work`, or the signal that ended it first.
pub(super) async fn or_interrupted<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
    caller: &mut Caller,
) -> Result<T, Signal> {
    let mut work = std::pin::pin!(work);
    loop {
        let signal = tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            signal = signals.next() => signal,
            () = caller.gone() => Signal::SIGHUP,
        };
        if signals::ends_a_process(signal) && !is_ignored(signal) || !caller.is_there() {
            return Err(signal);
        }
    }
}
