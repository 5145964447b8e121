//! The options of a store URL, taken one by one by name and type.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use holdtight_core::LockError;

use super::decode::percent_decode;
use crate::duration;

/// The longest name of an option that an error repeats.
const NAME_BYTES: usize = 20;

/// The options `?name=value&…` of a store URL.
///
/// A store takes each option that it has, by name and type, and calls [`finish`](Self::finish):
/// what has not been taken by then is unknown. A mistyped name of a safety option is thereby never
/// ignored, and the list of known options in the error cannot be out of date.
///
/// Every function that takes an option returns `None` if it was not given, and
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it was given twice or its value
/// is wrong. Values are never repeated: `Debug` does not show them either.
///
/// ```
/// use std::time::Duration;
/// use holdtight_kit::url::Options;
///
/// let mut options = Options::parse("MyStore", "timeout=250ms&layout=old&replicas=2&watch=off")?;
/// assert_eq!(options.duration("timeout")?, Some(Duration::from_millis(250)));
/// assert_eq!(options.choice("layout", &[("new", 1), ("old", 2)])?, Some(2));
/// assert_eq!(options.integer("replicas", 0..=9)?, Some(2));
/// assert_eq!(options.flag("watch")?, Some(false));
/// assert_eq!(options.path("tls_ca")?, None);
/// options.finish()?;
///
/// let mut options = Options::parse("MyStore", "timeuot=1s")?;
/// options.duration("timeout")?;
/// let error = options.finish().unwrap_err().to_string();
/// assert!(error.contains("MyStore: unknown option `timeuot`; known: `timeout`"), "{error}");
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    store: &'static str,
    /// Those that have not been taken yet, in their order.
    left: Vec<Given>,
    known: Vec<&'static str>,
}

#[derive(Clone, PartialEq, Eq)]
struct Given {
    name: String,
    value: String,
    /// As it is in the URL.
    raw: String,
}

impl Options {
    /// Reads `name=value&…`; a name alone has an empty value. `store` is what errors call the
    /// store.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is not percent-encoded
    /// correctly.
    pub fn parse(store: &'static str, query: &str) -> Result<Self, LockError> {
        let mut left = Vec::new();
        for raw in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = raw.split_once('=').unwrap_or((raw, ""));
            let (name, value) = (percent_decode(name)?, percent_decode(value)?);
            left.push(Given { name, value, raw: raw.to_owned() });
        }
        Ok(Self { store, left, known: Vec::new() })
    }

    /// Takes an option that is any text.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it was given twice.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, LockError> {
        self.known.push(name);
        let Some(at) = self.left.iter().position(|given| given.name == name) else {
            return Ok(None);
        };
        let value = self.left.remove(at).value;
        if self.left.iter().any(|given| given.name == name) {
            return Err(self.given_twice(name));
        }
        Ok(Some(value))
    }

    /// Takes the path of a file.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it was given twice.
    pub fn path(&mut self, name: &'static str) -> Result<Option<PathBuf>, LockError> {
        Ok(self.text(name)?.map(PathBuf::from))
    }

    /// Takes a duration: `250ms`, `2s`, or plain seconds. What is too short or too long is up to
    /// the store.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is something else.
    pub fn duration(&mut self, name: &'static str) -> Result<Option<Duration>, LockError> {
        let read = |value: String| duration::parse(&value).ok();
        self.read(name, "a duration such as 250ms or 2s", read)
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is outside `range`.
    pub fn integer<T: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, LockError> {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, &allowed, |value| value.parse().ok().filter(|it| range.contains(it)))
    }

    /// Takes a flag: `on`, `true`, `1` or the name alone, `off`, `false` or `0`.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, LockError> {
        self.read(name, "on or off", |value| match value.as_str() {
            "on" | "true" | "1" | "" => Some(true),
            "off" | "false" | "0" => Some(false),
            _ => None,
        })
    }

    /// Takes one of several names, and returns what that name stands for.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if it is none of them.
    pub fn choice<T: Clone>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, LockError> {
        let mut allowed = String::new();
        for (at, (name, _)) in choices.iter().enumerate() {
            allowed += match at {
                0 => "",
                _ if at + 1 == choices.len() => " or ",
                _ => ", ",
            };
            allowed += name;
        }
        self.read(name, &allowed, |value| {
            choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| choice.clone())
        })
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        allowed: &str,
        read: impl FnOnce(String) -> Option<T>,
    ) -> Result<Option<T>, LockError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.must_be(name, allowed))
    }

    /// Makes `alias` another name of the option `name`; giving both is giving it twice.
    pub fn alias(&mut self, alias: &'static str, name: &'static str) {
        self.known.push(alias);
        for given in self.left.iter_mut().filter(|given| given.name == alias) {
            name.clone_into(&mut given.name);
        }
    }

    /// Takes the options that somebody else reads, such as a driver, as they are in the URL. Those
    /// in `repeated` may be given several times.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if one in `once` was given
    /// twice.
    pub fn pass_on(
        &mut self,
        once: &[&'static str],
        repeated: &[&'static str],
    ) -> Result<String, LockError> {
        let given = |name: &&&str| self.left.iter().filter(|given| given.name == **name).count();
        if let Some(name) = once.iter().find(|name| given(name) > 1) {
            return Err(self.given_twice(name));
        }
        self.known.extend(once.iter().chain(repeated));
        let is_theirs =
            |given: &Given| once.iter().chain(repeated).any(|name| given.name == **name);
        let (theirs, left) = std::mem::take(&mut self.left).into_iter().partition(is_theirs);
        self.left = left;
        Ok(theirs.into_iter().map(|given: Given| given.raw).collect::<Vec<_>>().join("&"))
    }

    /// Refuses what has not been taken.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option, the store
    /// and the known options.
    pub fn finish(self) -> Result<(), LockError> {
        let Some(unknown) = self.left.first() else { return Ok(()) };
        // It may be part of a password that was not encoded, so it must look like a name.
        let is_name = unknown.name.len() <= NAME_BYTES
            && unknown.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let name = if is_name {
            format!("unknown option `{}`", unknown.name)
        } else {
            "unknown option, by a name that no option has".to_owned()
        };
        let known: Vec<String> = self.known.iter().map(|name| format!("`{name}`")).collect();
        Err(self.invalid(&format!("{name}; known: {}", known.join(", "))))
    }

    /// The error for a value that an option cannot have: `allowed` says what it can be.
    pub fn must_be(&self, name: &str, allowed: &str) -> LockError {
        self.invalid(&format!("the option `{name}` must be {allowed}"))
    }

    /// The error for any other mistake in the settings of this store.
    pub fn invalid(&self, what: &str) -> LockError {
        LockError::invalid_config(format!("{}: {what}", self.store))
    }

    fn given_twice(&self, name: &str) -> LockError {
        self.invalid(&format!("the option `{name}` is given twice; leave one of them out"))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(query: &str) -> Options {
        Options::parse("Store", query).unwrap()
    }

    fn text<T: fmt::Debug>(result: Result<T, LockError>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), holdtight_core::ErrorKind::InvalidConfig);
        error.to_string()
    }

    #[test]
    fn unknown_options_are_named_unless_they_may_be_secrets() {
        let unknown = |query: &str| {
            let mut options = options(query);
            options.text("a").unwrap();
            options.alias("c", "b");
            options.text("b").unwrap();
            text(options.finish())
        };
        assert!(unknown("colour=red&a=1").contains("Store: unknown option `colour`; known: `a`"));
        for query in ["hunter2=x", "a_name_that_is_too_long", "%20=x", "Hunter"] {
            let error = unknown(query);
            assert!(error.contains("no option has; known: `a`, `c`, `b`"), "{error}");
            assert!(!error.to_lowercase().contains("hunter"), "{error}");
        }
        options("").finish().unwrap();
    }

    #[test]
    fn an_option_is_given_once_by_any_of_its_names() {
        assert!(text(options("a=1&a=1").text("a")).contains("`a` is given twice"));
        let mut both = options("tls_ca=x&sslrootcert=y");
        both.alias("tls_ca", "sslrootcert");
        assert!(text(both.path("sslrootcert")).contains("twice"));
        let mut alias = options("tls_ca=%2Fca");
        alias.alias("tls_ca", "sslrootcert");
        assert_eq!(alias.path("sslrootcert").unwrap(), Some(PathBuf::from("/ca")));
    }

    #[test]
    fn values_are_read_by_type_and_not_repeated() {
        assert_eq!(options("f").flag("f").unwrap(), Some(true));
        assert_eq!(options("n=+5").integer("n", 0..=9).unwrap(), Some(5));
        assert_eq!(options("t=1").duration("t").unwrap(), Some(Duration::from_secs(1)));
        let choices = [("one", 1), ("two", 2), ("three", 3)];
        for error in [
            text(options("x=hunter2").flag("x")),
            text(options("x=hunter2").duration("x")),
            text(options("x=10").integer("x", 0..=9)),
            text(options("x=hunter2").choice("x", &choices)),
        ] {
            assert!(error.contains("Store: the option `x` must be ") && !error.contains("hunter2"));
        }
        let error = text(options("x=4").choice("x", &choices));
        assert!(error.contains("one, two or three"), "{error}");
        assert!(!format!("{:?}", options("x=hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_driver_gets_its_options_as_they_are() {
        let mut both = options("host=a%20b&ours=1&host=c&keep=2&other=1");
        assert_eq!(both.pass_on(&["keep"], &["host"]).unwrap(), "host=a%20b&host=c&keep=2");
        assert_eq!(both.text("ours").unwrap().as_deref(), Some("1"));
        assert!(text(both.finish()).contains("`other`; known: `keep`, `host`, `ours`"));
        assert!(text(options("keep=1&keep=2").pass_on(&["keep"], &[])).contains("twice"));
    }
}
