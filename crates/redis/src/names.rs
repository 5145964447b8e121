//! What things are called in Redis: the lock itself, and the side keys that belong to it.
//!
//! A lock is exactly `prefix + key`. Side keys have a control byte after the prefix, which neither a prefix nor a
//! key can have, so no user's key ever meets one.

use holdtight_core::{Key, LockError};

/// Where one lock and its side keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lock: String,
    pub(crate) fence: String,
    pub(crate) waiters: String,
    /// The beginning of a waiter's channel; the waiter's name follows.
    pub(crate) channel: String,
}

/// Makes names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The lock called `key` and what belongs to it.
    #[expect(clippy::unnecessary_wraps, reason = "other layouts refuse some keys")]
    pub(crate) fn place(&self, key: &Key) -> Result<Place, LockError> {
        let prefix = &self.prefix;
        Ok(Place {
            lock: format!("{prefix}{key}"),
            fence: format!("{prefix}\u{1}fence"),
            waiters: format!("{prefix}\u{1}wait:{key}"),
            channel: format!("{prefix}\u{1}wake:"),
        })
    }

    /// A lock that no user can name, for the store called `client` to try its rights on.
    pub(crate) fn rehearsal(&self, client: &str) -> Place {
        let prefix = &self.prefix;
        Place {
            lock: format!("{prefix}\u{1}rehearsal:{client}"),
            fence: format!("{prefix}\u{1}fence"),
            waiters: format!("{prefix}\u{1}wait:\u{1}{client}"),
            channel: format!("{prefix}\u{1}wake:"),
        }
    }

    /// The name of the lock called `key`.
    pub(crate) fn lock(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The key of the lock called `name`; `None` for side keys and names of others.
    pub(crate) fn key(&self, name: &str) -> Option<Key> {
        Key::with_form(name.strip_prefix(&self.prefix)?, holdtight_core::KeyForm::Verbatim).ok()
    }

    /// The channel on which the store called `client` listens.
    pub(crate) fn channel(&self, client: &str) -> String {
        format!("{}\u{1}wake:{client}", self.prefix)
    }

    /// A glob that finds all locks whose key begins with `beginning`.
    pub(crate) fn pattern(&self, beginning: &str) -> String {
        let mut glob = String::new();
        for c in self.lock(beginning).chars() {
            if "*?[]\\^-".contains(c) {
                glob.push('\\');
            }
            glob.push(c);
        }
        glob.push('*');
        glob
    }
}
