//! What stands in the item of a held lock: one line of text that says whose it is, and its fence.
//!
//! The fence is the CAS number that the server gives the granting write, which that write cannot
//! contain. So a fresh record says only when the server was started, and its fence follows from the
//! item's own CAS number; the first write that changes that number (an extension) puts the fence
//! into the record. Every reader, at any time, comes to the same fence.

use std::fmt::Write as _;
use std::sync::Arc;

use holdtight_core::{Fence, Key, Owner, Secret};

/// The first word of every record. Another format gets another word, and is then somebody else's
/// lock to us.
const MARK: &str = "ht1";

/// The longest record there can be, and more: 64 bytes of secret, 512 of key, about 1600 of owner.
pub(crate) const RECORD_BYTES: usize = 4096;

/// A held lock as it is written.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Record {
    pub(crate) secret: Secret,
    /// When the server that granted was started: the upper half of the fence.
    pub(crate) start: u32,
    /// The fence, once the item's CAS number is no longer that of the grant.
    pub(crate) fence: Option<Fence>,
    /// The server's time at the grant, in seconds, as the granting client knew it. For display.
    pub(crate) granted_at: u64,
    pub(crate) key: String,
    /// [`Owner::to_text`].
    pub(crate) owner: Arc<str>,
}

impl Record {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (secret, key, owner) = (self.secret.expose(), &*self.key, &*self.owner);
        // The numbers take less than this.
        let mut text = String::with_capacity(80 + secret.len() + key.len() + owner.len());
        let _ = write!(text, "{MARK} {secret} {} ", self.start);
        match self.fence {
            None => text.push('-'),
            Some(fence) => drop(write!(text, "{fence}")),
        }
        let _ = write!(text, " {} {} {key} {owner}", self.granted_at, key.len());
        text.into_bytes()
    }

    /// Reads a record; `None` for whatever we did not write.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= RECORD_BYTES)?;
        let mut fields = text.splitn(7, ' ');
        if fields.next()? != MARK {
            return None;
        }
        let secret = Secret::parse(fields.next()?).ok()?;
        let start = number(fields.next()?)?;
        let fence = match fields.next()? {
            "-" => None,
            fence => Some(Fence::new(number(fence)?)),
        };
        let granted_at = number(fields.next()?)?;
        let key_bytes: usize = number(fields.next()?)?;
        let rest = fields.next()?;
        let (key, owner) = (rest.get(..key_bytes)?, rest.get(key_bytes..)?);
        let owner = owner.strip_prefix(' ')?;
        Some(Self { secret, start, fence, granted_at, key: key.into(), owner: owner.into() })
    }

    /// The fence of the grant, given the CAS number of the item that this was read from.
    pub(crate) fn fence(&self, cas: u64) -> Option<Fence> {
        self.fence.or_else(|| mint(self.start, cas))
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner::from_text(&self.owner)
    }

    /// Whether this is the lock of `key`: names of long keys are hashes, and prefixes may run into
    /// keys.
    pub(crate) fn is_of(&self, key: &Key) -> bool {
        self.key == key.as_str()
    }
}

/// The fence of a grant: CAS numbers rise with every write of one server process, its start from
/// process to process.
///
/// Added, not put side by side: a server that has counted beyond 32 bits goes on rising, and it
/// would have to write more than four thousand million times a second on average to reach the
/// fences of its successor.
///
/// `None` for a server that counts nothing (`-C`), and when the numbers run out.
pub(crate) fn mint(start: u32, cas: u64) -> Option<Fence> {
    let fence = (u64::from(start) << 32).checked_add(cas)?;
    (cas > 0).then_some(Fence::new(fence))
}

/// Plain digits only: `parse` alone would take a sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        Record {
            secret: Secret::parse("abc").unwrap(),
            start: 1_794_776_580,
            fence: None,
            granted_at: 1_794_776_999,
            key: "user 1 ".into(),
            owner: "host=a pid=7".into(),
        }
    }

    #[test]
    fn the_fence_is_the_same_before_and_after_it_is_written_down() {
        let fresh = record();
        let fence = fresh.fence(7).unwrap();
        assert_eq!(fence.get(), (1_794_776_580 << 32) + 7);
        let extended = Record { fence: Some(fence), ..fresh };
        assert_eq!(extended.fence(99), Some(fence));
    }

    #[test]
    fn fences_rise_with_the_count_and_from_process_to_process() {
        assert!(mint(5, 1) < mint(5, 2) && mint(5, u64::from(u32::MAX)) < mint(6, 1));
        assert!(mint(5, 1 << 32) > mint(5, (1 << 32) - 1), "a long count goes on rising");
        assert_eq!(mint(5, 0), None, "a server without CAS numbers mints nothing");
        assert_eq!(mint(u32::MAX, u64::MAX), None, "and nothing wraps");
    }

    #[test]
    fn what_we_did_not_write_is_not_read() {
        let good = String::from_utf8(record().to_bytes()).unwrap();
        assert!(Record::from_bytes(good.as_bytes()) == Some(record()));
        for bad in [
            "",
            "1",
            "lock",
            "ht1",
            "ht2 abc 1 - 1 1 k ",
            "ht1  1 - 1 1 k ",
            "ht1 abc +1 - 1 1 k ",
            "ht1 abc 1 x 1 1 k ",
            "ht1 abc 1 - 1 2 k ",
            "ht1 abc 1 - 1 1 kx ",
            "ht1 abc 1 - 1 1 k",
            "ht1 abc 4294967296 - 1 1 k ",
            "ht1 abc 1 - 1 18446744073709551615 k ",
            "ht1 abc 1 - 1 1 é ",
        ] {
            assert!(Record::from_bytes(bad.as_bytes()).is_none(), "{bad:?} must be refused");
        }
        assert!(Record::from_bytes(&[b'x'; 8192]).is_none());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            secret in "[!-~]{1,64}", start: u32, fence: Option<u64>, granted_at: u64,
            key in "\\PC{1,120}", owner in "[ -~]{0,200}",
        ) {
            let secret = Secret::parse(&secret).unwrap();
            let fence = fence.map(Fence::new);
            let owner = owner.into();
            let record = Record { secret, start, fence, granted_at, key, owner };
            prop_assert!(Record::from_bytes(&record.to_bytes()) == Some(record));
        }

        #[test]
        fn arbitrary_bytes_are_read_without_panic(bytes: Vec<u8>, text in "ht1 [ -~]{0,80}") {
            let _ = Record::from_bytes(&bytes);
            let _ = Record::from_bytes(text.as_bytes());
        }
    }
}
