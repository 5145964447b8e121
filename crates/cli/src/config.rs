//! Settings and where each comes from: flags over environment over the user's file over the
//! system's file.
//!
//! Nothing is guessed: an unknown key, an empty variable or an unreadable file is an error, because
//! the alternative is to lock silently in another store than the user meant.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdtight::{MAX_TTL, StoreUrl};
use holdtight_kit::duration;

use crate::exit::Failure;

/// The name of both files.
const FILE_NAME: &str = "holdtight/holdtight.toml";

/// More than any sensible file.
const MOST_BYTES: u64 = 64 * 1024;

/// The store of this user, whoever names it and if nobody does.
const USER_STORE: &str = "file:";

/// Where that is, below the home directory: the same for a shell, for cron and for a unit of one
/// user, whose environments differ in everything but `HOME`.
const USER_DIRECTORY: &str = ".local/state/holdtight";

/// The names of all settings, as they stand in a file.
const NAMES: [&str; 4] = ["store", "ttl", "wait", "kill_after"];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment(&'static str),
    File(PathBuf),
    Default,
}

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

/// All settings, as they count for this call. What nobody set is `None`, and the command's own
/// default counts.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) store: Setting<StoreUrl>,
    pub(crate) ttl: Option<Setting<Duration>>,
    pub(crate) wait: Option<Setting<Duration>>,
    pub(crate) kill_after: Option<Setting<Duration>>,
    /// The files that were looked for, and whether each was there.
    pub(crate) files: Vec<(PathBuf, bool)>,
}

/// What surrounds this process: read once, handed in, so that tests need not change their own
/// environment.
pub(crate) trait Surroundings {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<OsString>;
}

/// The environment of this process.
pub(crate) struct ThisProcess;

impl Surroundings for ThisProcess {
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

impl Settings {
    /// Reads all settings; `store_flag` is the value of `--store`.
    pub(crate) fn load(
        store_flag: Option<&str>,
        around: &dyn Surroundings,
    ) -> Result<Self, Failure> {
        let mut files = Vec::new();
        let mut tables = Vec::new();
        for path in paths(around) {
            let table = read(&path)?;
            files.push((path.clone(), table.is_some()));
            tables.extend(table.map(|table| (path, table)));
        }
        let find = |name: &str,
                    variable: &'static str|
         -> Result<Option<Setting<String>>, Failure> {
            if let Some(value) = around.variable(variable) {
                let value = value.into_string().map_err(|_| {
                    Failure::usage(format!("the environment variable {variable} is not UTF-8"))
                })?;
                if value.is_empty() {
                    return Err(Failure::usage(format!(
                        "the environment variable {variable} is empty; unset it or give it a value"
                    )));
                }
                return Ok(Some(Setting { value, origin: Origin::Environment(variable) }));
            }
            let set = tables.iter().find_map(|(path, table)| {
                let value = table.iter().find(|(key, _)| key == name).map(|(_, value)| value);
                value.map(|value| (path, value))
            });
            Ok(set.map(|(path, value)| Setting {
                value: value.clone(),
                origin: Origin::File(path.clone()),
            }))
        };
        let store = match store_flag {
            Some(flag) => Setting { value: flag.to_owned(), origin: Origin::Flag },
            None => find("store", "HOLDTIGHT_STORE")?.unwrap_or_else(|| Setting {
                value: USER_STORE.to_owned(),
                origin: Origin::Default,
            }),
        };
        let span = |name, variable| -> Result<Option<Setting<Duration>>, Failure> {
            find(name, variable)?.map(|text| text.parse(name, duration::parse)).transpose()
        };
        Ok(Self {
            store: store.parse("store", |text| {
                let text = with_directory(text, around)?;
                StoreUrl::new(text.as_str()).map_err(|error| error.to_string())
            })?,
            ttl: span("ttl", "HOLDTIGHT_TTL")?,
            wait: span("wait", "HOLDTIGHT_WAIT")?,
            kill_after: span("kill_after", "HOLDTIGHT_KILL_AFTER")?,
            files,
        })
    }

    /// The lease, if a flag or a setting says it.
    ///
    /// # Errors
    /// If no store grants such a lease.
    pub(crate) fn ttl(&self, flag: Option<Duration>) -> Result<Option<Duration>, Failure> {
        let ttl = flag.or(self.ttl.as_ref().map(|ttl| ttl.value));
        if ttl.is_some_and(|ttl| ttl > MAX_TTL) {
            return Err(Failure::usage(
                "the TTL of a lock (--ttl) can be at most 24h; renew it with `extend`, or let `run` do so",
            ));
        }
        Ok(ttl)
    }

    /// How long to wait, if a flag or a setting says it.
    pub(crate) fn wait(&self, flag: Option<Duration>) -> Option<Duration> {
        flag.or(self.wait.as_ref().map(|wait| wait.value))
    }
}

impl Setting<String> {
    fn parse<T>(
        self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Setting<T>, Failure> {
        let Self { value, origin } = self;
        match (read(&value), &origin) {
            (Ok(value), _) => Ok(Setting { value, origin }),
            (Err(error), Origin::File(_)) => {
                Err(Failure::usage(format!("{origin}: `{name}`: {error}")))
            }
            (Err(error), _) => Err(Failure::usage(format!("{origin}: {error}"))),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--store"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The URL of a store, with the directory if it is the store of this user.
fn with_directory(url: &str, around: &dyn Surroundings) -> Result<String, String> {
    let (path, query) =
        url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    if !path.eq_ignore_ascii_case(USER_STORE) {
        return Ok(url.to_owned());
    }
    let home = around.variable("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.ok_or(
        "no directory for locks: HOME is not set to an absolute path; set it, or name a store, as in \
         file:/var/lib/locks",
    )?;
    let directory = home.join(USER_DIRECTORY);
    let directory =
        directory.to_str().ok_or("HOME is not UTF-8; name a store, as in file:/var/lib/locks")?;
    let mut encoded = String::from("file:");
    for character in directory.chars() {
        match character {
            '%' => encoded.push_str("%25"),
            '?' => encoded.push_str("%3F"),
            '#' => encoded.push_str("%23"),
            plain => encoded.push(plain),
        }
    }
    Ok(query.map_or_else(|| encoded.clone(), |query| format!("{encoded}?{query}")))
}

/// The store of this user where `XDG_STATE_HOME` says, if there is one: earlier versions kept locks
/// there.
pub(crate) fn store_elsewhere(around: &dyn Surroundings) -> Option<PathBuf> {
    let absolute =
        |name| around.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let elsewhere = absolute("XDG_STATE_HOME")?.join("holdtight");
    let here = absolute("HOME").map(|home| home.join(USER_DIRECTORY));
    (here.as_ref() != Some(&elsewhere) && elsewhere.join("store").exists()).then_some(elsewhere)
}

/// The files that are read, the one that counts more first.
fn paths(around: &dyn Surroundings) -> Vec<PathBuf> {
    let absolute =
        |name: &str| around.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user =
        absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    // Only the first directory: settings that come from many places are settings nobody finds.
    let system = around
        .variable("XDG_CONFIG_DIRS")
        .and_then(|list| std::env::split_paths(&list).find(|path| path.is_absolute()))
        .unwrap_or_else(|| PathBuf::from("/etc"));
    user.into_iter().chain([system]).map(|dir| dir.join(FILE_NAME)).collect()
}

/// The settings of one file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<(String, String)>>, Failure> {
    use io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(Failure::file(path, &error)),
    };
    let mut text = String::new();
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::file(path, &error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Failure::usage(format!("{}: the file is too large", path.display())));
    }
    parse(&text).map(Some).map_err(|what| Failure::usage(format!("{}: {what}", path.display())))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The names and values of a file. No message repeats a value, because it may hold a password.
fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|b| *b == b'\n').count();
        format!("line {line}: {}", error.message())
    })?;
    table
        .into_iter()
        .map(|(name, value)| {
            if !NAMES.contains(&name.as_str()) {
                return Err(format!(
                    "there is no setting `{}`; there are {}",
                    name.escape_debug(),
                    NAMES.join(", ")
                ));
            }
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(seconds) if name != "store" => seconds.to_string(),
                toml::Value::Float(seconds) if name != "store" => seconds.to_string(),
                _ => return Err(format!("`{name}` is not a text in quotes")),
            };
            Ok((name, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Fake(HashMap<&'static str, OsString>);

    impl Surroundings for Fake {
        fn variable(&self, name: &str) -> Option<OsString> {
            self.0.get(name).cloned()
        }
    }

    #[test]
    fn the_flag_wins_over_the_environment_which_wins_over_the_default() {
        let mut fake = Fake(HashMap::from([
            ("XDG_CONFIG_DIRS", "/nonexistent".into()),
            ("HOME", "/home/a#b".into()),
        ]));
        let store = |flag, fake: &Fake| {
            let store = Settings::load(flag, fake).unwrap().store;
            (store.value.expose().to_owned(), store.origin)
        };
        let here = "file:/home/a%23b/.local/state/holdtight";
        assert_eq!(store(None, &fake), (here.into(), Origin::Default));
        fake.0.insert("XDG_STATE_HOME", "/elsewhere".into());
        assert_eq!(store(None, &fake), (here.into(), Origin::Default), "cron has no such variable");
        assert_eq!(store(Some("file:?sync=1"), &fake).0, format!("{here}?sync=1"));
        fake.0.insert("HOLDTIGHT_STORE", "memory:e".into());
        let environment = Origin::Environment("HOLDTIGHT_STORE");
        assert_eq!(store(None, &fake), ("memory:e".into(), environment));
        assert_eq!(store(Some("memory:f"), &fake), ("memory:f".into(), Origin::Flag));
    }

    #[test]
    fn an_empty_variable_is_an_error_and_not_another_store() {
        let fake = Fake(HashMap::from([("HOLDTIGHT_STORE", "".into())]));
        assert!(Settings::load(None, &fake).unwrap_err().to_string().contains("HOLDTIGHT_STORE"));
    }

    #[test]
    fn files_are_read_strictly_and_never_quoted() {
        assert_eq!(
            parse("store = \"memory:\"\nttl = 5\nwait = \"1m\"").unwrap(),
            [("store", "memory:"), ("ttl", "5"), ("wait", "1m")].map(|(n, v)| (n.into(), v.into()))
        );
        let unknown = parse("stor = \"x\"").unwrap_err();
        assert!(unknown.contains("`stor`") && unknown.contains("kill_after"), "{unknown}");
        for bad in
            ["store = 5", "store = [\"sesame\"]", "ttl = true", "\nstore = \"sesame", "sesame"]
        {
            let message = parse(bad).unwrap_err();
            assert!(!message.contains("sesame"), "{message}");
        }
        assert!(parse("ttl = 1\nstore = \"x").unwrap_err().starts_with("line 2"));
    }
}
