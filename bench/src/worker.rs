//! Ourselves as one process of many: `holdtight-bench worker URL` does what it is asked on its
//! standard input.
//!
//! A request is a line of JSON, and so is its answer. Peers in other languages answer the first
//! three:
//! - `{"op":"pairs","tasks":T,"each":N}`: T tasks take and give back N keys of their own.
//!   `{"seconds":…,"p50_us":…}`.
//! - `{"op":"contend","key":K,"tasks":T,"each":N,"hold_us":U}`: T tasks hold K for U µs, N times
//!   each. `{"holds":[[granted,released,task],…]}`, times in nanoseconds of the machine's monotonic
//!   clock.
//! - `{"op":"wait","key":K,"tasks":T}`: T tasks wait for K, and go on doing so after the answer.
//!   `{"waiting":T}`.
//! - `{"op":"hold","tasks":T,"seconds":S}`: T locks are held and renewed for S seconds.
//!   `{"lost":…,"cpu":…,"bytes":…}`: how many were lost, the share of a core, and resident bytes
//!   per lock.

use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight::DistributedLock;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::driven::Hold;
use crate::{Failure, load, machine};

/// What stands for a URL where only the smallest lock in a file is to be measured:
/// `bare:DIRECTORY`.
pub(crate) const BARE: &str = "bare:";
/// The same, each step on the disk before the next.
pub(crate) const BARE_SYNC: &str = "bare+sync:";

/// Works until the standard input ends.
///
/// # Errors
/// The store cannot be reached, or the standard input is not what it should be.
pub fn run(url: &str) -> Result<(), Failure> {
    if let Some(place) = url.strip_prefix(BARE) {
        return serve(|request| bare_file(Path::new(place), false, request));
    }
    if let Some(place) = url.strip_prefix(BARE_SYNC) {
        return serve(|request| bare_file(Path::new(place), true, request));
    }
    let runtime = load::runtime()?;
    let lock = runtime.block_on(holdtight::builder(url.to_owned()).wait_forever().connect())?;
    serve(|request| answer(&runtime, &lock, request))
}

fn serve(answer: impl Fn(&Value) -> Result<Value, Failure>) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer =
            answer(&request).unwrap_or_else(|problem| json!({"error": problem.to_string()}));
        let mut output = std::io::stdout().lock();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    // Whoever still waits for a lock is not waited for.
    std::process::exit(0)
}

fn answer(
    runtime: &Arc<Runtime>,
    lock: &DistributedLock,
    request: &Value,
) -> Result<Value, Failure> {
    let number = |name: &str| request[name].as_u64().ok_or_else(|| format!("no {name}"));
    let key = request["key"].as_str().unwrap_or_default();
    let tasks = number("tasks")?;
    match request["op"].as_str().unwrap_or_default() {
        "pairs" => pairs(runtime, lock, tasks, number("each")?),
        "contend" => {
            let (each, hold) = (number("each")?, Duration::from_micros(number("hold_us")?));
            let holds = runtime.block_on(contend(lock, key, tasks, each, hold))?;
            Ok(json!({"holds": holds}))
        }
        "wait" => {
            for _ in 0..tasks {
                let waiting = lock.acquire(key);
                runtime.spawn(async move { waiting.await.map(std::mem::forget) });
            }
            Ok(json!({"waiting": tasks}))
        }
        "hold" => runtime.block_on(hold(lock, tasks, Duration::from_secs(number("seconds")?))),
        other => Err(format!("unknown request `{other}`").into()),
    }
}

fn pairs(
    runtime: &Runtime,
    lock: &DistributedLock,
    tasks: u64,
    each: u64,
) -> Result<Value, Failure> {
    // A few keys per task, so that what a store keeps of a key is both new and old. They are made
    // before the clock starts: the smallest lock in a file has no name to make either.
    const KEYS: u64 = 10;
    let (lock, me) = (lock.clone(), std::process::id());
    let key = |n| format!("pairs:{me}:{}:{}", n / KEYS, n % KEYS);
    let keys: Arc<[String]> = (0..tasks * KEYS).map(key).collect();
    let start = Instant::now();
    load::pairs_per_second(runtime, tasks, each, move |task, n| {
        let place = usize::try_from(task * KEYS + n % KEYS).unwrap_or_default();
        load::our_pair(lock.clone(), keys[place].clone())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"seconds": seconds, "p50_us": seconds * 1e6 / load::number(each)}))
}

/// The least that any lock in a file needs: lock, write, unlock; once to take it, once to give it
/// back.
fn bare_file(place: &Path, sync: bool, request: &Value) -> Result<Value, Failure> {
    let each = request["each"].as_u64().ok_or("no each")?;
    let path = place.join(format!("bare-{}", std::process::id()));
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    // About as long as a record of ours.
    let (start, record) = (Instant::now(), [7; 256]);
    for _ in 0..2 * each {
        file.lock()?;
        file.write_all_at(&record, 0)?;
        if sync {
            file.sync_data()?;
        }
        file.unlock()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({"seconds": seconds, "p50_us": seconds * 1e6 / load::number(each)}))
}

async fn contend(
    lock: &DistributedLock,
    key: &str,
    tasks: u64,
    each: u64,
    hold: Duration,
) -> Result<Vec<Hold>, Failure> {
    let holds = Arc::new(Mutex::new(Vec::new()));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (lock, key, holds) = (lock.clone(), key.to_owned(), Arc::clone(&holds));
        running.spawn(async move {
            for _ in 0..each {
                let handle = lock.acquire(&key).await?;
                let granted = machine::monotonic_nanos();
                tokio::time::sleep(hold).await;
                let released = machine::monotonic_nanos();
                handle.release().await?;
                holds.lock().await.push((granted, released, task));
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let holds = std::mem::take(&mut *holds.lock().await);
    Ok(holds)
}

/// Holds `count` locks for `span`, with the default lease and renewal.
async fn hold(lock: &DistributedLock, count: u64, span: Duration) -> Result<Value, Failure> {
    const AT_ONCE: u64 = 64;
    // What the first locks need, such as tables and buffers, is not theirs alone.
    lock.acquire("hold:warm-up").await?.release().await?;
    let before = machine::resident_bytes().unwrap_or(0);
    let mut running = JoinSet::new();
    for worker in 0..AT_ONCE {
        let lock = lock.clone();
        running.spawn(async move {
            let mut handles = Vec::new();
            for n in (worker..count).step_by(usize::try_from(AT_ONCE)?) {
                handles.push(lock.acquire(format!("hold:{n}")).await?);
            }
            handles.shrink_to_fit();
            Ok::<_, Failure>(handles)
        });
    }
    let mut handles = Vec::new();
    while let Some(ended) = running.join_next().await {
        handles.push(ended??);
    }
    let (start, cpu) = (Instant::now(), machine::cpu_time());
    tokio::time::sleep(span).await;
    let (elapsed, cpu) = (start.elapsed(), machine::cpu_time().saturating_sub(cpu));
    let after = machine::resident_bytes().unwrap_or(0);
    let mut lost = 0_u64;
    for handle in handles.into_iter().flatten() {
        lost += u64::from(!handle.is_held() || handle.release().await.is_err());
    }
    Ok(json!({
        "lost": lost,
        "cpu": cpu.as_secs_f64() / elapsed.as_secs_f64(),
        "bytes": load::number(after.saturating_sub(before)) / load::number(count),
    }))
}
