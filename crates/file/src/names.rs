//! Which names are the store's own: nothing else in its directory is ever opened, written or
//! removed.
//!
//! No text of a user becomes part of a path: a key is named by its SHA-256, a process by random
//! bytes.

use std::ffi::OsStr;

use holdtight_core::Key;
use sha2::{Digest, Sha256};

use crate::record::ProcessId;

/// The name of a key in the store: its SHA-256.
pub(crate) type Name = [u8; 32];

/// The name of `key`.
pub(crate) fn name_of(key: &Key) -> Name {
    Sha256::digest(key.as_str().as_bytes()).into()
}

/// What stands in `live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InLive {
    /// The file that a process keeps locked.
    Process(ProcessId),
    /// The pipe beside it.
    Pipe(ProcessId),
}

impl InLive {
    pub(crate) fn of(name: &OsStr) -> Option<Self> {
        match name.as_encoded_bytes().strip_suffix(b".wake") {
            Some(id) => unhex(id).map(Self::Pipe),
            None => unhex(name.as_encoded_bytes()).map(Self::Process),
        }
    }
}

/// What stands in `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InNew {
    /// The file of a key, made by this process.
    Record(ProcessId),
    /// A ledger.
    Ledger,
}

impl InNew {
    pub(crate) fn of(name: &OsStr) -> Option<Self> {
        let name = name.as_encoded_bytes();
        if let Some(random) = name.strip_prefix(b"store-") {
            return unhex::<16>(random).map(|_| Self::Ledger);
        }
        let (maker, number) = name.split_at_checked(32)?;
        let number = number.strip_prefix(b"-")?;
        let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        unhex(maker).filter(|_| is_number).map(Self::Record)
    }
}

/// The number of a part of `keys`.
pub(crate) fn part_of(name: &OsStr) -> Option<u8> {
    unhex::<1>(name.as_encoded_bytes()).map(|[part]| part)
}

/// The key whose file has this name in a part of `keys`.
pub(crate) fn record_in(part: u8, name: &OsStr) -> Option<Name> {
    let rest: [u8; 31] = unhex(name.as_encoded_bytes())?;
    let mut name = [part; 32];
    name[1..].copy_from_slice(&rest);
    Some(name)
}

/// Bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Reads what [`hex`] wrote, and nothing else.
fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_strange_ones_are_not_ours() {
        let name = name_of(&Key::new("../../etc/passwd").unwrap());
        let hex = hex(&name);
        let part = part_of(OsStr::new(&hex[..2])).unwrap();
        assert_eq!(record_in(part, OsStr::new(&hex[2..])), Some(name));
        for strange in ["", "AB", "g0", "0", "..", "0é", "000"] {
            assert_eq!(part_of(OsStr::new(strange)), None, "{strange:?}");
        }
    }

    #[test]
    fn what_only_resembles_a_name_of_ours_is_not_one() {
        let id = "0123456789abcdef0123456789abcdef";
        let live = |name: &str| InLive::of(OsStr::new(name));
        assert!(matches!(live(id), Some(InLive::Process(_))));
        assert!(matches!(live(&format!("{id}.wake")), Some(InLive::Pipe(_))));
        for strange in ["alarm.wake", "index.html", &id[1..], ".wake", &format!("{id}.wake.wake")] {
            assert_eq!(live(strange), None, "{strange:?}");
        }
        let new = |name: &str| InNew::of(OsStr::new(name));
        assert!(matches!(new(&format!("{id}-17")), Some(InNew::Record(_))));
        assert_eq!(new(&format!("store-{id}")), Some(InNew::Ledger));
        for strange in ["store-2026.csv", "store", id, &format!("{id}-"), &format!("{id}-x"), "-1"]
        {
            assert_eq!(new(strange), None, "{strange:?}");
        }
    }
}
