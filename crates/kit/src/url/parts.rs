//! Splits a store URL into its parts.

use std::fmt;

use holdtight_core::LockError;

use super::decode::{percent_decode, wrong};
use super::options::Options;

/// The longest URL that is read.
const URL_BYTES: usize = 8192;

/// A URL in pieces that are still percent-encoded.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Split<'a> {
    /// In lower case.
    pub scheme: String,
    /// What follows `//`, up to the path; `None` without `//`.
    pub authority: Option<&'a str>,
    /// With its leading slash.
    pub path: &'a str,
    /// What follows the `?`.
    pub query: &'a str,
}

/// Splits `scheme:[//authority][path][?query]`: for stores whose URL does not name hosts.
///
/// `example` is a correct URL, for the error about a URL without a scheme.
///
/// ```
/// let url = holdtight_kit::url::split("file:/var/lib/locks?sync=1", "file:/var/lib/locks")?;
/// assert_eq!((url.scheme.as_str(), url.authority), ("file", None));
/// assert_eq!((url.path, url.query), ("/var/lib/locks", "sync=1"));
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), which says what is wrong and
/// repeats nothing of the URL.
pub fn split<'a>(url: &'a str, example: &str) -> Result<Split<'a>, LockError> {
    if url.len() > URL_BYTES {
        return Err(wrong("it is longer than 8 KiB"));
    }
    let (scheme, rest) = url
        .split_once(':')
        .ok_or_else(|| wrong(&format!("it has no scheme; write for example {example}")))?;
    if rest.contains('#') {
        return Err(wrong("it has a '#'; write %23 if that is part of a name or a password"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//") {
        None => (None, rest),
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(authority), path)
        }
    };
    Ok(Split { scheme: scheme.to_ascii_lowercase(), authority, path, query })
}

impl fmt::Debug for Split<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// The URL of a store on a network, in parts, percent-decoded.
///
/// `Debug` shows neither user, password, path nor options: any of them may be a secret.
///
/// ```
/// use holdtight_kit::url::UrlParts;
/// let url = "mystore://ann:p%40ss@a:7000,[::1]/db?timeout=2s";
/// let mut parts = UrlParts::parse("MyStore", url, "mystore://127.0.0.1")?;
/// assert_eq!((parts.scheme.as_str(), parts.path.as_str()), ("mystore", "db"));
/// assert_eq!(parts.password.as_deref(), Some("p@ss"));
/// assert_eq!(parts.hosts, [("a".to_owned(), Some(7000)), ("::1".to_owned(), None)]);
/// assert_eq!(parts.options.duration("timeout")?.unwrap().as_secs(), 2);
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlParts {
    /// In lower case.
    pub scheme: String,
    /// `None` if empty.
    pub user: Option<String>,
    /// `None` if empty.
    pub password: Option<String>,
    /// `(host, port)`, IPv6 addresses without their brackets.
    pub hosts: Vec<(String, Option<u16>)>,
    /// Without its leading slash.
    pub path: String,
    /// What follows the `?`.
    pub options: Options,
}

impl fmt::Debug for UrlParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlParts")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl UrlParts {
    /// Reads `scheme://[user[:password]@]host[:port][,host…][/path][?name=value&…]`, also
    /// `scheme:///path`.
    ///
    /// `store` is what errors call the store. `example` is a correct URL, for the error about a URL
    /// without a scheme.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), which says what is wrong and
    /// repeats nothing of the URL.
    pub fn parse(store: &'static str, url: &str, example: &str) -> Result<Self, LockError> {
        let Split { scheme, authority, path, query } = split(url, example)?;
        let authority = authority.ok_or_else(|| {
            wrong(&format!("its scheme is not followed by ://; write for example {example}"))
        })?;
        // The last '@': a password with an unencoded one is a mistake that people make.
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (userinfo, hosts),
            None => ("", authority),
        };
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let not_empty = |text: &str| {
            let decoded = percent_decode(text)?;
            Ok::<_, LockError>(Some(decoded).filter(|decoded| !decoded.is_empty()))
        };
        let hosts = match hosts {
            "" => Vec::new(),
            hosts => hosts.split(',').map(host).collect::<Result<_, _>>()?,
        };
        Ok(Self {
            scheme,
            user: not_empty(user)?,
            password: not_empty(password)?,
            hosts,
            path: percent_decode(path.strip_prefix('/').unwrap_or(path))?,
            options: Options::parse(store, query)?,
        })
    }
}

fn host(text: &str) -> Result<(String, Option<u16>), LockError> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) =
                rest.split_once(']').ok_or_else(|| wrong("an IPv6 address has no ']'"))?;
            match rest.strip_prefix(':') {
                None if !rest.is_empty() => return Err(wrong("there is more behind a ']'")),
                port => (name, port),
            }
        }
        None if text.matches(':').count() > 1 => {
            return Err(wrong("an IPv6 address is written in brackets, as [::1]:7000"));
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None | Some("") => None,
        Some(port) => {
            let number = port.parse().ok().filter(|number| *number != 0);
            let number = number.filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
            Some(number.ok_or_else(|| {
                wrong(
                    "a port is not a number from 1 to 65535 (an '@', ':' or '/' in a password must \
                     be percent-encoded)",
                )
            })?)
        }
    };
    if name.is_empty() {
        return Err(wrong("a host is empty"));
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong("a host has characters that no host has"));
    }
    Ok((percent_decode(name)?, port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str) -> Result<UrlParts, LockError> {
        UrlParts::parse("Store", url, "store://127.0.0.1")
    }

    #[test]
    fn all_parts_are_found() {
        let mut parts =
            parse("Store://ann:p%40ss@[::1]:7000,b,c:7002/my/svc?prefix=a%26b&x").unwrap();
        assert_eq!(parts.scheme, "store");
        assert_eq!(parts.user.as_deref(), Some("ann"));
        assert_eq!(parts.password.as_deref(), Some("p@ss"));
        let hosts = [("::1", Some(7000)), ("b", None), ("c", Some(7002))];
        assert_eq!(parts.hosts, hosts.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(parts.path, "my/svc");
        assert_eq!(parts.options.text("prefix").unwrap().as_deref(), Some("a&b"));
        assert_eq!(parts.options.text("x").unwrap().as_deref(), Some(""));
        assert!(!format!("{parts:?}").contains("p@ss"));
    }

    #[test]
    fn a_password_alone_needs_no_user() {
        let parts = parse("store://:pw@h").unwrap();
        assert_eq!((parts.user, parts.password.as_deref()), (None, Some("pw")));
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        for (url, word) in [
            ("store", "store://127.0.0.1"),
            ("store://:hunter2@h:x", "port"),
            ("store://:hunter2@h:0", "port"),
            ("store://:hunter2@", ""),
            ("store://:hunter2@a,,b", "empty"),
            ("store://:hunter2%zz@h", "hexadecimal"),
            ("store://:hunter2@[::1", "]"),
            ("store://:hunter2@h#x", "%23"),
            ("store:hunter2@h", "://"),
            ("store://:hunter2@::1", "brackets"),
            ("store://:hunter2@[::1]x", "behind"),
            ("store://:hunter2@h:+1", "port"),
        ] {
            match parse(url) {
                Ok(parts) => assert!(parts.hosts.is_empty(), "{url}"),
                Err(error) => {
                    let text = format!("{error} {error:?}");
                    assert!(text.contains(word) && !text.contains("hunter2"), "{url}: {text}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_without_panic(text: String) {
            let _ = parse(&text);
            let _ = parse(&format!("store://{text}"));
        }
    }
}
