//! `cargo xtask bench`: the measurements of the package `holdtight-bench`, built as users would build us.

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let path = ready(&Workspace::load()?)?;
    let package = ["run", "--release", "--package", "holdtight-bench", "--"];
    run_shown(cargo().args(package).args(args).env("PATH", path))
}
