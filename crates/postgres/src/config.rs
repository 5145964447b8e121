//! Where the database is and how to treat it: the URL, its options, and the names of our tables.
//!
//! Everything is checked here, before anything is sent. Opening connections is left to `connect`,
//! and what stands in the environment instead of the URL to `environment`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url;
use tokio_postgres::config::{Host, SslMode};

use crate::environment::{self, Lookup, PasswordFile};

/// Which tables are used, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own tables and functions, made by [`migrate`](crate::migrate).
    #[default]
    Native,
    /// The tables of the Node package `syncguard`, shared with programs that use it.
    Syncguard,
}

/// How the connection is protected, by the names that `libpq` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMode {
    /// Plain text.
    Disable,
    /// TLS if the server offers it, unverified. Stops no attacker.
    Prefer,
    /// TLS, but any certificate will do.
    Require,
    /// TLS with a certificate of a trusted authority, whatever host it names.
    VerifyCa,
    /// TLS with a certificate of a trusted authority for this very host.
    VerifyFull,
}

impl TlsMode {
    const NAMES: [(&str, Self); 5] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

/// How to reach a PostgreSQL store.
///
/// ```
/// use holdtight_postgres::{PostgresConfig, TlsMode};
/// let config = PostgresConfig::from_url("postgres://app:pw@db1,db2/app?schema=locks&listen=off")?;
/// assert_eq!(config.tls_mode(), TlsMode::VerifyFull);  // hosts that are not this machine
/// assert!(!format!("{config:?}").contains("pw"));
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) base: tokio_postgres::Config,
    pub(crate) passwords: PasswordFile,
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) fence_table: String,
    pub(crate) layout: Layout,
    pub(crate) listen: bool,
    pub(crate) pooled: bool,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
    /// Whether a server that does not wait for its disk will do.
    pub(crate) forgetful: bool,
    pub(crate) tls: TlsMode,
    pub(crate) root_cert: Option<PathBuf>,
    pub(crate) client_cert: Option<(PathBuf, PathBuf)>,
}

impl PostgresConfig {
    /// Reads a URL: `postgres://user:password@host:port,host2:port2/database?option=value`.
    ///
    /// Options of ours: `schema` (`holdtight`), `table` (`locks`), `layout` (`native`,
    /// `syncguard`), `fence_table` (syncguard only), `listen` (`on`, `off`), `pooler` (`none`,
    /// `transaction`), `connections` (4), `timeout` (per step, `5s`), `durability` (`require`,
    /// `any`), `sslmode`, `sslrootcert`, `sslcert`, `sslkey` (also `tls_ca`, `tls_cert`,
    /// `tls_key`), `passfile`. Others, such as `application_name` or `keepalives_idle`, go to the
    /// driver.
    ///
    /// What the URL leaves open is taken from where `libpq` programs take it: `PGHOST`, `PGPORT`,
    /// `PGUSER`, `PGDATABASE`, `PGPASSWORD`, `PGPASSFILE` or `~/.pgpass`, `PGSSLMODE`,
    /// `PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY`, `PGOPTIONS`, `PGAPPNAME`, `PGCONNECT_TIMEOUT`.
    ///
    /// Without `sslmode`, hosts other than this machine must show a valid certificate
    /// (`verify-full`).
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option. The URL is
    /// not repeated.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        Self::read(url, &environment::process)
    }

    /// Takes hosts, user, password and the like from a configuration of the driver, and our own
    /// options from `options`, written as in a URL: `"schema=locks&listen=off"`. The environment is
    /// not asked.
    ///
    /// For programs that already have such a configuration, or a password that must not stand in a
    /// text. TLS is ours to do: give `sslmode` and files in `options`. Without, the driver's
    /// `Disable` and `Require` count, and hosts other than this machine must show a valid
    /// certificate unless it is `Disable`.
    ///
    /// ```
    /// use holdtight_postgres::PostgresConfig;
    /// let mut driver = tokio_postgres::Config::new();
    /// driver.host("db.example").user("app").password("pw").dbname("app");
    /// let config = PostgresConfig::from_driver(driver, "schema=locks&connections=2")?;
    /// # let _ = config;
    /// # Ok::<(), holdtight_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option.
    pub fn from_driver(base: tokio_postgres::Config, options: &str) -> Result<Self, LockError> {
        let mut options = url::Options::parse(STORE, options)?;
        let mut ours = Options::take(&mut options)?;
        options.finish()?;
        if ours.tls.is_none() {
            ours.tls = match (base.get_ssl_mode(), default_tls(&base)) {
                (SslMode::Disable, _) => Some(TlsMode::Disable),
                (SslMode::Require, TlsMode::Disable) => Some(TlsMode::Require),
                (_, default) => Some(default),
            };
        }
        ours.finish(base, &|_| None)
    }

    fn read(url: &str, var: Lookup<'_>) -> Result<Self, LockError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        if !address.starts_with("postgres://") && !address.starts_with("postgresql://") {
            return Err(LockError::invalid_config(
                "a PostgreSQL URL begins with postgres:// or postgresql://",
            ));
        }
        let mut options = url::Options::parse(STORE, query)?;
        let mut ours = Options::take(&mut options)?;
        let theirs = options.pass_on(&DRIVER, &DRIVER_REPEATED)?;
        options.finish()?;
        let mut address = environment::with_ports(address, var);
        if !theirs.is_empty() {
            address = format!("{address}?{theirs}");
        }
        let mut base: tokio_postgres::Config = address.parse().map_err(|error: tokio_postgres::Error| {
            // The driver names the option, never a value.
            let cause = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            LockError::invalid_config(format!(
                "the PostgreSQL URL cannot be read{cause}; it looks like postgres://user:password@host:5432/database"
            ))
        })?;
        environment::fill(&mut base, var)?;
        ours.fill(var)?;
        ours.finish(base, var)
    }

    /// How the connection is protected.
    pub fn tls_mode(&self) -> TlsMode {
        self.tls
    }

    /// Which layout is used.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// `"schema"."table` + `suffix` + `"`, safe to put into a statement: names were checked when
    /// they were read.
    pub(crate) fn name(&self, suffix: &str) -> String {
        format!("\"{}\".\"{}{suffix}\"", self.schema, self.table)
    }

    /// Whether all hosts are this machine.
    pub(crate) fn is_local(&self) -> bool {
        default_tls(&self.base) == TlsMode::Disable
    }

    /// The table of fence counters of the syncguard layout.
    pub(crate) fn fences(&self) -> String {
        format!("\"{}\".\"{}\"", self.schema, self.fence_table)
    }

    /// The database as people may see it: hosts, no user, no password.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<String> = self.base.get_hosts().iter().map(shown_host).collect();
        let database = self.base.get_dbname().unwrap_or("(default database)");
        format!("{}/{database}", hosts.join(","))
    }
}

pub(crate) fn shown_host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

/// What errors call this store.
const STORE: &str = "PostgreSQL";

/// The options of the URL that the driver reads.
const DRIVER: [&str; 14] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];

/// Of these the driver makes a list.
const DRIVER_REPEATED: [&str; 3] = ["host", "hostaddr", "port"];

/// Our own options on their way from the URL.
#[derive(Default)]
struct Options {
    schema: Option<String>,
    table: Option<String>,
    fence_table: Option<String>,
    layout: Layout,
    listen: Option<bool>,
    pooled: bool,
    connections: Option<usize>,
    timeout: Option<Duration>,
    forgetful: bool,
    passfile: Option<PathBuf>,
    tls: Option<TlsMode>,
    root_cert: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
}

impl Options {
    /// Takes what is ours.
    fn take(options: &mut url::Options) -> Result<Self, LockError> {
        let layouts = [("native", Layout::Native), ("syncguard", Layout::Syncguard)];
        let poolers = [("none", false), ("session", false), ("transaction", true)];
        options.alias("tls_ca", "sslrootcert");
        options.alias("tls_cert", "sslcert");
        options.alias("tls_key", "sslkey");
        let ours = Self {
            // Which names are good depends on the layout.
            schema: options.text("schema")?,
            table: options.text("table")?,
            fence_table: options.text("fence_table")?,
            layout: options.choice("layout", &layouts)?.unwrap_or_default(),
            listen: options.flag("listen")?,
            pooled: options.choice("pooler", &poolers)?.unwrap_or(false),
            connections: options.integer("connections", 1..=64)?,
            timeout: options.duration("timeout")?,
            forgetful: options
                .choice("durability", &[("require", false), ("any", true)])?
                .unwrap_or(false),
            passfile: options.path("passfile")?,
            tls: options.choice("sslmode", &TlsMode::NAMES)?,
            root_cert: options.path("sslrootcert")?,
            client_cert: options.path("sslcert")?,
            client_key: options.path("sslkey")?,
        };
        let range = Duration::from_millis(50)..=Duration::from_secs(300);
        if ours.timeout.is_some_and(|timeout| !range.contains(&timeout)) {
            return Err(options.must_be("timeout", "from 50ms to 300s"));
        }
        // The only value that makes sense, for URLs that are shared with other programs.
        if options.text("target_session_attrs")?.is_some_and(|value| value != "read-write") {
            return Err(options.must_be(
                "target_session_attrs",
                "read-write, which is also the default: locks need the primary",
            ));
        }
        Ok(ours)
    }

    /// Takes from the environment what the URL did not say.
    fn fill(&mut self, var: Lookup<'_>) -> Result<(), LockError> {
        if self.tls.is_none()
            && let Some(mode) = var("PGSSLMODE")
        {
            let known = TlsMode::NAMES.iter().find(|(name, _)| *name == mode);
            let (_, mode) = known.ok_or_else(|| {
                environment::bad("PGSSLMODE", "one of the values that sslmode has in a URL")
            })?;
            self.tls = Some(*mode);
        }
        let file = |name| var(name).map(PathBuf::from);
        self.root_cert = self.root_cert.take().or_else(|| file("PGSSLROOTCERT"));
        if self.client_cert.is_none() && self.client_key.is_none() {
            (self.client_cert, self.client_key) = (file("PGSSLCERT"), file("PGSSLKEY"));
        }
        Ok(())
    }

    fn finish(
        self,
        mut base: tokio_postgres::Config,
        var: Lookup<'_>,
    ) -> Result<PostgresConfig, LockError> {
        if base.get_hosts().is_empty() {
            return Err(LockError::invalid_config(
                "no host of PostgreSQL is named, neither by the URL nor by PGHOST",
            ));
        }
        if base.get_application_name().is_none() {
            base.application_name("holdtight");
        }
        if base.get_tcp_user_timeout().is_none() {
            // A silent network would otherwise keep a dead connection for a quarter of an hour.
            base.tcp_user_timeout(Duration::from_secs(10));
        }
        if base.get_keepalives_idle() >= Duration::from_secs(7200) {
            // The driver's default: so long would a listener believe in a connection that a
            // firewall has forgotten.
            base.keepalives_idle(Duration::from_secs(30));
        }
        let syncguard = self.layout == Layout::Syncguard;
        let named = |name: Option<String>, native: &str, theirs: &str| {
            name.unwrap_or_else(|| if syncguard { theirs } else { native }.to_owned())
        };
        let client_cert = match (self.client_cert, self.client_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err(LockError::invalid_config("sslcert and sslkey belong together")),
        };
        let options =
            [("schema", &self.schema), ("table", &self.table), ("fence_table", &self.fence_table)];
        for (option, given) in options {
            given.as_ref().map_or(Ok(()), |name| identifier(option, name, self.layout))?;
        }
        let table = named(self.table, "locks", "syncguard_locks");
        let fence_table = named(self.fence_table, "", "syncguard_fence_counters");
        if syncguard && table == fence_table {
            return Err(LockError::invalid_config("table and fence_table must differ"));
        }
        // Whoever names certificates does not mean plain text, not even on this machine.
        let certificates = self.root_cert.is_some() || client_cert.is_some();
        let tls = self.tls.unwrap_or_else(|| match default_tls(&base) {
            TlsMode::Disable if certificates => TlsMode::Prefer,
            mode => mode,
        });
        let tls = match tls {
            // As in libpq: whoever names an authority wants it asked.
            TlsMode::Require if self.root_cert.is_some() => TlsMode::VerifyCa,
            mode => mode,
        };
        Ok(PostgresConfig {
            tls,
            schema: named(self.schema, "holdtight", "public"),
            table,
            fence_table,
            layout: self.layout,
            listen: self.listen.unwrap_or(!self.pooled) && !syncguard,
            pooled: self.pooled,
            connections: self.connections.unwrap_or(4),
            timeout: self.timeout.unwrap_or(Duration::from_secs(5)),
            forgetful: self.forgetful,
            // libpq's word for the authorities that this machine trusts.
            root_cert: self.root_cert.filter(|path| path.as_os_str() != "system"),
            passwords: match base.get_password() {
                Some(_) => PasswordFile::default(),
                None => PasswordFile::read(self.passfile, var),
            },
            client_cert,
            base,
        })
    }
}

/// Only traffic that never leaves the machine may be plain without being asked for.
fn default_tls(base: &tokio_postgres::Config) -> TlsMode {
    let local = |host: &Host| match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    };
    if base.get_hosts().iter().all(local) { TlsMode::Disable } else { TlsMode::VerifyFull }
}

/// A name for SQL, of ASCII letters, digits and `_`. Ours are so plain that they mean the same
/// quoted and unquoted, with room for suffixes in 63 bytes. The Node package takes capitals too,
/// and of names above 57 bytes it would make only one of two indexes: cut to 63, both have the same
/// name.
fn identifier(option: &str, name: &str, layout: Layout) -> Result<(), LockError> {
    let (most, allowed) = match layout {
        Layout::Native => (40, "a-z, 0-9 and _"),
        Layout::Syncguard => (57, "A-Z, a-z, 0-9 and _"),
    };
    let plain = |byte: u8| {
        byte.is_ascii_lowercase()
            || byte == b'_'
            || layout == Layout::Syncguard && byte.is_ascii_uppercase()
    };
    let valid = name.len() <= most
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || byte.is_ascii_digit());
    if valid {
        return Ok(());
    }
    Err(LockError::invalid_config(format!(
        "{option} in the PostgreSQL URL must be 1 to {most} of {allowed}, and not begin with a digit"
    )))
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("database", &self.shown())
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("layout", &self.layout)
            .field("listen", &self.listen)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use holdtight_core::ErrorKind;

    use super::*;

    fn refusal(url: &str) -> String {
        let error = PostgresConfig::read(url, &|_| None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        error.to_string()
    }

    #[test]
    fn names_that_could_leave_their_quotes_or_their_length_are_refused() {
        for bad in ["a%22b", "A", "1a", "", "a.b", "a;drop", "a%00", "%C3%A9", &"x".repeat(41)] {
            let text = refusal(&format!("postgres://h/d?table={bad}"));
            assert!(text.contains("table"), "{text}");
            refusal(&format!("postgres://h/d?schema={bad}"));
        }
        for bad in ["a%22b", "1a", "", "a.b", "a;drop", "a%00", "%C3%A9", &"x".repeat(58)] {
            for option in ["table", "fence_table"] {
                let text = refusal(&format!("postgres://h/d?layout=syncguard&{option}={bad}"));
                assert!(text.contains(option), "{text}");
            }
        }
        let theirs = format!("postgres://h/d?table=Locks_{}&layout=syncguard", "x".repeat(51));
        assert!(PostgresConfig::from_url(&theirs).unwrap().name("").contains(".\"Locks_xx"));
        let config = PostgresConfig::from_url("postgres://h/d?schema=a_1&table=_b").unwrap();
        assert_eq!(config.name("_acquire"), "\"a_1\".\"_b_acquire\"");
    }

    #[test]
    fn hosts_that_are_not_this_machine_must_show_a_certificate_unless_the_url_says_otherwise() {
        let mode = |url: &str| PostgresConfig::from_url(url).unwrap().tls;
        assert_eq!(mode("postgres://localhost/d"), TlsMode::Disable);
        assert_eq!(mode("postgres://127.0.0.1:5433/d"), TlsMode::Disable);
        assert_eq!(mode("postgres://%2Frun%2Fpg/d"), TlsMode::Disable);
        assert_eq!(mode("postgres://127.0.0.1,db.example/d"), TlsMode::VerifyFull);
        assert_eq!(mode("postgres://db.example/d"), TlsMode::VerifyFull);
        assert_eq!(mode("postgres://db.example/d?sslmode=require"), TlsMode::Require);
        assert!(refusal("postgres://h/d?sslmode=maybe").contains("verify-full"));
        assert!(refusal("postgres://h/d?sslcert=x").contains("sslkey"));
    }

    #[test]
    fn passwords_do_not_show_in_debug_or_errors() {
        let url = "postgres://ann:s3cret@h/d?table=locks";
        let config = PostgresConfig::from_url(url).unwrap();
        assert!(!format!("{config:?} {}", config.shown()).contains("s3cret"));
        let text = refusal("postgres://ann:s3cret@h/d?nonsense=s3cret");
        assert!(text.contains("nonsense") && !text.contains("s3cret"), "{text}");
        assert!(!refusal("postgres://ann:s3cret@h:port/d").contains("s3cret"));
    }

    #[test]
    fn options_of_the_driver_pass_and_ours_are_bounded() {
        let config = PostgresConfig::from_url(
            "postgres://h,h2:5433/d?application_name=a%20b&timeout=0.5&connections=2&listen=off",
        )
        .unwrap();
        assert_eq!(config.base.get_application_name(), Some("a b"));
        assert_eq!((config.timeout, config.connections), (Duration::from_millis(500), 2));
        assert!(!config.listen);
        assert_eq!(config.base.get_hosts().len(), 2);
        for bad in [
            "timeout=0",
            "timeout=NaN",
            "connections=0",
            "connections=x",
            "listen=maybe",
            "layout=other",
            "timeout=1&timeout=2",
            "application_name=a&timeout=1&application_name=b",
        ] {
            refusal(&format!("postgres://h/d?{bad}"));
        }
        assert!(refusal("postgres://h/d?target_session_attrs=any").contains("primary"));
        refusal("redis://h");
        refusal("postgres:///d");
    }
    #[test]
    fn variables_of_libpq_fill_what_the_url_leaves_open_and_are_checked() {
        let with = |url: &str, mode: &'static str| {
            PostgresConfig::read(url, &move |name| match name {
                "PGSSLMODE" => Some(mode.to_owned()),
                "PGPASSWORD" => Some("s3cret".to_owned()),
                "PGSSLROOTCERT" => Some("system".to_owned()),
                _ => None,
            })
        };
        let config = with("postgres://ann@db.example/d", "verify-ca").unwrap();
        assert_eq!((config.tls, config.root_cert.as_deref()), (TlsMode::VerifyCa, None));
        assert_eq!(config.base.get_password(), Some(&b"s3cret"[..]));
        assert!(!format!("{config:?}").contains("s3cret"));
        let config = with("postgres://ann:own@db.example/d?sslmode=require", "verify-ca").unwrap();
        assert_eq!(config.tls, TlsMode::VerifyCa);
        assert_eq!(config.base.get_password(), Some(&b"own"[..]));
        let error = with("postgres://ann@db.example/d", "s3cret").unwrap_err().to_string();
        assert!(error.contains("PGSSLMODE") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn a_configuration_of_the_driver_is_taken_with_options_of_ours() {
        let driver = |mode: SslMode, host: &str| {
            let mut driver = tokio_postgres::Config::new();
            driver.host(host).user("ann").password("s3cret").ssl_mode(mode);
            driver
        };
        let tls = |mode, host| PostgresConfig::from_driver(driver(mode, host), "").unwrap().tls;
        assert_eq!(tls(SslMode::Prefer, "db.example"), TlsMode::VerifyFull);
        assert_eq!(tls(SslMode::Require, "db.example"), TlsMode::VerifyFull);
        assert_eq!(tls(SslMode::Require, "localhost"), TlsMode::Require);
        assert_eq!(tls(SslMode::Disable, "db.example"), TlsMode::Disable);
        let driver = || driver(SslMode::Prefer, "h");
        let config = PostgresConfig::from_driver(driver(), "schema=s&durability=any").unwrap();
        assert_eq!((config.schema.as_str(), config.forgetful), ("s", true));
        assert!(!format!("{config:?}").contains("s3cret"));
        for bad in ["port=s3cret", "schema=s3.cret"] {
            let error = PostgresConfig::from_driver(driver(), bad).unwrap_err().to_string();
            assert!(!error.contains("cret"), "{error}");
        }
    }
}
