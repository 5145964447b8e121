//! Getting the locks: all of them or none, in an order that excludes deadlocks, while signals stay heard.
//!
//! Keys are taken one after the other in sorted order, so two callers with the same keys never wait for each other
//! in a circle. Until the command starts, losing one means starting over.

use std::time::Duration;

use holdtight::{
    BootClock, Clock, DistributedLock, ErrorKind, Key, LockError, LockHandle, Moment, Owner,
};
use nix::sys::signal::Signal;

use super::RunOptions;
use super::plan::Plan;
use super::signals::{self, Signals};
use super::waiting::Waiting;

/// How the wait ended.
pub(super) enum Taken {
    All(Vec<LockHandle>),
    /// Busy to the end, or the store failed.
    Failed(LockError),
    /// A signal ended it.
    Interrupted(Signal),
}

/// The keys in the order in which they are taken.
///
/// # Errors
/// `InvalidKey` for a key that breaks a rule, or for two that are the same lock.
pub(super) fn in_order(keys: &[String]) -> Result<Vec<String>, LockError> {
    let mut sorted = Vec::with_capacity(keys.len());
    for key in keys {
        sorted.push((Key::new(key)?, key.clone()));
    }
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(
            LockError::invalid_key("it is given twice; give each key once").with_key(&pair[0].0)
        );
    }
    Ok(sorted.into_iter().map(|(_, key)| key).collect())
}

/// Takes all keys as the options say.
pub(super) async fn take_all(
    lock: &DistributedLock,
    keys: &[String],
    plan: &Plan,
    options: &RunOptions,
    signals: &mut Signals,
) -> Taken {
    let deadline = match (options.nonblock, options.wait) {
        (true, _) => Some(BootClock.now()),
        (false, wait) => wait.map(|wait| BootClock.now().after(wait)),
    };
    let started = BootClock.now();
    let mut waiting = Waiting::new(lock);
    let mut held: Vec<LockHandle> = Vec::new();
    while let Some(key) = keys.get(held.len()) {
        let wish = lock.acquire(key).ttl(plan.ttl).owner(owner(options));
        let wish = match left(deadline) {
            Some(left) => wish.wait(left),
            None => wish.wait_forever(),
        };
        let mut acquiring = wish.into_future();
        waiting.begin(key);
        let got = loop {
            tokio::select! {
                biased;
                signal = signals.next() => match on_signal(signal, signals, &mut waiting) {
                    Some(end) => break Err(Taken::Interrupted(end)),
                    None => {}
                },
                got = &mut acquiring => break Ok(got),
                () = first_loss(&held) => break Err(Taken::All(Vec::new())),
                () = waiting.next() => waiting.show(),
            }
        };
        waiting.end();
        match got {
            Ok(Ok(handle)) => held.push(handle),
            Ok(Err(error)) => {
                let waited = BootClock.now().since(started);
                return Taken::Failed(with_whole_wait(error, waited, keys.len()));
            }
            // One that we had is lost before the command has started: nothing happened, begin again.
            Err(Taken::All(_)) => held.clear(),
            Err(ended) => return ended,
        }
        if held.len() == keys.len() && held.iter().any(|handle| !handle.is_held()) {
            held.clear();
        }
    }
    Taken::All(held)
}

fn left(deadline: Option<Moment>) -> Option<Duration> {
    deadline.map(|deadline| deadline.since(BootClock.now()))
}

/// With several keys the wait for the last one is not the whole wait.
fn with_whole_wait(error: LockError, waited: Duration, keys: usize) -> LockError {
    match (error.kind(), error.attempts()) {
        (ErrorKind::Timeout, Some(attempts)) if keys > 1 => error.with_attempts(attempts, waited),
        _ => error,
    }
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
fn on_signal(signal: Signal, signals: &mut Signals, waiting: &mut Waiting) -> Option<Signal> {
    if signal == Signal::SIGTSTP {
        waiting.clear();
        let _ = signals.stop_group(signal);
        return None;
    }
    (signals::ends_a_process(signal) && !signals::is_ignored(signal)).then_some(signal)
}

/// Resolves when one of the locks is lost.
async fn first_loss(held: &[LockHandle]) {
    let mut losses: Vec<_> = held.iter().map(|handle| Box::pin(handle.lost())).collect();
    std::future::poll_fn(|context| {
        let lost = losses.iter_mut().any(|loss| loss.as_mut().poll(context).is_ready());
        if lost { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(keys: &[&str]) -> Result<Vec<String>, LockError> {
        in_order(&keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn keys_are_taken_in_one_order_whatever_order_they_are_given_in() {
        assert_eq!(order(&["b", "a", "c"]).unwrap(), ["a", "b", "c"]);
        // Two spellings of one text sort alike, so that they cannot make a circle.
        let composed = order(&["z", "\u{e9}"]).unwrap();
        let decomposed = order(&["e\u{301}", "z"]).unwrap();
        assert_eq!(composed[0], "z");
        assert_eq!(decomposed[0], "z");
    }

    #[test]
    fn a_key_that_is_given_twice_is_refused_in_any_spelling() {
        assert_eq!(order(&["a", "a"]).unwrap_err().kind(), ErrorKind::InvalidKey);
        assert_eq!(order(&["\u{e9}", "e\u{301}"]).unwrap_err().kind(), ErrorKind::InvalidKey);
        assert_eq!(order(&[""]).unwrap_err().kind(), ErrorKind::InvalidKey);
    }
}
