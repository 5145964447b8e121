//! Where the store is and how it is used: from a URL, from the user's own client, or set one by
//! one.
//!
//! Only checks and defaults; connections are made elsewhere. `Debug` and errors never show a
//! password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url::{Options, UrlParts};

use crate::slots::hash_tag;
use crate::syncguard;

/// How locks are written: whom they are shared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Holdtight's own: secret, fence and owner in the value. Every `SET NX` lock respects it and
    /// is respected.
    #[default]
    Native,
    /// The value is the bare secret and keys are taken byte for byte, so that a token can be handed
    /// to a process that uses lilith, redlock, redis-py and the like, or taken over from one.
    Token,
    /// The format of the Node library `syncguard`, byte for byte.
    Syncguard,
}

/// Which servers there are and how they work together.
#[derive(Clone)]
pub(crate) enum Topology {
    /// One server, or whatever stands in front of several and looks like one.
    Server(redis::ConnectionAddr),
    /// Sentinels that know which server is the primary of `service` now.
    Sentinel { sentinels: Vec<redis::ConnectionAddr>, service: String },
    /// Some nodes of a Redis Cluster.
    Cluster(Vec<redis::ConnectionAddr>),
}

/// A user and a password.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// All settings of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use holdtight_redis::{Layout, RedisConfig};
/// let config = RedisConfig::from_url("redis://127.0.0.1:6379/2?prefix=shop:&timeout=500ms")?;
/// assert!(RedisConfig::from_url("redis://127.0.0.1?colour=red").is_err());
/// let config = config.layout(Layout::Token)?;
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings, not states")]
pub struct RedisConfig {
    pub(crate) topology: Topology,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) database: i64,
    pub(crate) tls: bool,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    prefix: Option<String>,
    pub(crate) layout: Layout,
    pub(crate) wait_replicas: u32,
    pub(crate) wait_aof: bool,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) pubsub: bool,
    pub(crate) allow_eviction: bool,
}

const PREFIX_BYTES: usize = 256;

/// More databases than any server is set up with.
const MOST_DATABASES: i64 = 1 << 20;

/// What errors call this store.
const STORE: &str = "Redis";

impl RedisConfig {
    fn new(topology: Topology) -> Self {
        Self {
            topology,
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            database: 0,
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            prefix: None,
            layout: Layout::Native,
            wait_replicas: 0,
            wait_aof: false,
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            pubsub: true,
            allow_eviction: false,
        }
    }

    /// Reads a URL: `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`,
    /// `redis+cluster://`, or the same with `valkey`.
    ///
    /// Options are those of the methods here, as `?name=value&…`. An unknown one is an error: a
    /// typing mistake in the name of a safety option must not pass in silence.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), saying which part is wrong,
    /// never repeating the user or the password.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let parts = UrlParts::parse(STORE, url, "redis://127.0.0.1:6379")?;
        let scheme = parts.scheme.replacen("valkey", "redis", 1);
        let mut database = None;
        let mut config = match scheme.as_str() {
            "redis" | "rediss" => {
                let [(host, port)] = parts.hosts.as_slice() else {
                    return Err(invalid(
                        "one server is needed; for several use redis+sentinel:// or redis+cluster://",
                    ));
                };
                database = Some(parts.path.as_str()).filter(|path| !path.is_empty());
                let mut config = Self::new(Topology::Server(tcp(host, port.unwrap_or(6379))));
                config.tls = scheme == "rediss";
                config
            }
            "unix" | "redis+unix" => {
                if !parts.hosts.is_empty() || parts.path.is_empty() {
                    return Err(invalid("a Unix socket is written redis+unix:///path/to/socket"));
                }
                let path = PathBuf::from(format!("/{}", parts.path));
                Self::new(Topology::Server(redis::ConnectionAddr::Unix(path)))
            }
            "redis+sentinel" | "rediss+sentinel" => {
                let (service, rest) = parts.path.split_once('/').unwrap_or((&parts.path, ""));
                database = Some(rest).filter(|rest| !rest.is_empty());
                if parts.hosts.is_empty() || service.is_empty() {
                    return Err(invalid(
                        "sentinels are written redis+sentinel://host:26379,host:26379/SERVICE",
                    ));
                }
                let sentinels = addresses(&parts.hosts, 26379);
                let mut config =
                    Self::new(Topology::Sentinel { sentinels, service: service.to_owned() });
                config.tls = scheme.starts_with("rediss");
                config
            }
            "redis+cluster" | "rediss+cluster" => {
                if parts.hosts.is_empty() || !parts.path.is_empty() {
                    return Err(invalid(
                        "a cluster is written redis+cluster://host:6379,host:6379, without a database",
                    ));
                }
                let mut config = Self::new(Topology::Cluster(addresses(&parts.hosts, 6379)));
                config.tls = scheme.starts_with("rediss");
                config
            }
            _ => {
                return Err(invalid(
                    "the scheme is none of redis, rediss, redis+unix, redis+sentinel, redis+cluster",
                ));
            }
        };
        config.credentials = Credentials { user: parts.user, password: parts.password };
        if let Some(database) = database {
            config.database =
                database.parse().map_err(|_| invalid("the database is not a number from 0"))?;
        }
        config.take(parts.options, database.is_some())?;
        if config.tls_cert.is_some() != config.tls_key.is_some() {
            return Err(invalid("tls_cert and tls_key belong together; name both files"));
        }
        config.check()
    }

    /// Uses the address, credentials and database of the user's own client.
    ///
    /// Connections of our own are opened from it, because wake-ups need the RESP3 protocol and a
    /// response timeout.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if the client's address cannot
    /// be used here.
    pub fn from_client(client: &redis::Client) -> Result<Self, LockError> {
        let info = client.get_connection_info();
        let mut config = Self::new(Topology::Server(info.addr().clone()));
        let settings = info.redis_settings();
        config.credentials = Credentials {
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
        };
        config.database = settings.db();
        config.check()
    }

    /// Takes what the URL says; whether it makes sense together is checked afterwards.
    fn take(&mut self, mut options: Options, has_database: bool) -> Result<(), LockError> {
        self.prefix = options.text("prefix")?;
        let layouts = [
            ("native", Layout::Native),
            ("token", Layout::Token),
            ("syncguard", Layout::Syncguard),
        ];
        self.layout = options.choice("layout", &layouts)?.unwrap_or_default();
        self.wait_replicas = options.integer("wait_replicas", 0..=u32::MAX)?.unwrap_or(0);
        self.wait_aof = options.flag("wait_aof")?.unwrap_or(self.wait_aof);
        self.timeout = options.duration("timeout")?.unwrap_or(self.timeout);
        self.connect_timeout = options.duration("connect_timeout")?.unwrap_or(self.connect_timeout);
        self.pubsub = options.flag("pubsub")?.unwrap_or(self.pubsub);
        let evictions = [("allow", true), ("refuse", false)];
        self.allow_eviction = options.choice("eviction", &evictions)?.unwrap_or(false);
        if let Some(database) = options.integer("db", 0..=MOST_DATABASES)? {
            if has_database {
                return Err(invalid("the database is given twice; leave one of them out"));
            }
            self.database = database;
        }
        self.tls_ca = options.path("tls_ca")?;
        self.tls_cert = options.path("tls_cert")?;
        self.tls_key = options.path("tls_key")?;
        self.sentinel_credentials.user = options.text("sentinel_user")?;
        self.sentinel_credentials.password = options.text("sentinel_password")?;
        options.finish()
    }

    /// What stands before every key: the lock's name in Redis is exactly `prefix + key`.
    ///
    /// The default is `holdtight:` in the native layout, nothing in `token`, `syncguard` in
    /// `syncguard`. Everybody who shares a lock must split its name in the same place: the fence
    /// counter belongs to the prefix.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is too long, has control
    /// characters, or clashes with the layout.
    pub fn prefix(self, prefix: impl Into<String>) -> Result<Self, LockError> {
        Self { prefix: Some(prefix.into()), ..self }.check()
    }

    /// How locks are written.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if the prefix clashes with the
    /// layout.
    pub fn layout(self, layout: Layout) -> Result<Self, LockError> {
        Self { layout, ..self }.check()
    }

    /// How many replicas must have a grant or an extension before it counts; none by default.
    pub fn wait_replicas(self, replicas: u32) -> Self {
        Self { wait_replicas: replicas, ..self }
    }

    /// Whether a grant or an extension counts only when the server has it in its append-only file
    /// on disk. Off by default. Needs `WAITAOF`, which Redis 7.2 and Valkey have, and `appendonly
    /// yes`.
    pub fn wait_aof(self, wait_aof: bool) -> Self {
        Self { wait_aof, ..self }
    }

    /// Whether a step counts only when more than the server's memory has it.
    pub(crate) fn waits(&self) -> bool {
        self.wait_replicas > 0 || self.wait_aof
    }

    /// How long one request may take before its outcome counts as unknown; 2 s by default.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 1 ms to 60 s.
    pub fn timeout(self, timeout: Duration) -> Result<Self, LockError> {
        Self { timeout, ..self }.check()
    }

    /// How long opening a connection may take; 2 s by default.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 1 ms to 60 s.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Result<Self, LockError> {
        Self { connect_timeout, ..self }.check()
    }

    /// Whether waiters are woken by a message; without, they ask again by their timers. On by
    /// default.
    pub fn pubsub(self, pubsub: bool) -> Self {
        Self { pubsub, ..self }
    }

    /// Accepts a server that may throw locks away when memory runs short. Refused by default.
    pub fn allow_eviction(self, allow_eviction: bool) -> Self {
        Self { allow_eviction, ..self }
    }

    pub(crate) fn effective_prefix(&self) -> &str {
        match (&self.prefix, self.layout) {
            (Some(prefix), _) => prefix,
            (None, Layout::Native) => "holdtight:",
            (None, Layout::Token) => "",
            (None, Layout::Syncguard) => "syncguard",
        }
    }

    fn check(self) -> Result<Self, LockError> {
        let prefix = self.effective_prefix();
        let most = match self.layout {
            Layout::Syncguard => syncguard::PREFIX_BYTES,
            _ => PREFIX_BYTES,
        };
        if prefix.len() > most {
            return Err(invalid(&format!("the prefix is longer than {most} bytes")));
        }
        if prefix.chars().any(char::is_control) {
            return Err(invalid("the prefix has a control character"));
        }
        if self.layout == Layout::Syncguard
            && (prefix.contains("fence:") || prefix.ends_with("fence"))
        {
            return Err(invalid(
                "in the syncguard layout a prefix must not contain \"fence:\" or end with \"fence\"",
            ));
        }
        for (name, span) in [("timeout", self.timeout), ("connect_timeout", self.connect_timeout)] {
            if span < Duration::from_millis(1) || span > Duration::from_secs(60) {
                return Err(invalid(&format!("{name} is outside 1ms to 60s")));
            }
        }
        if !(0..=MOST_DATABASES).contains(&self.database) {
            return Err(invalid("the database is not a number from 0"));
        }
        if let Topology::Cluster(_) = self.topology {
            if self.database != 0 {
                return Err(invalid("a cluster has only database 0"));
            }
            let brace = prefix.find('{').map(|at| &prefix[at + 1..]);
            if self.layout == Layout::Syncguard && hash_tag(prefix).is_none() {
                return Err(invalid(
                    "on a cluster the syncguard layout needs a prefix with a hash tag, like {syncguard}, on both sides",
                ));
            }
            if brace.is_some_and(|rest| rest.find('}').is_none_or(|end| end == 0)) {
                return Err(invalid(
                    "on a cluster a '{' in the prefix needs a hash tag and a '}' after it",
                ));
            }
        }
        if !self.tls && (self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_key.is_some())
        {
            return Err(invalid(
                "tls_ca, tls_cert and tls_key need TLS; write rediss:// instead of redis://",
            ));
        }
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(invalid("this program was built without TLS; enable the feature `tls`"));
        }
        Ok(self)
    }
}

fn invalid(message: &str) -> LockError {
    LockError::invalid_config(format!("{STORE}: {message}"))
}

fn tcp(host: &str, port: u16) -> redis::ConnectionAddr {
    redis::ConnectionAddr::Tcp(host.to_owned(), port)
}

fn addresses(hosts: &[(String, Option<u16>)], default: u16) -> Vec<redis::ConnectionAddr> {
    hosts.iter().map(|(host, port)| tcp(host, port.unwrap_or(default))).collect()
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("servers", &self.topology)
            .field("database", &self.database)
            .field("tls", &self.tls)
            .field("prefix", &self.effective_prefix())
            .field("layout", &self.layout)
            .field("wait_replicas", &self.wait_replicas)
            .field("wait_aof", &self.wait_aof)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("pubsub", &self.pubsub)
            .field("allow_eviction", &self.allow_eviction)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[redis::ConnectionAddr]| {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Server(address) => write!(f, "{address}"),
            Self::Sentinel { sentinels, service } => {
                write!(f, "{service} by sentinels {}", list(sentinels))
            }
            Self::Cluster(nodes) => write!(f, "cluster {}", list(nodes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> RedisConfig {
        RedisConfig::from_url(url).unwrap()
    }

    #[test]
    fn urls_of_every_kind_are_understood() {
        let config = read("redis://localhost");
        assert_eq!(format!("{:?}", config.topology), "localhost:6379");
        assert_eq!((config.effective_prefix(), config.tls), ("holdtight:", false));

        let config = read("rediss://ann:pw@h:7000/3?prefix=&timeout=250ms&connect_timeout=5");
        assert_eq!(config.credentials.password.as_deref(), Some("pw"));
        assert_eq!((config.database, config.tls, config.effective_prefix()), (3, true, ""));
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.connect_timeout, Duration::from_secs(5));

        let config = read("redis+unix:///run/redis.sock?db=2");
        assert_eq!(
            (format!("{:?}", config.topology).as_str(), config.database),
            ("/run/redis.sock", 2)
        );

        let config = read("valkey+sentinel://:pw@a,b:26380/mymaster/1?sentinel_password=s");
        assert_eq!(format!("{:?}", config.topology), "mymaster by sentinels a:26379,b:26380");
        assert_eq!(
            (config.database, config.sentinel_credentials.password.as_deref()),
            (1, Some("s"))
        );

        let config =
            read("redis+cluster://a,b:7001?layout=token&wait_replicas=2&pubsub=off&eviction=allow");
        assert_eq!(format!("{:?}", config.topology), "cluster a:6379,b:7001");
        assert_eq!((config.layout, config.wait_replicas), (Layout::Token, 2));
        assert!(!config.pubsub && config.allow_eviction);
        let config = read("rediss://h?tls_ca=/ca&tls_cert=/c&prefix=p&tls_key=/k&wait_aof=1");
        assert!(config.wait_aof && config.tls_cert.is_some() && config.tls_key.is_some());
        assert_eq!(read("redis://h?layout=syncguard").effective_prefix(), "syncguard");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for url in [
            "http://h",
            "redis://a,b",
            "redis://",
            "redis://h/x",
            "redis://h/-1",
            "redis://h?colour=red",
            "redis://h?layout=x",
            "redis://h?timeout=0",
            "redis://h?timeout=2h",
            "redis://h?wait_replicas=-1",
            "redis://h?pubsub=maybe",
            "redis://h?prefix=a%00b",
            "redis://h?layout=syncguard&prefix=my-fence",
            "redis+sentinel://h",
            "redis+cluster://h/1",
            "redis+cluster://h?layout=syncguard",
            "redis+cluster://h?prefix=a{b",
            "redis+cluster://h?prefix=a{}b",
            "redis+unix://h/sock",
            "redis://h?tls_ca=/ca.pem",
            "redis+unix:///sock?tls_ca=/ca.pem",
            "redis+sentinel://h/svc?tls_cert=/c.pem&tls_key=/k.pem",
            "redis+cluster://h?tls_ca=/ca.pem",
            "rediss://h?tls_cert=/c.pem",
            "rediss://h?tls_key=/k.pem",
            "redis://h?timeout=1s&timeout=3s",
            "redis://h/1?db=2",
            "redis://h?db=1&db=1",
            "redis://h?wait_aof=2",
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), holdtight_core::ErrorKind::InvalidConfig, "{url}: {error}");
        }
    }

    #[test]
    fn passwords_show_nowhere() {
        let config = read("redis+sentinel://ann:hunter2@h/svc?sentinel_password=hunter3");
        assert!(!format!("{config:?}").contains("hunter"));
        for url in ["redis://:hunter2@h?hunter2", "redis://:hunter2@h?x=hunter2", "hunter2://h"] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
    }
}
