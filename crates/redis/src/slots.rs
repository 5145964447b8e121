//! Which of the 16384 slots of a Redis Cluster a key belongs to, and for every slot a hash tag that
//! lands there.
//!
//! The tags let side keys, counters and channels follow a lock into its slot without changing the
//! lock's own name.

use std::sync::LazyLock;

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16384;

/// CRC16 as the cluster specification asks for it: polynomial 0x1021, starting at zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

/// The part of a key between its first `{` and the next `}`, if there is something.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The slot of a key.
pub(crate) fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % 16384
}

/// A number whose decimal digits, as a hash tag, land in `slot`.
pub(crate) fn tag(slot: u16) -> u32 {
    static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut tags = vec![u32::MAX; SLOTS];
        let mut missing = SLOTS;
        for number in 0.. {
            let place = &mut tags[usize::from(self::slot(&number.to_string()))];
            if *place == u32::MAX {
                *place = number;
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags
    });
    TAGS[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // As `CLUSTER KEYSLOT` answers.
        assert_eq!((slot("foo"), slot("bar"), slot("")), (12182, 5061, 0));
        assert_eq!(slot("{user1000}.following"), slot("user1000"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
        assert_eq!(hash_tag("foo{}{bar}"), None);
        assert_eq!(hash_tag("foo{bar"), None);
    }

    #[test]
    fn every_slot_has_a_tag_that_lands_there() {
        for number in 0..16384 {
            assert_eq!(slot(&format!("any\u{1}{{{}}}thing}}", tag(number))), number);
        }
    }
}
