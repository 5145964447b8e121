//! Job coordination: many workers, many jobs, each job done by one worker and once.
//!
//! The lock keeps two workers from the same job at the same time. That a job is done *once* needs a second look at its
//! state under the lock: whoever comes later gets the lock too, and must find out that there is nothing left to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use holdtight::{DistributedLock, LockError};

const JOBS: u32 = 20;
const WORKERS: u32 = 5;

/// Stands for the table of jobs: how often each was done.
type Done = Arc<Mutex<BTreeMap<u32, u32>>>;

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let lock = DistributedLock::connect("memory:").await?;
    let done = Done::default();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(lock.clone(), Arc::clone(&done)));
    }
    for worker in workers.join_all().await {
        worker?;
    }
    let done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(done.len() == JOBS as usize && done.values().all(|times| *times == 1), "{done:?}");
    println!("{} jobs, each done once", done.len());
    Ok(())
}

async fn work(lock: DistributedLock, done: Done) -> Result<(), LockError> {
    for job in 0..JOBS {
        // Busy: another worker is at it. That is not an error, and there are other jobs.
        let Some(handle) = lock.try_acquire(format!("job:{job}")).await? else { continue };
        let is_done = || done.lock().is_ok_and(|done| done.contains_key(&job));
        if !is_done() {
            tokio::task::yield_now().await; // the work
            if let Ok(mut done) = done.lock() {
                *done.entry(job).or_default() += 1;
            }
        }
        handle.release().await?;
    }
    Ok(())
}
