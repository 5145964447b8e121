//! So many acquires and releases on the memory store, and nothing else: what callgrind counts.
//!
//! `cargo xtask telemetry-cost` runs it built with and without telemetry.

use holdtight_core::{DistributedLock, LockError, MemoryStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let pairs = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1);
    let lock = DistributedLock::builder(MemoryStore::new()).build()?;
    for _ in 0..pairs {
        lock.acquire("key").await?.release().await?;
    }
    Ok(())
}
