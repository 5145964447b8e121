//! Splits the URL of a store on a network into its parts: scheme, user, password, hosts, path, options.
//!
//! For those who write a store. By hand because no URL library takes several hosts, and because errors here must never
//! repeat a password. What the parts mean is the store's affair.

use std::fmt;

use crate::model::error::LockError;

/// A store's URL in parts, percent-decoded.
///
/// `Debug` shows neither user, password, path nor options: any of them may hold a secret.
///
/// ```
/// use holdtight_core::UrlParts;
/// let parts = UrlParts::parse("mystore://ann:p%40ss@a:7000,[::1]/db?timeout=2s", "mystore://127.0.0.1")?;
/// assert_eq!((parts.scheme.as_str(), parts.path.as_str()), ("mystore", "db"));
/// assert_eq!(parts.password.as_deref(), Some("p@ss"));
/// assert_eq!(parts.hosts, [("a".to_owned(), Some(7000)), ("::1".to_owned(), None)]);
/// assert_eq!(parts.options, [("timeout".to_owned(), "2s".to_owned())]);
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
    /// `(host, port)`; brackets of IPv6 addresses are gone.
    pub hosts: Vec<(String, Option<u16>)>,
    /// Without its leading slash.
    pub path: String,
    /// `name=value` in their order, each name once; a name alone has an empty value.
    pub options: Vec<(String, String)>,
}

impl fmt::Debug for UrlParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlParts")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

fn wrong(what: &str) -> LockError {
    LockError::invalid_config(format!("the store URL is wrong: {what}"))
}

impl UrlParts {
    /// Reads `scheme://[user[:password]@]host[:port][,host…][/path][?name=value&…]`, also `scheme:///path`.
    ///
    /// `example` is a right URL, for the error of somebody who left out the scheme.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), which says what is wrong and repeats nothing of the URL.
    pub fn parse(url: &str, example: &str) -> Result<Self, LockError> {
        if url.len() > 8192 {
            return Err(wrong("it is longer than 8 KiB"));
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong(&format!("it has no scheme; write for example {example}")))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('#') || rest.contains('#') {
            return Err(wrong("it has a '#'; write %23 if that is part of a name or a password"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The last '@': a password with an unencoded one is a mistake that people make.
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let (user, password) = match userinfo {
            None => (None, None),
            Some(userinfo) => match userinfo.split_once(':') {
                Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
                None => (Some(decode(userinfo)?), None),
            },
        };
        let hosts = if hosts.is_empty() {
            Vec::new()
        } else {
            hosts.split(',').map(host).collect::<Result<_, _>>()?
        };
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name)?;
            if options.iter().any(|(before, _)| *before == name) {
                return Err(wrong("an option is given twice; leave one of them out"));
            }
            options.push((name, decode(value)?));
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()),
            hosts,
            path: decode(path)?,
            options,
        })
    }
}

fn host(text: &str) -> Result<(String, Option<u16>), LockError> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) =
                rest.split_once(']').ok_or_else(|| wrong("an IPv6 address has no ']'"))?;
            (name, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None | Some("") => None,
        Some(port) => Some(port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
            wrong("a port is not a number from 1 to 65535 (an '@', ':' or '/' in a password must be percent-encoded)")
        })?),
    };
    if name.is_empty() {
        return Err(wrong("a host is empty"));
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong("a host has characters that no host has"));
    }
    Ok((decode(name)?, port))
}

fn decode(text: &str) -> Result<String, LockError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
            }
            _ => return Err(wrong("a '%' is not followed by two hexadecimal digits")),
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong("a percent-encoded part is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str) -> Result<UrlParts, LockError> {
        UrlParts::parse(url, "store://127.0.0.1")
    }

    #[test]
    fn all_parts_are_found() {
        let parts = parse("Store://ann:p%40ss@[::1]:7000,b,c:7002/my/svc?prefix=a%26b&x").unwrap();
        assert_eq!(parts.scheme, "store");
        assert_eq!(parts.user.as_deref(), Some("ann"));
        assert_eq!(parts.password.as_deref(), Some("p@ss"));
        let hosts = [("::1", Some(7000)), ("b", None), ("c", Some(7002))];
        assert_eq!(parts.hosts, hosts.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(parts.path, "my/svc");
        assert_eq!(parts.options[0], ("prefix".to_owned(), "a&b".to_owned()));
        assert_eq!(parts.options[1], ("x".to_owned(), String::new()));
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
            ("store://:hunter2@h?x=1&y=2&x=1", "twice"),
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
