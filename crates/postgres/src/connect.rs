//! One connection to the primary: which host, TLS, the check that our schema is there, and the
//! driver task.
//!
//! Keeping connections and opening new ones is left to `pool` and `listen`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::try_join;
use futures_util::stream::FuturesUnordered;
use holdtight_core::{ErrorKind, Finding, Guarantees, Level, LockError, spawn_lasting};
use holdtight_kit::Connection;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::config::{Layout, PostgresConfig, shown_host};
use crate::error::{Phase, from_driver, malformed};
use crate::tls;

/// The version of the schema that this program speaks.
pub(crate) const VERSION: i32 = 2;

/// How long one host may take to answer when more than the step's own timeout would allow.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a host is waited for before the next one is asked beside it: more than a connection
/// takes that works, and so little that a host that is silent costs no lock its lease.
const HEAD_START: Duration = Duration::from_millis(300);

/// Opens connections to the one host that takes writes.
pub(crate) struct Connector {
    pub(crate) config: PostgresConfig,
    tls: tls::Connect,
    hello: String,
    /// The host that was the primary last, to ask first.
    primary: Arc<AtomicUsize>,
}

/// An open connection. Requests on it are pipelined; when the last one is done and nobody has it,
/// it closes.
pub(crate) struct Link {
    pub(crate) client: Client,
    doubts: Arc<AtomicU64>,
    /// Which host of the URL it leads to, and since when.
    pub(crate) host: usize,
    pub(crate) opened: Instant,
    /// Which host is the primary, as far as any connection of the store has found.
    primary: Arc<AtomicUsize>,
}

impl Connection for Link {
    /// All pool follow the first that had to move to another host, and none waits on its own for
    /// one that is silent.
    fn is_open(&self) -> bool {
        !self.client.is_closed() && self.host == self.primary.load(Ordering::Relaxed)
    }
}

/// What arrives without being asked for: the payload of a notification.
pub(crate) type News = mpsc::UnboundedReceiver<String>;

impl Connector {
    pub(crate) fn new(config: PostgresConfig) -> Result<Self, LockError> {
        let tls = tls::connector(&config)?;
        let version = match config.layout {
            Layout::Native => format!("{}()", config.name("_version")),
            // Their tables carry no version; that they can be read is all there is to ask.
            Layout::Syncguard => format!(
                "{VERSION} + (SELECT pg_catalog.count(*) FROM (SELECT FROM {} LIMIT 0) a, (SELECT FROM {} LIMIT 0) b)::int",
                config.name(""),
                config.fences(),
            ),
        };
        let hello = format!(
            "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'), \
             {version}, pg_catalog.current_setting('fsync'), pg_catalog.current_setting('transaction_isolation'), $1::bigint"
        );
        Ok(Self { config, tls, hello, primary: Arc::default() })
    }

    /// Opens a connection for steps: to the first host that turns out to be a primary with our
    /// schema.
    pub(crate) async fn connect(&self) -> Result<Link, LockError> {
        Ok(self.open(Some(&self.hello)).await?.0)
    }

    /// Opens a connection without asking for our schema: it need not exist yet.
    pub(crate) async fn connect_bare(&self) -> Result<Link, LockError> {
        Ok(self.open(None).await?.0)
    }

    /// Opens a connection and hands out its notifications.
    pub(crate) async fn connect_listening(&self) -> Result<(Link, News), LockError> {
        self.open(Some(&self.hello)).await
    }

    async fn open(&self, hello: Option<&str>) -> Result<(Link, News), LockError> {
        let hosts = self.config.base.get_hosts();
        let primary = self.primary.load(Ordering::Relaxed);
        // The one that was good last, then the others as they are named.
        let mut order: Vec<usize> = (0..hosts.len()).collect();
        order.sort_by_key(|place| *place != primary);
        let mut next = order.into_iter();
        // Without a greeting nothing tells a primary from the rest but the order of the hosts.
        let head_start = if hello.is_some() { HEAD_START } else { CONNECT_TIMEOUT * 2 };
        let mut refusals: Vec<(usize, LockError)> = Vec::new();
        let mut attempts = FuturesUnordered::new();
        while refusals.len() < hosts.len() {
            if let Some(place) = next.next() {
                attempts.push(async move {
                    let attempt = self.open_host(place, &hosts[place], hello);
                    (place, tokio::time::timeout(CONNECT_TIMEOUT, attempt).await)
                });
            }
            let answer = if next.len() == 0 {
                attempts.next().await
            } else {
                tokio::time::timeout(head_start, attempts.next()).await.unwrap_or_default()
            };
            match answer {
                Some((place, Ok(Ok(found)))) => {
                    self.primary.store(place, Ordering::Relaxed);
                    return Ok(found);
                }
                Some((place, Ok(Err(error)))) => refusals.push((place, error)),
                Some((place, Err(_))) => refusals.push((
                    place,
                    LockError::unavailable(format!("no answer within {CONNECT_TIMEOUT:?}")),
                )),
                // Silent so far: the next host is asked beside it.
                None => {}
            }
        }
        refusals.sort_by_key(|(place, _)| *place);
        let named = refusals.into_iter().map(|(place, error)| (shown_host(&hosts[place]), error));
        Err(combine(named.collect()))
    }

    async fn open_host(
        &self,
        place: usize,
        host: &Host,
        hello: Option<&str>,
    ) -> Result<(Link, News), LockError> {
        let (client, mut connection) = self
            .single_host(place, host)
            .connect(tls::Connect::clone(&self.tls))
            .await
            .map_err(|error| from_driver(&error, Phase::Connect))?;
        let doubts = Arc::new(AtomicU64::new(0));
        let (news, heard) = mpsc::unbounded_channel();
        let seen = Arc::clone(&doubts);
        spawn_lasting(async move {
            let messages = std::future::poll_fn(|cx| {
                loop {
                    match std::task::ready!(connection.poll_message(cx)) {
                        // A warning comes before the end of the request that caused it, and is
                        // counted before that request's answer is handed out: see `Link::doubts`.
                        Some(Ok(AsyncMessage::Notice(notice))) => {
                            if *notice.code() == SqlState::WARNING {
                                seen.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        Some(Ok(AsyncMessage::Notification(note))) => {
                            let _ = news.send(note.payload().to_owned());
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            tracing::debug!(error = %from_driver(&error, Phase::Connect), "a PostgreSQL connection ended");
                            return Poll::Ready(());
                        }
                        None => return Poll::Ready(()),
                    }
                }
            });
            messages.await;
        });
        let (opened, primary) = (Instant::now(), Arc::clone(&self.primary));
        let link = Link { client, doubts, host: place, opened, primary };
        // Both leave together, in this order.
        try_join(self.settle(&link), async {
            match hello {
                Some(hello) => self.check_hello(&link, hello).await,
                None => Ok(()),
            }
        })
        .await?;
        Ok((link, heard))
    }

    /// The configuration for one of several hosts: trying them is our own affair, because the
    /// driver's idea of a primary says nothing about our schema and its errors do not name the
    /// host.
    fn single_host(&self, place: usize, host: &Host) -> tokio_postgres::Config {
        let base = &self.config.base;
        let mut one = tokio_postgres::Config::new();
        match host {
            Host::Tcp(name) => one.host(name),
            #[cfg(unix)]
            Host::Unix(path) => one.host_path(path),
        };
        if let Some(address) = base.get_hostaddrs().get(place) {
            one.hostaddr(*address);
        }
        let ports = base.get_ports();
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
        one.port(port);
        base.get_user().map(|user| one.user(user));
        let kept = || self.config.passwords.find(host, port, base).map(str::as_bytes);
        base.get_password().or_else(kept).map(|password| one.password(password));
        base.get_dbname().map(|name| one.dbname(name));
        base.get_options().map(|options| one.options(options));
        base.get_application_name().map(|name| one.application_name(name));
        base.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
        base.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
        base.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
        one.connect_timeout(base.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT))
            .keepalives(base.get_keepalives())
            .keepalives_idle(base.get_keepalives_idle())
            .channel_binding(base.get_channel_binding())
            .ssl_negotiation(base.get_ssl_negotiation())
            .ssl_mode(tls::driver_mode(self.config.tls));
        one
    }

    /// Sees to it that transactions are as we need them, whatever the role or the database says.
    async fn settle(&self, link: &Link) -> Result<(), LockError> {
        // A pooler would hand the setting to somebody else's session.
        if self.config.pooled {
            return Ok(());
        }
        let set = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";
        link.client.batch_execute(set).await.map_err(|error| from_driver(&error, Phase::Connect))
    }

    /// Refuses standbys, databases without our schema or with another version of it, and servers
    /// that forget grants.
    async fn check_hello(&self, link: &Link, hello: &str) -> Result<(), LockError> {
        let echo = fastrand::i64(..);
        let row = link
            .client
            .query_typed(hello, &[(&echo, Type::INT8)])
            .await
            .map_err(|error| from_driver(&error, Phase::Read))?
            .pop()
            .ok_or_else(|| malformed("nothing to our greeting"))?;
        if row.try_get::<_, i64>(row.len().saturating_sub(1)).ok() != Some(echo) {
            // A pooler that lost count: another connection will do.
            return Err(LockError::unavailable(
                "the answer to another request came on a new connection",
            ));
        }
        let answer: Result<(bool, &str, i32, &str, &str), tokio_postgres::Error> = (|| {
            Ok((
                row.try_get(0)?,
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ))
        })();
        let (standby, read_only, version, fsync, isolation) =
            answer.map_err(|_| malformed("something else to our greeting"))?;
        if standby || read_only != "off" {
            return Err(refusal(ErrorKind::Unavailable, no_primary()));
        }
        if version != VERSION {
            return Err(LockError::invalid_config(format!(
                "the lock tables have version {version}, this program needs {VERSION}: run `holdtight migrate` with it, or upgrade it"
            )));
        }
        if isolation != "read committed" {
            return Err(LockError::invalid_config(format!(
                "transactions are {isolation} here, and locks need read committed: say ALTER ROLE … SET \
                 default_transaction_isolation = 'read committed' for the role in the URL"
            )));
        }
        if fsync != "on" && !self.config.forgetful {
            return Err(refusal(ErrorKind::InvalidConfig, forgetful()));
        }
        Ok(())
    }
}

/// One error for all hosts. What a person must fix is shown first; otherwise any host may be back
/// soon.
fn combine(mut refusals: Vec<(String, LockError)>) -> LockError {
    if refusals.len() == 1
        && let Some((_, only)) = refusals.pop()
    {
        return only;
    }
    let gravest = refusals.iter().find(|(_, error)| !error.kind().is_transient());
    let kind = gravest.map_or(ErrorKind::Unavailable, |(_, error)| error.kind());
    let told: Vec<String> =
        refusals.iter().map(|(host, error)| format!("{host}: {error}")).collect();
    LockError::new(kind, format!("no host of the URL will do: {}", told.join("; ")))
}

impl Link {
    /// How often the server said that it gave up waiting for a standby ("canceling wait for
    /// synchronous replication"). A write during which this grows was committed here, and perhaps
    /// nowhere else.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::SeqCst)
    }
}

/// The finding about a server that does not wait for its disk.
pub(crate) fn forgetful() -> Finding {
    Finding::new(
        Level::Unsafe,
        "durability",
        "fsync is off: after a crash of its machine, locks that are held may be forgotten and granted again",
    )
    .fix("set fsync = on; until then the option durability=any accepts the risk")
}

/// The finding about a server that takes no writes.
pub(crate) fn no_primary() -> Finding {
    Finding::new(
        Level::Unsafe,
        "role",
        "this server is a standby or read-only; locks need the primary",
    )
    .fix("list all hosts in the URL")
}

/// A refusal to lock on this server, because of one finding.
pub(crate) fn refusal(kind: ErrorKind, finding: Finding) -> LockError {
    let fix = finding.fix.as_deref().unwrap_or("use another server");
    LockError::new(kind, format!("{}: {fix}", finding.found))
        .with_guarantees(Guarantees::new("PostgreSQL", vec![finding]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_refusals_the_one_that_a_person_must_fix_decides() {
        let down = || ("a".to_owned(), LockError::unavailable("refused"));
        let denied = ("b".to_owned(), LockError::auth_failed("password"));
        assert_eq!(combine(vec![down(), denied]).kind(), ErrorKind::AuthFailed);
        let all_down = combine(vec![down(), down()]);
        assert_eq!(all_down.kind(), ErrorKind::Unavailable);
        assert!(all_down.to_string().contains("a: "), "{all_down}");
    }
}
