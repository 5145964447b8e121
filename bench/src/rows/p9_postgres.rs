//! P9: PostgreSQL, distinct keys, durable commits. How many locks are taken and given back per second?
//!
//! The yardstick is the flow of the Node package syncguard, a transaction of several statements per step, written with
//! the same driver. Both sides have four connections and 64 tasks, send every statement unprepared in the extended
//! protocol, and commit durably. A transaction needs its connection for itself; ours are shared. The yardstick mints a
//! counter as fence, and neither side waits for anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use holdtight_core::DistributedLock;
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::servers::Postgres;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use super::US;
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Pairs per round, shared among the tasks.
const PAIRS: u64 = 6_400;
const TASKS: u64 = 64;
const CONNECTIONS: usize = 4;
const PEER: &str = "transaction per step";

pub(super) const ROW: Row =
    Row::new("P9", "acquire and release, distinct keys, PostgreSQL, durable", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let server = Arc::new(runtime.block_on(Postgres::start()));
    let comparison = Comparison::new(
        "PostgreSQL, 64 tasks, distinct keys, 4 connections",
        "pairs/s",
        Contender::new(US, Role::Us, ours(&runtime, &server)?),
    )
    .against(Contender::new(PEER, Role::Limit, peer(&runtime, &server)?))
    .goal(Goal::ratio(PEER, Bound::AtLeast(3.0)));
    Ok(vec![comparison])
}

fn ours(
    runtime: &Arc<Runtime>,
    server: &Arc<Postgres>,
) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let url = server.url();
    let lock = runtime.block_on(async {
        migrate(&url).await?;
        let store = PostgresStore::connect(&url).await?;
        DistributedLock::builder(store).auto_renew(false).build()
    })?;
    let (runtime, server) = (Arc::clone(runtime), Arc::clone(server));
    Ok(move |effort: Effort| {
        let _server = &server;
        let lock = lock.clone();
        pairs(&runtime, effort, move |key| {
            let lock = lock.clone();
            async move {
                let handle = lock.try_acquire(&key).await?.ok_or("a key of our own was busy")?;
                handle.release().await?;
                Ok(())
            }
        })
    })
}

fn peer(
    runtime: &Arc<Runtime>,
    server: &Arc<Postgres>,
) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let url = format!("{}?layout=syncguard", server.url());
    let pool = runtime.block_on(async {
        migrate(&url).await?;
        let mut pool = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
            tokio::spawn(connection);
            pool.push(Mutex::new(client));
        }
        Ok::<_, Failure>(Arc::new(pool))
    })?;
    let next = Arc::new(AtomicU64::new(0));
    let (runtime, server) = (Arc::clone(runtime), Arc::clone(server));
    Ok(move |effort: Effort| {
        let _server = &server;
        let (pool, next) = (Arc::clone(&pool), Arc::clone(&next));
        pairs(&runtime, effort, move |key| {
            let (pool, next) = (Arc::clone(&pool), Arc::clone(&next));
            async move {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                let id = format!("{turn:022}");
                let place = usize::try_from(turn).unwrap_or(0) % CONNECTIONS;
                step(&*pool[place].lock().await, &key, &id, true).await?;
                step(&*pool[place].lock().await, &key, &id, false).await
            }
        })
    })
}

/// One acquire or release in the package's order of statements.
async fn step(client: &Client, key: &str, id: &str, acquire: bool) -> Result<(), Failure> {
    let now = "SELECT FLOOR(EXTRACT(EPOCH FROM NOW()) * 1000)::bigint";
    let (text, number) = (Type::TEXT, Type::INT8);
    client.execute_typed("BEGIN", &[]).await?;
    if acquire {
        let fence_key = format!("fence:{key}");
        let advisory = "SELECT pg_advisory_xact_lock(hashtext($1))";
        client.query_typed(advisory, &[(&key, text.clone())]).await?;
        let ms: i64 = client.query_typed(now, &[]).await?[0].get(0);
        let held = "SELECT expires_at_ms FROM syncguard_locks WHERE key = $1";
        let held = client.query_typed(held, &[(&key, text.clone())]).await?;
        if held.first().is_some_and(|row| row.get::<_, i64>(0) > ms - 1000) {
            return Err("a key of its own was busy".into());
        }
        let counter = "INSERT INTO syncguard_fence_counters (fence_key, fence, key_debug) VALUES ($1, 0, $2) \
                       ON CONFLICT (fence_key) DO NOTHING";
        client.execute_typed(counter, &[(&fence_key, text.clone()), (&key, text.clone())]).await?;
        let mint = "UPDATE syncguard_fence_counters SET fence = fence + 1 WHERE fence_key = $1 RETURNING fence";
        let fence: i64 = client.query_typed(mint, &[(&fence_key, text.clone())]).await?[0].get(0);
        let write = "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) \
                     VALUES ($1, $2, $3, $4, $5, $1) ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, \
                     expires_at_ms = excluded.expires_at_ms, acquired_at_ms = excluded.acquired_at_ms, \
                     fence = excluded.fence, user_key = excluded.user_key";
        let fence = format!("{fence:015}");
        let expires = ms + 30_000;
        client
            .execute_typed(
                write,
                &[
                    (&key, text.clone()),
                    (&id, text.clone()),
                    (&expires, number.clone()),
                    (&ms, number),
                    (&fence, text),
                ],
            )
            .await?;
    } else {
        client.query_typed(now, &[]).await?;
        let find = "SELECT key FROM syncguard_locks WHERE lock_id = $1 FOR UPDATE";
        client.query_typed(find, &[(&id, text.clone())]).await?;
        let remove = "DELETE FROM syncguard_locks WHERE key = $1";
        if client.execute_typed(remove, &[(&key, text)]).await? != 1 {
            return Err("its own lock was not there".into());
        }
    }
    client.execute_typed("COMMIT", &[]).await?;
    Ok(())
}

/// Pairs per second when each task takes and gives back keys of its own.
fn pairs<W>(
    runtime: &Runtime,
    effort: Effort,
    pair: impl Fn(String) -> W + Clone + Send + 'static,
) -> Result<f64, Failure>
where
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let each = (effort.work(PAIRS) / TASKS).max(1);
    let start = Instant::now();
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for task in 0..TASKS {
            let pair = pair.clone();
            running.spawn(async move {
                for n in 0..each {
                    // A few keys per task, so that rows are both new and old.
                    pair(format!("task:{task}:{}", n % 10)).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok::<_, Failure>(())
    })?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok((TASKS * each) as f64 / start.elapsed().as_secs_f64())
}
