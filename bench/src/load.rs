//! Work for many tasks at once: each takes and gives back keys of its own, and the clock runs until
//! all are done.

use std::sync::Arc;
use std::time::Instant;

use holdtight::DistributedLock;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Failure;

/// A runtime as a server program would have.
pub(crate) fn runtime() -> Result<Arc<Runtime>, Failure> {
    Ok(Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?))
}

/// Pairs of acquire and release per second when each of `tasks` does `each` of them, one after the
/// other.
///
/// `pair` is given the task and the number of the pair, to make a key of.
pub(crate) fn pairs_per_second<W>(
    runtime: &Runtime,
    tasks: u64,
    each: u64,
    pair: impl Fn(u64, u64) -> W + Clone + Send + 'static,
) -> Result<f64, Failure>
where
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let start = Instant::now();
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let pair = pair.clone();
            running.spawn(async move {
                for n in 0..each {
                    pair(task, n).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok::<_, Failure>(())
    })?;
    Ok(rate(tasks * each, start))
}

/// The median time of one pair in microseconds when a single task does `count` of them.
///
/// It is a task of the runtime and not the thread that blocks on it, because that is where a
/// program's work is.
pub(crate) fn median_micros<W>(
    runtime: &Runtime,
    count: u64,
    pair: impl Fn(u64, u64) -> W + Send + 'static,
) -> Result<f64, Failure>
where
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let task = runtime.spawn(async move {
        let mut times = Vec::new();
        for n in 0..count {
            let start = Instant::now();
            pair(0, n).await?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok::<_, Failure>(times)
    });
    let times = runtime.block_on(task)??;
    Ok(crate::stats::percentile(&times, 50.0))
}

/// Takes and gives back `key` with our library.
pub(crate) async fn our_pair(lock: DistributedLock, key: String) -> Result<(), Failure> {
    let handle = match lock.try_acquire(&key).await {
        Ok(handle) => handle.ok_or("a key of our own was busy")?,
        // A machine that stood still for a second. It shows in the time.
        Err(error) if error.kind().is_transient() => lock.acquire(&key).await?,
        Err(error) => return Err(error.into()),
    };
    handle.release().await?;
    Ok(())
}

/// How many of `count` were done per second since `start`.
pub(crate) fn rate(count: u64, start: Instant) -> f64 {
    number(count) / start.elapsed().as_secs_f64()
}

/// A count as a measure.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}
