//! `status KEY`: who holds it, if anybody.

use crate::args::KeyArgs;
use crate::conflict::quoted;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::facts::{Facts, Free};
use crate::{output, store};

pub(crate) async fn run(args: KeyArgs, context: &Context) -> Result<u8, Failure> {
    store::check_keys([&args.key])?;
    let lock = store::connect(&context.settings).await?;
    let Some(info) = lock.lookup(&args.key).await? else {
        if context.json {
            output::print_json(&Free::new(&args.key))?;
        } else {
            output::print(format_args!("{} is free\n", quoted(&args.key)))?;
        }
        return Ok(exit::NO);
    };
    let facts = Facts::from(&info);
    if context.json {
        output::print_json(&facts.record())?;
    } else {
        output::print(format_args!("{} is held\n{facts}", quoted(&facts.key)))?;
    }
    Ok(exit::OK)
}
