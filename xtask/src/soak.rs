//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build us.
//!
//! A share of them, as CI runs, is built as the tests are: what they look for does not depend on speed.

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let path = ready(&Workspace::load()?)?;
    let profile = if args.iter().any(|arg| arg == "--scale") { "dev" } else { "release" };
    // One run puts processes of the bench to work.
    let package = ["--profile", profile, "--package", "holdtight-bench"];
    run_shown(cargo().arg("build").args(package))?;
    let soak = ["--bin", "holdtight-soak", "--"];
    run_shown(cargo().arg("run").args(package).args(soak).args(args).env("PATH", path))
}
