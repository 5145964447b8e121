//! Try, then skip: a periodic task that several machines start, and one should run.
//!
//! Ask for the lock and look at the answer. Asking first whether it is locked, and then taking it,
//! is a race: between the two anybody may come.

use holdtight::{DistributedLock, LockError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::connect("memory:").await?;
    let (first, second) = tokio::join!(clean_up(&lock, "web-1"), clean_up(&lock, "web-2"));
    assert_eq!([first?, second?].iter().filter(|ran| **ran).count(), 1);
    lock.shutdown().await
}

/// Whether this one did it.
async fn clean_up(lock: &DistributedLock, machine: &str) -> Result<bool, LockError> {
    // Renewed while it runs, stopped if the lock is lost: a machine that goes on then would be the
    // second one.
    let cleaned = lock.try_acquire("clean-up").reason(machine).run(async |_held| {
        println!("{machine}: cleaning up");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    });
    let ran = cleaned.await?.is_some();
    if !ran {
        println!("{machine}: somebody else cleans up; skipped");
    }
    Ok(ran)
}
