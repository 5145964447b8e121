//! A long export: work that takes longer than any sensible lease.
//!
//! A lease should be short, so that a crashed exporter is replaced soon; it is renewed in the
//! background while the work runs, and the work is stopped if it cannot be. Without renewal, the
//! holder extends it itself between two batches; extending never shortens a lease and never revives
//! one that is over.

use std::time::{Duration, Instant};

use holdtight::LockError;

const LEASE: Duration = Duration::from_secs(3);
const BATCHES: u32 = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::builder("memory:").ttl(LEASE).connect().await?;

    // Renewed in the background: nothing to do but the work.
    let started = Instant::now();
    let rows = lock
        .with_lock("export:orders", async |held| {
            let mut rows = 0;
            for _ in 0..BATCHES {
                rows += batch(LEASE / 7).await;
                assert!(held.is_held(), "or this would have been stopped");
            }
            rows
        })
        .await?;
    assert!(started.elapsed() > LEASE);
    println!("{rows} rows under one lock, for longer than its lease");

    // Extended by hand, a lease at a time, with room for a batch that is slow. Nobody stops this
    // work for us: a batch that takes longer than the lease goes on to its end, so what it writes
    // to should check `handle.fence()`.
    let handle =
        lock.acquire("export:users").ttl(Duration::from_secs(20)).auto_renew(false).await?;
    let mut rows = 0;
    for _ in 0..BATCHES {
        handle.extend(Duration::from_secs(20)).await?; // an error here is the moment to stop
        rows += batch(LEASE / 100).await;
    }
    handle.release().await?; // says whether it was ours to the end
    println!("{rows} rows under a lock that was extended {BATCHES} times");

    // An export that hangs must not hold for ever, however well it is renewed.
    let hung = lock
        .acquire("export:stuck")
        .max_hold(Duration::from_millis(300))
        .run(async |_| std::future::pending::<()>().await)
        .await;
    println!("stopped: {}", hung.expect_err("it hangs"));
    lock.shutdown().await
}

async fn batch(takes: Duration) -> u32 {
    tokio::time::sleep(takes).await;
    100
}
