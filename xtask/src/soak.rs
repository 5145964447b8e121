//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build us.
//!
//! At a fraction (`--scale`) it is a smoke run, and built as the tests are, which takes a fraction of the time too.

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let path = ready(&Workspace::load()?)?;
    let profile = if args.iter().any(|arg| arg == "--scale") { "dev" } else { "release" };
    let package = ["run", "--profile", profile, "--package", "holdtight-bench"];
    let program = ["--bin", "holdtight-soak", "--"];
    run_shown(cargo().args(package).args(program).args(args).env("PATH", path))
}
