//! P9: PostgreSQL, distinct keys, durable commits. How many locks are taken and given back per
//! second?
//!
//! The yardstick is the flow of the Node package syncguard, a transaction of several statements per
//! step, written with the same driver. Both sides have four connections and 64 tasks, send every
//! statement unprepared in the extended protocol, and commit durably. A transaction needs its
//! connection for itself; ours are shared. The yardstick mints a counter as fence, and neither side
//! waits for anybody. Round trips are counted on the wire, by a proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdtight_postgres::migrate;
use tokio::sync::Mutex;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::US;
use crate::load::{number, our_pair, pairs_per_second};
use crate::postgres::Stage;
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Pairs per round, shared among the tasks.
const PAIRS: u64 = 6_400;
const TASKS: u64 = 64;
/// A few keys per task, so that rows are both new and old.
const KEYS: u64 = 10;
const CONNECTIONS: usize = 4;
const PEER: &str = "transaction per step";

pub(super) const ROW: Row =
    Row::new("P9", "acquire and release, distinct keys, PostgreSQL, durable", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let comparison = Comparison::new(
        "PostgreSQL, 64 tasks, distinct keys, 4 connections",
        "pairs/s",
        Contender::new(US, Role::Us, ours(&stage)?),
    )
    .against(Contender::new(PEER, Role::Limit, peer(&stage)?))
    .goal(Goal::ratio(PEER, Bound::AtLeast(3.0)));
    Ok(vec![comparison, round_trips(&stage)])
}

fn ours(stage: &Stage) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let stage = stage.clone();
    let connect = holdtight::builder(stage.server().url()).auto_renew(false);
    let lock = stage.runtime().block_on(connect.connect())?;
    Ok(move |effort: Effort| {
        let lock = lock.clone();
        pairs_per_second(stage.runtime(), TASKS, each(effort), move |task, n| {
            our_pair(lock.clone(), key(task, n))
        })
    })
}

fn each(effort: Effort) -> u64 {
    (effort.work(PAIRS) / TASKS).max(1)
}

fn key(task: u64, n: u64) -> String {
    format!("task:{task}:{}", n % KEYS)
}

/// One task, so that no two requests are in one packet.
fn round_trips(stage: &Stage) -> Comparison {
    let stage = stage.clone();
    let us = Contender::new(US, Role::Us, move |effort| {
        let (proxy, url) = stage.counted()?;
        let connect = holdtight::builder(url).auto_renew(false);
        let lock = stage.runtime().block_on(connect.connect())?;
        // Each key has its connection, and the first pair on one connects it.
        for n in 0..KEYS {
            stage.runtime().block_on(our_pair(lock.clone(), key(0, n)))?;
        }
        let (before, pairs) = (proxy.traffic().requests, effort.work(1_000));
        pairs_per_second(stage.runtime(), 1, pairs, move |task, n| {
            our_pair(lock.clone(), key(task, n))
        })?;
        Ok(number(proxy.traffic().requests - before) / number(2 * pairs))
    });
    Comparison::new("PostgreSQL, one task: acquire or release", "round trips per step", us)
        .goal(Goal::count(Bound::Exactly(1.0)))
        .counted_once()
}

fn peer(stage: &Stage) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let stage = stage.clone();
    let url = format!("{}?layout=syncguard", stage.server().url());
    stage.runtime().block_on(migrate(&url))?;
    let pool = (0..CONNECTIONS).map(|_| Ok(Mutex::new(stage.bare()?)));
    let pool = Arc::new(pool.collect::<Result<Vec<_>, Failure>>()?);
    let next = Arc::new(AtomicU64::new(0));
    Ok(move |effort: Effort| {
        let (pool, next) = (Arc::clone(&pool), Arc::clone(&next));
        pairs_per_second(stage.runtime(), TASKS, each(effort), move |task, n| {
            let (pool, next, key) = (Arc::clone(&pool), Arc::clone(&next), key(task, n));
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
