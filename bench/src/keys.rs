//! Many distinct keys, each locked and released once: what is left in the store afterwards, before
//! and after a sweep.
//!
//! Row P8 measures it at the size that a benchmark has time for; `cargo xtask soak` runs all of it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Fence, Intent, Key, MemoryStore, Release, Secret,
};
use holdtight_file::FileStore;
use holdtight_postgres::PostgresStore;
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::{Directory, Postgres, Redis};

use crate::load::number;
use crate::{Failure, load, machine};

const TTL: Duration = Duration::from_secs(30);
const TASKS: u64 = 64;

/// How long a sweep is repeated before what it leaves counts.
const SWEEPING: Duration = Duration::from_secs(60);

/// What `keys` keys left behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Bytes of memory, rows or files: what is there now and was not there before.
    pub(crate) more: f64,
}

/// Bytes of this process's memory, with the memory store, which must know none of the keys at the
/// end.
pub(crate) fn in_memory(keys: u64) -> Result<Left, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    runtime.block_on(async {
        // The first keys pay for what is allocated once: tables, thread-local buffers.
        let warm = one_after_the_other(&store, "warm-up", 1_000, None).await?;
        let before = machine::resident_bytes();
        one_after_the_other(&store, "key", keys, warm).await?;
        let after = machine::resident_bytes();
        let left = Arc::clone(&store).list(String::new(), 1).await?;
        if let Some(holder) = left.first() {
            return Err(format!("still there: {}", holder.key).into());
        }
        let (before, after) = (before.unwrap_or(0), after.unwrap_or(0));
        Ok(Left { more: number(after.saturating_sub(before)) })
    })
}

/// Bytes of Redis' memory. Nothing is swept there: leases end by themselves.
pub(crate) fn in_redis(keys: u64) -> Result<Left, Failure> {
    let runtime = load::runtime()?;
    runtime.block_on(async {
        let server = Redis::start().await;
        let store: Arc<dyn Backend> = Arc::new(RedisStore::connect(&server.url()).await?);
        let memory = async || -> Result<f64, Failure> {
            server.command("MEMORY PURGE").await?;
            let info = server.command("INFO memory").await?;
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
            Ok(line.ok_or("INFO tells no memory")?.trim().parse()?)
        };
        // What the first keys need, such as scripts and buffers, stays.
        let mut before = memory().await?;
        loop {
            at_once(&store, "warm-up", 2_000).await?;
            let after = memory().await?;
            let settled = after <= before + 50_000.0;
            before = after;
            if settled {
                break;
            }
        }
        at_once(&store, "key", keys).await?;
        let left = server.command("DBSIZE").await?;
        // The one that is left is the counter of fences.
        if left.trim() != ":1" {
            return Err(format!("{left} keys are left in Redis").into());
        }
        Ok(Left { more: memory().await? - before })
    })
}

/// Rows in PostgreSQL after a sweep.
pub(crate) fn in_postgres(keys: u64) -> Result<Left, Failure> {
    let runtime = load::runtime()?;
    runtime.block_on(async {
        // The disk is not what is measured here.
        let server = Postgres::start_with(&["fsync=off"]).await;
        let url = format!("{}?durability=any", server.url());
        holdtight_postgres::migrate(&url).await?;
        let store = Arc::new(PostgresStore::connect(&url).await?);
        let rows = || -> Result<f64, Failure> {
            Ok(server.sql("SELECT count(*) FROM holdtight.locks")?.parse()?)
        };
        let before = rows()?;
        let backend: Arc<dyn Backend> = Arc::clone(&store) as _;
        at_once(&backend, "key", keys).await?;
        // The store may be sweeping by itself; then ours leaves the work to that one.
        let deadline = Instant::now() + SWEEPING;
        loop {
            store.sweep(Duration::ZERO).await?;
            let more = rows()? - before;
            if more <= 0.0 || Instant::now() > deadline {
                return Ok(Left { more });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

/// Files in the file store after a sweep.
pub(crate) fn in_files(keys: u64) -> Result<Left, Failure> {
    let runtime = load::runtime()?;
    runtime.block_on(async {
        let place = Directory::new();
        let config = holdtight_file::Config::new(place.path().join("store"));
        let store = Arc::new(FileStore::open(config).await?);
        let backend: Arc<dyn Backend> = Arc::clone(&store) as _;
        // The first key makes what the store needs of its own.
        at_once(&backend, "warm-up", 1).await?;
        store.sweep(Duration::ZERO)?;
        let before = files(place.path())?;
        at_once(&backend, "key", keys).await?;
        // As above.
        let deadline = Instant::now() + SWEEPING;
        loop {
            store.sweep(Duration::ZERO)?;
            let more = number(files(place.path())?) - number(before);
            if more <= 0.0 || Instant::now() > deadline {
                return Ok(Left { more });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

fn files(place: &Path) -> Result<u64, Failure> {
    let mut count = 0;
    let entries = match std::fs::read_dir(place) {
        // A part that was swept away between the look at its parent and this one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

async fn at_once(store: &Arc<dyn Backend>, name: &str, keys: u64) -> Result<(), Failure> {
    let tasks = TASKS.min(keys);
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (store, name) = (Arc::clone(store), format!("{name}:{task}"));
        let share = keys / tasks + u64::from(task < keys % tasks);
        running.spawn(async move { one_after_the_other(&store, &name, share, None).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Takes and gives back `keys` keys; where `last` is given, all their fences must increase from
/// there on.
///
/// Every hundredth has a waiter that gives up, whose traces must be gone too.
async fn one_after_the_other(
    store: &Arc<dyn Backend>,
    name: &str,
    keys: u64,
    mut last: Option<Fence>,
) -> Result<Option<Fence>, Failure> {
    let follow = last.is_some();
    for n in 0..keys {
        let (key, secret) = (Key::new(&format!("{name}:{n}"))?, Secret::generate()?);
        let request = |secret: &Secret| {
            AcquireRequest::new(key.clone(), secret.clone(), TTL).intent(Intent::Queue)
        };
        let Attempt::Granted(lease) = Arc::clone(store).acquire(request(&secret)).await? else {
            return Err(format!("{key} is busy, though nobody else locks").into());
        };
        // More than is promised per key, and true of one counter for all keys.
        if follow && last.is_some_and(|last| lease.fence <= last) {
            return Err(format!("{key}: the fence did not increase").into());
        }
        last = Some(lease.fence);
        if n % 100 == 0 {
            let other = Secret::generate()?;
            if let Attempt::Granted(_) = Arc::clone(store).acquire(request(&other)).await? {
                return Err(format!("{key} was granted twice").into());
            }
            Arc::clone(store).release(key.clone(), other).await?;
        }
        if Arc::clone(store).release(key.clone(), secret).await? != Release::Released {
            return Err(format!("{key}: not ours when released").into());
        }
    }
    Ok(last)
}
