//! Many distinct keys, each locked and released once: afterwards the store must know none of them.

use super::share;
use crate::Failure;
use crate::keys::{self, Left};

const KEYS: u64 = 1_000_000;

/// What memory may differ by, before and after: as in the table of goals.
const SLACK: f64 = 1024.0 * 1024.0;

pub(super) fn memory(scale: f64) -> Result<String, Failure> {
    judge(scale, keys::in_memory, SLACK, "bytes")
}

pub(super) fn redis(scale: f64) -> Result<String, Failure> {
    judge(scale, keys::in_redis, SLACK, "bytes")
}

pub(super) fn postgres(scale: f64) -> Result<String, Failure> {
    judge(scale, keys::in_postgres, 0.0, "rows")
}

pub(super) fn files(scale: f64) -> Result<String, Failure> {
    judge(scale, keys::in_files, 0.0, "files")
}

fn judge(
    scale: f64,
    run: fn(u64) -> Result<Left, Failure>,
    allowed: f64,
    what: &str,
) -> Result<String, Failure> {
    let keys = share(KEYS, scale);
    let Left { more } = run(keys)?;
    if more > allowed {
        return Err(format!("{keys} keys left {more} {what} behind").into());
    }
    Ok(format!("{keys} keys, {more} {what} more than before"))
}
