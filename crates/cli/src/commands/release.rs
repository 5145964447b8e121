//! `release`: gives back what `acquire` or `hold` took.

use super::hold;
use crate::args::ReleaseArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::{output, store, token};

pub(crate) async fn run(args: ReleaseArgs, context: &Context) -> Result<u8, Failure> {
    let variable = std::env::var_os(token::VARIABLE);
    if args.hold.is_some() || args.token.source.is_none() && variable.is_none() {
        if let Some(code) = hold::release(args.hold.as_deref(), context).await? {
            return Ok(code);
        }
    } else if args.token.source.is_none() && hold::is_in_use() {
        return Err(Failure::usage(
            "this script has a token in HOLDTIGHT_TOKEN and keys of `hold`; say which: `--hold KEY`, or `-` or `@FILE` for \
             the token",
        ));
    }
    let token = token::read(args.token.source.as_deref(), variable, context.json)?;
    let lock = store::connect(&context.settings).await?;
    lock.release_token(&token).await?;
    if context.json {
        let key = token.key().as_str();
        output::print_json(&serde_json::json!({ "key": key, "released": true }))?;
    }
    Ok(exit::OK)
}
