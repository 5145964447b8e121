//! A critical section: read, compute, write, by many at once, with no update lost.
//!
//! The lock makes the section exclusive; the fence makes a holder that was paused for too long
//! harmless, because what it writes late is refused by what it writes to.

use std::sync::Arc;

use holdtight::{FencedRegister, LockError};

const WORKERS: u64 = 8;
const ROUNDS: u64 = 25;

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::connect("memory:").await?;
    // Stands for the row, file or object that the lock protects: it remembers the highest fence and
    // refuses lower ones.
    let balance = Arc::new(FencedRegister::new(0));

    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let (lock, balance) = (lock.clone(), Arc::clone(&balance));
        workers.spawn(async move {
            for _ in 0..ROUNDS {
                lock.acquire("account:7")
                    .wait_forever()
                    .run(async |held| {
                        // Read under the fence: from here on, an earlier holder that wakes up late
                        // is refused.
                        let before = balance.read_as(held.fence())?;
                        tokio::task::yield_now().await; // where an unprotected update would get lost
                        balance.write(held.fence(), |balance| *balance = before + 1)
                    })
                    .await??;
            }
            Ok::<_, LockError>(())
        });
    }
    for worker in workers.join_all().await {
        worker?;
    }
    assert_eq!(balance.read(), WORKERS * ROUNDS);
    println!("{} updates, none lost", balance.read());
    lock.shutdown().await
}
