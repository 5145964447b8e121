//! The steps of the syncguard layout: the two tables of that Node package, shared with programs
//! that use it.
//!
//! Each step is one simple query of several statements, which PostgreSQL runs as one transaction in
//! one round trip. Acquire takes the advisory lock that the package takes, and the row as well;
//! extend takes both too. That closes the package's race between the two, from our side and against
//! its own processes. The clock is read after the locks.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, Capabilities, ExtendBy, ExtendRequest, Extension, Fence, Holder,
    Key, KeyForm, Lease, LockError, Release, Secret, Transfer, TransferRequest,
};
use tokio_postgres::SimpleQueryRow;

use crate::config::PostgresConfig;
use crate::error::{Phase, malformed};
use crate::fencing::literal;
use crate::pool::{Pool, Way, about};

/// Others wait so much longer than a lease says: fixed in the package, so fixed here.
const TOLERANCE_MS: i64 = 1000;

/// Above this the package refuses to go on: the number must keep its fifteen digits.
const LAST_FENCE: i64 = 900_000_000_000_000;

/// Settings for the rest of the transaction. Statements are analysed one by one, so the path holds
/// from the next on.
const SETTINGS: &str = "SELECT pg_catalog.set_config('search_path', 'pg_catalog', true), \
     pg_catalog.set_config('lock_timeout', '2s', true), pg_catalog.set_config('client_min_messages', 'warning', true), \
     pg_catalog.set_config('synchronous_commit', \
     CASE pg_catalog.current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);";

/// The server's time in whole milliseconds, as the package computes it, but when the locks are
/// held; and in tenths of those, for fences.
const NOW: &str = "SELECT t.tenths / 10 AS ms, t.tenths \
     FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 10000)::bigint AS tenths) AS t";

/// The steps of the syncguard layout on their pool.
pub(crate) struct Syncguard {
    pool: Arc<Pool>,
    locks: String,
    fences: String,
}

impl Syncguard {
    pub(crate) fn new(config: &PostgresConfig, pool: Arc<Pool>) -> Self {
        Self { pool, locks: config.name(""), fences: config.fences() }
    }

    pub(crate) fn capabilities(base: Capabilities) -> Capabilities {
        base.ttl_slack(Duration::from_secs(1)).transfer(true).force_release(true).max_batch(100)
    }

    /// The fence is the counter of the package, but never below the time in tenths of a
    /// millisecond: Node goes on counting from there, and a counter that was lost does not repeat.
    /// Nothing is written when the numbers have run out.
    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Attempt, LockError> {
        let (locks, fences) = (&self.locks, &self.fences);
        let (key, id) = (literal(request.key.as_str()), literal(request.secret.expose()));
        let ttl = millis(request.ttl);
        let sql = format!(
            "{SETTINGS}
             SELECT pg_advisory_xact_lock(hashtext({key}));
             SELECT FROM {locks} WHERE key = {key} FOR UPDATE;
             WITH now AS MATERIALIZED ({NOW}),
             live AS MATERIALIZED (
                 SELECT l.*, now.ms FROM {locks} l, now WHERE l.key = {key} AND l.expires_at_ms > now.ms - {TOLERANCE_MS}),
             kept AS (
                 UPDATE {locks} l SET expires_at_ms = greatest(l.expires_at_ms, now.ms + {ttl})
                 FROM now WHERE l.key IN (SELECT live.key FROM live WHERE live.lock_id = {id})
                 RETURNING l.fence, l.expires_at_ms - now.ms AS left_ms),
             minted AS (
                 INSERT INTO {fences} AS f (fence_key, fence, key_debug)
                 SELECT 'fence:' || {key}, next.fence, {key} FROM (
                     SELECT greatest(now.tenths, coalesce((SELECT c.fence FROM {fences} c WHERE c.fence_key = 'fence:' || {key}), 0) + 1)
                         AS fence FROM now) AS next
                 WHERE NOT EXISTS (SELECT FROM live) AND next.fence <= {LAST_FENCE}
                 ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence
                 RETURNING f.fence),
             granted AS (
                 INSERT INTO {locks} AS l (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
                 SELECT {key}, {id}, now.ms + {ttl}, now.ms, lpad(minted.fence::text, 15, '0'), {key} FROM minted, now
                 ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms,
                     acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence, user_key = excluded.user_key
                 RETURNING l.fence, {ttl}::bigint AS left_ms)
             SELECT 'granted', fence, left_ms, 0 FROM granted
             UNION ALL SELECT 'granted', fence, left_ms, 0 FROM kept
             UNION ALL SELECT 'busy', fence, expires_at_ms + {TOLERANCE_MS} - ms, ms - acquired_at_ms FROM live
                 WHERE lock_id <> {id}"
        );
        let rows = self.run(&request.key, Phase::Write, &sql).await?;
        let Some(row) = rows.first() else {
            return Err(LockError::internal("no fence is left: the counter reached its end")
                .with_key(&request.key));
        };
        match text(row, 0)? {
            "granted" => Ok(Attempt::Granted(lease(row, 1)?)),
            "busy" => Ok(Attempt::Busy(Busy::held_by(holder(request.key, row, 1)?))),
            _ => Err(malformed("neither a grant nor a refusal")),
        }
    }

    pub(crate) async fn release(&self, key: Key, secret: Secret) -> Result<Release, LockError> {
        let condition = format!("l.lock_id = {}", literal(secret.expose()));
        self.delete(key, &condition).await
    }

    pub(crate) async fn force_release(&self, key: Key, fence: Fence) -> Result<Release, LockError> {
        let condition = format!("l.fence = '{:015}'", fence.get());
        self.delete(key, &condition).await
    }

    async fn delete(&self, key: Key, condition: &str) -> Result<Release, LockError> {
        let sql = format!(
            "{SETTINGS}
             DELETE FROM {} l WHERE l.key = {} AND {condition}
                 AND l.expires_at_ms > floor(extract(epoch FROM clock_timestamp()) * 1000) - {TOLERANCE_MS}
             RETURNING 1",
            self.locks,
            literal(key.as_str()),
        );
        let rows = self.run(&key, Phase::Write, &sql).await?;
        Ok(if rows.is_empty() { Release::NotHeld } else { Release::Released })
    }

    /// To a program of the package it looks as if the lock had been given back and taken by another
    /// at once. Asked again because the answer was lost, it tells of the same grant.
    pub(crate) async fn transfer(&self, request: TransferRequest) -> Result<Transfer, LockError> {
        let (locks, fences, to) = (&self.locks, &self.fences, request.to);
        let (key, ttl) = (literal(to.key.as_str()), millis(to.ttl));
        let (from, id) = (literal(request.from.expose()), literal(to.secret.expose()));
        let sql = format!(
            "{SETTINGS}
             SELECT pg_advisory_xact_lock(hashtext({key}));
             SELECT FROM {locks} WHERE key = {key} FOR UPDATE;
             WITH now AS MATERIALIZED ({NOW}),
             live AS MATERIALIZED (
                 SELECT l.*, now.ms FROM {locks} l, now WHERE l.key = {key} AND l.expires_at_ms > now.ms - {TOLERANCE_MS}),
             kept AS (
                 UPDATE {locks} l SET expires_at_ms = greatest(l.expires_at_ms, now.ms + {ttl})
                 FROM now WHERE l.key IN (SELECT live.key FROM live WHERE live.lock_id = {id})
                 RETURNING l.fence, l.expires_at_ms - now.ms AS left_ms),
             minted AS (
                 INSERT INTO {fences} AS f (fence_key, fence, key_debug)
                 SELECT 'fence:' || {key}, next.fence, {key} FROM (
                     SELECT greatest(now.tenths, coalesce((SELECT c.fence FROM {fences} c WHERE c.fence_key = 'fence:' || {key}), 0) + 1)
                         AS fence FROM now) AS next
                 WHERE EXISTS (SELECT FROM live WHERE live.lock_id = {from} AND {from} <> {id}) AND next.fence <= {LAST_FENCE}
                 ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence
                 RETURNING f.fence),
             handed AS (
                 UPDATE {locks} l SET lock_id = {id}, expires_at_ms = now.ms + {ttl}, acquired_at_ms = now.ms,
                     fence = lpad(minted.fence::text, 15, '0')
                 FROM minted, now WHERE l.key = {key}
                 RETURNING l.fence, {ttl}::bigint AS left_ms)
             SELECT fence, left_ms FROM handed UNION ALL SELECT fence, left_ms FROM kept
             UNION ALL SELECT '', 0 FROM live WHERE lock_id = {from} AND NOT EXISTS (SELECT FROM minted) AND {from} <> {id}"
        );
        let rows = self.run(&to.key, Phase::Write, &sql).await?;
        let Some(row) = rows.first() else { return Ok(Transfer::NotHeld) };
        if text(row, 0)?.is_empty() {
            return Err(LockError::internal("no fence is left: the counter reached its end")
                .with_key(&to.key));
        }
        Ok(Transfer::Transferred(lease(row, 0)?))
    }

    /// Advisory locks are taken in one order, so that two batches cannot wait for each other.
    pub(crate) async fn extend(
        &self,
        requests: Vec<ExtendRequest>,
    ) -> Result<Vec<Result<Extension, LockError>>, LockError> {
        let mut answers: Vec<Result<Extension, LockError>> =
            requests.iter().map(|_| Ok(Extension::NotHeld)).collect();
        let mut open: Vec<usize> = (0..requests.len()).collect();
        while !open.is_empty() {
            // A statement moves each row once: a key that stands here twice has its second turn
            // later.
            let mut keys = std::collections::HashSet::new();
            let (batch, again): (Vec<usize>, Vec<usize>) =
                open.into_iter().partition(|&at| keys.insert(requests[at].key.as_str()));
            open = again;
            match self.extend_batch(&requests, &batch, &mut answers).await {
                Ok(()) => continue,
                Err(error) if batch.len() > 1 && error.kind().is_definite() => {}
                Err(error) => return Err(error),
            }
            // Somebody keeps one of these rows: that is no reason why the others should be lost.
            for at in batch {
                if let Err(error) = self.extend_batch(&requests, &[at], &mut answers).await {
                    answers[at] = Err(error);
                }
            }
        }
        Ok(answers)
    }

    async fn extend_batch(
        &self,
        requests: &[ExtendRequest],
        batch: &[usize],
        answers: &mut [Result<Extension, LockError>],
    ) -> Result<(), LockError> {
        let Some(&first) = batch.first() else { return Ok(()) };
        let sql = self.extension(requests, batch);
        let rows = self
            .pool
            .batch(Way::Renewals, Phase::Write, &sql)
            .await
            .map_err(about(&requests[first].key))?;
        for row in &rows {
            let place = number(row, 0)?;
            let place = usize::try_from(place).ok().filter(|place| batch.contains(place));
            let place = place.ok_or_else(|| malformed("an answer to nothing that was asked"))?;
            answers[place] = Ok(Extension::Extended(lease(row, 1)?));
        }
        Ok(())
    }

    fn extension(&self, requests: &[ExtendRequest], batch: &[usize]) -> String {
        let values: Vec<String> = batch
            .iter()
            .map(|&at| {
                let request = &requests[at];
                let (least, extra) = match request.by {
                    ExtendBy::AtLeast(ttl) => (millis(ttl), 0),
                    ExtendBy::Add(extra) => (0, millis(extra)),
                    _ => (0, 0),
                };
                let (key, id) = (literal(request.key.as_str()), literal(request.secret.expose()));
                format!("({at}, {key}, {id}, {least}::bigint, {extra}::bigint)")
            })
            .collect();
        let values = values.join(", ");
        // With others in the same statement nobody waits for long: whose row is not free is asked
        // for alone.
        let patience = if batch.len() > 1 { "250ms" } else { "2s" };
        let locks = &self.locks;
        let day = 24 * 60 * 60 * 1000;
        format!(
            "{SETTINGS}
             SELECT set_config('lock_timeout', '{patience}', true);
             SELECT pg_advisory_xact_lock(code) FROM (
                 SELECT DISTINCT hashtext(r.key) AS code FROM (VALUES {values}) AS r(n, key, id, least, extra) ORDER BY 1) AS codes;
             SELECT FROM {locks} l WHERE l.key IN (SELECT r.key FROM (VALUES {values}) AS r(n, key, id, least, extra))
                 ORDER BY l.key FOR UPDATE;
             WITH now AS MATERIALIZED ({NOW})
             UPDATE {locks} l SET expires_at_ms = greatest(l.expires_at_ms, now.ms + r.least,
                 least(l.expires_at_ms + r.extra, now.ms + {day}))
             FROM (VALUES {values}) AS r(n, key, id, least, extra), now
             WHERE l.key = r.key AND l.lock_id = r.id AND l.expires_at_ms > now.ms - {TOLERANCE_MS}
             RETURNING r.n, l.fence, l.expires_at_ms - now.ms"
        )
    }

    pub(crate) async fn lookup(&self, key: Key) -> Result<Option<Holder>, LockError> {
        let rows = self.held(&key, &format!("l.key = {}", literal(key.as_str())), 1).await?;
        rows.first().map(|row| holder(key, row, 1)).transpose()
    }

    pub(crate) async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Holder>, LockError> {
        let everything = Key::with_form("list", KeyForm::Verbatim)?;
        let condition = format!("starts_with(l.key, {})", literal(prefix));
        let rows = self.held(&everything, &condition, limit).await?;
        let mut held = Vec::with_capacity(rows.len());
        for row in &rows {
            // A key that ours cannot be (control characters, too long) is a lock that nobody here
            // can ask about.
            if let Ok(key) = Key::with_form(text(row, 0)?, KeyForm::Verbatim) {
                held.push(holder(key, row, 1)?);
            }
        }
        Ok(held)
    }

    /// The end is told as the holder knows it, not that of the second for which others wait longer.
    async fn held(
        &self,
        key: &Key,
        condition: &str,
        limit: usize,
    ) -> Result<Vec<SimpleQueryRow>, LockError> {
        let sql = format!(
            "{SETTINGS}
             WITH now AS MATERIALIZED ({NOW})
             SELECT l.key, l.fence, greatest(l.expires_at_ms - now.ms, 0), now.ms - l.acquired_at_ms FROM {} l, now
             WHERE {condition} AND l.expires_at_ms > now.ms - {TOLERANCE_MS} ORDER BY l.key LIMIT {limit}",
            self.locks,
        );
        self.run(key, Phase::Read, &sql).await
    }

    /// The rows of the last statement.
    async fn run(
        &self,
        key: &Key,
        phase: Phase,
        sql: &str,
    ) -> Result<Vec<SimpleQueryRow>, LockError> {
        self.pool.batch(key.as_str(), phase, sql).await.map_err(about(key))
    }
}

/// Removes a page of rows whose lease has been over for `{idle}` milliseconds; the package itself
/// leaves them for ever. A row that somebody takes at this moment is locked, and passed over.
pub(crate) fn sweep(config: &PostgresConfig, page: i32) -> String {
    let locks = config.name("");
    format!(
        "{SETTINGS}
         DELETE FROM {locks} WHERE key IN (
             SELECT l.key FROM {locks} l
             WHERE l.expires_at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000) - {TOLERANCE_MS} - {{idle}}
             ORDER BY l.expires_at_ms LIMIT {page} FOR UPDATE SKIP LOCKED)
         RETURNING 1"
    )
}

/// The two tables as the package's own `setupSchema` makes them.
pub(crate) fn schema(config: &PostgresConfig) -> String {
    let (locks, fences, schema, table) =
        (config.name(""), config.fences(), &config.schema, &config.table);
    format!(
        "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('holdtight migrate {schema} {table}', 0));
         DO $do$ BEGIN
             IF pg_catalog.to_regnamespace('\"{schema}\"') IS NULL THEN CREATE SCHEMA \"{schema}\"; END IF;
         END $do$;
         CREATE TABLE IF NOT EXISTS {locks} (
             key text PRIMARY KEY, lock_id text NOT NULL, expires_at_ms bigint NOT NULL,
             acquired_at_ms bigint NOT NULL, fence text NOT NULL, user_key text NOT NULL);
         CREATE UNIQUE INDEX IF NOT EXISTS \"idx_{table}_lock_id\" ON {locks} (lock_id);
         CREATE INDEX IF NOT EXISTS \"idx_{table}_expires\" ON {locks} (expires_at_ms);
         CREATE TABLE IF NOT EXISTS {fences} (
             fence_key text PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, key_debug text);"
    )
}

/// Whole milliseconds, rounded up: a lease is never shorter than it was asked for.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_micros().div_ceil(1000)).unwrap_or(i64::MAX / 4)
}

fn text(row: &SimpleQueryRow, column: usize) -> Result<&str, LockError> {
    row.try_get(column).ok().flatten().ok_or_else(|| malformed("a column that is missing"))
}

fn number(row: &SimpleQueryRow, column: usize) -> Result<i64, LockError> {
    text(row, column)?.parse().map_err(|_| malformed("a number that is none"))
}

fn span(row: &SimpleQueryRow, column: usize) -> Result<Duration, LockError> {
    Ok(Duration::from_millis(u64::try_from(number(row, column)?).unwrap_or(0)))
}

/// A grant of ours: its fence must be one.
fn lease(row: &SimpleQueryRow, column: usize) -> Result<Lease, LockError> {
    let fence = text(row, column)?.parse().map_err(|_| malformed("a fence that is no number"))?;
    Ok(Lease::new(fence, span(row, column + 1)?))
}

/// Somebody's lock. The tables do not say whose; a fence that cannot be read is left out.
fn holder(key: Key, row: &SimpleQueryRow, column: usize) -> Result<Holder, LockError> {
    let holder = Holder::of(key).remaining(span(row, column + 1)?).age(span(row, column + 2)?);
    Ok(match text(row, column)?.parse::<Fence>() {
        Ok(fence) => holder.fence(fence),
        Err(_) => holder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_round_up_to_whole_milliseconds() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert_eq!(millis(Duration::ZERO), 0);
    }
}
