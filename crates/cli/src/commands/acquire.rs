//! `acquire KEY`: takes a lock that lives by its lease alone, and prints the token that opens it.

use std::time::Duration;

use holdtight::{DistributedLock, Held, Liveness, LockToken, Owner};
use serde::Serialize;

use crate::args::AcquireArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::waiting::Waiting;
use crate::{interrupt, output, store};

#[derive(Serialize)]
struct Taken<'a> {
    key: &'a str,
    fence: String,
    token: String,
    expires_at: Option<String>,
}

pub(crate) async fn run(args: AcquireArgs, context: &Context) -> Result<u8, Failure> {
    store::must_outlive_us(&context.settings)?;
    store::check_keys([&args.key])?;
    must_have_output()?;
    let ttl = context.settings.ttl(args.ttl)?;
    let wait = context.settings.wait(args.patience.wait);
    let patience = store::patience(args.patience.nonblock, wait);
    interrupt::or_stopped(&context.settings, patience, async |lock| {
        let (token, held) = take(lock, &args, ttl, context).await?;
        if tell(&token, &held, context.json).is_err() {
            // A token that nobody has read opens nothing: better free than held by nobody.
            lock.release_token(&token).await?;
            return Err(Failure::new(
                exit::LOST,
                "the token could not be written to standard output, so the lock was given back",
            ));
        }
        Ok(exit::OK)
    })
    .await
}

/// Refuses to take a lock whose token would be written to nowhere.
///
/// A descriptor that was closed is opened on the null device before we run, for reading and
/// writing, and swallows what is written. Whoever sends the token there on purpose opens it for
/// writing alone.
fn must_have_output() -> Result<(), Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let out = rustix::fs::fstat(std::io::stdout());
        let flags = rustix::fs::fcntl_getfl(std::io::stdout());
        let both = flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR));
        let null = std::fs::metadata("/dev/null");
        if let (Ok(out), Ok(null)) = (out, null)
            && both
            && (out.st_mode, out.st_rdev) == (null.mode(), null.rdev())
        {
            return Err(Failure::usage(
                "standard output is closed, so nobody would have the token; nothing was taken",
            ));
        }
    }
    Ok(())
}

async fn take(
    lock: &DistributedLock,
    args: &AcquireArgs,
    ttl: Option<Duration>,
    context: &Context,
) -> Result<(LockToken, Held), Failure> {
    let mut acquire = lock.acquire(&args.key).liveness(Liveness::Lease).owner(caller());
    let wait = context.settings.wait(args.patience.wait);
    acquire = match wait {
        _ if args.patience.nonblock => acquire.wait(Duration::ZERO),
        Some(wait) => acquire.wait(wait),
        None => acquire.wait_forever(),
    };
    if let Some(ttl) = ttl {
        acquire = acquire.ttl(ttl);
    }
    if let Some(reason) = &args.reason {
        acquire = acquire.reason(reason);
    }
    let waiting = Waiting::new(lock, std::slice::from_ref(&args.key), context.json);
    let handle = waiting.during(acquire.into_future()).await?;
    let held = handle.held();
    Ok((handle.detach().await?, held))
}

/// Prints the token. The end of the lease is told as the holder should count it: a little early.
fn tell(token: &LockToken, held: &Held, json: bool) -> Result<(), Failure> {
    if !json {
        return output::print(format_args!("{}\n", token.expose()));
    }
    output::print_json(&Taken {
        key: held.key().as_str(),
        fence: held.fence().to_string(),
        token: token.expose(),
        expires_at: held.info().expires_at.and_then(output::rfc3339),
    })
}

/// Who holds the lock from now on: the script that called us. This process will be gone.
fn caller() -> Owner {
    let mut owner = crate::owner::current();
    #[cfg(unix)]
    {
        let pid = std::os::unix::process::parent_id();
        owner.pid = Some(pid);
        if let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            owner = owner.with_command(name.trim());
        }
    }
    owner
}
