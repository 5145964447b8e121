//! `force-release KEY --fence N`: frees a key whose holder is surely gone, if it is still the
//! holder that was looked at.

use holdtight::{ErrorKind, Fence};

use crate::args::ForceReleaseArgs;
use crate::conflict::quoted;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::facts::Facts;
use crate::{output, store};

pub(crate) async fn run(args: ForceReleaseArgs, context: &Context) -> Result<u8, Failure> {
    let fence: Fence = args.fence.parse()?;
    store::check_keys([&args.key])?;
    let lock = store::connect(&context.settings).await?;
    match lock.force_release(&args.key, fence).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotHeld => {
            let Some(info) = lock.lookup(&args.key).await? else {
                return Err(Failure::new(
                    exit::NO,
                    format!("{} is free already", quoted(&args.key)),
                ));
            };
            return Err(Failure::new(
                exit::BUSY,
                format!(
                    "{} is not held under fence {fence} any more; look again before you force it. Lock info:\n{}",
                    quoted(&args.key),
                    Facts::from(&info).to_string().trim_end(),
                ),
            ));
        }
        Err(error) => return Err(error.into()),
    }
    if context.json {
        let (key, fence) = (&args.key, fence.to_string());
        output::print_json(&serde_json::json!({ "key": key, "fence": fence, "released": true }))?;
    } else {
        output::print(format_args!(
            "{} was freed; its holder may still be at work\n",
            quoted(&args.key)
        ))?;
    }
    Ok(exit::OK)
}
