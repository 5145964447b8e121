//! Splits a store's URL into its parts: scheme, user, password, hosts, path, options.
//!
//! Written by hand because no URL library takes several hosts, and because errors here must never repeat a
//! password. What the parts mean is `config.rs`'s affair.

use holdtight_core::LockError;

/// A URL in parts, percent-decoded. `Debug` is not derived: there is a password inside.
pub(crate) struct Parts {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// `(host, port)`; brackets of IPv6 addresses are gone.
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    /// Without its leading slash.
    pub(crate) path: String,
    pub(crate) options: Vec<(String, String)>,
}

fn wrong(what: &str) -> LockError {
    LockError::invalid_config(format!("the store URL is wrong: {what}"))
}

impl Parts {
    /// Reads `scheme://[user[:password]@]host[:port][,host…][/path][?name=value&…]`, also `scheme:///path`.
    pub(crate) fn parse(url: &str) -> Result<Self, LockError> {
        if url.len() > 8192 {
            return Err(wrong("it is longer than 8 KiB"));
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("it has no scheme; write for example redis://127.0.0.1:6379"))?;
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
        let options = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decode(name)?, decode(value)?))
            })
            .collect::<Result<_, LockError>>()?;
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

    #[test]
    fn all_parts_are_found() {
        let parts =
            Parts::parse("Redis://ann:p%40ss@[::1]:7000,b,c:7002/my/svc?prefix=a%26b&x").unwrap();
        assert_eq!(parts.scheme, "redis");
        assert_eq!(parts.user.as_deref(), Some("ann"));
        assert_eq!(parts.password.as_deref(), Some("p@ss"));
        let hosts = [("::1", Some(7000)), ("b", None), ("c", Some(7002))];
        assert_eq!(parts.hosts, hosts.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(parts.path, "my/svc");
        assert_eq!(parts.options[0], ("prefix".to_owned(), "a&b".to_owned()));
        assert_eq!(parts.options[1], ("x".to_owned(), String::new()));
    }

    #[test]
    fn a_password_alone_needs_no_user() {
        let parts = Parts::parse("redis://:pw@h").unwrap();
        assert_eq!((parts.user, parts.password.as_deref()), (None, Some("pw")));
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        for (url, word) in [
            ("redis", "scheme"),
            ("redis://:hunter2@h:x", "port"),
            ("redis://:hunter2@h:0", "port"),
            ("redis://:hunter2@", ""),
            ("redis://:hunter2@a,,b", "empty"),
            ("redis://:hunter2%zz@h", "hexadecimal"),
            ("redis://:hunter2@[::1", "]"),
            ("redis://:hunter2@h#x", "%23"),
        ] {
            match Parts::parse(url) {
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
            let _ = Parts::parse(&text);
            let _ = Parts::parse(&format!("redis://{text}"));
        }
    }
}
