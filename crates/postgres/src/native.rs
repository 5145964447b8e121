//! The steps of the native layout: each is one call of one function of the schema, and the reading
//! of its answer.
//!
//! What the functions do stands in `sql/schema.sql`.

use std::sync::Arc;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, ExtendRequest, Extension, Fence, Holder, Intent, Key,
    LockError, ManyAttempt, Release, Secret, Transfer, TransferRequest,
};
use holdtight_kit::{BatchConfig, Batcher};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::batch::{Acquires, Given, Releases, Wanted, released};
use crate::config::PostgresConfig;
use crate::error::{Phase, malformed};
use crate::listen::Listener;
use crate::pool::{Pool, Way, about, echoed, echoed_row};
use crate::rows::{get, hashed, holder, lease, micros, one, place};
use crate::unresolved::Unresolved;

/// Statements of one kind on their way per connection before others are gathered: while the server
/// does one, the next is already there.
const AT_ONCE: usize = 2;

/// The steps of the native layout on their pool.
pub(crate) struct Native {
    pool: Arc<Pool>,
    listener: Arc<Listener>,
    unresolved: Unresolved,
    acquires: Arc<Batcher<Acquires>>,
    releases: Arc<Batcher<Releases>>,
    sql: Sql,
}

/// The statements, written once.
struct Sql {
    acquire_many: String,
    force_release: String,
    extend: String,
    transfer: String,
    held: String,
}

impl Native {
    pub(crate) fn new(config: &PostgresConfig, pool: Arc<Pool>, listener: Arc<Listener>) -> Self {
        let call = |function: &str, arguments: usize| echoed(&config.name(function), arguments);
        let sql = Sql {
            acquire_many: call("_acquire_many", 4),
            force_release: echoed_row(&config.name("_force_release"), 2),
            extend: call("_extend", 4),
            transfer: echoed_row(&config.name("_transfer"), 5),
            held: call("_held", 3),
        };
        let in_flight = if config.pooled { 1 } else { AT_ONCE };
        let batches = BatchConfig::new().lanes(config.connections).in_flight(in_flight);
        let batches = batches.timeout(config.timeout);
        let acquires = Acquires::new(config, Arc::clone(&pool));
        let releases = Releases::new(config, Arc::clone(&pool));
        Self {
            acquires: Batcher::new(acquires, batches),
            releases: Batcher::new(releases, batches),
            unresolved: Unresolved::default(),
            pool,
            listener,
            sql,
        }
    }

    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Attempt, LockError> {
        let key = request.key;
        let waiter = match request.intent {
            Intent::Queue => self.listener.waiter(&request.secret),
            _ => String::new(),
        };
        let asking = self.unresolved.asking([&request.secret]);
        let wanted = Wanted {
            key: key.clone(),
            secret: hashed(&request.secret),
            ttl_us: micros(request.ttl),
            owner: request.owner.to_text(),
            waiter: waiter.clone(),
        };
        let answer = self.acquires.submit(self.pool.place_of(key.as_str()), wanted).await;
        let attempt = asking.answered(answer).map_err(about(&key))?;
        if !waiter.is_empty() && matches!(attempt, Attempt::Busy(_)) {
            self.listener.start();
        }
        Ok(attempt)
    }

    pub(crate) async fn acquire_many(
        &self,
        requests: Vec<AcquireRequest>,
    ) -> Result<ManyAttempt, LockError> {
        let Some(first) = requests.first() else { return Ok(ManyAttempt::Granted(Vec::new())) };
        let keys: Vec<&str> = requests.iter().map(|request| request.key.as_str()).collect();
        let secrets: Vec<String> = requests.iter().map(|request| hashed(&request.secret)).collect();
        let ttls: Vec<i64> = requests.iter().map(|request| micros(request.ttl)).collect();
        let owners: Vec<String> = requests.iter().map(|request| request.owner.to_text()).collect();
        let asking = self.unresolved.asking(requests.iter().map(|request| &request.secret));
        let answer = self
            .pool
            .step(
                first.key.as_str(),
                Phase::Write,
                &self.sql.acquire_many,
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&secrets, Type::TEXT_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&owners, Type::TEXT_ARRAY),
                ],
            )
            .await;
        let rows = asking.answered(answer).map_err(about(&first.key))?;
        if let [row] = rows.as_slice()
            && !get::<bool>(row, 1)?
        {
            let place = place(row, requests.len())?;
            let key = requests[place].key.clone();
            return Ok(ManyAttempt::Busy(key.clone(), Busy::held_by(holder(key, row, 2)?)));
        }
        if rows.len() != requests.len() {
            return Err(malformed("another number of grants than was asked for"));
        }
        let mut leases = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            if place(row, requests.len())? != at || !get::<bool>(row, 1)? {
                return Err(malformed("grants out of order"));
            }
            leases.push(lease(row, 2)?.contended(get(row, 6)?));
        }
        Ok(ManyAttempt::Granted(leases))
    }

    pub(crate) async fn release(&self, key: Key, secret: Secret) -> Result<Release, LockError> {
        let given = Given {
            waiter: self.listener.name(&secret),
            late: self.unresolved.may_arrive(&secret),
            key: key.clone(),
            secret: hashed(&secret),
        };
        let answer = self.releases.submit(self.pool.place_of(key.as_str()), given).await;
        answer.map_err(about(&key))
    }

    pub(crate) async fn force_release(&self, key: Key, fence: Fence) -> Result<Release, LockError> {
        // A number that no grant of ours can have is nobody's fence.
        let Ok(number) = i64::try_from(fence.get()) else { return Ok(Release::NotHeld) };
        let params = [(&key.as_str() as _, Type::TEXT), (&number as _, Type::INT8)];
        let rows = self
            .pool
            .step(key.as_str(), Phase::Write, &self.sql.force_release, &params)
            .await
            .map_err(about(&key))?;
        released(&one(rows)?, 0)
    }

    /// One statement for the whole batch, unless a key stands in it twice: each statement moves a
    /// lease once.
    pub(crate) async fn extend(
        &self,
        requests: Vec<ExtendRequest>,
    ) -> Result<Vec<Result<Extension, LockError>>, LockError> {
        let mut answers: Vec<_> = requests.iter().map(|_| Ok(Extension::NotHeld)).collect();
        let mut open: Vec<usize> = (0..requests.len()).collect();
        while !open.is_empty() {
            let mut keys = std::collections::HashSet::new();
            let (batch, again): (Vec<usize>, Vec<usize>) =
                open.into_iter().partition(|&at| keys.insert(requests[at].key.as_str()));
            self.extend_batch(&requests, &batch, &mut answers).await?;
            open = again;
        }
        Ok(answers)
    }

    async fn extend_batch(
        &self,
        requests: &[ExtendRequest],
        batch: &[usize],
        answers: &mut [Result<Extension, LockError>],
    ) -> Result<(), LockError> {
        let keys: Vec<&str> = batch.iter().map(|&at| requests[at].key.as_str()).collect();
        let secrets: Vec<String> = batch.iter().map(|&at| hashed(&requests[at].secret)).collect();
        let (at_least, extra): (Vec<i64>, Vec<i64>) = batch
            .iter()
            .map(|&at| match requests[at].by {
                ExtendBy::AtLeast(ttl) => (micros(ttl), 0),
                ExtendBy::Add(extra) => (0, micros(extra)),
                _ => (0, 0),
            })
            .unzip();
        let rows = self
            .pool
            .step(
                Way::Renewals,
                Phase::Write,
                &self.sql.extend,
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&secrets, Type::TEXT_ARRAY),
                    (&at_least, Type::INT8_ARRAY),
                    (&extra, Type::INT8_ARRAY),
                ],
            )
            .await?;
        for row in &rows {
            let place = place(row, batch.len())?;
            let at = batch[place];
            answers[at] = if get::<Option<i64>>(row, 1)?.is_some() {
                Ok(Extension::Extended(lease(row, 1)?.contended(get(row, 3)?)))
            } else {
                let locked = LockError::unavailable(
                    "another transaction keeps the row of this key locked; end it, see pg_locks",
                );
                Err(locked.with_key(&requests[at].key))
            };
        }
        Ok(())
    }

    pub(crate) async fn transfer(&self, request: TransferRequest) -> Result<Transfer, LockError> {
        let to = request.to;
        let asking = self.unresolved.asking([&to.secret]);
        let answer = self
            .pool
            .step(
                to.key.as_str(),
                Phase::Write,
                &self.sql.transfer,
                &[
                    (&to.key.as_str(), Type::TEXT),
                    (&hashed(&request.from), Type::TEXT),
                    (&hashed(&to.secret), Type::TEXT),
                    (&micros(to.ttl), Type::INT8),
                    (&to.owner.to_text(), Type::TEXT),
                ],
            )
            .await;
        let rows = asking.answered(answer).map_err(about(&to.key))?;
        if rows.is_empty() {
            return Ok(Transfer::NotHeld);
        }
        let row = one(rows)?;
        Ok(Transfer::Transferred(lease(&row, 0)?.contended(get(&row, 2)?)))
    }

    pub(crate) async fn lookup(&self, key: Key) -> Result<Option<Holder>, LockError> {
        let rows = self.held(key.as_str(), key.as_str(), 1).await.map_err(about(&key))?;
        rows.first().map(|row| holder(key, row, 1)).transpose()
    }

    pub(crate) async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Holder>, LockError> {
        // No key with this prefix sorts after it: the last character there is, as often as a key
        // has room.
        let last = format!("{prefix}{}", "\u{10ffff}".repeat(Key::MAX_BYTES / 4 + 1));
        let rows = self.held(prefix, &last, limit).await?;
        let mut held = Vec::with_capacity(rows.len());
        for row in &rows {
            let key =
                holdtight_core::Key::with_form(get(row, 0)?, holdtight_core::KeyForm::Verbatim)
                    .map_err(|_| malformed("a key that is none"))?;
            if key.as_str().starts_with(prefix) && held.len() < limit {
                held.push(holder(key, row, 1)?);
            }
        }
        Ok(held)
    }

    async fn held(&self, from: &str, to: &str, limit: usize) -> Result<Vec<Row>, LockError> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let params = [(&from as _, Type::TEXT), (&to as _, Type::TEXT), (&limit as _, Type::INT4)];
        self.pool.step(from, Phase::Read, &self.sql.held, &params).await
    }
}
