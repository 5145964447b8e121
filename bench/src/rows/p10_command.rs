//! P10: `holdtight run KEY -- true` on the file store, beside `flock FILE true`. How long does a
//! call take?
//!
//! Measured from the start of the process to its end, one after the other. `true` alone is what any
//! wrapper pays. Our command also keeps a record that others can read, a fence, and a guardian that
//! ends what it started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use holdtight_testkit::servers::Directory;

use super::US;
use crate::load::number;
use crate::stats::percentile;
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Calls per round.
const CALLS: u64 = 40;
const FLOCK: &str = "flock";

pub(super) const ROW: Row = Row::new("P10", "the command on the file store, beside flock", prepare);

fn prepare(effort: Effort) -> Result<Vec<Comparison>, Failure> {
    let program = program()?;
    let place = Arc::new(Directory::new());
    let file = place.path().join("flock");
    let (ours, held) = (program.clone(), Arc::clone(&place));
    let us = Contender::new(US, Role::Us, move |effort| {
        let store = format!("file:{}", held.path().join("store").display());
        calls(effort, || {
            let mut command = Command::new(&ours);
            command.args(["--store", &store, "run", "p10", "--", "true"]);
            command
        })
    });
    let flock = Contender::new(FLOCK, Role::Peer, move |effort| {
        let _kept = &place;
        calls(effort, || {
            let mut command = Command::new(FLOCK);
            command.arg(&file).arg("true");
            command
        })
    });
    let bare =
        Contender::new("true alone", Role::Limit, |effort| calls(effort, || Command::new("true")));
    let time = Comparison::new("file store, `holdtight run k -- true`", "ms per call, p50", us)
        .against(flock)
        .against(bare)
        .goal(Goal::difference(FLOCK, Bound::AtMost(8.0)));
    let mut all = vec![time];
    // A quick run's program is built for tests: its size says nothing.
    if !effort.quick {
        let size = Contender::new(US, Role::Us, move |_| size(&program));
        let size = Comparison::new("the command's program, stripped", "MB", size).counted_once();
        all.push(size.goal(Goal::count(Bound::AtMost(15.0))));
    }
    Ok(all)
}

/// The command, built beside us.
fn program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?.with_file_name("holdtight");
    if program.exists() {
        return Ok(program);
    }
    Err("the command is not built: `cargo xtask bench` does it".into())
}

fn size(program: &Path) -> Result<f64, Failure> {
    Ok(number(std::fs::metadata(program)?.len()) / 1e6)
}

/// The median time of a call in milliseconds.
fn calls(effort: Effort, command: impl Fn() -> Command) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..effort.work(CALLS).max(5) {
        let start = Instant::now();
        let status = command().stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if !status.success() {
            return Err(format!("ended with {status}").into());
        }
    }
    Ok(percentile(&times, 50.0))
}
