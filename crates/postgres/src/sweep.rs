//! Removing rows of keys that nobody uses any more: in the background, in pages, at most one round
//! per minute.
//!
//! Why a removed row cannot lead to a repeated fence stands with `locks_sweep` in `sql/schema.sql`.
//! In the syncguard layout the fences stand in a table of their own, which is never swept.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{LockError, spawn_lasting};
use holdtight_kit::lock;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::config::{Layout, PostgresConfig};
use crate::error::Phase;
use crate::pool::{Pool, echoed_row};
use crate::rows::{get, micros, one};
use crate::syncguard;

/// At most one round per so much time, over all processes.
const EVERY: Duration = Duration::from_secs(60);

/// A row must have been free for so long: far longer than any step takes.
const IDLE: Duration = Duration::from_secs(300);

/// Keys per statement, so that none takes long.
const PAGE: i32 = 5000;

pub(crate) struct Sweeper {
    pool: Arc<Pool>,
    layout: Layout,
    /// A statement with parameters in the native layout, a batch without in the other.
    sql: String,
    next: Mutex<Option<Instant>>,
}

impl Sweeper {
    pub(crate) fn new(config: &PostgresConfig, pool: Arc<Pool>) -> Self {
        let sql = match config.layout {
            Layout::Native => echoed_row(&config.name("_sweep"), 3),
            Layout::Syncguard => syncguard::sweep(config, PAGE),
        };
        Self { pool, layout: config.layout, sql, next: Mutex::default() }
    }

    /// Whether this process has not tried for a minute. Asked with each release; the first one
    /// tries too.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut next = lock(&self.next);
        if next.is_some_and(|next| now < next) {
            return false;
        }
        *next = Some(now + EVERY);
        true
    }

    /// Does a page beside the release of `key`, on the same connection, and starts the rest of the
    /// round in the background.
    ///
    /// The page is waited for: a command that lives for a second must also clean up.
    pub(crate) async fn beside(self: &Arc<Self>, key: &str) {
        match self.page(key, EVERY, IDLE).await {
            Ok((_, true)) => self.go_on(),
            Ok((_, false)) => {}
            Err(error) => tracing::debug!(%error, "no sweep of free PostgreSQL rows"),
        }
    }

    fn go_on(self: &Arc<Self>) {
        let sweeper = Arc::downgrade(self);
        spawn_lasting(async move {
            while let Some(sweeper) = sweeper.upgrade() {
                match sweeper.page("sweep", EVERY, IDLE).await {
                    Ok((_, true)) => {}
                    Ok((_, false)) => return,
                    Err(error) => {
                        tracing::debug!(%error, "a sweep of free PostgreSQL rows ended early");
                        return;
                    }
                }
            }
        });
    }

    /// Removes all rows that have been free for `idle`, now. Returns how many.
    pub(crate) async fn round(&self, idle: Duration) -> Result<u64, LockError> {
        let mut removed = 0;
        loop {
            let (here, more) = self.page("sweep", Duration::ZERO, idle).await?;
            removed += here;
            if !more {
                return Ok(removed);
            }
        }
    }

    async fn page(
        &self,
        key: &str,
        every: Duration,
        idle: Duration,
    ) -> Result<(u64, bool), LockError> {
        if self.layout == Layout::Syncguard {
            let sql = self.sql.replace("{idle}", &idle.as_millis().to_string());
            let removed = self.pool.batch(key, Phase::Read, &sql).await?.len() as u64;
            return Ok((removed, removed >= PAGE.unsigned_abs().into()));
        }
        let (every, idle) = (micros(every), micros(idle));
        let params =
            [(&every as _, Type::INT8), (&idle as _, Type::INT8), (&PAGE as _, Type::INT4)];
        let row = one(self.pool.step(key, Phase::Read, &self.sql, &params).await?)?;
        Ok((u64::try_from(get::<i64>(&row, 0)?).unwrap_or(0), get(&row, 1)?))
    }
}
