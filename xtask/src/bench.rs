//! `cargo xtask bench`: the measurements of the package `holdtight-bench`, built as users would build us.
//!
//! `--quick` is a smoke run that nobody quotes: it is built as the tests are, which takes a fraction of the time.
//! `--no-peers` leaves out what others wrote, and its installation.

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;
use crate::{PEERS_VARIABLE, peers};

pub(crate) fn run(args: &[String]) -> Outcome {
    let workspace = Workspace::load()?;
    let path = ready(&workspace)?;
    let is = |option: &str| args.iter().any(|arg| arg == option);
    let (profile, directory) =
        if is("--quick") { ("dev", "debug") } else { ("release", "release") };
    // The rows about the command run it, so it is built beside the bench.
    let build = ["build", "--profile", profile, "--package", "holdtight-bench"];
    run_shown(cargo().args(build).args(["--package", "holdtight-cli"]))?;
    let program = workspace.target.join(directory).join("holdtight-bench");
    let mut bench = std::process::Command::new(program);
    bench.args(args.iter().filter(|arg| *arg != "--no-peers")).env("PATH", path);
    if !["--no-peers", "--list", "--publish"].iter().any(|option| is(option)) {
        bench.env(PEERS_VARIABLE, peers::install(&workspace)?);
    }
    run_shown(&mut bench)
}
