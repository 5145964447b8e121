//! What the command finds in its environment: key, fence, deadline and store; never a token or a
//! password.
//!
//! Inner values replace outer ones, and names that have no inner value are removed, so that a
//! nested run never shows the lock of an outer one.

use std::time::{Duration, SystemTime};

use holdtight::{Fence, Key, StoreUrl};

/// Set for one key.
const KEY: &str = "HOLDTIGHT_KEY";
const FENCE: &str = "HOLDTIGHT_FENCE";
/// Set for several keys: a line for each, `FENCE KEY`. Keys hold no control characters, so lines
/// are unambiguous.
const FENCES: &str = "HOLDTIGHT_FENCES";
/// Set with `--max-hold`: when the command is killed at the latest, in whole seconds since 1970.
const DEADLINE: &str = "HOLDTIGHT_DEADLINE";
const STORE: &str = "HOLDTIGHT_STORE";
const TOKEN: &str = "HOLDTIGHT_TOKEN";

/// The store of a command that may not know the real one: any nested holdtight refuses it.
const WITHHELD: &str = "withheld:";

/// What a command that runs under these locks finds in its environment, and what it does not.
pub(super) fn of(
    locks: &[(Key, Fence)],
    ends: Option<SystemTime>,
    store: &str,
    pass_store: bool,
) -> Vec<(String, Option<String>)> {
    let (mut one, mut several) = ((None, None), None);
    if let [(key, fence)] = locks {
        one = (Some(key.to_string()), Some(fence.to_string()));
    } else {
        let lines: Vec<_> = locks.iter().map(|(key, fence)| format!("{fence} {key}")).collect();
        several = Some(lines.join("\n"));
    }
    let ends = ends.map(|ends| {
        let since = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        since.as_secs().to_string()
    });
    // What is no URL was not opened either; whatever it is, it is not passed on.
    let harmless = StoreUrl::new(store).is_ok_and(|url| !url.has_secret());
    let store = if pass_store || harmless { store } else { WITHHELD };
    let all = [
        (KEY, one.0),
        (FENCE, one.1),
        (FENCES, several),
        (DEADLINE, ends),
        (TOKEN, None),
        (STORE, Some(store.to_owned())),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(names: &[&str]) -> Vec<(Key, Fence)> {
        names.iter().zip(7..).map(|(name, n)| (Key::new(name).unwrap(), Fence::new(n))).collect()
    }

    const REMOVED: &str = "(removed)";

    /// What the command will find under `name`, which must have been set or removed.
    fn value<'e>(environment: &'e [(String, Option<String>)], name: &str) -> &'e str {
        let (_, value) = environment.iter().find(|(key, _)| key == name).unwrap();
        value.as_deref().unwrap_or(REMOVED)
    }

    #[test]
    fn one_key_has_a_fence_and_several_have_a_line_each() {
        let one = of(&locks(&["a"]), None, "file:/x", false);
        assert_eq!(value(&one, KEY), "a");
        assert_eq!(value(&one, FENCE), "7");
        assert_eq!(value(&one, FENCES), REMOVED, "an outer value must not show");
        assert_eq!(value(&one, TOKEN), REMOVED);
        assert_eq!(value(&one, DEADLINE), REMOVED);
        let ends = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let several = of(&locks(&["a", "b c"]), Some(ends), "file:/x", false);
        assert_eq!(value(&several, FENCES), "7 a\n8 b c");
        assert_eq!(value(&several, KEY), REMOVED);
        assert_eq!(value(&several, DEADLINE), "1");
    }

    #[test]
    fn a_store_with_a_password_is_withheld_unless_it_is_passed_on_purpose() {
        let under =
            |url: &str, pass: bool| value(&of(&locks(&["a"]), None, url, pass), STORE).to_owned();
        assert_eq!(under("redis://h/1", false), "redis://h/1");
        assert_eq!(under("redis://:pw@h", false), WITHHELD);
        assert_eq!(under("redis://:pw@h", true), "redis://:pw@h");
    }
}
