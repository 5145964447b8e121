//! Many locks held and renewed at once, for long: none may be lost.
//!
//! In a process of its own, so that its memory and its processor time are those of the locks.

use std::process::Command;

use holdtight_testkit::servers::Redis;
use serde_json::json;

use super::share;
use crate::driven::Driven;
use crate::{Failure, load};

const LOCKS: u64 = 100_000;
const SECONDS: u64 = 300;

pub(super) fn redis(scale: f64) -> Result<String, Failure> {
    // Fewer locks for a shorter time; but never so short that none has to be renewed.
    let (locks, seconds) = (share(LOCKS, scale), share(SECONDS, scale).max(15));
    let Held { lost, cpu, bytes } = hold(locks, seconds)?;
    let found = format!(
        "{locks} locks for {seconds} s, {lost} lost, {:.0} % of a core, {bytes:.0} bytes each",
        cpu * 100.0
    );
    if lost > 0.0 { Err(found.into()) } else { Ok(found) }
}

/// What became of the locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lost: f64,
    /// The share of a core that their process used.
    pub(crate) cpu: f64,
    /// Of resident memory, per lock.
    pub(crate) bytes: f64,
}

/// Holds `locks` on a Redis for `seconds`, in the program of the bench beside this one.
pub(crate) fn hold(locks: u64, seconds: u64) -> Result<Held, Failure> {
    let runtime = load::runtime()?;
    let server = runtime.block_on(Redis::start());
    let program = std::env::current_exe()?.with_file_name("holdtight-bench");
    let mut worker = Driven::start(Command::new(program).args(["worker", &server.url()]))?;
    let request = json!({"op": "hold", "tasks": locks, "seconds": seconds});
    worker.tell(&request)?;
    let answer = worker.answer_within(std::time::Duration::from_secs(seconds + 300))?;
    let number = |name: &str| answer[name].as_f64().ok_or("an answer without its number");
    Ok(Held { lost: number("lost")?, cpu: number("cpu")?, bytes: number("bytes")? })
}
