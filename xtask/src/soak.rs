//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build us.
//!
//! At a fraction (`--scale`) it is a smoke run, and built as the tests are, which takes a fraction of the time too.

use std::process::Command;

use crate::process::{Outcome, cargo, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let workspace = Workspace::load()?;
    let path = ready(&workspace)?;
    let (profile, directory) = if args.iter().any(|arg| arg == "--scale") {
        ("dev", "debug")
    } else {
        ("release", "release")
    };
    // All of its programs: some runs start the bench beside this one.
    run_shown(cargo().args(["build", "--profile", profile, "--package", "holdtight-bench"]))?;
    let program = workspace.target.join(directory).join("holdtight-soak");
    run_shown(Command::new(program).args(args).env("PATH", path))
}
