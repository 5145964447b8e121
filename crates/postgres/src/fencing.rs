//! Making a write in the same database conditional on the fence: what makes a lock truly safe.
//!
//! Only text is made here, so that it goes into the user's own statement by the user's own driver.

use holdtight_core::{Fence, Key};

/// A condition for a WHERE clause: true while `fence` is the newest grant of `key`, and nobody else
/// can be granted the key until the transaction that asked is over.
pub(crate) fn condition(function: &str, key: &Key, fence: Fence) -> String {
    format!("{function}({}, {fence})", literal(key.as_str()))
}

/// Text as SQL. E'' reads the same whatever `standard_conforming_strings` says; neither keys nor
/// secrets hold a zero byte.
pub(crate) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_their_quotes() {
        let text = |key: &str| condition("f", &Key::new(key).unwrap(), Fence::new(7));
        assert_eq!(text("user:1"), "f(E'user:1', 7)");
        assert_eq!(text("o'brien"), "f(E'o''brien', 7)");
        assert_eq!(text("\\' OR true --"), "f(E'\\\\'' OR true --', 7)");
    }
}
