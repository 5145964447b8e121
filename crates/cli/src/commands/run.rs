//! `run KEY -- COMMAND`: from the command line and the settings to what the supervision is asked to do.

use std::time::Duration;

use holdtight::DEFAULT_TTL;

use super::Context;
use crate::args::RunArgs;
use crate::duration;
use crate::exit::Failure;
use crate::run::{self, RunOptions};
use crate::store;

pub(crate) fn run(args: RunArgs, context: &Context) -> Result<u8, Failure> {
    options(args, context).and_then(run::execute)
}

fn options(args: RunArgs, context: &Context) -> Result<RunOptions, Failure> {
    let settings = &context.settings;
    store::check_keys(&args.keys)?;
    let ttl = settings.ttl(args.ttl)?;
    let kill_after = args.kill_after.or(settings.kill_after.as_ref().map(|span| span.value));
    if let Some(kill_after) = kill_after {
        check_kill_after(kill_after, ttl.unwrap_or(DEFAULT_TTL))?;
    }
    let wait = settings.wait(args.patience.wait);
    Ok(RunOptions {
        keys: args.keys,
        command: args.words,
        nonblock: args.patience.nonblock || wait.is_some_and(|wait| wait.is_zero()),
        wait,
        conflict_exit: args.conflict_exit,
        skip_ok: args.skip_ok,
        ttl,
        keep_for: args.keep_for,
        max_hold: args.max_hold,
        kill_after,
        reason: args.reason,
        pass_store: args.pass_store,
        store_url: settings.store.value.expose().to_owned(),
        verbose: args.verbose,
        json: context.json,
    })
}

/// A command is told to stop so long before the lease ends; more than half of it would leave too little to work in.
fn check_kill_after(kill_after: Duration, ttl: Duration) -> Result<(), Failure> {
    if kill_after * 2 < ttl {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--kill-after {} is not less than half the TTL of {}; shorten it, or lengthen --ttl",
        duration::text(kill_after),
        duration::text(ttl),
    )))
}
