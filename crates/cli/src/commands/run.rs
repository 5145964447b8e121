//! `run KEY -- COMMAND`: from the command line and the settings to what the supervision is asked to
//! do.

use crate::args::RunArgs;
use crate::context::Context;
use crate::exit::Failure;
use crate::run::{self, Role, RunOptions};
use crate::store;

pub(crate) fn run(args: RunArgs, context: &Context, role: Role) -> Result<u8, Failure> {
    let options = options(args, context)?;
    run::execute(options, role, &context.args)
}

fn options(args: RunArgs, context: &Context) -> Result<RunOptions, Failure> {
    let settings = &context.settings;
    store::check_keys(&args.keys)?;
    let ttl = settings.ttl(args.ttl)?;
    let wait = settings.wait(args.patience.wait);
    Ok(RunOptions {
        keys: args.keys,
        by_line: args.line.is_some(),
        command: RunArgs::command(args.line, args.words),
        nonblock: args.patience.nonblock || wait.is_some_and(|wait| wait.is_zero()),
        wait,
        conflict_exit: args.conflict_exit,
        skip_ok: args.skip_ok,
        ttl,
        keep_for: args.keep_for,
        max_hold: args.max_hold,
        kill_after: args.kill_after,
        usual_kill_after: settings.kill_after.as_ref().map(|span| span.value),
        close: args.close,
        reason: args.reason,
        told_as: args.told_as,
        script: args.script,
        pass_store: args.pass_store,
        place: store::place(settings),
        store_url: settings.store.value.expose().to_owned(),
        verbose: args.verbose,
        json: context.json,
    })
}
