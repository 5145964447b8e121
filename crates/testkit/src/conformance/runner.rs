//! Runs one trial: its own thread, its own runtime, its own fixture, and an end by force when time
//! is over.

use std::any::Any;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Outcome;
use super::case::Case;
use super::stage::Stage;
use crate::Fixture;

/// How long a fixture may take to start: a cluster on a starved machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long a runtime may take to end after a trial.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Runs `case` on a fresh `F`. Never panics and always returns.
pub(super) fn conduct<F: Fixture>(case: &'static Case, limit: Duration) -> Outcome {
    if let Some(missing) = F::missing() {
        return if std::env::var("CI").is_ok_and(|ci| ci == "true") {
            Outcome::Failed(missing)
        } else {
            Outcome::Ignored(missing)
        };
    }
    let (done, ended) = mpsc::sync_channel(1);
    let trial = move || {
        // A panicking trial drops `done`; the join below has its message.
        let _ = done.send(in_runtime::<F>(case, limit));
    };
    let thread = match thread::Builder::new().name(case.name.to_owned()).spawn(trial) {
        Ok(thread) => thread,
        Err(error) => return Outcome::Failed(format!("cannot start a thread: {error}")),
    };
    match ended.recv_timeout(START_LIMIT + limit + STOP_LIMIT * 2) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => Outcome::Failed(message(&*panic)),
            Ok(()) => Outcome::Failed("the trial ended without a result".to_owned()),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => Outcome::Failed(
            "the store blocks its thread: even the time limit could not end it".to_owned(),
        ),
    }
}

fn in_runtime<F: Fixture>(case: &'static Case, limit: Duration) -> Outcome {
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Outcome::Failed(format!("cannot start a runtime: {error}")),
        };
    let outcome = runtime.block_on(async {
        let Ok(stage) = tokio::time::timeout(START_LIMIT, Stage::set::<F>(limit)).await else {
            return Outcome::Failed(format!("the fixture did not start within {START_LIMIT:?}"));
        };
        if let Some(why) = case.needs.iter().find_map(|need| need.unmet(&stage)) {
            return Outcome::Ignored(why.to_owned());
        }
        match tokio::time::timeout(limit, (case.run)(&stage)).await {
            Ok(()) => Outcome::Passed,
            Err(_) => Outcome::Failed(format!("not over after {limit:?}: a call does not end")),
        }
    });
    runtime.shutdown_timeout(STOP_LIMIT);
    outcome
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the trial panicked without a message").to_owned()
}
