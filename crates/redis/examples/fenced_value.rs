//! A holder is paused past its lease, another one takes over, and the late write of the first is
//! refused.
//!
//! `cargo run -p holdtight-redis --example fenced_value -- redis://127.0.0.1:6379`

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Builder, ErrorKind, LockError};
use holdtight_redis::RedisStore;

/// What `docs/stores/redis.md` shows, word for word; a test compares them.
pub(crate) async fn late_write(url: &str) -> Result<LockError, LockError> {
    // [shown in the documentation]
    let store = Arc::new(RedisStore::connect(url).await?);
    let lock = Builder::shared(store.clone()).build()?;

    // The first holder reads the balance, and is then paused for longer than its lease.
    let slow = lock.acquire("account:7").ttl(Duration::from_secs(1)).auto_renew(false).await?;
    let old_fence = slow.fence();
    tokio::time::sleep(Duration::from_millis(1200)).await;

    // The next one gets the lock and writes.
    let next = lock.acquire("account:7").await?;
    store.fenced_set("balance:7", "70", next.fence()).await?;

    // The first wakes up and writes what it had computed: refused, the balance stays 70.
    let late = store.fenced_set("balance:7", "30", old_fence).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotHeld);
    // [end]
    next.release().await?;
    lock.shutdown().await?;
    Ok(late)
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    println!("{}", late_write(&url).await?);
    Ok(())
}
