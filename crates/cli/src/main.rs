//! The command `holdtight`: reads the command line and the settings, and hands over to one file per command.

mod args;
mod commands;
mod config;
mod conflict;
#[cfg(unix)]
mod disposition;
mod duration;
mod exit;
mod facts;
mod interrupt;
mod output;
mod run;
mod store;
mod token;
mod waiting;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = run::other_self() {
        return ExitCode::from(code);
    }
    let args: Vec<_> = std::env::args_os().collect();
    ExitCode::from(commands::main(&args))
}
