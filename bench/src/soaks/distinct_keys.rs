//! Many distinct keys, each locked and released once: afterwards the store must know none of them, and its fences
//! must have increased all the way. What the keys cost in a server is that store's own measurement.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend, Fence, Key, MemoryStore, Release, Secret};

use super::share;
use crate::Failure;

const KEYS: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(30);

/// What resident memory may differ by, before and after: as in the table of goals.
const SLACK: u64 = 1024 * 1024;

pub(super) fn memory(scale: f64) -> Result<String, Failure> {
    let keys = share(KEYS, scale);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    runtime.block_on(async {
        // The first keys pay for what is allocated once: tables, thread-local buffers.
        lock_and_release(&store, "warm-up", 1_000).await?;
        let before = resident();
        lock_and_release(&store, "key", keys).await?;
        let after = resident();
        let left = Arc::clone(&store).list(String::new(), 1).await?;
        if let Some(holder) = left.first() {
            return Err(format!("still there: {}", holder.key).into());
        }
        match (before, after) {
            (Some(before), Some(after)) if after > before + SLACK => {
                Err(format!("{keys} keys left {} bytes behind", after - before).into())
            }
            (Some(before), Some(after)) => {
                Ok(format!("{keys} keys, {} bytes more than before", after.saturating_sub(before)))
            }
            _ => Ok(format!("{keys} keys, none left; memory cannot be read on this system")),
        }
    })
}

async fn lock_and_release(store: &Arc<dyn Backend>, name: &str, keys: u64) -> Result<(), Failure> {
    let mut last: Option<Fence> = None;
    for number in 0..keys {
        let (key, secret) = (Key::new(&format!("{name}:{number}"))?, Secret::generate()?);
        let request = AcquireRequest::new(key.clone(), secret.clone(), TTL);
        let Attempt::Granted(lease) = Arc::clone(store).acquire(request).await? else {
            return Err(format!("{key} is busy, though nobody else locks").into());
        };
        // More than is promised per key, and true of this store: one counter serves all keys.
        if last.is_some_and(|last| lease.fence <= last) {
            return Err(format!("{key}: the fence did not increase").into());
        }
        last = Some(lease.fence);
        if Arc::clone(store).release(key.clone(), secret).await? != Release::Released {
            return Err(format!("{key}: not ours when released").into());
        }
    }
    Ok(())
}

/// Resident memory of this process in bytes, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}
