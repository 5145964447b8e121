//! Where the store is and how careful it is: read from a URL or built in code.
//!
//! Whether the directory is fit for locks is checked in `directory`, when the store is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdtight_core::LockError;
use holdtight_kit::url::{Options, Split, percent_decode, split};

/// How long a step waits for another process that is inside a step of the same key: less than the
/// second that an attempt has at least, so that whoever asks is told why and not that the answer is
/// unknown.
const PATIENCE: Duration = Duration::from_millis(600);

/// Which directory, and how it is used.
///
/// ```
/// use holdtight_file::Config;
/// let config = Config::from_url("file:/var/lib/locks?sync=1")?;
/// assert_eq!(config.directory(), std::path::Path::new("/var/lib/locks"));
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    directory: PathBuf,
    pub(crate) sync: bool,
    pub(crate) patience: Duration,
}

impl Config {
    /// A store in `directory`, which is created with mode 0700 if it is missing.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), sync: false, patience: PATIENCE }
    }

    /// The store of this user: `$HOME/.local/state/holdtight`.
    ///
    /// It is one store for all of a user's processes: `XDG_STATE_HOME`, which a shell may have and
    /// cron does not, is not read.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if `HOME` is not set to an
    /// absolute path.
    pub fn for_user() -> Result<Self, LockError> {
        state_directory(&|name| std::env::var_os(name)).map(Self::new)
    }

    /// Reads `file:` (the store of this user) or `file:/directory`, with `?sync=1` if wanted.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), saying what is wrong with the
    /// URL.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let url = split(url, "file:/var/lib/locks")?;
        if url.scheme != "file" {
            return Err(LockError::invalid_config("a file store's URL begins with `file:`"));
        }
        let mut config = match (url.authority, url.path) {
            (None, "") => Self::for_user()?,
            _ => Self::new(location(&url)?),
        };
        let mut options = Options::parse("file", url.query)?;
        config.sync = options.flag("sync")?.unwrap_or(false);
        options.finish()?;
        Ok(config)
    }

    /// Whether every step reaches the disk before it is answered. Off: leases do not outlive a
    /// reboot anyway, and fences go on from the wall clock. On: fences also survive a power cut
    /// together with a clock that was set back.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// How long a step waits for a process that is inside a step of the same key (0.6 s). Steps
    /// last microseconds, so only a process that was stopped there lets this pass.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// The directory that a URL names.
fn location(url: &Split<'_>) -> Result<PathBuf, LockError> {
    if url.authority.is_some_and(|host| !matches!(host, "" | "localhost")) || url.path.is_empty() {
        return Err(LockError::invalid_config(
            "a file store is on this machine: write file:/directory or file:///directory",
        ));
    }
    if !url.path.starts_with('/') {
        return Err(LockError::invalid_config(
            "the directory of a file store is an absolute path, as in file:/var/lib/locks: a \
             relative one would be another store in every working directory",
        ));
    }
    let path = percent_decode(url.path)?;
    if path.contains('\0') {
        return Err(LockError::invalid_config("the directory in the URL has a NUL in it"));
    }
    Ok(path.into())
}

fn state_directory(
    variable: &dyn Fn(&str) -> Option<std::ffi::OsString>,
) -> Result<PathBuf, LockError> {
    match variable("HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(home) => Ok(home.join(".local/state/holdtight")),
        None => Err(LockError::invalid_config(
            "no directory for locks: HOME is not set to an absolute path; set it, or name a \
             directory, as in file:/var/lib/locks",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(url: &str) -> PathBuf {
        Config::from_url(url).unwrap().directory().to_owned()
    }

    #[test]
    fn every_spelling_of_a_file_url_names_the_same_directory() {
        for url in ["file:/a/b", "file:///a/b", "file://localhost/a/b", "FILE:/a/b", "file:/a%2fb"]
        {
            assert_eq!(directory(url), Path::new("/a/b"), "{url}");
        }
        assert_eq!(directory("file:/tmp/caf%C3%A9%20x"), Path::new("/tmp/café x"));
    }

    #[test]
    fn options_are_read_and_unknown_ones_refused_by_name() {
        assert!(Config::from_url("file:/a?sync=1").unwrap().sync);
        assert!(!Config::from_url("file:/a?sync=0&").unwrap().sync);
        assert!(!Config::from_url("file:/a").unwrap().sync);
        let text = Config::from_url("file:/a?fsync=1").unwrap_err().to_string();
        assert!(text.contains("`fsync`") && text.contains("`sync`"), "{text}");
        assert!(Config::from_url("file:/a?sync=maybe").is_err());
        let text = Config::from_url("file:/a?sync=1&sync=0").unwrap_err().to_string();
        assert!(text.contains("twice"), "{text}");
    }

    #[test]
    fn what_cannot_be_a_directory_here_is_refused() {
        for url in [
            "redis:/a",
            "file",
            "file:a/b",
            "file:./a",
            "file://server/share",
            "file:/a%0",
            "file:/a%zz",
            "file:/a%00b",
            "file:/a#b",
            "file://",
        ] {
            assert!(Config::from_url(url).is_err(), "{url} must be refused");
        }
    }

    #[test]
    fn the_default_is_the_users_state_directory_or_an_error_that_says_so() {
        let none = |_: &str| None;
        let text = state_directory(&none).unwrap_err().to_string();
        assert!(text.contains("HOME") && text.contains("file:/"), "{text}");
        let home = |name: &str| (name == "HOME").then(|| "/home/ann".into());
        assert_eq!(state_directory(&home).unwrap(), Path::new("/home/ann/.local/state/holdtight"));
        let both = |name: &str| Some(if name == "HOME" { "/h".into() } else { "/s".into() });
        assert_eq!(
            state_directory(&both).unwrap(),
            Path::new("/h/.local/state/holdtight"),
            "cron has no XDG_STATE_HOME, and shares the store with the shells of its user"
        );
        let relative = |name: &str| (name == "HOME").then(|| "home".into());
        assert!(
            state_directory(&relative).is_err(),
            "it would be another store in every directory"
        );
        let other = |name: &str| (name == "XDG_STATE_HOME").then(|| "/s".into());
        assert!(state_directory(&other).is_err(), "nobody else would find it there");
    }
}
