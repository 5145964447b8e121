//! A few shared connections, each pipelined, chosen by key: two steps on one key leave in order.
//!
//! There is no pool: nobody owns a connection while waiting for an answer. A broken lane is opened
//! again by whoever needs it next, as the kit does it.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Key, LockError};
use holdtight_kit::{Connected, Reconnecting};
use tokio::sync::{MutexGuard, watch};
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Row, SimpleQueryMessage, SimpleQueryRow};

use crate::connect::{Connector, Link};
use crate::error::{Phase, from_driver, malformed};

/// A parameter and its type: given with each statement, so that nothing need be prepared and one
/// round trip does.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A call of a function whose every answer, even an empty one, carries the number of the request in
/// its last column.
///
/// A pooler that loses count hands the answer of one request to another. A grant must not be taken
/// for ours because it came on our connection.
pub(crate) fn echoed(function: &str, arguments: usize) -> String {
    let places: Vec<String> = (1..=arguments).map(|place| format!("${place}")).collect();
    format!(
        "SELECT r.*, e.echo FROM (SELECT ${}::bigint) AS e(echo) LEFT JOIN {function}({}) AS r ON true",
        arguments + 1,
        places.join(", "),
    )
}

/// The same for a function that always answers with one row: no join to plan.
pub(crate) fn echoed_row(function: &str, arguments: usize) -> String {
    let places: Vec<String> = (1..=arguments).map(|place| format!("${place}")).collect();
    format!("SELECT r.*, ${}::bigint FROM {function}({}) AS r", arguments + 1, places.join(", "))
}

/// What is sent in one round trip, with the number that must come back.
enum Request<'a> {
    Statement(&'a str, &'a [Param<'a>], i64),
    Batch(&'a str, i64),
}

/// What came back.
enum Answer {
    Rows(Vec<Row>),
    Text(Vec<SimpleQueryRow>),
}

impl Request<'_> {
    /// `None` if the answer belongs to another request.
    async fn send(&self, link: &Link) -> Result<Option<Answer>, tokio_postgres::Error> {
        match self {
            Self::Statement(sql, params, echo) => {
                let mut rows = link.client.query_typed(sql, params).await?;
                let ours = |row: &Row| {
                    let last = row.len().saturating_sub(1);
                    row.try_get::<_, i64>(last).is_ok_and(|number| number == *echo)
                };
                if rows.is_empty() || !rows.iter().all(ours) {
                    return Ok(None);
                }
                rows.retain(|row| !is_null(row));
                Ok(Some(Answer::Rows(rows)))
            }
            Self::Batch(sql, echo) => {
                let (mut rows, mut last) = (Vec::new(), Vec::new());
                for message in link.client.simple_query(sql).await? {
                    match message {
                        SimpleQueryMessage::RowDescription(_) => rows = std::mem::take(&mut last),
                        SimpleQueryMessage::Row(row) => last.push(row),
                        _ => {}
                    }
                }
                let number = last.first().and_then(|row| row.try_get(0).ok().flatten());
                let ours = number.is_some_and(|number| number.parse() == Ok(*echo));
                Ok(ours.then_some(Answer::Text(rows)))
            }
        }
    }
}

/// The row that stands for no answer at all: nothing in it but the echo.
fn is_null(row: &Row) -> bool {
    struct Null(bool);
    impl<'a> FromSql<'a> for Null {
        fn from_sql(
            _: &Type,
            _: &'a [u8],
        ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
            Ok(Self(false))
        }
        fn from_sql_null(_: &Type) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
            Ok(Self(true))
        }
        fn accepts(_: &Type) -> bool {
            true
        }
    }
    row.len() > 1 && row.try_get::<_, Null>(0).is_ok_and(|null| null.0)
}

/// Which connection a step uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    /// The one of this key.
    Of(&'a str),
    /// The one that only renewals use, and that is opened with the first: a step that waits in the
    /// server for a row holds up whatever comes after it on its connection, and a renewal has no
    /// time for that.
    Renewals,
}

impl<'a> From<&'a str> for Way<'a> {
    fn from(key: &'a str) -> Self {
        Self::Of(key)
    }
}

/// All connections for steps.
pub(crate) struct Pool {
    connector: Arc<Connector>,
    all: Vec<Lane>,
    renewals: Lane,
    timeout: Duration,
    /// Whether a connection may carry several requests at once.
    pipelined: bool,
    /// The host that kept silent last, and since when: for connections on which nobody asks
    /// anything.
    silent: watch::Sender<Option<(usize, Instant)>>,
}

struct Lane {
    connection: Reconnecting<Link>,
    /// Held during a request where only one may be on its way.
    turn: tokio::sync::Mutex<()>,
}

/// How long a connection may keep silent before a caller that gives up takes it out of use: its
/// renewal may have no time for many such callers, and a needless new connection is cheap.
const SILENCE: Duration = Duration::from_millis(250);

/// A request on its way. Dropped before its answer came, it takes the connection out of use for
/// those who come after: if it was silent for a while, because it may be dead without anybody
/// having said so; and where only one request may be on its way, in any case, because the next must
/// not stand behind it. What is on it still gets its answers.
struct Sent<'a> {
    pool: &'a Pool,
    lane: &'a Lane,
    link: &'a Arc<Connected<Link>>,
    at: Instant,
    answered: bool,
    turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.turn.is_some() {
            self.lane.connection.give_up(self.link);
        }
        if self.at.elapsed() >= SILENCE {
            self.pool.suspect(self.link, self.at);
        }
    }
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let origin = format!("PostgreSQL at {}", connector.config.shown());
        let lane = || Lane {
            connection: Reconnecting::new(&origin, Arc::default()),
            turn: tokio::sync::Mutex::default(),
        };
        let (all, renewals) = ((0..connector.config.connections).map(|_| lane()).collect(), lane());
        let (timeout, pipelined) = (connector.config.timeout, !connector.config.pooled);
        let silent = watch::Sender::default();
        Self { connector, all, renewals, timeout, pipelined, silent }
    }

    /// Opens the first connection, so that a wrong URL is noticed at once.
    pub(crate) async fn warm_up(&self) -> Result<(), LockError> {
        self.all[0].link(&self.connector).await.map(drop)
    }

    /// Which connection the steps on `key` use.
    pub(crate) fn place_of(&self, key: &str) -> usize {
        lane_of(key, self.all.len())
    }

    /// Whether an error of a step is the server's word that nothing was done: its connection lives.
    pub(crate) fn server_said(&self, key: &str, error: &LockError) -> bool {
        error.kind().is_definite() && self.all[self.place_of(key)].connection.current().is_some()
    }

    /// One statement, one round trip, bounded in time.
    ///
    /// A connection that does not answer is given up for new steps; those already on it may still
    /// get their answers. The statement must be one of [`echoed`] or [`echoed_row`]: the answer is
    /// taken only if it carries the number of this request.
    pub(crate) async fn step(
        &self,
        way: impl Into<Way<'_>>,
        phase: Phase,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, LockError> {
        let echo = fastrand::i64(..);
        let mut params = params.to_vec();
        params.push((&echo, Type::INT8));
        let request = Request::Statement(sql, &params, echo);
        match self.bounded(way.into(), phase, &request).await? {
            Answer::Rows(rows) => Ok(rows),
            Answer::Text(_) => Err(malformed("another kind of message")),
        }
    }

    /// Several statements without parameters as one transaction and one round trip: the rows of the
    /// last one.
    pub(crate) async fn batch(
        &self,
        way: impl Into<Way<'_>>,
        phase: Phase,
        sql: &str,
    ) -> Result<Vec<SimpleQueryRow>, LockError> {
        let echo = fastrand::i64(..);
        let sql = format!("{sql}; SELECT {echo}");
        match self.bounded(way.into(), phase, &Request::Batch(&sql, echo)).await? {
            Answer::Text(rows) => Ok(rows),
            Answer::Rows(_) => Err(malformed("another kind of message")),
        }
    }

    /// Takes every connection to the host of `link` out of use that was open when it fell silent:
    /// whatever keeps one of them silent, a host that stands still or a firewall that forgot them,
    /// probably keeps all.
    fn suspect(&self, link: &Link, since: Instant) {
        for lane in self.all.iter().chain([&self.renewals]) {
            if let Some(other) = lane.connection.current()
                && other.host == link.host
                && other.opened <= since
            {
                lane.connection.give_up(&other);
            }
        }
        self.silent.send_replace(Some((link.host, since)));
    }

    /// Returns when a connection was found silent that led where `link` leads, and was open at the
    /// same time.
    pub(crate) async fn suspected(&self, link: &Link) {
        let like_it = |silent: &Option<(usize, Instant)>| {
            silent.is_some_and(|(host, since)| host == link.host && link.opened <= since)
        };
        // The other end lives as long as this.
        let _ = self.silent.subscribe().wait_for(like_it).await;
    }

    async fn bounded(
        &self,
        way: Way<'_>,
        phase: Phase,
        request: &Request<'_>,
    ) -> Result<Answer, LockError> {
        let lane = match way {
            Way::Of(key) => &self.all[self.place_of(key)],
            Way::Renewals => &self.renewals,
        };
        let deadline = Instant::now() + self.timeout;
        let mut again = phase == Phase::Read;
        loop {
            // Nothing has left yet: a timeout here is a plain "no".
            let (turn, link) = tokio::time::timeout_at(deadline, lane.ready(self))
                .await
                .map_err(|_| lane.connection.late(self.timeout))??;
            let mut sent =
                Sent { pool: self, lane, link: &link, at: Instant::now(), answered: false, turn };
            let doubts = link.doubts();
            let answer = tokio::time::timeout_at(deadline, request.send(&link)).await;
            sent.answered = answer.is_ok();
            drop(sent);
            match answer {
                Err(_) => {
                    let message = format!("PostgreSQL did not answer within {:?}", self.timeout);
                    return Err(LockError::new(phase.lost_answer(), message));
                }
                Ok(Err(error)) => {
                    let lost = link.client.is_closed() || error.as_db_error().is_none();
                    if lost || error.as_db_error().is_some_and(ends_the_role) {
                        lane.connection.give_up(&link);
                    }
                    // What only reads may be asked again, once: the connection may have been dead
                    // before.
                    if lost && again {
                        again = false;
                        continue;
                    }
                    return Err(from_driver(&error, phase));
                }
                Ok(Ok(None)) => {
                    lane.connection.give_up(&link);
                    return Err(LockError::new(
                        phase.lost_answer(),
                        "the answer to another request came instead of ours; if a pooler stands in between, say \
                         pooler=transaction in the URL",
                    ));
                }
                Ok(Ok(_)) if phase == Phase::Write && link.doubts() != doubts => {
                    return Err(LockError::ambiguous(
                        "the wait for a synchronous standby was cancelled: the step is done on the primary, and \
                         perhaps only there",
                    ));
                }
                Ok(Ok(Some(answer))) => return Ok(answer),
            }
        }
    }
}

/// A server that turned read-only is no primary any more: look for the new one.
fn ends_the_role(told: &tokio_postgres::error::DbError) -> bool {
    *told.code() == tokio_postgres::error::SqlState::READ_ONLY_SQL_TRANSACTION
}

impl Lane {
    /// The open connection, or a new one.
    async fn link(&self, connector: &Arc<Connector>) -> Result<Arc<Connected<Link>>, LockError> {
        let open = || {
            let connector = Arc::clone(connector);
            async move { connector.connect().await }
        };
        let link = self.connection.get(open).await?;
        // It had to answer our greeting.
        self.connection.served(&link);
        Ok(link)
    }

    /// A connection, and the right to be alone on it where that is needed.
    async fn ready<'a>(
        &'a self,
        pool: &Pool,
    ) -> Result<(Option<MutexGuard<'a, ()>>, Arc<Connected<Link>>), LockError> {
        let turn = if pool.pipelined { None } else { Some(self.turn.lock().await) };
        Ok((turn, self.link(&pool.connector).await?))
    }
}

fn lane_of(key: &str, pool: usize) -> usize {
    usize::try_from(hash(key.as_bytes()) % pool as u64).unwrap_or(0)
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
    fn keys_spread_over_all_lanes() {
        let mut used = [0; 4];
        for n in 0..1000 {
            used[lane_of(&format!("key:{n}"), 4)] += 1;
        }
        assert!(used.iter().all(|&n| n > 150), "{used:?}");
    }
}
