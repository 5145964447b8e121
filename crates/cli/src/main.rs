//! The command `holdtight`: reads the command line and the settings, and hands over to one file per command.

mod args;
mod commands;
mod config;
mod conflict;
mod duration;
mod exit;
mod facts;
mod interrupt;
mod output;
mod run;
mod store;
mod token;

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all, because it has to be quick: a guardian reads no settings and no other arguments.
    if run::guardian_is_asked_for() {
        return ExitCode::from(run::guard());
    }
    let args: Vec<_> = std::env::args_os().collect();
    ExitCode::from(commands::main(&args))
}
