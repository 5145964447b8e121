//! The end of a run: locks are released, or left to run out for `--keep-for`, and never for longer
//! than a moment.
//!
//! A store that is dead by now does not keep the command's exit code: its leases end by themselves.

use std::time::Duration;

use holdtight::{DistributedLock, ErrorKind, LockError, LockHandle};
use tokio::task::JoinSet;

use crate::output::Span;

/// How long the store has to confirm.
const LIMIT: Duration = Duration::from_secs(2);

/// Gives all locks back, or keeps them for `rest`. Returns what is worth a warning.
pub(super) async fn give_back(
    lock: &DistributedLock,
    handles: Vec<LockHandle>,
    rest: Option<Duration>,
) -> Vec<String> {
    let mut steps = JoinSet::new();
    for handle in handles {
        let key = handle.key();
        steps.spawn(async move {
            let done = match rest {
                Some(rest) => handle.keep_for(rest).await,
                None => handle.release().await,
            };
            done.err().map(|error| warning(key.as_ref(), rest.is_some(), &error))
        });
    }
    let mut warnings = Vec::new();
    let all = async {
        while let Some(step) = steps.join_next().await {
            warnings
                .extend(step.unwrap_or_else(|error| Some(format!("a release failed: {error}"))));
        }
    };
    let in_time = tokio::time::timeout(LIMIT, all).await.is_ok();
    if !in_time {
        let what = if rest.is_some() { "keep the lock" } else { "take the lock back" };
        warnings.push(format!(
            "the store did not {what} within {}; the lock ends with its lease",
            Span(LIMIT)
        ));
    } else if let Err(error) = lock.shutdown_within(LIMIT).await {
        warnings.push(error.to_string());
    }
    warnings
}

fn warning(key: &str, keeping: bool, error: &LockError) -> String {
    match error.kind() {
        ErrorKind::Lost => format!(
            "lock \"{key}\" was not ours any more when the command ended; somebody may have worked at the same time"
        ),
        _ if keeping => format!("lock \"{key}\" could not be kept for longer: {error}"),
        _ => format!("lock \"{key}\" could not be released and ends with its lease: {error}"),
    }
}
