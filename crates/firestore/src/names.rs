//! The id of a lock's document: any key, whatever stands in it, as an id that Firestore takes.
//!
//! Ids may not hold slashes, be `.` or `..`, look like `__x__`, or exceed 1500 bytes. A prefix of
//! ours rules the special names out, and the rest is escaped or, if it gets too long, hashed. The
//! document carries the key itself.

use std::fmt::Write as _;

use holdtight_core::Key;
use sha2::{Digest as _, Sha256};

/// Far below Firestore's limit; longer ids only cost space.
const ID_BYTES: usize = 600;

/// The id of the document that holds the lock of `key`.
pub(crate) fn document_id(key: &Key) -> String {
    let mut id = String::from("k:");
    for byte in key.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:@+,".contains(&byte) {
            id.push(char::from(byte));
        } else {
            let _ = write!(id, "%{byte:02X}");
        }
    }
    if id.len() <= ID_BYTES {
        return id;
    }
    let mut id = String::from("h:");
    for byte in Sha256::digest(key.as_str().as_bytes()) {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

#[cfg(test)]
mod tests {
    use holdtight_core::KeyForm;
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> String {
        document_id(&Key::with_form(text, KeyForm::Verbatim).unwrap())
    }

    #[test]
    fn keys_that_firestore_would_refuse_or_misread_become_plain_ids() {
        assert_eq!(id("user:123"), "k:user:123");
        assert_eq!(id("a/b"), "k:a%2Fb");
        assert_eq!(id("."), "k:.");
        assert_eq!(id("__x__"), "k:__x__");
        assert_eq!(id(&"/".repeat(512)).len(), 66);
    }

    proptest! {
        #[test]
        fn every_key_has_a_legal_id_of_its_own(one in "\\PC{1,200}", other in "\\PC{1,200}") {
            prop_assume!(one.len() <= 512 && other.len() <= 512);
            let made = id(&one);
            prop_assert!(made.len() <= ID_BYTES && !made.contains('/') && made.is_ascii());
            prop_assert!(!(made.starts_with("__") && made.ends_with("__")) && made != "." && made != "..");
            prop_assert_eq!(made == id(&other), one == other);
        }
    }
}
