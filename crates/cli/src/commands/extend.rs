//! `extend`: gives the holder of a token more time.

use holdtight::DEFAULT_TTL;
use holdtight::store::margin;
use serde::Serialize;

use crate::args::ExtendArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::{output, store, token};

#[derive(Serialize)]
struct Extended<'a> {
    key: &'a str,
    fence: String,
    expires_at: Option<String>,
}

pub(crate) async fn run(args: ExtendArgs, context: &Context) -> Result<u8, Failure> {
    let variable = std::env::var_os(token::VARIABLE);
    let token = token::read(args.token.source.as_deref(), variable, context.json)?;
    let ttl = context.settings.ttl(args.ttl)?.unwrap_or(DEFAULT_TTL);
    let lock = store::connect(&context.settings).await?;
    let sent_at = output::now();
    let lease = lock.extend_token(&token, ttl).await?;
    if context.json {
        // As the holder should count it: from before the request left, and a little early.
        let end = sent_at.checked_add(lease.ttl.saturating_sub(margin(lease.ttl)));
        output::print_json(&Extended {
            key: token.key().as_str(),
            fence: lease.fence.to_string(),
            expires_at: end.and_then(output::rfc3339),
        })?;
    }
    Ok(exit::OK)
}
