//! The owner id of one acquire call: whoever knows it can extend and release that lock.
//!
//! It is compared in the store, never logged, and never handed to a child process.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::model::error::LockError;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// 128 random bits from the operating system as 22 characters of unpadded base64url, or a foreign
/// program's token of up to 64 printable ASCII characters.
///
/// `Debug` is redacted and there is no `Display`: [`Secret::expose`] is the one way to read it.
#[derive(Clone)]
pub struct Secret(Text);

/// Always ASCII. One that we made fits into itself: there is one in every request and every held
/// lock.
#[derive(Clone)]
enum Text {
    Ours([u8; OUR_BYTES]),
    Foreign(Arc<str>),
}

/// 128 bits, six to a character.
const OUR_BYTES: usize = 22;

impl Secret {
    /// The longest token that is understood. A UUID has 36 characters.
    pub const MAX_BYTES: usize = 64;

    /// A fresh secret.
    ///
    /// # Errors
    /// [`Internal`](crate::ErrorKind::Internal) when the operating system gives no random bytes.
    pub fn generate() -> Result<Self, LockError> {
        let bits = u128::from_be_bytes(random_16()?);
        let mut text = [0; OUR_BYTES];
        for (i, place) in text.iter_mut().enumerate() {
            // 21 groups of six bits from the top, then the last two bits padded with zeros.
            let group = if i < 21 { bits >> (122 - 6 * i) } else { bits << 4 };
            *place = ALPHABET[(group & 63) as usize];
        }
        Ok(Self(Text::Ours(text)))
    }

    /// Reads a token that somebody else made.
    ///
    /// # Errors
    /// [`InvalidToken`](crate::ErrorKind::InvalidToken) unless it is 1 to 64 printable ASCII
    /// characters without spaces. The message never repeats the text.
    pub fn parse(token: &str) -> Result<Self, LockError> {
        let bytes = token.as_bytes();
        if bytes.is_empty()
            || bytes.len() > Self::MAX_BYTES
            || !bytes.iter().all(u8::is_ascii_graphic)
        {
            return Err(LockError::invalid_token(
                "a token's secret is 1 to 64 printable ASCII characters without spaces",
            ));
        }
        Ok(Self(match bytes.try_into() {
            Ok(text) => Text::Ours(text),
            Err(_) => Text::Foreign(token.into()),
        }))
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Ours(text) => text,
            Text::Foreign(text) => text.as_bytes(),
        }
    }

    /// The secret as text. Named so that every use stands out in review.
    pub fn expose(&self) -> &str {
        match &self.0 {
            // Only ASCII is ever stored, so this cannot fail; an empty text matches no owner.
            Text::Ours(text) => std::str::from_utf8(text).unwrap_or_default(),
            Text::Foreign(text) => text,
        }
    }
}

#[inline]
fn differing(one: &[u8], other: &[u8]) -> u8 {
    one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b))
}

/// The time it takes does not depend on where two secrets of one length differ.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        if let (Text::Ours(one), Text::Ours(other)) = (&self.0, &other.0) {
            // Of known length, so that it takes a few instructions.
            return differing(one, other) == 0;
        }
        let (one, other) = (self.bytes(), other.bytes());
        one.len() == other.len() && differing(one, other) == 0
    }
}

impl Eq for Secret {}

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

/// A small store of OS randomness, one per thread: one system call serves 128 secrets.
struct Pool {
    bytes: [u8; 2048],
    used: usize,
    /// A forked child must not hand out its parent's bytes.
    process: u32,
}

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { bytes: [0; 2048], used: 2048, process: 0 }) };
}

fn random_16() -> Result<[u8; 16], LockError> {
    POOL.with_borrow_mut(Pool::take)
}

impl Pool {
    fn take(&mut self) -> Result<[u8; 16], LockError> {
        let process = std::process::id();
        if self.used + 16 > self.bytes.len() || self.process != process {
            getrandom::fill(&mut self.bytes).map_err(|source| {
                LockError::internal("the operating system gave no random bytes for an owner id")
                    .with_source(source)
            })?;
            (self.used, self.process) = (0, process);
        }
        let place = &mut self.bytes[self.used..self.used + 16];
        let mut taken = [0; 16];
        taken.copy_from_slice(place);
        place.fill(0);
        self.used += 16;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn secrets_are_22_base64url_characters_and_do_not_repeat() {
        let all: HashSet<String> =
            (0..10_000).map(|_| Secret::generate().unwrap().expose().to_owned()).collect();
        assert_eq!(all.len(), 10_000);
        assert!(all.iter().all(|s| s.len() == 22 && s.bytes().all(|b| ALPHABET.contains(&b))));
        // 128 bits fill 21 characters and two bits of the last one.
        assert!(all.iter().all(|s| "AQgw".contains(&s[21..])));
        let leading: HashSet<&str> = all.iter().map(|s| &s[..1]).collect();
        assert_eq!(leading.len(), 64, "every leading character occurs");
    }

    #[test]
    fn nothing_of_it_shows_in_debug_or_errors() {
        let secret = Secret::generate().unwrap();
        assert!(!format!("{secret:?}").contains(secret.expose()));
        let error = Secret::parse("bad token!").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("bad token"));
    }

    #[test]
    fn foreign_tokens_are_taken_and_compared_whole() {
        let uuid = "6f9619ff-8b86-4011-b42d-00cf4fc964ff";
        assert_eq!(Secret::parse(uuid).unwrap().expose(), uuid);
        assert_eq!(Secret::parse(uuid).unwrap(), Secret::parse(uuid).unwrap());
        assert_ne!(Secret::parse(uuid).unwrap(), Secret::parse(&uuid[1..]).unwrap());
        assert_ne!(Secret::parse("a").unwrap(), Secret::parse("ab").unwrap());
        for bad in ["", "a b", "a\n", "é", &"x".repeat(65)] {
            assert!(Secret::parse(bad).is_err(), "{bad:?} must be refused");
        }
    }
}
