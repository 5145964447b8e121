//! Getting the locks: one, or all of several, while signals stay heard and the user sees who is waited for.
//!
//! How to wait, and how to take several without deadlock, is the library's business.

use std::future::IntoFuture;

use holdtight::{Acquiring, DistributedLock, LockError, LockHandle, Owner};
use nix::sys::signal::Signal;

use super::RunOptions;
use super::plan::Plan;
use super::signals::{self, Signals};
use crate::disposition::is_ignored;
use crate::waiting::Waiting;

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
) -> Taken {
    let mut waiting = Waiting::new(lock, &options.keys, options.json);
    let mut acquiring = acquire(lock, plan, options);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                if let Some(end) = on_signal(signal, signals, &mut waiting) {
                    return Taken::Interrupted(end);
                }
            }
            got = &mut acquiring => return got.map_or_else(Taken::Failed, Taken::All),
            () = waiting.next() => waiting.show(),
        }
    }
}

/// The library's call for these options.
fn acquire(
    lock: &DistributedLock,
    plan: &Plan,
    options: &RunOptions,
) -> Acquiring<Vec<LockHandle>> {
    let wait = if options.nonblock { Some(std::time::Duration::ZERO) } else { options.wait };
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

/// Who we are, for whoever finds the key held: the command's name without its arguments, which may hold passwords.
fn owner(options: &RunOptions) -> Owner {
    let mut owner = Owner::current();
    let program = options.command.first().map(std::path::Path::new);
    if let Some(name) = program.and_then(std::path::Path::file_name) {
        owner = owner.with_command(name.to_string_lossy());
    }
    match &options.reason {
        Some(reason) => owner.with_reason(reason),
        None => owner,
    }
}

/// What a signal does to somebody who waits. Returns it if it ends the wait.
fn on_signal(signal: Signal, signals: &mut Signals, waiting: &mut Waiting<'_>) -> Option<Signal> {
    if signal == Signal::SIGTSTP {
        waiting.clear();
        let _ = signals.stop_group(signal);
        return None;
    }
    (signals::ends_a_process(signal) && !is_ignored(signal)).then_some(signal)
}
