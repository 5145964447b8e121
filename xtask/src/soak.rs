//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build us.

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let path = ready(&Workspace::load()?)?;
    let package =
        ["run", "--release", "--package", "holdtight-bench", "--bin", "holdtight-soak", "--"];
    run_shown(cargo().args(package).args(args).env("PATH", path))
}
