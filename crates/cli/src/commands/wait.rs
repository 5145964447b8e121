//! `wait KEY`: until the key is free, without taking it.
//!
//! It asks by a timer and does not subscribe: a wake-up goes to one waiter only, and belongs to one
//! who wants the lock.

use std::time::Duration;

use holdtight::{DistributedLock, ErrorKind, Holder, Key, LockError, LockInfo};
use tokio::time::Instant;

use crate::args::WaitArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::facts::Free;
use crate::waiting::Waiting;
use crate::{interrupt, output, store};

/// The first pause between two questions, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

pub(crate) async fn run(args: WaitArgs, context: &Context) -> Result<u8, Failure> {
    let limit = context.settings.wait(args.wait);
    store::check_keys([&args.key])?;
    let patience = store::patience(false, limit);
    interrupt::or_stopped(&context.settings, patience, async |lock| {
        let waiting = Waiting::new(lock, std::slice::from_ref(&args.key), context.json);
        waiting.during(until_free(lock, &args.key, limit)).await
    })
    .await?;
    if context.json {
        output::print_json(&Free::new(&args.key))?;
    }
    Ok(exit::OK)
}

async fn until_free(
    lock: &DistributedLock,
    key: &str,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut pause = PAUSES.0;
    let mut asked = 0;
    while let Some(info) = lock.lookup(key).await? {
        asked += 1;
        let waited = started.elapsed();
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(waited));
        if left.is_zero() {
            return Err(still_busy(&info).with_attempts(asked, waited).into());
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
    Ok(())
}

/// The same error as for a lock that could not be taken, so that it is told in the same words.
fn still_busy(info: &LockInfo) -> LockError {
    LockError::new(ErrorKind::Timeout, "it is still held")
        .with_key(&info.key)
        .with_holder(Some(holder(&info.key, info)))
}

fn holder(key: &Key, info: &LockInfo) -> Holder {
    let now = output::now();
    let mut holder = Holder::of(key.clone()).owner(info.owner.clone());
    holder.fence = info.fence;
    holder.age = info.acquired_at.and_then(|since| now.duration_since(since).ok());
    holder.remaining = info.expires_at.map(|end| end.duration_since(now).unwrap_or_default());
    holder
}
