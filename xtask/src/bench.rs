//! `cargo xtask bench`: the measurements of the package `holdtight-bench`, built as users would build us.

use crate::process::{Outcome, cargo, run as run_shown};

pub(crate) fn run(args: &[String]) -> Outcome {
    let package = ["run", "--release", "--package", "holdtight-bench", "--"];
    run_shown(cargo().args(package).args(args))
}
