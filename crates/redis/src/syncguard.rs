//! Names in the format of the Node library `syncguard`: how it derives Redis keys, byte for byte.
//!
//! Its scripts stand under `scripts/syncguard/`.

use holdtight_core::{Key, LockError};
use sha2::{Digest, Sha256};

/// The longest Redis key that `syncguard` writes.
const LIMIT: usize = 1000;

/// What it keeps free for `:id:` and an id of 22 characters.
const RESERVE: usize = 26;

/// The longest prefix with which a name still fits: a colon and the 22 characters of a hash.
pub(crate) const PREFIX_BYTES: usize = LIMIT - RESERVE - 23;

const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The Redis key for `name`: `prefix:name`, or a hash instead of the name if that is too long.
///
/// The limits are parameters because the published test vectors use others.
fn storage_key(
    prefix: &str,
    name: &str,
    limit: usize,
    reserve: usize,
) -> Result<String, LockError> {
    let prefix = prefix.trim_end_matches(':');
    let colon = if prefix.is_empty() { "" } else { ":" };
    let whole = format!("{prefix}{colon}{name}");
    if whole.len() + reserve <= limit {
        return Ok(whole);
    }
    let digest = Sha256::digest(whole.as_bytes());
    let short = format!("{prefix}{colon}{}", base64url(&digest[..16]));
    if short.len() + reserve > limit {
        return Err(LockError::invalid_config("Redis: the prefix is too long for this layout"));
    }
    Ok(short)
}

fn base64url(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..=group.len() {
            text.push(char::from(BASE64URL[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

/// The lock called `key`.
///
/// It may be the name of an index or of a counter of another lock, too: the scripts see to it that
/// none of them overwrites another.
pub(crate) fn lock(prefix: &str, key: &Key) -> Result<String, LockError> {
    storage_key(prefix, key.as_str(), LIMIT, RESERVE)
}

/// Whether the lock called `key` has a name that an index or a counter may have as well.
pub(crate) fn is_ambiguous(key: &Key) -> bool {
    ["id:", "fence:"].iter().any(|beginning| key.as_str().starts_with(beginning))
}

/// The counter of the lock whose Redis key is `lock`: the prefix stands in it twice.
pub(crate) fn fence(prefix: &str, lock: &str) -> Result<String, LockError> {
    storage_key(prefix, &format!("fence:{lock}"), LIMIT, RESERVE)
}

/// The index entry of a lock id. Node makes and accepts ids of 22 characters, as our secrets are; a
/// longer one of some other program works as well, only not from there.
pub(crate) fn index(prefix: &str, id: &str) -> Result<String, LockError> {
    storage_key(prefix, &format!("id:{id}"), LIMIT, RESERVE)
}

/// The hash under which `syncguard` shows keys and lock ids in its telemetry, to find one's own
/// locks there.
///
/// Not a cryptographic hash: short keys can be guessed from it.
///
/// ```
/// assert_eq!(holdtight_redis::syncguard_hash("resource:123"), "e90a28c676a29a3291e2874a");
/// ```
pub fn syncguard_hash(text: &str) -> String {
    let normal = Key::new(text).map_or_else(|_| text.to_owned(), |key| key.as_str().to_owned());
    let (mut a, mut b, mut c) = (0u32, 0u32, 0u32);
    for unit in normal.encode_utf16().map(u32::from) {
        a = a.wrapping_mul(31).wrapping_add(unit);
        b = b.wrapping_mul(127).wrapping_add(unit.wrapping_mul(3));
        c = c.wrapping_mul(2047).wrapping_add(unit.wrapping_mul(7));
    }
    format!("{a:08x}{b:08x}{c:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(prefix: &str, name: &str, limit: usize, reserve: usize) -> String {
        storage_key(prefix, name, limit, reserve).unwrap()
    }

    #[test]
    fn names_are_those_that_node_derives() {
        assert_eq!(key("syncguard", "resource:123", 1000, 26), "syncguard:resource:123");
        let base = lock("syncguard", &Key::new("resource:123").unwrap()).unwrap();
        assert_eq!(fence("syncguard", &base).unwrap(), "syncguard:fence:syncguard:resource:123");
        let long = key("test", &"x".repeat(500), 100, 0);
        assert_eq!(long, "test:almAngpz1zHVEeEfkwDrhg");
        assert_eq!(key("test", &format!("fence:{long}"), 100, 0), format!("test:fence:{long}"));
        assert_eq!(key("", &"x".repeat(2000), 1500, 0), "XA4OpCFXHDALXfauwKEYtQ");
        let both = key(&"x".repeat(500), &"y".repeat(512), 1000, 26);
        assert_eq!(both, format!("{}:Z8bkVwoFf_HmKMq-pCPtWg", "x".repeat(500)));
        let accents = Key::new(&"cafe\u{301}".repeat(50)).unwrap();
        assert_eq!(key("test", accents.as_str(), 50, 0), "test:WY2gS4ZIO1dvAB6sz5-lHQ");
    }

    #[test]
    fn boundaries_and_colons_are_those_of_node() {
        assert_eq!(key("a:::", "k", 100, 0), "a:k");
        assert_eq!(key("", "k", 100, 0), "k");
        assert_eq!(key("p", &"x".repeat(8), 10, 0), format!("p:{}", "x".repeat(8)));
        assert!(storage_key("p", &"x".repeat(9), 10, 0).is_err(), "a hash does not fit either");
        assert_eq!(key("p", &"x".repeat(999), 1000, 26).len(), 24);
    }

    #[test]
    fn keys_that_may_meet_an_index_or_a_counter_are_known() {
        let key = |text| Key::new(text).unwrap();
        assert!(is_ambiguous(&key("id:x")) && is_ambiguous(&key("fence:syncguard:x")));
        assert!(!is_ambiguous(&key("idx")) && !is_ambiguous(&key("my:id:x")));
        assert_eq!(lock("sg", &key("id:x")).unwrap(), "sg:id:x");
        assert_eq!(index("sg", "______________________").unwrap(), "sg:id:______________________");
    }

    #[test]
    fn hashes_are_those_of_node() {
        for (text, hash) in [
            ("", "000000000000000000000000"),
            ("a", "0000006100000123000002a7"),
            ("resource:123", "e90a28c676a29a3291e2874a"),
            ("test-key", "bb93bea4cb05bd4c690a29dc"),
            ("café", "002e7a21248b3503a22cdb87"),
            ("cafe\u{301}", "002e7a21248b3503a22cdb87"),
            ("🔒锁鍵", "659c61c9d839a7dbed0876ff"),
            ("AAAAAAAAAAAAAAAAAAAAAA", "761621603f31b080201c6800"),
        ] {
            assert_eq!(syncguard_hash(text), hash, "{text:?}");
        }
    }
}
