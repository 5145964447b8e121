//! The name of a lock: validated and normalised once, before any I/O.
//!
//! How a name is stored (prefix, hash, encoding) is each store's own affair.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::error::LockError;

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

/// Always UTF-8. Most keys are short and fit into themselves: one acquire call passes its key on half a dozen times.
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

    /// Validates `text` and normalises it to NFC.
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), naming the place that is wrong.
    pub fn new(text: &str) -> Result<Self, LockError> {
        Self::with_form(text, KeyForm::Nfc)
    }

    /// Validates `text` in the form that a store asks for.
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), naming the place that is wrong.
    pub fn with_form(text: &str, form: KeyForm) -> Result<Self, LockError> {
        // Normalising cannot shrink a key below a third, so anything larger is refused unread.
        if text.len() > Self::MAX_BYTES * 4 {
            return Err(too_long(text, text.len()));
        }
        let normal = form == KeyForm::Verbatim
            || text.is_ascii()
            || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        let text =
            if normal { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect::<String>()) };
        check(&text)?;
        Ok(Self { text: Text::new(&text), hash: HASHER.hash_one(&*text) })
    }

    /// Validates `text` and puts `prefix` before it, which has that form already.
    ///
    /// A key whose first character would become one with the end of the prefix is refused: by the
    /// name that it would get it could not be told from the keys of other prefixes, nor be shown as
    /// it was asked for.
    pub(crate) fn behind(prefix: &str, text: &str, form: KeyForm) -> Result<Self, LockError> {
        // The user's part is checked first, so that the message names places the user knows.
        let key = Self::with_form(text, form)?;
        let joined = format!("{prefix}{key}");
        let whole = Self::with_form(&joined, form)?;
        if whole.as_str() != joined {
            return Err(LockError::invalid_key(format!(
                "the key {} would run into the prefix {}; end the prefix with a separator, as `:`",
                shown(text),
                shown(prefix),
            )));
        }
        Ok(whole)
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

fn check(text: &str) -> Result<(), LockError> {
    if text.is_empty() {
        return Err(LockError::invalid_key("the key is empty; give 1 to 512 bytes of text"));
    }
    if text.len() > Key::MAX_BYTES {
        return Err(too_long(text, text.len()));
    }
    // Nearly all keys are plain ASCII, where bytes tell.
    if text.bytes().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~')) {
        return Ok(());
    }
    match text.char_indices().enumerate().find(|(_, (_, c))| c.is_control()) {
        None => Ok(()),
        Some((nth, (byte, c))) => Err(LockError::invalid_key(format!(
            "the key {} has the control character U+{:04X} at byte {byte} (character {}); remove it",
            shown(text),
            u32::from(c),
            nth + 1,
        ))),
    }
}

fn too_long(text: &str, bytes: usize) -> LockError {
    LockError::invalid_key(format!(
        "the key {} is {bytes} bytes long; the limit is {} bytes of UTF-8",
        shown(text),
        Key::MAX_BYTES,
    ))
}

/// A key for an error message: quoted, escaped, and short.
fn shown(text: &str) -> String {
    let head: String = text.chars().take(40).collect();
    let dots = if head.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", head.escape_debug())
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

    fn refusal(text: &str) -> String {
        Key::new(text).unwrap_err().to_string()
    }

    #[test]
    fn the_limit_is_512_bytes_after_normalisation() {
        assert!(Key::new(&"x".repeat(512)).is_ok());
        assert!(refusal(&"x".repeat(513)).contains("513 bytes"));
        // 3 bytes each decomposed, 2 composed: fits only because NFC comes first.
        assert!(Key::new(&"e\u{301}".repeat(256)).is_ok());
        assert!(Key::new(&"é".repeat(257)).is_err());
        assert!(
            refusal(&"x".repeat(1 << 20)).len() < 200,
            "a huge key must not make a huge message"
        );
    }

    #[test]
    fn control_characters_are_refused_and_the_place_is_named() {
        let text = refusal("job\u{7}7");
        assert!(
            text.contains("U+0007") && text.contains("byte 3") && text.contains("character 4"),
            "{text}"
        );
        for bad in ["\0", "a\r\nflush_all", "\u{7f}", "\u{85}"] {
            assert!(Key::new(bad).is_err(), "{bad:?} must be refused");
        }
        assert!(refusal("").contains("empty"));
    }

    #[test]
    fn spellings_of_one_text_are_one_key_unless_taken_verbatim() {
        assert_eq!(Key::new("cafe\u{301}").unwrap(), Key::new("café").unwrap());
        let raw = |t| Key::with_form(t, KeyForm::Verbatim).unwrap();
        assert_ne!(raw("cafe\u{301}"), raw("café"));
    }

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

    #[test]
    fn ordinary_and_exotic_keys_are_accepted() {
        for key in ["user:123", "a/b/c", "..", "__x__", " ", "🔒锁鍵", "ключ", "{tag}key", "%00"]
        {
            assert_eq!(Key::new(key).unwrap().as_str(), key);
        }
    }
}
