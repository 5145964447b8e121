//! The name of a lock: validated and normalised once, before any I/O.
//!
//! How a name is stored (prefix, hash, encoding) is each store's own affair.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// How a store wants its keys: see [`Key::with_form`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyForm {
    /// Unicode NFC: two spellings of the same text are one lock. The default.
    #[default]
    Nfc,
    /// Byte for byte as given, for stores shared with programs that do not normalise.
    Verbatim,
}

/// A valid lock name: 1 to 512 bytes of UTF-8 without control characters.
///
/// Cheap to clone.
///
/// ```
/// use holdtight_core::Key;
/// assert_eq!(Key::new("cafe\u{301}")?, Key::new("café")?);
/// assert!(Key::new("two\nlines").is_err());
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone)]
pub struct Key {
    text: Text,
    /// Hashed once, by a secret of this process, because one step looks a key up several times.
    hash: u64,
}

/// Always UTF-8. Most keys are short and fit into themselves: one acquire call passes its key on
/// half a dozen times.
#[derive(Clone)]
enum Text {
    Short(u8, [u8; SHORT]),
    Long(Arc<str>),
}

/// As many bytes as make a short text no larger than a long one.
const SHORT: usize = 22;

impl Text {
    fn new(text: &str) -> Self {
        let mut bytes = [0; SHORT];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text.as_bytes());
                Self::Short(len, bytes)
            }
            _ => Self::Long(text.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(text) => text.as_bytes(),
        }
    }
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A map by key that uses the hash which every key carries.
pub(crate) type KeyMap<T> = HashMap<Key, T, BuildHasherDefault<Carried>>;

impl Key {
    /// The longest key, in bytes of UTF-8 after normalisation.
    pub const MAX_BYTES: usize = 512;

    /// A key of a text that was checked.
    pub(super) fn checked(text: &str) -> Self {
        Self { text: Text::new(text), hash: HASHER.hash_one(text) }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        match &self.text {
            // Only whole texts are ever stored, so this cannot fail.
            Text::Short(..) => std::str::from_utf8(self.text.bytes()).unwrap_or_default(),
            Text::Long(text) => text,
        }
    }

    /// The hash it carries: equal keys of one process have the same.
    pub(crate) fn carried_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && match (&self.text, &other.text) {
                // Of known length, because what follows a short text is zero.
                (Text::Short(len, bytes), Text::Short(other_len, other_bytes)) => {
                    len == other_len && bytes == other_bytes
                }
                (Text::Long(text), Text::Long(other)) => Arc::ptr_eq(text, other) || text == other,
                _ => false,
            }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// By text.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The order of UTF-8 is the order of its bytes.
        self.text.bytes().cmp(other.text.bytes())
    }
}

/// Takes the hash that a key carries for what it is.
#[derive(Default)]
pub(crate) struct Carried(u64);

impl Hasher for Carried {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys write one number; anything else is folded in, so that this stays a hasher.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.as_str().to_owned()
    }
}

impl From<&Key> for String {
    fn from(key: &Key) -> Self {
        key.as_str().to_owned()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_keys_are_kept_whole_compared_and_sorted_alike() {
        for length in [1, SHORT - 1, SHORT, SHORT + 1, Key::MAX_BYTES] {
            let (text, other) = ("k".repeat(length), "k".repeat(length - 1) + "l");
            let key = Key::new(&text).unwrap();
            assert_eq!(key.as_str(), text);
            assert_eq!(key, Key::new(&text).unwrap());
            assert_ne!(key, Key::new(&other).unwrap());
            assert!(key < Key::new(&other).unwrap());
            assert!(key < Key::new(&(text + "k")).unwrap_or_else(|_| Key::new("l").unwrap()));
        }
    }
}
