//! `release`: gives back what `acquire` took.

use super::Context;
use crate::args::ReleaseArgs;
use crate::exit::{self, Failure};
use crate::{output, store, token};

pub(crate) async fn run(args: ReleaseArgs, context: &Context) -> Result<u8, Failure> {
    let token = token::read(args.token.source.as_deref(), std::env::var_os(token::VARIABLE))?;
    let lock = store::connect(&context.settings).await?;
    lock.release_token(&token).await?;
    if context.json {
        let key = token.key().as_str();
        output::print_json(&serde_json::json!({ "key": key, "released": true }))?;
    }
    Ok(exit::OK)
}
