//! A few shared connections, each pipelined, chosen by key: two steps on one key leave in order.
//!
//! There is no pool: nobody owns a connection while waiting for an answer. A broken lane is opened again by whoever
//! needs it next, one at a time, with jittered pauses after failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdtight_core::{Key, LockError};
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, SimpleQueryMessage, SimpleQueryRow};

use crate::connect::{Connector, Link};
use crate::error::{Phase, from_driver, malformed};

/// A parameter and its type: given with each statement, so that nothing need be prepared and one round trip does.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What is sent in one round trip.
enum Request<'a> {
    Statement(&'a str, &'a [Param<'a>]),
    Batch(&'a str),
}

/// What comes back.
enum Reply {
    Rows(Vec<Row>),
    Messages(Vec<SimpleQueryMessage>),
}

impl Request<'_> {
    async fn send(&self, link: &Link) -> Result<Reply, tokio_postgres::Error> {
        match self {
            Self::Statement(sql, params) => {
                Ok(Reply::Rows(link.client.query_typed(sql, params).await?))
            }
            Self::Batch(sql) => Ok(Reply::Messages(link.client.simple_query(sql).await?)),
        }
    }
}

/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// All connections for steps.
pub(crate) struct Lanes {
    connector: Arc<Connector>,
    all: Vec<Lane>,
    timeout: Duration,
}

#[derive(Default)]
struct Lane {
    current: Mutex<Option<Arc<Link>>>,
    /// Held while connecting, so that a lost server is not stormed.
    opening: tokio::sync::Mutex<Outage>,
}

/// What is remembered about a lane that could not be opened.
#[derive(Default)]
struct Outage {
    failures: u32,
    /// The last attempt: when it began, what came of it, and when the next one may be made.
    last: Option<(Instant, LockError, Instant)>,
}

impl Lanes {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let all = (0..connector.config.connections).map(|_| Lane::default()).collect();
        let timeout = connector.config.timeout;
        Self { connector, all, timeout }
    }

    /// Opens the first connection, so that a wrong URL is noticed at once.
    pub(crate) async fn warm_up(&self) -> Result<(), LockError> {
        self.all[0].link(&self.connector).await.map(drop)
    }

    /// One statement, one round trip, bounded in time.
    ///
    /// A connection that does not answer is given up for new steps; those already on it may still get their answers.
    pub(crate) async fn step(
        &self,
        key: &str,
        phase: Phase,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, LockError> {
        match self.bounded(key, phase, &Request::Statement(sql, params)).await? {
            Reply::Rows(rows) => Ok(rows),
            Reply::Messages(_) => Err(malformed("another kind of message")),
        }
    }

    /// Several statements without parameters as one transaction and one round trip: the rows of the last one.
    pub(crate) async fn batch(
        &self,
        key: &str,
        phase: Phase,
        sql: &str,
    ) -> Result<Vec<SimpleQueryRow>, LockError> {
        let Reply::Messages(messages) = self.bounded(key, phase, &Request::Batch(sql)).await?
        else {
            return Err(malformed("another kind of message"));
        };
        let mut rows = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(row) => rows.push(row),
                _ => {}
            }
        }
        Ok(rows)
    }

    async fn bounded(
        &self,
        key: &str,
        phase: Phase,
        request: &Request<'_>,
    ) -> Result<Reply, LockError> {
        let lane = &self.all[lane_of(key, self.all.len())];
        let deadline = Instant::now() + self.timeout;
        let mut again = phase == Phase::Read;
        loop {
            // Nothing has left yet: a timeout here is a plain "no".
            let link = tokio::time::timeout_at(deadline, lane.link(&self.connector)).await;
            let link = link.map_err(|_| {
                let within = self.timeout;
                LockError::unavailable(format!("no connection to PostgreSQL within {within:?}"))
            })??;
            let doubts = link.doubts();
            match tokio::time::timeout_at(deadline, request.send(&link)).await {
                Err(_) => {
                    lane.give_up(&link);
                    let message = format!("PostgreSQL did not answer within {:?}", self.timeout);
                    return Err(LockError::new(phase.lost_answer(), message));
                }
                Ok(Err(error)) => {
                    let lost = link.client.is_closed() || error.as_db_error().is_none();
                    if lost || error.as_db_error().is_some_and(ends_the_role) {
                        lane.give_up(&link);
                    }
                    // What only reads may be asked again, once: the connection may have been dead before.
                    if lost && again {
                        again = false;
                        continue;
                    }
                    return Err(from_driver(&error, phase));
                }
                Ok(Ok(_)) if phase == Phase::Write && link.doubts() != doubts => {
                    return Err(LockError::ambiguous(
                        "the wait for a synchronous standby was cancelled: the step is done on the primary, and \
                         perhaps only there",
                    ));
                }
                Ok(Ok(answer)) => return Ok(answer),
            }
        }
    }
}

/// A server that turned read-only is no primary any more: look for the new one.
fn ends_the_role(told: &tokio_postgres::error::DbError) -> bool {
    *told.code() == tokio_postgres::error::SqlState::READ_ONLY_SQL_TRANSACTION
}

impl Lane {
    fn current(&self) -> Option<Arc<Link>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|link| !link.client.is_closed()).map(Arc::clone)
    }

    /// The open connection, or a new one. Whoever comes while the server is away waits for one attempt that began
    /// after they came, made by themselves or by another, and no longer.
    async fn link(&self, connector: &Connector) -> Result<Arc<Link>, LockError> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let came = Instant::now();
        let mut outage = self.opening.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some((began, error, next)) = &outage.last {
            if *began >= came {
                return Err(error.duplicate());
            }
            tokio::time::sleep_until(*next).await;
        }
        let began = Instant::now();
        match connector.connect().await {
            Ok(link) => {
                let link = Arc::new(link);
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&link));
                *outage = Outage::default();
                Ok(link)
            }
            Err(error) => {
                let next = Instant::now() + pause(outage.failures);
                outage.failures += 1;
                outage.last = Some((began, error.duplicate(), next));
                Err(error)
            }
        }
    }

    fn give_up(&self, link: &Arc<Link>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            *current = None;
        }
    }
}

/// Half to all of 25 ms doubled by each failure, so that many processes do not come back together.
pub(crate) fn pause(failures: u32) -> Duration {
    let base = Duration::from_millis(25).saturating_mul(1 << failures.min(10)).min(MAX_PAUSE);
    base.mul_f64(0.5 + 0.5 * fastrand::f64())
}

fn lane_of(key: &str, lanes: usize) -> usize {
    usize::try_from(hash(key.as_bytes()) % lanes as u64).unwrap_or(0)
}

/// FNV-1a: stable, small, and enough to spread keys and name tickets. Decides nothing.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Adds the key to an error about it.
pub(crate) fn about(key: &Key) -> impl FnOnce(LockError) -> LockError + '_ {
    |error| error.with_key(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for failures in 0..40 {
            assert!(pause(failures) <= MAX_PAUSE);
        }
        assert!(pause(0) < Duration::from_millis(26) && pause(9) >= MAX_PAUSE / 2);
        assert_ne!(pause(9), pause(9));
    }

    #[test]
    fn keys_spread_over_all_lanes() {
        let mut used = [0; 4];
        for n in 0..1000 {
            used[lane_of(&format!("key:{n}"), 4)] += 1;
        }
        assert!(used.iter().all(|&n| n > 150), "{used:?}");
    }
}
