//! The URL that names a store: checked, and shown to people only without its secrets.
//!
//! What follows the scheme is read by the store itself; here it is only looked through for secrets.

use std::fmt;

use holdtight_core::LockError;

/// The longest URL that is read.
const MAX_BYTES: usize = 8 * 1024;

/// What stands in place of a secret.
const HIDDEN: &str = "***";

/// The options whose values may be shown: those that stores have, except passwords. Every other
/// name may be that of a password, misspelt.
const HARMLESS: [&str; 46] = [
    "application_name",
    "channel_binding",
    "collection",
    "connect_timeout",
    "connections",
    "db",
    "dbname",
    "durability",
    "emulator",
    "epoch",
    "eviction",
    "fence_collection",
    "fence_table",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "layout",
    "listen",
    "load_balance_hosts",
    "passfile",
    "pooler",
    "port",
    "prefix",
    "pubsub",
    "schema",
    "sentinel_user",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sync",
    "table",
    "target_session_attrs",
    "tcp_user_timeout",
    "timeout",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
    "user",
    "wait_aof",
    "wait_replicas",
];

/// The address of a store, such as `file:/var/lib/locks` or `redis://user:password@host`.
///
/// `Display` and `Debug` hide passwords; [`expose`](Self::expose) does not.
///
/// ```
/// use holdtight::StoreUrl;
/// let url = StoreUrl::new("redis://ann:tiger@db-1:6379/2")?;
/// assert_eq!(url.scheme(), "redis");
/// assert_eq!(url.to_string(), "redis://ann:***@db-1:6379/2");
/// assert!(url.has_secret());
/// # Ok::<(), holdtight::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    text: String,
    scheme: String,
}

impl StoreUrl {
    /// Reads a URL as far as its scheme.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) without a scheme, or with
    /// characters that no URL has. The message never repeats the text, because it may hold a
    /// password.
    pub fn new(text: impl Into<String>) -> Result<Self, LockError> {
        let text = text.into();
        if text.is_empty() {
            return Err(LockError::invalid_config(
                "the URL of the store is empty; name one, as in file:/var/lib/locks",
            ));
        }
        if text.len() > MAX_BYTES || text.chars().any(|c| c.is_control() || c == ' ') {
            return Err(LockError::invalid_config(
                "the URL of the store is too long or has a space or a control character in it; \
                 write %20 for a space",
            ));
        }
        let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        let scheme = scheme.filter(|scheme| is_scheme(scheme)).ok_or_else(|| {
            LockError::invalid_config(if text.starts_with(['/', '.', '~']) {
                "a store is named by a URL, not by a path: write file:/directory"
            } else {
                "a store is named by a URL that begins with a scheme, as in file:/var/lib/locks \
                 or redis://127.0.0.1"
            })
        })?;
        Ok(Self { text, scheme })
    }

    /// The scheme in lower case, without its colon.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What follows the scheme and its colon. May hold secrets.
    pub(crate) fn rest(&self) -> &str {
        &self.text[self.scheme.len() + 1..]
    }

    /// Whether the URL holds a password, or an option that may be one: stores have no option of
    /// that name.
    pub fn has_secret(&self) -> bool {
        self.shown().1
    }

    /// The URL as it was given, secrets included. Named so that every use stands out in review.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The URL without its secrets, and whether it had any.
    ///
    /// Where a broken URL can be read in two ways, the one that hides more is taken: passwords hold
    /// `@`, `/` and `?` when somebody forgot to encode them.
    fn shown(&self) -> (String, bool) {
        if self.scheme == "file" {
            let (rest, secret) = shown_query(self.rest());
            return (format!("file:{rest}"), secret);
        }
        let (slashes, rest) = match self.rest().strip_prefix("//") {
            Some(rest) => ("//", rest),
            // Slashes, or the scheme itself, were forgotten: what stands before the host may be
            // anything.
            None => ("", self.rest()),
        };
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (place, secret_option) = shown_query(place);
        let (login, secret_login) = match login.map(|login| login.split_once(':').ok_or(login)) {
            None => (String::new(), false),
            Some(_) if slashes.is_empty() => (format!("{HIDDEN}@"), true),
            Some(Err(user)) if is_plain(user) => (format!("{user}@"), false),
            Some(Ok((user, ""))) if is_plain(user) => (format!("{user}:@"), false),
            Some(Ok((user, _))) if is_plain(user) => (format!("{user}:{HIDDEN}@"), true),
            Some(_) => (format!("{HIDDEN}@"), true),
        };
        (format!("{}:{slashes}{login}{place}", self.scheme), secret_login || secret_option)
    }
}

fn is_scheme(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// Whether a user name can be nothing else: no delimiter in it that a password might have brought.
fn is_plain(user: &str) -> bool {
    user.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~%+".contains(&b))
}

/// The same text with the values of all options hidden that are not known to be harmless, and
/// whether there were any.
fn shown_query(text: &str) -> (String, bool) {
    let Some((place, query)) = text.split_once('?') else { return (text.to_owned(), false) };
    let mut secret = false;
    let options: Vec<_> = query
        .split('&')
        .map(|option| match option.split_once('=') {
            Some((name, value)) if !value.is_empty() && !HARMLESS.contains(&name) => {
                secret = true;
                // A password with an unencoded `&` in it goes on as the name of the next option.
                let name = if is_plain(name) { name } else { HIDDEN };
                format!("{name}={HIDDEN}")
            }
            None if !option.is_empty() && !HARMLESS.contains(&option) => {
                secret = true;
                HIDDEN.to_owned()
            }
            _ => option.to_owned(),
        })
        .collect();
    (format!("{place}?{}", options.join("&")), secret)
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown().0)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> (String, bool) {
        let url = StoreUrl::new(text).unwrap();
        assert_eq!(format!("{url:?}"), format!("StoreUrl({url})"));
        (url.to_string(), url.has_secret())
    }

    #[test]
    fn passwords_are_hidden_wherever_people_put_them() {
        for (url, expected) in [
            ("redis://:pw@h", "redis://:***@h"),
            ("redis://u:pw@h:1/2?db=1", "redis://u:***@h:1/2?db=1"),
            ("redis:/u:pw@127.0.0.1", "redis:***@127.0.0.1"),
            ("redis:u:pw@h", "redis:***@h"),
            ("redis:pw@h", "redis:***@h"),
            ("u:pw@127.0.0.1:45001", "u:***@127.0.0.1:45001"),
            (
                "redis+sentinel://a/m?sentinel_pasword=pw",
                "redis+sentinel://a/m?sentinel_pasword=***",
            ),
            ("etcd://h?timeout=1&kennwort=pw", "etcd://h?timeout=1&kennwort=***"),
            ("redis://h?password=a&pw", "redis://h?password=***&***"),
            ("redis://h?pw%", "redis://h?***"),
            ("postgres://h/db?user=ann&password=pw", "postgres://h/db?user=ann&password=***"),
            ("postgres://h/db?SSL-Password=pw", "postgres://h/db?SSL-Password=***"),
            ("redis://u:p/w@h", "redis://u:***@h"),
            ("redis://u:p@w?x#@h", "redis://u:***@h"),
            ("redis+sentinel://:pw@a,:pw@b/main", "redis+sentinel://:***@b/main"),
            ("redis://pw/@h", "redis://***@h"),
            ("REDIS://u:pw@h", "redis://u:***@h"),
        ] {
            let (text, secret) = shown(url);
            assert_eq!(text, expected);
            assert!(secret && !text.contains("pw"), "{url}");
        }
    }

    #[test]
    fn urls_without_secrets_are_shown_whole() {
        for url in [
            "file:/var/lib/locks?sync=1",
            "file:///home/a@b/locks",
            "memory:",
            "redis://h",
            "postgres://ann@h/db",
            "redis://u:@h",
            "redis://h?password=",
        ] {
            assert_eq!(shown(url), (url.to_owned(), false));
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_repeating_it() {
        for text in
            ["", "/tmp/pw", "pw", "pw@host", ":pw", "1pw:x", "redis://a b/pw", "redis://\n/pw"]
        {
            let message = StoreUrl::new(text).unwrap_err().to_string();
            assert!(!message.contains("pw"), "{message}");
        }
        assert!(StoreUrl::new("./locks").unwrap_err().to_string().contains("file:/directory"));
    }
}
