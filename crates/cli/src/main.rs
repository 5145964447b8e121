//! The command `holdtight`: reads the command line and the settings, and hands over to one file per
//! command.

mod args;
mod commands;
mod config;
mod conflict;
mod context;
#[cfg(unix)]
mod disposition;
mod exit;
mod facts;
mod interrupt;
mod output;
mod owner;
mod report;
mod run;
#[cfg(target_os = "linux")]
mod script;
mod store;
mod threads;
mod token;
mod waiting;

use std::process::ExitCode;

use run::Role;

/// A process that was started by another one of ours is told apart before anything else: it has to
/// be quick.
fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next();
    let mut rest = arguments.peekable();
    let first = rest.peek().and_then(|first| first.to_str()).map(str::to_owned);
    let code = match first.as_deref() {
        Some(run::GUARDIAN) => {
            let line: Vec<_> = program.into_iter().chain(rest.skip(2)).collect();
            let role = Role::guardian(&line);
            if run::was_greeted() { commands::main(&line, role) } else { exit::SOFTWARE }
        }
        Some(run::LAUNCH) => run::launch(program.unwrap_or_default(), rest.skip(1)),
        #[cfg(target_os = "linux")]
        Some(script::KEEP) => script::keep(rest.skip(1)),
        #[cfg(target_os = "linux")]
        Some(script::KEEPER) => {
            let run = |line: &[_]| commands::main(line, Role::wrapper(line));
            script::keeper(program.unwrap_or_default(), rest.skip(1), run)
        }
        _ => {
            let line: Vec<_> = program.into_iter().chain(rest).collect();
            let role = Role::wrapper(&line);
            commands::main(&line, role)
        }
    };
    ExitCode::from(code)
}
