//! Job coordination: many workers, many jobs, each job done by one worker and once.
//!
//! The lock keeps two workers from the same job at the same time. That a job is done *once* needs a
//! second look at its state under the lock: whoever comes later gets the lock too, and must find
//! out that there is nothing left to do. The state checks the fence, so that a worker that was
//! frozen half-way cannot mark a job that somebody else has now.

use std::sync::Arc;

use holdtight::{DistributedLock, FencedRegister, Held, LockError};

const JOBS: usize = 20;
const WORKERS: usize = 5;

/// Stands for a row in the table of jobs: how often it was done.
type Job = FencedRegister<u32>;

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let lock = holdtight::connect("memory:").await?;
    let jobs: Arc<Vec<Job>> = Arc::new((0..JOBS).map(|_| Job::new(0)).collect());
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(lock.clone(), Arc::clone(&jobs)));
    }
    for worker in workers.join_all().await {
        worker?;
    }
    assert!(jobs.iter().all(|job| job.read() == 1), "{jobs:?}");
    println!("{} jobs, each done once", jobs.len());
    lock.shutdown().await
}

async fn work(lock: DistributedLock, jobs: Arc<Vec<Job>>) -> Result<(), LockError> {
    for (number, job) in jobs.iter().enumerate() {
        // Stopped if the lock is lost. Busy: another worker is at it. That is not an error, and
        // there are other jobs.
        let tried =
            lock.try_acquire(format!("job:{number}")).run(async |held| once(job, &held).await);
        if let Some(done) = tried.await? {
            done?;
        }
    }
    Ok(())
}

async fn once(job: &Job, held: &Held) -> Result<(), LockError> {
    if job.read_as(held.fence())? == 0 {
        tokio::task::yield_now().await; // the work
        job.write(held.fence(), |times| *times += 1)?;
    }
    Ok(())
}
