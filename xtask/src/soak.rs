//! `cargo xtask soak`: the long runs of the package `holdtight-bench`, built as users would build
//! us.
//!
//! At a fraction (`--scale`) it is a smoke run, and built as the tests are, which takes a fraction
//! of the time too.

use std::process::Command;

use crate::bench::build;
use crate::process::{Outcome, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let workspace = Workspace::load()?;
    let path = ready(&workspace)?;
    let programs = build(&workspace, args.iter().any(|arg| arg == "--scale"))?;
    run_shown(Command::new(programs.join("holdtight-soak")).args(args).env("PATH", path))
}
