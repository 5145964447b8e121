//! What the value of an entry says: whether it still waits, under which fence it holds the lock,
//! and for whom.
//!
//! A lock that was taken while it was free has its create revision for a fence, and the owner that
//! its name tells: its value is only for people. One that waited is granted later than it was made,
//! and meanwhile the holder before it may have been given a newer fence by a resume. So its fence
//! is read off the cluster in the moment of its grant, and written down. A resumed one keeps its
//! name, and with it its place before all that wait, but belongs to another secret.
//!
//! A fence that is written down is one more than the revision at which the entry was seen to be the
//! oldest. Whoever held the lock before was gone by then, and had no fence above that revision; the
//! write itself gets at least that number, and all that follows happens after the write.

use holdtight_core::AcquireRequest;

use crate::names::Place;
use crate::proto::KeyValue;

/// An entry that waits, or did until it became the oldest.
const WAITING: &[u8] = b"v=1 waiting=1 ";

/// One that was granted, to the owner that its name tells.
const HOLDING: &[u8] = b"v=1 ";

/// One that was resumed under another secret. Sorted after all others, so that etcd can tell them
/// apart by comparing.
const RESUMED: &[u8] = b"w=1 ";

/// Greater values say whom an entry belongs to; with others its name does.
pub(crate) const RESUMED_FROM: &[u8] = b"w";

/// The value of a place in the line.
pub(crate) fn waiting(request: &AcquireRequest) -> Vec<u8> {
    [WAITING, request.owner.to_text().as_bytes()].concat()
}

/// The value of an entry that holds the lock from the moment it was made.
pub(crate) fn holding(request: &AcquireRequest) -> Vec<u8> {
    [HOLDING, request.owner.to_text().as_bytes()].concat()
}

/// The value of an entry that waited, and was seen at revision `seen` to be the oldest.
pub(crate) fn granted(request: &AcquireRequest, seen: i64) -> Vec<u8> {
    let fence = format!("fence={} ", seen + 1);
    [HOLDING, fence.as_bytes(), request.owner.to_text().as_bytes()].concat()
}

/// The value of an entry that was seen at revision `seen` to hold the lock, and does so for `place`
/// from now on.
pub(crate) fn resumed(request: &AcquireRequest, seen: i64, place: &Place) -> Vec<u8> {
    let id = String::from_utf8_lossy(place.id());
    let mark = format!("fence={} id={id} ", seen + 1);
    [RESUMED, mark.as_bytes(), request.owner.to_text().as_bytes()].concat()
}

impl KeyValue {
    /// Whether its owner may not yet know that it holds the lock.
    pub(crate) fn is_waiting(&self) -> bool {
        self.value.starts_with(WAITING)
    }

    /// Whether this entry of the lock of `place` belongs to the owner whose place that is.
    pub(crate) fn belongs_to(&self, place: &Place) -> bool {
        if self.value.as_slice() <= RESUMED_FROM {
            return self.key == place.entry;
        }
        // One that cannot be read is nobody's.
        self.value.strip_prefix(RESUMED).is_some_and(|rest| {
            let mut words = rest.split(|byte| *byte == b' ');
            let id = words.nth(1).and_then(|word| word.strip_prefix(b"id="));
            id == Some(place.id())
        })
    }

    /// The revision that is the fence of this entry's grant; `None` if what stands there cannot be
    /// one.
    pub(crate) fn fence(&self) -> Option<i64> {
        let value = self.value.as_slice();
        let rest = value.strip_prefix(HOLDING).or_else(|| value.strip_prefix(RESUMED));
        let mark = rest.and_then(|rest| rest.strip_prefix(b"fence="));
        let Some(mark) = mark else { return Some(self.create_revision) };
        let digits = mark.split(|byte| *byte == b' ').next()?;
        let fence: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (self.create_revision..=self.mod_revision).contains(&fence).then_some(fence)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdtight_core::{Key, Owner, Secret};

    use super::*;
    use crate::names::Names;

    fn request(secret: &str) -> AcquireRequest {
        let secret = Secret::parse(secret).unwrap();
        AcquireRequest::new(Key::new("k").unwrap(), secret, Duration::from_secs(1))
    }

    fn place(secret: &str) -> Place {
        Names::new("p/").place(&Key::new("k").unwrap(), &Secret::parse(secret).unwrap())
    }

    fn entry(value: Vec<u8>) -> KeyValue {
        let key = place("one").entry;
        KeyValue { key, value, create_revision: 5, mod_revision: 20, lease: 1 }
    }

    #[test]
    fn a_resumed_entry_belongs_to_whoever_resumed_it_last() {
        for value in [waiting(&request("one")), holding(&request("one")), Vec::new()] {
            let entry = entry(value);
            assert!(entry.belongs_to(&place("one")) && !entry.belongs_to(&place("two")));
            assert_eq!(entry.fence(), Some(5));
        }
        let entry = entry(resumed(&request("two"), 9, &place("two")));
        assert!(!entry.belongs_to(&place("one")) && entry.belongs_to(&place("two")));
        assert_eq!((entry.fence(), entry.is_waiting()), (Some(10), false));
    }

    #[test]
    fn a_fence_that_is_written_down_counts_and_the_owner_is_still_read() {
        let granted = entry(granted(&request("one"), 11));
        assert_eq!(granted.fence(), Some(12));
        assert!(granted.belongs_to(&place("one")));
        let resumed = entry(resumed(&request("two"), 11, &place("two")));
        for entry in [granted, resumed] {
            let owner = Owner::from_text(std::str::from_utf8(&entry.value).unwrap());
            assert_eq!(owner, Owner::current());
        }
    }

    #[test]
    fn what_cannot_be_read_is_nobodys_and_no_fence() {
        for value in ["w=1 ", "w=1 fence=9", "w=1 fence=9 id=", "w=2 fence=9 id=x", "\u{ff}"] {
            let entry = entry(value.as_bytes().to_vec());
            assert!(!entry.belongs_to(&place("one")), "{value:?}");
        }
        for value in
            ["v=1 fence= ", "v=1 fence=4 ", "v=1 fence=21 ", "v=1 fence=x ", "v=1 fence=-7 "]
        {
            assert_eq!(entry(value.as_bytes().to_vec()).fence(), None, "{value:?}");
        }
    }
}
