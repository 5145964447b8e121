//! Calls that the store answers at once take part in cooperative scheduling, as those of tokio's
//! own locks do: a loop of them leaves the other tasks of its runtime their turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdtight_core::{DistributedLock, LockError, LockHandle, MemoryStore};

/// Far more calls than a task may make in a row.
const MANY: u32 = 10_000;

fn lock() -> DistributedLock {
    DistributedLock::builder(MemoryStore::new()).build().unwrap()
}

/// Repeats `call` until another task of this runtime has run, which has one thread.
async fn lets_others_run(what: &str, mut call: impl AsyncFnMut() -> Result<(), LockError>) {
    let ran = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn({
        let ran = Arc::clone(&ran);
        async move { ran.store(true, Ordering::SeqCst) }
    });
    for _ in 0..MANY {
        if ran.load(Ordering::SeqCst) {
            return other.await.unwrap();
        }
        call().await.unwrap();
    }
    panic!("{MANY} times {what}, and the other task never ran");
}

#[tokio::test]
async fn a_loop_of_calls_leaves_other_tasks_their_turns() {
    let lock = lock();
    lets_others_run("with_lock", async || lock.with_lock("k", async |_| ()).await).await;
    lets_others_run("try_acquire", async || lock.try_acquire("k").await.map(drop)).await;
    lets_others_run("release", async || lock.acquire("k").await?.release().await).await;
    lets_others_run("acquire_all", async || lock.acquire_all(["k", "l"]).await.map(drop)).await;
    lets_others_run("once_per", async || {
        lock.once_per("o", Duration::from_secs(60), async |_| ()).await.map(drop)
    })
    .await;
    lets_others_run("is_locked", async || lock.is_locked("k").await.map(drop)).await;
    lets_others_run("lookup", async || lock.lookup("k").await.map(drop)).await;
    lets_others_run("list", async || lock.list("").await.map(drop)).await;
    let held = lock.acquire("held").await.unwrap();
    lets_others_run("extend", async || held.extend(Duration::from_secs(60)).await.map(drop)).await;
    let token = held.token();
    lets_others_run("owns", async || lock.owns(&token).await.map(drop)).await;
    let mut token = Some(held.detach().await.unwrap());
    lets_others_run("resume", async || {
        let handle = lock.resume(token.take().unwrap()).await?;
        token = Some(handle.detach().await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn releases_in_a_row_leave_other_tasks_their_turns() {
    let lock = lock();
    let mut held: Vec<LockHandle> = Vec::new();
    for n in 0..500 {
        held.push(lock.acquire(format!("k{n}")).await.unwrap());
    }
    // As the end of an await does: a new turn of this task.
    tokio::task::yield_now().await;
    lets_others_run("release", async || held.pop().unwrap().release().await).await;
}

#[tokio::test]
async fn whoever_tries_again_and_again_gets_the_lock_of_a_task_beside_it() {
    let lock = lock();
    let held = lock.acquire("k").await.unwrap();
    tokio::spawn(async move { drop(held) });
    for _ in 0..MANY {
        if lock.try_acquire("k").await.unwrap().is_some() {
            return;
        }
    }
    panic!("{MANY} tries, and its holder never let go");
}
