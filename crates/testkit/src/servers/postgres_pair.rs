//! A PostgreSQL primary with a synchronous standby, which is promoted when the primary dies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::postgres::Postgres;

/// No commit is acknowledged before a standby has it on disk; enough of the log is kept for one
/// that comes back.
const SETTINGS: &[&str] = &["synchronous_standby_names=*", "wal_keep_size=256MB"];

/// Two PostgreSQL servers: one is the primary, the other its synchronous standby.
#[derive(Debug)]
pub struct PostgresPair {
    servers: [Postgres; 2],
    primary: AtomicUsize,
}

impl PostgresPair {
    /// Starts both and waits until the standby is in sync.
    ///
    /// # Panics
    /// When that takes longer than a minute; the message says why.
    pub async fn start() -> Self {
        let primary = Postgres::start_with(SETTINGS).await;
        let standby = Postgres::start_standby(&primary, SETTINGS).await;
        let pair = Self { servers: [primary, standby], primary: AtomicUsize::new(0) };
        pair.wait_until_in_sync().await;
        pair
    }

    /// The server that is the primary now.
    pub fn primary(&self) -> &Postgres {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    /// The server that follows it.
    pub fn standby(&self) -> &Postgres {
        &self.servers[1 - self.primary.load(Ordering::SeqCst)]
    }

    /// `postgres://` with both servers.
    pub fn url(&self) -> String {
        let [one, two] = &self.servers;
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", one.port(), two.port())
    }

    /// Kills the primary as a crash would and promotes the standby. Nothing is granted any more
    /// until [`rebuild`](Self::rebuild) gives the new primary a standby.
    ///
    /// # Panics
    /// When the standby does not take over.
    pub fn fail_over(&self) {
        self.primary().process().kill();
        let promoted = self.standby().sql("SELECT pg_promote(true, 60)");
        assert_eq!(promoted.as_deref(), Ok("t"), "the standby does not take over");
        self.primary.fetch_xor(1, Ordering::SeqCst);
    }

    /// Makes the server that is not the primary a standby on a fresh copy, and waits until it is in
    /// sync.
    ///
    /// # Panics
    /// When that takes longer than a minute; the message says why.
    pub async fn rebuild(&self) {
        self.standby().restart_as_standby(self.primary()).await;
        self.wait_until_in_sync().await;
    }

    /// Waits until every commit is acknowledged by the standby: from here on it can be promoted
    /// without a loss.
    ///
    /// # Panics
    /// When that takes longer than a minute.
    pub async fn wait_until_in_sync(&self) {
        let question = "SELECT count(*) FROM pg_stat_replication \
             WHERE state = 'streaming' AND sync_state = 'sync' AND flush_lsn IS NOT NULL";
        let started = Instant::now();
        while self.primary().sql(question).as_deref() != Ok("1") {
            assert!(started.elapsed() < Duration::from_secs(60), "the standby does not follow");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
