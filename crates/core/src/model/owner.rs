//! Who holds a lock, for people: host, process, user, command, reason.
//!
//! Stores keep it as one bounded line of text next to the lock. It is a hint and decides nothing.

use std::fmt::{self, Write as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The longest value of one field, in bytes; longer ones are cut at a character.
const FIELD_BYTES: usize = 128;

/// Where a lock was taken and why.
///
/// ```
/// use holdtight_core::Owner;
/// let owner = Owner::current().with_reason("nightly backup");
/// assert_eq!(Owner::from_text(&owner.to_text()), owner);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Owner {
    /// Host name of the holder's machine.
    pub host: Option<String>,
    /// Process id on that machine.
    pub pid: Option<u32>,
    /// User name.
    pub user: Option<String>,
    /// The program that took the lock.
    pub command: Option<String>,
    /// Why, in the holder's own words.
    pub reason: Option<String>,
}

impl Owner {
    /// An owner of whom nothing is known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// This process.
    ///
    /// The command is the program's name without arguments: arguments carry passwords.
    pub fn current() -> Self {
        static HERE: LazyLock<Owner> = LazyLock::new(|| Owner {
            host: host_name(),
            pid: None,
            user: user_name(),
            command: std::env::args_os().next().and_then(|program| {
                Some(cut(&std::path::Path::new(&program).file_name()?.to_string_lossy()))
            }),
            reason: None,
        });
        // The pid is read each time: a forked child is another process.
        Self { pid: Some(std::process::id()), ..HERE.clone() }
    }

    /// This process, shared: what every acquire call without a reason of its own uses.
    pub(crate) fn shared() -> Arc<Self> {
        static HERE: LazyLock<Arc<Owner>> = LazyLock::new(|| Arc::new(Owner::current()));
        if HERE.pid == Some(std::process::id()) {
            Arc::clone(&HERE)
        } else {
            Arc::new(Self::current())
        }
    }

    /// The same owner with a reason.
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(cut(&reason.into()));
        self
    }

    /// The same owner with another command.
    pub fn with_command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(cut(&command.into()));
        self
    }

    /// One line of printable ASCII, `host=… pid=…`, at most about 1.6 KiB: what stores keep.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let pid = self.pid.map(|pid| pid.to_string());
        let fields = [
            ("host", &self.host),
            ("pid", &pid),
            ("user", &self.user),
            ("command", &self.command),
            ("reason", &self.reason),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                let gap = if text.is_empty() { "" } else { " " };
                let _ = write!(text, "{gap}{name}={}", escape(&cut(value)));
            }
        }
        text
    }

    /// Reads what [`Owner::to_text`] wrote; whatever is not understood is left out.
    pub fn from_text(text: &str) -> Self {
        let mut owner = Self::default();
        for field in text.split(' ').take(8) {
            let Some((name, value)) = field.split_once('=') else { continue };
            let Some(value) = unescape(value) else { continue };
            let value = cut(&value);
            match name {
                "host" => owner.host = Some(value),
                "pid" => owner.pid = value.parse().ok(),
                "user" => owner.user = Some(value),
                "command" => owner.command = Some(value),
                "reason" => owner.reason = Some(value),
                _ => {}
            }
        }
        owner
    }
}

/// One phrase for messages: `pid 4211 on web-1 (deploy, ship.sh): release 42`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.host) {
            (Some(pid), Some(host)) => write!(f, "pid {pid} on {host}")?,
            (Some(pid), None) => write!(f, "pid {pid}")?,
            (None, Some(host)) => write!(f, "a process on {host}")?,
            (None, None) => f.write_str("an unknown process")?,
        }
        match (&self.user, &self.command) {
            (Some(user), Some(command)) => write!(f, " ({user}, {command})")?,
            (Some(one), None) | (None, Some(one)) => write!(f, " ({one})")?,
            (None, None) => {}
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// A field as it is kept and shown: bounded, and without anything that could move a terminal's
/// cursor.
fn cut(value: &str) -> String {
    let mut kept: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end =
        (0..=FIELD_BYTES.min(kept.len())).rev().find(|&at| kept.is_char_boundary(at)).unwrap_or(0);
    kept.truncate(end);
    kept
}

/// Percent-encodes everything but unreserved characters and a few that keep keys and paths
/// readable.
pub(crate) fn escape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:/@+,".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Undoes [`escape`]; `None` if the text was not made by it.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let (high, low) =
                (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(unix)]
fn host_name() -> Option<String> {
    Some(cut(&rustix::system::uname().nodename().to_string_lossy())).filter(|name| !name.is_empty())
}

#[cfg(not(unix))]
fn host_name() -> Option<String> {
    std::env::var("COMPUTERNAME").ok().map(|name| cut(&name))
}

fn user_name() -> Option<String> {
    let named = ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| std::env::var(name).ok());
    #[cfg(unix)]
    let named = named.or_else(|| Some(format!("uid {}", rustix::process::getuid().as_raw())));
    named.filter(|name| !name.is_empty()).map(|name| cut(&name))
}

/// For those who write a store: the text of the owner that was asked for last. A process nearly
/// always has one, and writing it out for every lock costs more than some stores take for a step.
#[derive(Debug, Default)]
pub struct OwnerText(Mutex<Option<(Arc<Owner>, Arc<str>)>>);

impl OwnerText {
    /// [`Owner::to_text`] of `owner`.
    pub fn of(&self, owner: &Arc<Owner>) -> Arc<str> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            // The pointer cannot mean another owner: this one is kept.
            Some((known, text)) if Arc::ptr_eq(known, owner) => Arc::clone(text),
            _ => {
                let text: Arc<str> = owner.to_text().into();
                *last = Some((Arc::clone(owner), Arc::clone(&text)));
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(host in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{0,40}", reason in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{0,40}", pid: u32) {
            let owner = Owner { host: Some(cut(&host)), pid: Some(pid), reason: Some(cut(&reason)), ..Owner::unknown() };
            let text = owner.to_text();
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic() || b == b' '));
            prop_assert_eq!(Owner::from_text(&text), owner);
        }

        #[test]
        fn arbitrary_text_is_read_without_panic_and_bounded(text: String) {
            let owner = Owner::from_text(&text);
            prop_assert!(owner.to_text().len() < 2048);
        }
    }

    #[test]
    fn long_and_hostile_values_are_cut_and_cleaned() {
        let owner = Owner::unknown().with_reason("é".repeat(1000)).with_command("a\u{1b}[2Jb");
        assert_eq!(owner.reason.as_ref().unwrap().len(), 128);
        assert_eq!(owner.command.as_deref(), Some("a [2Jb"));
    }

    #[test]
    fn this_process_is_described() {
        let owner = Owner::current();
        assert_eq!(owner.pid, Some(std::process::id()));
        assert!(owner.host.is_some() && owner.command.is_some());
        assert!(Owner::unknown().to_string().contains("unknown"));
    }
}
