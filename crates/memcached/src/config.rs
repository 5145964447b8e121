//! Where the server is and how it is used: from a URL, or set one by one. Only checks and defaults.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url::UrlParts;

use crate::names::Names;

const DEFAULT_PORT: u16 = 11211;
const DEFAULT_PREFIX: &str = "holdtight:";

/// Where the server listens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => {
                write!(f, "memcached at [{host}]:{port}")
            }
            Self::Tcp(host, port) => write!(f, "memcached at {host}:{port}"),
            Self::Unix(path) => write!(f, "memcached at {}", path.display()),
        }
    }
}

/// All settings of a [`MemcachedStore`](crate::MemcachedStore).
///
/// There is one server: spreading keys over several would hand a lock out twice whenever the list
/// changes.
///
/// ```
/// use std::time::Duration;
/// use holdtight_memcached::MemcachedConfig;
/// let config = MemcachedConfig::from_url("memcached://[::1]:11211?prefix=shop:&timeout=500ms")?;
/// let config = config.timeout(Duration::from_secs(1))?;
/// assert!(MemcachedConfig::from_url("memcached://127.0.0.1?colour=red").is_err());
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone)]
pub struct MemcachedConfig {
    pub(crate) address: Address,
    pub(crate) names: Names,
    prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) refuse_eviction: bool,
}

impl MemcachedConfig {
    /// The server at `host` and `port`.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a host that cannot be one.
    pub fn tcp(host: &str, port: u16) -> Result<Self, LockError> {
        let strange = |c: char| c.is_whitespace() || c.is_control() || "/@[]".contains(c);
        if host.is_empty() || port == 0 || host.contains(strange) {
            return Err(invalid("a server is written host:port; IPv6 addresses in brackets"));
        }
        Self::at(Address::Tcp(host.to_owned(), port))
    }

    /// The server that listens on a Unix socket (`memcached -s`).
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for an empty path, and where
    /// there are no Unix sockets.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self, LockError> {
        let path = path.into();
        if path.as_os_str().is_empty() || cfg!(not(unix)) {
            return Err(invalid("a Unix socket is written memcached+unix:///path/to/socket"));
        }
        Self::at(Address::Unix(path))
    }

    fn at(address: Address) -> Result<Self, LockError> {
        Ok(Self {
            address,
            names: Names::new(DEFAULT_PREFIX)?,
            prefix: DEFAULT_PREFIX.to_owned(),
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            refuse_eviction: false,
        })
    }

    /// Reads `memcached://host[:port]` or `memcached+unix:///path`, with options as
    /// `?name=value&…`: those of the methods here. An unknown one is an error, so that a typing
    /// mistake does not pass in silence.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), saying which part is wrong.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let parts = UrlParts::parse("memcached", url, "memcached://127.0.0.1:11211")?;
        if parts.user.is_some() || parts.password.is_some() {
            return Err(invalid("memcached takes no user and no password here"));
        }
        let mut config = match (parts.scheme.as_str(), parts.hosts.as_slice()) {
            ("memcached", [(host, port)]) if parts.path.is_empty() => {
                Self::tcp(host, port.unwrap_or(DEFAULT_PORT))?
            }
            ("memcached", _) => {
                return Err(invalid(
                    "one server is needed, as memcached://host:port; locks spread over several \
                     would be granted twice",
                ));
            }
            ("memcached+unix", []) if !parts.path.is_empty() => {
                Self::unix(format!("/{}", parts.path))?
            }
            ("memcached+unix", _) => {
                return Err(invalid("a Unix socket is written memcached+unix:///path/to/socket"));
            }
            _ => return Err(invalid("the scheme is neither memcached nor memcached+unix")),
        };
        let mut options = parts.options;
        if let Some(prefix) = options.text("prefix")? {
            config = config.prefix(&prefix)?;
        }
        if let Some(timeout) = options.duration("timeout")? {
            config = config.timeout(timeout)?;
        }
        if let Some(timeout) = options.duration("connect_timeout")? {
            config = config.connect_timeout(timeout)?;
        }
        let evictions = [("allow", false), ("refuse", true)];
        config.refuse_eviction = options.choice("eviction", &evictions)?.unwrap_or(false);
        options.finish()?;
        Ok(config)
    }

    /// What stands before every key on the server: `holdtight:` unless said otherwise.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it leaves no room for keys.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, LockError> {
        self.names = Names::new(prefix)?;
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// How long to wait for an answer: 2 s unless said otherwise.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 1 ms to 60 s.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, LockError> {
        self.timeout = sensible("timeout", timeout)?;
        Ok(self)
    }

    /// How long to wait for a connection: 2 s unless said otherwise.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 1 ms to 60 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self, LockError> {
        self.connect_timeout = sensible("connect_timeout", timeout)?;
        Ok(self)
    }

    /// Whether a server that may throw locks away to make room is refused. Otherwise it is used
    /// with a warning.
    pub fn refuse_eviction(mut self, refuse: bool) -> Self {
        self.refuse_eviction = refuse;
        self
    }
}

impl fmt::Debug for MemcachedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemcachedConfig")
            .field("address", &format_args!("{}", self.address))
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("refuse_eviction", &self.refuse_eviction)
            .finish_non_exhaustive()
    }
}

fn invalid(what: &str) -> LockError {
    LockError::invalid_config(format!("the store URL is wrong: {what}"))
}

fn sensible(name: &str, timeout: Duration) -> Result<Duration, LockError> {
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    if range.contains(&timeout) {
        Ok(timeout)
    } else {
        Err(LockError::invalid_config(format!("{name} is not between 1 ms and 60 s")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(url: &str) -> Address {
        MemcachedConfig::from_url(url).unwrap().address
    }

    #[test]
    fn servers_are_found_by_name_by_either_protocol_and_by_socket() {
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        assert!(address("memcached://cache") == tcp("cache", 11211));
        assert!(address("Memcached://127.0.0.1:7/") == tcp("127.0.0.1", 7));
        assert!(address("memcached://[::1]") == tcp("::1", 11211));
        assert!(address("memcached://[fe80::1]:9?prefix=x") == tcp("fe80::1", 9));
        assert!(
            address("memcached+unix:///run/m%20c.sock") == Address::Unix("/run/m c.sock".into())
        );
    }

    #[test]
    fn options_are_read_and_mistakes_are_named() {
        let config = MemcachedConfig::from_url(
            "memcached://h?prefix=a%26b&timeout=1&connect_timeout=7ms&eviction=refuse",
        )
        .unwrap();
        assert_eq!(config.prefix, "a&b");
        assert_eq!(config.timeout, Duration::from_secs(1));
        assert_eq!(config.connect_timeout, Duration::from_millis(7));
        assert!(config.refuse_eviction);
        for (url, word) in [
            ("memcached", "memcached://"),
            ("redis://h", "scheme"),
            ("memcached://", "host"),
            ("memcached://::1", "brackets"),
            ("memcached://[::1", "]"),
            ("memcached://[::1]x", "behind"),
            ("memcached://a,b", "one server"),
            ("memcached://u:hunter2@h", "password"),
            ("memcached://h:0", "port"),
            ("memcached://h:+1", "port"),
            ("memcached://h/x", "host"),
            ("memcached://h?timeout=x", "timeout"),
            ("memcached://h?timeout=0", "timeout"),
            ("memcached://h?timeout=1&timeout=2", "twice"),
            ("memcached://h?evictoin=refuse", "unknown"),
            ("memcached://h?prefix=%zz", "hexadecimal"),
            ("memcached://h#x", "%23"),
            ("memcached+unix://socket", "///"),
        ] {
            let error = MemcachedConfig::from_url(url).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hunter2"), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_without_panic(text: String) {
            let _ = MemcachedConfig::from_url(&text);
            let _ = MemcachedConfig::from_url(&format!("memcached://{text}"));
            let _ = MemcachedConfig::from_url(&format!("memcached://h?{text}"));
        }
    }
}
