//! What people type becomes a key or a fence here, or an error that says why not.

use std::borrow::Cow;
use std::str::FromStr;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::key::{Key, KeyForm};

impl Key {
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
        Ok(Self::checked(&text))
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

impl FromStr for Fence {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self, LockError> {
        let digits =
            !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Self::new(number)),
            _ => Err(LockError::invalid_config(
                "a fence is a decimal number of at most 20 digits, as `status` prints it",
            )),
        }
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
    fn ordinary_and_exotic_keys_are_accepted() {
        for key in ["user:123", "a/b/c", "..", "__x__", " ", "🔒锁鍵", "ключ", "{tag}key", "%00"]
        {
            assert_eq!(Key::new(key).unwrap().as_str(), key);
        }
    }
}
