//! Where the cluster is and how it is used: from a URL, or set one by one.
//!
//! Only checks and defaults; connections are made elsewhere. `Debug` and errors never show a
//! password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url::UrlParts;

const PREFIX_BYTES: usize = 256;

/// More endpoints than any cluster has members.
const ENDPOINTS: usize = 32;

/// All settings of an [`EtcdStore`](crate::EtcdStore).
///
/// ```
/// use holdtight_etcd::EtcdConfig;
/// let config = EtcdConfig::from_url("etcd://10.0.0.1:2379,10.0.0.2,10.0.0.3/shop?timeout=3s")?;
/// let config = config.epoch(1);
/// assert!(EtcdConfig::from_url("etcd://10.0.0.1?colour=red").is_err());
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone)]
pub struct EtcdConfig {
    /// Host and port of each member.
    pub(crate) endpoints: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) prefix: String,
    pub(crate) epoch: u16,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: bool,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_name: Option<String>,
}

impl EtcdConfig {
    /// Reads a URL: `etcd://[user:password@]host[:2379][,host…][/prefix][?option=value&…]`, or
    /// `etcds://` for TLS.
    ///
    /// Options: `epoch`, `timeout`, `connect_timeout`, `tls_ca`, `tls_cert`, `tls_key`, `tls_name`.
    /// An unknown one is an error: a typing mistake in the name of a safety option must not pass in
    /// silence.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), saying which part is wrong,
    /// never repeating the user or the password.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let parts = UrlParts::parse("etcd", url, "etcd://127.0.0.1:2379")?;
        let tls = match parts.scheme.as_str() {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid("the scheme is neither etcd nor etcds")),
        };
        let endpoints = parts.hosts.into_iter();
        let mut options = parts.options;
        let config = Self {
            endpoints: endpoints.map(|(host, port)| (host, port.unwrap_or(2379))).collect(),
            user: parts.user,
            password: parts.password,
            prefix: "holdtight/".to_owned(),
            epoch: options.integer("epoch", 0..=u16::MAX)?.unwrap_or(0),
            timeout: options.duration("timeout")?.unwrap_or(Duration::from_secs(2)),
            connect_timeout: options.duration("connect_timeout")?.unwrap_or(Duration::from_secs(2)),
            tls,
            tls_ca: options.path("tls_ca")?,
            tls_cert: options.path("tls_cert")?,
            tls_key: options.path("tls_key")?,
            tls_name: options.text("tls_name")?,
        };
        options.finish()?;
        if parts.path.is_empty() { config.check() } else { config.prefix(parts.path) }
    }

    /// What stands before every key in etcd, with a slash at its end; `holdtight/` by default.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is empty, too long, or has
    /// control characters.
    pub fn prefix(self, prefix: impl Into<String>) -> Result<Self, LockError> {
        let mut prefix = prefix.into();
        if !prefix.ends_with('/') && !prefix.is_empty() {
            prefix.push('/');
        }
        Self { prefix, ..self }.check()
    }

    /// Raises all fences above those of an earlier life of the cluster: a fence is `(epoch << 48) +
    /// revision`.
    ///
    /// Revisions start again when a cluster is rebuilt or an old snapshot is restored. Whoever does
    /// that raises the epoch by one, for every client. Zero by default.
    pub fn epoch(self, epoch: u16) -> Self {
        Self { epoch, ..self }
    }

    /// The user and password that every connection authenticates with.
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: Some(password.into()), ..self }
    }

    /// How long one request may take before its outcome counts as unknown; 2 s by default.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 10 ms to 60 s.
    pub fn timeout(self, timeout: Duration) -> Result<Self, LockError> {
        Self { timeout, ..self }.check()
    }

    /// How long opening a connection to one member may take; 2 s by default.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) outside 10 ms to 60 s.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Result<Self, LockError> {
        Self { connect_timeout, ..self }.check()
    }

    fn check(self) -> Result<Self, LockError> {
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS {
            return Err(invalid("between 1 and 32 members are named, as etcd://a,b,c"));
        }
        if self.prefix.is_empty() || self.prefix.len() > PREFIX_BYTES {
            return Err(invalid("the prefix has 1 to 256 bytes"));
        }
        if self.prefix.chars().any(char::is_control) {
            return Err(invalid("the prefix has a control character"));
        }
        for (name, span) in [("timeout", self.timeout), ("connect_timeout", self.connect_timeout)] {
            if span < Duration::from_millis(10) || span > Duration::from_secs(60) {
                return Err(invalid(&format!("{name} is outside 10ms to 60s")));
            }
        }
        if self.password.is_some() && self.user.is_none() {
            return Err(invalid("a password needs a user: etcd://user:password@host"));
        }
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid("a user needs a password: etcd://user:password@host"));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(invalid("tls_cert and tls_key belong together"));
        }
        let secured = self.tls_ca.is_some() || self.tls_cert.is_some() || self.tls_name.is_some();
        if secured && !self.tls {
            return Err(invalid("TLS options need the scheme etcds://"));
        }
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(invalid("this program was built without TLS; enable the feature `tls`"));
        }
        Ok(self)
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "[redacted]"))
            .field("prefix", &self.prefix)
            .field("epoch", &self.epoch)
            .field("timeout", &self.timeout)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

pub(crate) fn invalid(message: &str) -> LockError {
    LockError::invalid_config(format!("etcd: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_everything() {
        let url = "etcds://ann:p%40ss@a,b:2380,[::1]/shop?epoch=3&timeout=500ms&connect_timeout=4&tls_name=etcd";
        let config = EtcdConfig::from_url(url).unwrap();
        let endpoints = [("a", 2379), ("b", 2380), ("::1", 2379)];
        assert_eq!(config.endpoints, endpoints.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(
            (config.user.as_deref(), config.password.as_deref()),
            (Some("ann"), Some("p@ss"))
        );
        assert_eq!((config.prefix.as_str(), config.epoch, config.tls), ("shop/", 3, true));
        assert_eq!(config.timeout, Duration::from_millis(500));
        assert_eq!(config.connect_timeout, Duration::from_secs(4));
        assert!(!format!("{config:?}").contains("p@ss"));
        assert_eq!(EtcdConfig::from_url("etcd://h").unwrap().prefix, "holdtight/");
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        for (url, word) in [
            ("http://h", "scheme"),
            ("etcd://", "1 and 32"),
            ("etcd://:hunter2@h", "needs a user"),
            ("etcd://ann@h", "needs a password"),
            ("etcd://h?tls_ca=x", "etcds"),
            ("etcds://h?tls_cert=x", "tls_key"),
            ("etcd://h?epoch=65536", "epoch"),
            ("etcd://h?timeout=1h", "timeout"),
            ("etcd://h?timeout=0", "timeout"),
            ("etcd://h?timeout=1&timeout=2", "twice"),
            ("etcd://h?timeout=+1", "timeout"),
            ("etcd://h?colour=red", "colour"),
            ("etcd://h?hunter2=red", "no option has"),
        ] {
            let error = EtcdConfig::from_url(url).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hunter2"), "{url}: {error}");
        }
    }
}
