//! A lock as plain data: key and secret, to be printed, stored, and resumed by another process.

use std::fmt;
use std::str::FromStr;

use crate::model::error::LockError;
use crate::model::key::{Key, KeyForm};
use crate::model::owner::{escape, unescape};
use crate::model::secret::Secret;

/// The right to extend and release one lock.
///
/// The text form, [`LockToken::expose`], is one word of printable ASCII: `ht1_LENGTH_SECRET_KEY`
/// with the key percent-encoded. It is a bearer secret: `Debug` redacts it and there is no
/// `Display`.
///
/// The key is the whole one, with the [prefix](crate::Builder::prefix) of the lock that it is of:
/// any lock object of the same store takes it, whatever prefix that has. A prefix keeps keys apart,
/// and nobody from using a token.
///
/// ```
/// use holdtight_core::{Key, LockToken, Secret};
/// let token = LockToken::new(Key::new("job 7")?, Secret::generate()?);
/// assert_eq!(token.expose().parse::<LockToken>()?, token);
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockToken {
    key: Key,
    secret: Secret,
}

impl LockToken {
    /// Puts a token together, for instance from a secret that another program made.
    pub fn new(key: Key, secret: Secret) -> Self {
        Self { key, secret }
    }

    /// The lock that this token opens.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The owner id inside.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The token as text. Named so that every use stands out in review.
    pub fn expose(&self) -> String {
        // The secret may hold `_` itself, so its length says where it ends.
        format!(
            "ht1_{}_{}_{}",
            self.secret.expose().len(),
            self.secret.expose(),
            escape(self.key.as_str())
        )
    }

    fn read(text: &str) -> Option<Self> {
        let (length, rest) = text.strip_prefix("ht1_")?.split_once('_')?;
        let (secret, key) = rest.split_at_checked(length.parse().ok()?)?;
        let key = unescape(key.strip_prefix('_')?)?;
        // Whether keys are normalised is the store's choice and was made before the token was.
        let key = Key::with_form(&key, KeyForm::Verbatim).ok()?;
        Some(Self { key, secret: Secret::parse(secret).ok()? })
    }
}

impl FromStr for LockToken {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self, LockError> {
        Self::read(text.trim()).ok_or_else(|| {
            LockError::invalid_token(
                "this is not a lock token; pass the text that `holdtight acquire` printed, whole",
            )
        })
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockToken").field("key", &self.key).field("secret", &self.secret).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_key_survives_the_text_form(key in "[^\u{0}-\u{1f}\u{7f}-\u{9f}]{1,60}") {
            let token = LockToken::new(Key::new(&key).unwrap(), Secret::generate().unwrap());
            let text = token.expose();
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<LockToken>().unwrap(), token);
        }

        #[test]
        fn arbitrary_text_is_refused_without_panic(text: String) {
            let _ = text.parse::<LockToken>();
        }
    }

    #[test]
    fn secrets_with_underscores_and_foreign_ones_survive() {
        let token = LockToken::new(Key::new("a_b").unwrap(), Secret::parse("__x__").unwrap());
        assert_eq!(token.expose().parse::<LockToken>().unwrap(), token);
        assert_eq!(format!(" {}\n", token.expose()).parse::<LockToken>().unwrap(), token);
    }

    #[test]
    fn a_refused_token_is_not_repeated_in_the_message() {
        for bad in [
            "",
            "ht1_",
            "ht1_5_abc_k",
            "ht1_3_abc",
            "ht1_3_abc_",
            "ht1_3_abc_%0A",
            "ht1_999999_x_k",
        ] {
            let error = bad.parse::<LockToken>().unwrap_err();
            assert!(bad.is_empty() || !error.to_string().contains(bad));
        }
    }
}
