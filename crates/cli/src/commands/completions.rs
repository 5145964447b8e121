//! `completions SHELL`: the script that a shell completes our command lines with.

use clap::CommandFactory as _;

use crate::args::{Cli, CompletionsArgs};
use crate::exit::{self, Failure};
use crate::output;

pub(crate) fn run(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "holdtight", &mut script);
    output::print(String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}
