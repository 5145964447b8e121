//! The name of a lock on the server: at most 250 bytes, of characters that mean nothing to the
//! protocol.
//!
//! Names that fit stay readable; longer ones end in a hash. The value carries the key itself, so a
//! name that two keys might share would show.

use std::fmt::Write as _;

use holdtight_core::{Key, LockError};
use sha2::{Digest as _, Sha256};

/// The longest name memcached takes. A longer one is refused *and its data is then read as a
/// command*.
pub(crate) const NAME_BYTES: usize = 250;

/// How long an encoded prefix may be: the mark and the hash of a long key still fit behind it.
const PREFIX_BYTES: usize = 128;

/// Stands before a hash, and in no readable name.
const HASHED: char = '#';

/// Makes names: a prefix, and the key behind it.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Result<Self, LockError> {
        let mut escaped = String::new();
        escape(prefix, &mut escaped);
        let prefix = escaped;
        if prefix.len() > PREFIX_BYTES {
            return Err(LockError::invalid_config(format!(
                "the prefix takes {} bytes on the server, {PREFIX_BYTES} are allowed (characters other than \
                 letters, digits and -_.~:/@+, take three); choose a shorter one",
                prefix.len()
            )));
        }
        Ok(Self { prefix })
    }

    pub(crate) fn of(&self, key: &Key) -> String {
        let mut name = String::with_capacity(self.prefix.len() + key.as_str().len());
        name.push_str(&self.prefix);
        escape(key.as_str(), &mut name);
        if name.len() <= NAME_BYTES {
            return name;
        }
        name.truncate(self.prefix.len());
        name.push(HASHED);
        for byte in Sha256::digest(key.as_str().as_bytes()) {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

/// Appends `text`, percent-encoding all but unreserved characters and a few that keep keys and
/// paths readable.
fn escape(text: &str, name: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:/@+,".contains(&byte) {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use holdtight_core::KeyForm;
    use proptest::prelude::*;

    use super::*;

    fn name(prefix: &str, key: &str) -> String {
        Names::new(prefix).unwrap().of(&Key::with_form(key, KeyForm::Verbatim).unwrap())
    }

    #[test]
    fn ordinary_keys_stay_readable() {
        assert_eq!(name("holdtight:", "user:123"), "holdtight:user:123");
        assert_eq!(name("", "a b#ü"), "a%20b%23%C3%BC");
    }

    #[test]
    fn long_keys_are_hashed_under_their_prefix() {
        let long = name("shop:", &"x".repeat(512));
        assert_eq!(long.len(), "shop:#".len() + 64);
        assert_ne!(long, name("shop:", &"x".repeat(511)));
        assert_eq!(name("", &"x".repeat(250)).len(), 250);
        assert_eq!(name("", &"x".repeat(251)).len(), 65);
        let error = Names::new(&"é".repeat(100)).unwrap_err().to_string();
        assert!(error.contains("600"), "{error}");
    }

    proptest! {
        #[test]
        fn any_key_becomes_a_name_that_cannot_be_read_as_anything_else(
            prefix in "\\PC{0,14}",
            key in "\\PC{1,200}",
            other in "\\PC{1,200}",
        ) {
            prop_assume!(key.len() <= 512 && other.len() <= 512 && Names::new(&prefix).is_ok());
            let made = name(&prefix, &key);
            prop_assert!(!made.is_empty() && made.len() <= NAME_BYTES);
            prop_assert!(made.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(made == name(&prefix, &other), key == other);
        }
    }
}
