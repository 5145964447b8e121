//! `cargo xtask bench`: the measurements of the package `holdtight-bench`, built as users would
//! build us.
//!
//! `--quick` is a smoke run that nobody quotes: it is built as the tests are, which takes a
//! fraction of the time. `--no-peers` leaves out what others wrote, and its installation.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;
use crate::{PEERS_VARIABLE, peers};

pub(crate) fn run(args: &[String]) -> Outcome {
    let workspace = Workspace::load()?;
    let path = ready(&workspace)?;
    let is = |option: &str| args.iter().any(|arg| arg == option);
    let programs = build(&workspace, is("--quick"))?;
    let mut bench = Command::new(programs.join("holdtight-bench"));
    bench.args(args.iter().filter(|arg| *arg != "--no-peers")).env("PATH", path);
    if !["--no-peers", "--list", "--publish"].iter().any(|option| is(option)) {
        bench.env(PEERS_VARIABLE, peers::install(&workspace)?);
    }
    run_shown(&mut bench)
}

/// Builds what measures and says where it is. The rows about the command run it, so it is built
/// beside the bench; for the long runs too, because another choice of packages has other features
/// and would build all dependencies again.
pub(crate) fn build(workspace: &Workspace, quick: bool) -> Outcome<PathBuf> {
    let (profile, directory) = if quick { ("dev", "debug") } else { ("dist", "dist") };
    let packages = ["--package", "holdtight-bench", "--package", "holdtight-cli"];
    run_shown(cargo().args(["build", "--profile", profile]).args(packages))?;
    Ok(workspace.target.join(directory))
}
