//! One file per command. Here: from the parsed command line to the command, and from its result to
//! the exit code.

mod acquire;
mod bench;
mod completions;
mod config;
mod doctor;
mod extend;
mod fenced;
mod force_release;
mod hold;
mod ls;
mod man;
mod migrate;
mod release;
mod run;
mod status;
mod wait;

use std::ffi::OsString;
use std::future::Future;

use crate::args::{self, Cli, Command};
use crate::config::{Settings, ThisProcess};
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::run::Role;
use crate::{store, threads};

/// Runs the command that the command line names; returns the exit code.
pub(crate) fn main(args: &[OsString], role: Role) -> u8 {
    let cli = match args::parse(args) {
        Ok(cli) => cli,
        Err(failure) => {
            // It could not be read, so what was meant is guessed.
            failure.report(args.iter().any(|arg| arg == "--json"));
            let word = args.iter().skip(1).find(|arg| !arg.as_encoded_bytes().starts_with(b"-"));
            if word.is_some_and(|word| word == "hold") && failure.code() != exit::OK {
                hold::give_up(failure.code());
            }
            return failure.code();
        }
    };
    let (json, holds) = (cli.json, matches!(cli.command, Command::Hold(_)));
    dispatch(cli, role, args).unwrap_or_else(|failure| {
        failure.report(json);
        if holds {
            hold::give_up(failure.code());
        }
        failure.code()
    })
}

fn dispatch(cli: Cli, role: Role, args: &[OsString]) -> Result<u8, Failure> {
    // `run` does it by itself, and undoes it for its command.
    #[cfg(unix)]
    if !matches!(cli.command, Command::Run(_) | Command::Hold(_)) {
        crate::disposition::survive_file_limit();
    }
    // These need no settings, and must work where the settings are broken, or withheld.
    match &cli.command {
        Command::Completions(args) => return completions::run(args),
        Command::Man(args) => return man::run(args),
        Command::FencedWrite(args) => return fenced::write(args, cli.json),
        Command::FencedCheck(args) => return fenced::check(args, cli.json),
        _ => {}
    }
    let settings = Settings::load(cli.store.as_deref(), &ThisProcess)?;
    // The keeper of a hold says it.
    if role.is_wrapper() && !matches!(cli.command, Command::Hold(_)) {
        store::warn_if_exposed(&settings, cli.json);
        store::warn_of_emulator(&settings, cli.json);
        store::warn_of_old_place(&settings, cli.json);
    }
    let context = Context { settings, json: cli.json, args: args.to_vec() };
    perform(cli.command, &context, role).map_err(|failure| failure.at(&context.settings.store))
}

fn perform(command: Command, context: &Context, role: Role) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::run(args, context, role),
        Command::Acquire(args) => block_on(acquire::run(args, context)),
        Command::Extend(args) => block_on(extend::run(args, context)),
        Command::Release(args) => block_on(release::run(args, context)),
        Command::Hold(args) => hold::run(&args, context),
        Command::Check(args) => block_on(hold::check(args, context)),
        Command::Status(args) => block_on(status::run(args, context)),
        Command::Ls(args) => block_on(ls::run(args, context)),
        Command::Wait(args) => block_on(wait::run(args, context)),
        Command::ForceRelease(args) => block_on(force_release::run(args, context)),
        Command::Doctor => block_on(doctor::run(context)),
        Command::Migrate => block_on(migrate::run(context)),
        Command::Bench(args) => block_on(bench::run(args, context)),
        Command::Config => config::run(context),
        Command::Completions(_)
        | Command::Man(_)
        | Command::FencedWrite(_)
        | Command::FencedCheck(_) => Ok(exit::OK),
    }
}

/// One thread is enough for one call, and starts faster than a pool.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    threads::must_start(1)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(exit::SOFTWARE, format!("cannot start: {error}")))?;
    runtime.block_on(work)
}
