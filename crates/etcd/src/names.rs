//! How a lock and its entries are called in etcd.
//!
//! A lock is a range: `PREFIX KEY 0x1F`, and below it one key for its holder and one for each
//! waiter. User keys have no control characters, so no lock's range can reach into another's. An
//! entry is named by a hash of the owner's secret: etcd writes the names of slow requests to its
//! log, and what stands there must open nothing.

use std::fmt::Write as _;

use holdtight_core::{Key, Secret};
use sha2::{Digest as _, Sha256};

/// Ends a user key. A shell can type it (`$'\x1f'`), unlike a zero.
const END: u8 = 0x1f;

/// A range of keys: from `start` up to, not including, `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

/// Where one owner's entry for one lock stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// All entries of the lock.
    pub(crate) lock: Range,
    /// This owner's entry.
    pub(crate) entry: Vec<u8>,
}

impl Place {
    /// What tells this owner from the others of the lock.
    pub(crate) fn id(&self) -> &[u8] {
        self.entry.strip_prefix(self.lock.start.as_slice()).unwrap_or_default()
    }
}

/// Names under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// All entries of the lock `key`.
    pub(crate) fn lock(&self, key: &Key) -> Range {
        let mut start = Vec::with_capacity(self.prefix.len() + key.as_str().len() + 33);
        start.extend_from_slice(self.prefix.as_bytes());
        start.extend_from_slice(key.as_str().as_bytes());
        let mut end = start.clone();
        start.push(END);
        end.push(END + 1);
        Range { start, end }
    }

    /// The entry of the owner `secret` for the lock `key`.
    pub(crate) fn place(&self, key: &Key, secret: &Secret) -> Place {
        let lock = self.lock(key);
        let mut name = String::with_capacity(32);
        for byte in &Sha256::digest(secret.expose().as_bytes())[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        let mut entry = lock.start.clone();
        entry.extend_from_slice(name.as_bytes());
        Place { lock, entry }
    }

    /// All entries of all locks whose key begins with `prefix`.
    pub(crate) fn all(&self, prefix: &str) -> Range {
        let start = [self.prefix.as_bytes(), prefix.as_bytes()].concat();
        let mut end = start.clone();
        // No byte of UTF-8 is 0xFF, and our own prefix is never empty.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Range { start, end }
    }

    /// The lock that an entry belongs to; `None` if the entry is not one of ours.
    pub(crate) fn key_of(&self, entry: &[u8]) -> Option<Key> {
        let rest = entry.strip_prefix(self.prefix.as_bytes())?;
        let end = rest.iter().position(|byte| *byte == END)?;
        let text = std::str::from_utf8(rest.get(..end)?).ok()?;
        Key::new(text).ok().filter(|key| key.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap()
    }

    #[test]
    fn an_entry_names_its_lock_and_hides_its_secret() {
        let names = Names::new("holdtight/");
        let key = Key::new("user:123").unwrap();
        let place = names.place(&key, &secret("hunter2"));
        assert_eq!(place.lock.start, b"holdtight/user:123\x1f");
        assert_eq!(place.entry.len(), place.lock.start.len() + 32);
        assert!(!String::from_utf8_lossy(&place.entry).contains("hunter2"));
        assert_eq!(names.key_of(&place.entry), Some(key.clone()));
        assert_ne!(place, names.place(&key, &secret("hunter3")));
        for foreign in
            ["other/user:1\x1fx", "holdtight/user:1", "holdtight/\x1fx", "holdtight/a\nb\x1fx"]
        {
            assert_eq!(names.key_of(foreign.as_bytes()), None, "{foreign:?}");
        }
        assert_eq!(names.key_of(b"holdtight/\xff\x1fx"), None);
    }

    fn within(range: &Range, entry: &[u8]) -> bool {
        range.start.as_slice() <= entry && entry < range.end.as_slice()
    }

    proptest! {
        #[test]
        fn no_lock_reaches_into_another(one in "\\PC{1,20}", two in "\\PC{1,20}") {
            let names = Names::new("p/");
            if let (Ok(one), Ok(two)) = (Key::new(&one), Key::new(&two)) {
                let entry = names.place(&one, &secret("s")).entry;
                prop_assert!(within(&names.lock(&one), &entry));
                prop_assert_eq!(within(&names.lock(&two), &entry), one == two);
                prop_assert_eq!(names.key_of(&entry), Some(one.clone()));
                prop_assert_eq!(within(&names.all(two.as_str()), &entry), one.as_str().starts_with(two.as_str()));
                prop_assert!(within(&names.all(""), &entry));
            }
        }
    }
}
