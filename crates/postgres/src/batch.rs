//! The two steps that many callers may share a statement for: acquire and release of the native
//! layout.

use std::sync::Arc;

use holdtight_core::{Attempt, Busy, Key, LockError, Release};
use holdtight_kit::BatchOp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::error::{Phase, malformed};
use crate::pool::{Pool, about, echoed, echoed_row};
use crate::rows::{get, holder, lease, one, place};

/// Asking for a key.
pub(crate) struct Acquires {
    pool: Arc<Pool>,
    one: String,
    many: String,
}

/// What a caller wants.
pub(crate) struct Wanted {
    pub(crate) key: Key,
    /// As the server knows it: see [`hashed`](crate::rows::hashed).
    pub(crate) secret: String,
    pub(crate) ttl_us: i64,
    pub(crate) owner: String,
    pub(crate) waiter: String,
}

impl Acquires {
    pub(crate) fn new(config: &PostgresConfig, pool: Arc<Pool>) -> Self {
        let one = echoed_row(&config.name("_acquire"), 5);
        Self { pool, one, many: echoed(&config.name("_acquire_each"), 5) }
    }
}

impl BatchOp for Acquires {
    type Request = Wanted;
    type Answer = Attempt;

    async fn one(&self, wanted: &Wanted) -> Result<Attempt, LockError> {
        let rows = self
            .pool
            .step(
                wanted.key.as_str(),
                Phase::Write,
                &self.one,
                &[
                    (&wanted.key.as_str(), Type::TEXT),
                    (&wanted.secret, Type::TEXT),
                    (&wanted.ttl_us, Type::INT8),
                    (&wanted.owner, Type::TEXT),
                    (&wanted.waiter, Type::TEXT),
                ],
            )
            .await
            .map_err(about(&wanted.key))?;
        attempt(&wanted.key, &one(rows)?, 0)
    }

    async fn many(&self, wanted: &[&Wanted]) -> Result<Vec<Result<Attempt, LockError>>, LockError> {
        let texts = |text: fn(&Wanted) -> &str| -> Vec<&str> {
            wanted.iter().map(|wanted| text(wanted)).collect()
        };
        let ttls: Vec<i64> = wanted.iter().map(|wanted| wanted.ttl_us).collect();
        let rows = self
            .pool
            .step(
                wanted[0].key.as_str(),
                Phase::Write,
                &self.many,
                &[
                    (&texts(|wanted| wanted.key.as_str()), Type::TEXT_ARRAY),
                    (&texts(|wanted| &wanted.secret), Type::TEXT_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&texts(|wanted| &wanted.owner), Type::TEXT_ARRAY),
                    (&texts(|wanted| &wanted.waiter), Type::TEXT_ARRAY),
                ],
            )
            .await?;
        let rows = in_order(&rows, wanted.len())?.into_iter().zip(wanted);
        Ok(rows.map(|(row, wanted)| attempt(&wanted.key, row, 1)).collect())
    }

    fn may_retry_alone(&self, wanted: &Wanted, error: &LockError) -> bool {
        self.pool.server_said(wanted.key.as_str(), error)
    }
}

fn attempt(key: &Key, row: &Row, column: usize) -> Result<Attempt, LockError> {
    if get::<bool>(row, column)? {
        let contended = get::<Option<bool>>(row, column + 5)?.unwrap_or(false);
        return Ok(Attempt::Granted(lease(row, column + 1)?.contended(contended)));
    }
    Ok(Attempt::Busy(Busy::held_by(holder(key.clone(), row, column + 1)?)))
}

/// Giving a key back.
pub(crate) struct Releases {
    pool: Arc<Pool>,
    one: String,
    many: String,
}

/// What a caller gives back.
pub(crate) struct Given {
    pub(crate) key: Key,
    /// As the server knows it: see [`hashed`](crate::rows::hashed).
    pub(crate) secret: String,
    pub(crate) waiter: String,
    /// A request with this secret may still arrive.
    pub(crate) late: bool,
}

impl Releases {
    pub(crate) fn new(config: &PostgresConfig, pool: Arc<Pool>) -> Self {
        let one = echoed_row(&config.name("_release"), 4);
        Self { pool, one, many: echoed(&config.name("_release_each"), 4) }
    }
}

impl BatchOp for Releases {
    type Request = Given;
    type Answer = Release;

    async fn one(&self, given: &Given) -> Result<Release, LockError> {
        let rows = self
            .pool
            .step(
                given.key.as_str(),
                Phase::Write,
                &self.one,
                &[
                    (&given.key.as_str(), Type::TEXT),
                    (&given.secret, Type::TEXT),
                    (&given.waiter, Type::TEXT),
                    (&given.late, Type::BOOL),
                ],
            )
            .await
            .map_err(about(&given.key))?;
        released(&one(rows)?, 0)
    }

    async fn many(&self, given: &[&Given]) -> Result<Vec<Result<Release, LockError>>, LockError> {
        let texts = |text: fn(&Given) -> &str| -> Vec<&str> {
            given.iter().map(|given| text(given)).collect()
        };
        let late: Vec<bool> = given.iter().map(|given| given.late).collect();
        let rows = self
            .pool
            .step(
                given[0].key.as_str(),
                Phase::Write,
                &self.many,
                &[
                    (&texts(|given| given.key.as_str()), Type::TEXT_ARRAY),
                    (&texts(|given| &given.secret), Type::TEXT_ARRAY),
                    (&texts(|given| &given.waiter), Type::TEXT_ARRAY),
                    (&late, Type::BOOL_ARRAY),
                ],
            )
            .await?;
        let rows = in_order(&rows, given.len())?;
        Ok(rows.into_iter().map(|row| released(row, 1)).collect())
    }

    fn may_retry_alone(&self, given: &Given, error: &LockError) -> bool {
        self.pool.server_said(given.key.as_str(), error)
    }
}

pub(crate) fn released(row: &Row, column: usize) -> Result<Release, LockError> {
    Ok(if get(row, column)? { Release::Released } else { Release::NotHeld })
}

/// The rows by the place that each one answers; every place exactly once.
fn in_order(rows: &[Row], places: usize) -> Result<Vec<&Row>, LockError> {
    let mut ordered: Vec<Option<&Row>> = vec![None; places];
    for row in rows {
        if ordered[place(row, places)?].replace(row).is_some() {
            return Err(malformed("one request twice"));
        }
    }
    let ordered: Option<Vec<&Row>> = ordered.into_iter().collect();
    ordered.ok_or_else(|| malformed("fewer requests than were made"))
}
