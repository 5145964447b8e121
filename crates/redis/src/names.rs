//! What things are called in Redis: the lock itself, and the side keys that belong to it.
//!
//! A lock is exactly `prefix + key` (in the syncguard layout as that library derives it). Side keys
//! have a control byte after the prefix, which neither a prefix nor a key can have, so no user's
//! key ever meets one. Only the counters and indexes of the syncguard layout have names that a key
//! may have, too.

use std::sync::Arc;

use holdtight_core::{Key, KeyForm, LockError, Secret};

use crate::config::Layout;
use crate::slots::{hash_tag, slot, tag};
use crate::syncguard;

/// Where one lock and its side keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lock: String,
    pub(crate) fence: Arc<str>,
    /// The script that wakes makes channels from it, see `scripts/lib/wake.lua`.
    pub(crate) waiters: String,
}

/// Makes names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
    layout: Layout,
    /// On a cluster without a hash tag in the prefix, side keys carry one that leads them to their
    /// lock's slot.
    tagged: bool,
    cluster: bool,
    /// The counter that all locks share, where they do.
    fence: Arc<str>,
}

impl Names {
    pub(crate) fn new(prefix: &str, layout: Layout, cluster: bool) -> Self {
        let prefix = match layout {
            Layout::Syncguard => prefix.trim_end_matches(':'),
            Layout::Native | Layout::Token => prefix,
        };
        let tagged = cluster && hash_tag(prefix).is_none();
        let fence = format!("{prefix}\u{1}fence").into();
        Self { prefix: prefix.to_owned(), layout, tagged, cluster, fence }
    }

    /// Whether all locks are on one server: one step can then take several.
    pub(crate) fn together(&self) -> bool {
        !self.cluster || hash_tag(&self.prefix).is_some()
    }

    /// The lock called `key` and what belongs to it.
    pub(crate) fn place(&self, key: &Key) -> Result<Place, LockError> {
        self.around(self.lock(key)?, key.as_str())
    }

    /// The name of the lock called `key`.
    pub(crate) fn lock(&self, key: &Key) -> Result<String, LockError> {
        match self.layout {
            Layout::Native | Layout::Token => Ok([&self.prefix, key.as_str()].concat()),
            Layout::Syncguard => syncguard::lock(&self.prefix, key),
        }
    }

    /// A lock that no user can name, for the store called `client` to try its rights on.
    pub(crate) fn rehearsal(&self, client: &str) -> Result<Place, LockError> {
        // Every slot of a cluster has a counter that stays for ever: all stores rehearse in the
        // same one.
        let tag = if self.tagged { "{rehearsal}" } else { "rehearsal" };
        let lock = format!("{}\u{1}{tag}:{client}", self.prefix);
        let place = self.around(lock, &format!("\u{1}{client}"))?;
        Ok(match self.layout {
            Layout::Native | Layout::Token => place,
            // There a counter belongs to one lock and stays for ever; all stores share this one.
            Layout::Syncguard => {
                Place { fence: self.side("rehearsal", &place.lock, &[]).into(), ..place }
            }
        })
    }

    fn around(&self, lock: String, key: &str) -> Result<Place, LockError> {
        Ok(Place {
            fence: match self.layout {
                Layout::Native | Layout::Token if self.tagged => {
                    self.side("fence", &lock, &[]).into()
                }
                Layout::Native | Layout::Token => Arc::clone(&self.fence),
                Layout::Syncguard => syncguard::fence(&self.prefix, &lock)?.into(),
            },
            waiters: self.side("wait", &lock, &[":", key]),
            lock,
        })
    }

    fn side(&self, kind: &str, lock: &str, rest: &[&str]) -> String {
        let length = rest.iter().map(|part| part.len()).sum::<usize>();
        let mut name = String::with_capacity(self.prefix.len() + kind.len() + length + 16);
        for part in [&self.prefix, "\u{1}", kind] {
            name.push_str(part);
        }
        if self.tagged {
            name.push('{');
            name.push_str(&tag(slot(lock)).to_string());
            name.push('}');
        }
        for part in rest {
            name.push_str(part);
        }
        name
    }

    /// The key beside the lock that belongs to this grant, in layouts that have one.
    pub(crate) fn beside(
        &self,
        place: &Place,
        secret: &Secret,
    ) -> Result<Option<String>, LockError> {
        match self.layout {
            Layout::Native => Ok(None),
            Layout::Token => Ok(Some(self.record(&place.lock))),
            Layout::Syncguard => syncguard::index(&self.prefix, secret.expose()).map(Some),
        }
    }

    /// Where fence and owner of a lock stand in the token layout.
    pub(crate) fn record(&self, lock: &str) -> String {
        self.side("record", lock, &[":", lock.strip_prefix(&self.prefix).unwrap_or(lock)])
    }

    /// Where the largest fence stands that has written the user's own value `name`.
    pub(crate) fn fenced(&self, name: &str) -> Result<String, LockError> {
        let beside = self.side("fenced", name, &[":", name]);
        // A hash tag in the prefix leads to its own slot, wherever the value is.
        if self.cluster && slot(&beside) != slot(name) {
            return Err(LockError::invalid_key(
                "the value's name must carry the same hash tag as the prefix of the store",
            ));
        }
        Ok(beside)
    }

    /// The channel on which the store called `client` listens to everything, on a single server.
    pub(crate) fn channel(&self, client: &str) -> String {
        format!("{}\u{1}wake:{client}", self.prefix)
    }

    /// The channel on which that store listens to what becomes of `lock`, on a cluster.
    pub(crate) fn shard_channel(&self, lock: &str, client: &str) -> String {
        self.side("wake", lock, &[":", client])
    }

    /// A glob that finds the names of all locks whose key begins with `beginning`, and
    /// [`Names::key`] reads them.
    ///
    /// Without a prefix every key of the database could be a lock; then only those that were taken
    /// by a holdtight process are found, by their records.
    pub(crate) fn pattern(&self, beginning: &str) -> String {
        let name = match self.layout {
            // Its tag depends on the whole key: any will do.
            Layout::Token if self.prefix.is_empty() && self.tagged => {
                return format!("\u{1}record{{*}}:{}*", escaped(beginning));
            }
            Layout::Token if self.prefix.is_empty() => format!("\u{1}record:{beginning}"),
            Layout::Native | Layout::Token => format!("{}{beginning}", self.prefix),
            Layout::Syncguard if self.prefix.is_empty() => beginning.to_owned(),
            Layout::Syncguard => format!("{}:{beginning}", self.prefix),
        };
        format!("{}*", escaped(&name))
    }

    /// No name that [`Names::key`] reads is longer: the prefix, a key, and what marks a side key.
    pub(crate) fn longest(&self) -> usize {
        self.prefix.len() + Key::MAX_BYTES + 32
    }

    /// The key of the lock that was found under `name`; `None` for side keys and names of others.
    /// Whether there is a lock at all under it, only its value tells, if it [may be a side
    /// key](Self::may_be_side_key).
    pub(crate) fn key(&self, name: &str) -> Option<Key> {
        let rest = match self.layout {
            Layout::Token if self.prefix.is_empty() => {
                name.strip_prefix("\u{1}record")?.split_once(':')?.1
            }
            Layout::Native | Layout::Token => name.strip_prefix(&self.prefix)?,
            Layout::Syncguard => {
                let rest = name.strip_prefix(&self.prefix)?;
                // Hashed names do not tell their keys, and fail here or are not found by their own
                // name.
                if self.prefix.is_empty() { rest } else { rest.strip_prefix(':')? }
            }
        };
        Key::with_form(rest, KeyForm::Verbatim).ok()
    }

    /// Whether a side key of another lock may have the name of the lock called `key`.
    pub(crate) fn may_be_side_key(&self, key: &Key) -> bool {
        self.layout == Layout::Syncguard && syncguard::is_ambiguous(key)
    }
}

/// A text as a glob that matches only itself.
fn escaped(text: &str) -> String {
    let mut glob = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if "*?[]\\^-".contains(c) {
            glob.push('\\');
        }
        glob.push(c);
    }
    glob
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAYOUTS: [Layout; 3] = [Layout::Native, Layout::Token, Layout::Syncguard];

    proptest! {
        #[test]
        fn no_two_keys_and_no_side_key_share_a_name(
            a in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{1,20}", b in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{1,20}", prefix in "[a-z:]{0,6}",
        ) {
            for layout in LAYOUTS {
                let names = Names::new(&prefix, layout, false);
                let (Ok(key_a), Ok(key_b)) = (Key::new(&a), Key::new(&b)) else { continue };
                let (Ok(one), Ok(two)) = (names.place(&key_a), names.place(&key_b)) else { continue };
                prop_assert_eq!(one.lock == two.lock, key_a == key_b);
                prop_assert_eq!(one.waiters == two.waiters, key_a == key_b);
                for side in [&*two.fence, &two.waiters, &names.record(&two.lock)] {
                    prop_assert!(one.lock != side || layout == Layout::Syncguard && side == &*two.fence && key_a.as_str().starts_with("fence:"));
                }
            }
        }

        #[test]
        fn a_lock_that_is_found_is_the_one_that_was_named(key in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{1,20}") {
            for layout in LAYOUTS {
                for prefix in ["", "p:", "holdtight:"] {
                    let names = Names::new(prefix, layout, false);
                    let key = Key::new(&key).unwrap();
                    let Ok(place) = names.place(&key) else { continue };
                    let found = if layout == Layout::Token && prefix.is_empty() {
                        names.record(&place.lock)
                    } else {
                        place.lock.clone()
                    };
                    prop_assert_eq!(names.key(&found), Some(key));
                    prop_assert_eq!(names.key(&place.waiters), None);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn on_a_cluster_everything_of_a_lock_is_in_its_slot(key in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{1,20}", braces in "[a{}:]{1,8}") {
            for (layout, prefix) in [
                (Layout::Native, "holdtight:"), (Layout::Native, "{x}"), (Layout::Native, "}"), (Layout::Token, ""),
                (Layout::Token, "a{b}c"), (Layout::Syncguard, "{syncguard}"),
            ] {
                let names = Names::new(prefix, layout, true);
                for key in [Key::new(&key).unwrap(), Key::new(&braces).unwrap()] {
                    let Ok(place) = names.place(&key) else { continue };
                    let beside = names.beside(&place, &Secret::generate().unwrap()).unwrap();
                    let channel = names.shard_channel(&place.lock, "client");
                    for name in [&*place.fence, &place.waiters, &channel].into_iter().chain(beside.as_deref()) {
                        prop_assert_eq!(slot(name), slot(&place.lock), "{:?} and {:?}", name, &place.lock);
                    }
                    if layout == Layout::Token && prefix.is_empty() {
                        prop_assert_eq!(names.key(&beside.unwrap()), Some(key));
                    }
                }
            }
        }
    }

    #[test]
    fn all_rehearsals_leave_one_counter() {
        for (layout, prefix) in [
            (Layout::Native, "holdtight:"),
            (Layout::Native, "{x}"),
            (Layout::Token, ""),
            (Layout::Syncguard, "{syncguard}"),
        ] {
            for cluster in [false, true] {
                let names = Names::new(prefix, layout, cluster);
                let [one, two] = ["1a2b", "3c4d"].map(|client| names.rehearsal(client).unwrap());
                assert_ne!(one.lock, two.lock, "two stores do not meet");
                assert_eq!(one.fence, two.fence, "{layout:?} {prefix:?} {cluster}");
                assert!(!cluster || slot(&one.fence) == slot(&one.lock), "{layout:?} {prefix:?}");
                assert_eq!(names.key(&one.lock), None, "no user's lock");
            }
        }
    }

    #[test]
    fn the_lock_is_exactly_prefix_and_key() {
        let key = Key::new("user:1").unwrap();
        let lock = |prefix, layout| Names::new(prefix, layout, false).place(&key).unwrap().lock;
        assert_eq!(lock("lock:", Layout::Native), "lock:user:1");
        assert_eq!(lock("", Layout::Token), "user:1");
        assert_eq!(lock("syncguard::", Layout::Syncguard), "syncguard:user:1");
    }
}
