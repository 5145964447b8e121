//! `migrate`: makes the store ready for locks, where that takes more than connecting.

use serde::Serialize;

use crate::context::Context;
use crate::exit::{self, Failure};
use crate::output;

#[derive(Serialize)]
struct Report {
    store: String,
    has_schema: bool,
}

pub(crate) async fn run(context: &Context) -> Result<u8, Failure> {
    let url = &context.settings.store.value;
    let has_schema = holdtight::migrate(url).await?;
    if context.json {
        output::print_json(&Report { store: url.to_string(), has_schema })?;
    } else if has_schema {
        output::print(format_args!("the schema in {url} is up to date\n"))?;
    } else {
        output::print(format_args!("{url} needs no schema\n"))?;
    }
    Ok(exit::OK)
}
