//! One process that locks with somebody else's crate, driven by the bench over its standard input.
//!
//!   `holdtight-bench-peers LIBRARY REDIS_PORT`
//!
//! LIBRARY is `rslock` or `distributed-lock`, each used as its documentation says: rslock's
//! `LockManager` with its defaults (three tries, 200 ms apart at most; `acquire` begins again until
//! it is granted), distributed-lock's Redis provider with its defaults. Requests and answers as in
//! the bench's own worker.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::RedisLockProvider;
use rslock::LockManager;
use serde_json::{Value, json};
use tokio::sync::Mutex;

type Failure = Box<dyn Error + Send + Sync>;

const TTL: Duration = Duration::from_secs(30);

#[derive(Clone)]
enum Library {
    Rslock(LockManager),
    DistributedLock(Arc<RedisLockProvider>),
}

/// A lock that is held.
enum Held {
    Rslock(rslock::LockGuard),
    DistributedLock(distributed_lock_redis::RedisLockHandle),
}

impl Library {
    async fn acquire(&self, key: &str) -> Result<Held, Failure> {
        Ok(match self {
            Self::Rslock(manager) => Held::Rslock(manager.acquire(key, TTL).await?),
            Self::DistributedLock(provider) => {
                Held::DistributedLock(provider.create_lock(key).acquire(None).await?)
            }
        })
    }
}

impl Held {
    async fn release(self) -> Result<(), Failure> {
        match self {
            Self::Rslock(guard) => guard.release().await,
            Self::DistributedLock(handle) => handle.release().await?,
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let (library, port) = (words.next().ok_or("no library")?, words.next().ok_or("no port")?);
    let url = format!("redis://127.0.0.1:{port}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let library = match library.as_str() {
        "rslock" => Library::Rslock(LockManager::new(vec![url])),
        "distributed-lock" => {
            let provider = RedisLockProvider::builder().url(url).expiry(TTL).build();
            Library::DistributedLock(Arc::new(runtime.block_on(provider)?))
        }
        other => return Err(format!("unknown library {other}").into()),
    };
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = runtime.block_on(answer(&library, &request));
        let answer = answer.unwrap_or_else(|problem| json!({"error": problem.to_string()}));
        let mut output = std::io::stdout().lock();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    // Whoever still waits for a lock is not waited for.
    std::process::exit(0)
}

async fn answer(library: &Library, request: &Value) -> Result<Value, Failure> {
    let number = |name: &str| request[name].as_u64().ok_or_else(|| format!("no {name}"));
    let key = request["key"].as_str().unwrap_or_default().to_owned();
    let tasks = number("tasks")?;
    match request["op"].as_str().unwrap_or_default() {
        "pairs" => pairs(library, tasks, number("each")?).await,
        "contend" => {
            let (each, hold) = (number("each")?, Duration::from_micros(number("hold_us")?));
            contend(library, &key, tasks, each, hold).await
        }
        "wait" => {
            for _ in 0..tasks {
                let (library, key) = (library.clone(), key.clone());
                tokio::spawn(async move { library.acquire(&key).await.map(std::mem::forget) });
            }
            Ok(json!({"waiting": tasks}))
        }
        other => Err(format!("unknown request {other}").into()),
    }
}

async fn pairs(library: &Library, tasks: u64, each: u64) -> Result<Value, Failure> {
    let start = Instant::now();
    let mut running = Vec::new();
    for task in 0..tasks {
        let library = library.clone();
        running.push(tokio::spawn(async move {
            let mut times = Vec::new();
            for n in 0..each {
                let start = Instant::now();
                library.acquire(&format!("pairs:{task}:{n}")).await?.release().await?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok::<_, Failure>(times)
        }));
    }
    let mut times = Vec::new();
    for task in running {
        times.extend(task.await??);
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Ok(json!({"seconds": seconds, "p50_us": times[times.len() / 2]}))
}

async fn contend(
    library: &Library,
    key: &str,
    tasks: u64,
    each: u64,
    hold: Duration,
) -> Result<Value, Failure> {
    let holds = Arc::new(Mutex::new(Vec::new()));
    let mut running = Vec::new();
    for task in 0..tasks {
        let (library, key, holds) = (library.clone(), key.to_owned(), Arc::clone(&holds));
        running.push(tokio::spawn(async move {
            for _ in 0..each {
                let held = library.acquire(&key).await?;
                let granted = monotonic();
                tokio::time::sleep(hold).await;
                let released = monotonic();
                held.release().await?;
                holds.lock().await.push(json!([granted, released, task]));
            }
            Ok::<_, Failure>(())
        }));
    }
    for task in running {
        task.await??;
    }
    Ok(json!({"holds": *holds.lock().await}))
}

/// Nanoseconds of the clock that all processes of the machine share.
fn monotonic() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
