//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build us.

use crate::process::{Outcome, cargo, run as run_shown};

pub(crate) fn run(args: &[String]) -> Outcome {
    let package = ["run", "--release", "--package", "holdtight-bench", "--bin", "holdtight-soak"];
    run_shown(cargo().args(package).arg("--").args(args))
}
