//! What the command finds in its environment: key, fence, deadline and store; never a token or a password.
//!
//! Inner values replace outer ones, and names that have no inner value are removed, so that a nested run never
//! shows the lock of an outer one.

use std::process::Command;
use std::time::{Duration, SystemTime};

use holdtight::{Fence, Key, StoreUrl};

/// Set for one key.
const KEY: &str = "HOLDTIGHT_KEY";
const FENCE: &str = "HOLDTIGHT_FENCE";
/// Set for several keys: a line for each, `FENCE KEY`. Keys hold no control characters, so lines are unambiguous.
const FENCES: &str = "HOLDTIGHT_FENCES";
/// Set with `--max-hold`: when the command is killed at the latest, in whole seconds since 1970.
const DEADLINE: &str = "HOLDTIGHT_DEADLINE";
const STORE: &str = "HOLDTIGHT_STORE";
const TOKEN: &str = "HOLDTIGHT_TOKEN";

/// The store of a command that may not know the real one: any nested holdtight refuses it.
const WITHHELD: &str = "withheld:";

/// Sets the environment of `command`, which runs under these locks.
pub(super) fn set(
    command: &mut Command,
    locks: &[(Key, Fence)],
    ends: Option<SystemTime>,
    store: &str,
    pass_store: bool,
) {
    for name in [KEY, FENCE, FENCES, DEADLINE, TOKEN] {
        command.env_remove(name);
    }
    if let [(key, fence)] = locks {
        command.env(KEY, key.as_str()).env(FENCE, fence.to_string());
    } else {
        let lines: Vec<_> = locks.iter().map(|(key, fence)| format!("{fence} {key}")).collect();
        command.env(FENCES, lines.join("\n"));
    }
    if let Some(ends) = ends {
        let since = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        command.env(DEADLINE, since.as_secs().to_string());
    }
    // What is no URL was not opened either; whatever it is, it is not passed on.
    let harmless = StoreUrl::new(store).is_ok_and(|url| !url.has_secret());
    command.env(STORE, if pass_store || harmless { store } else { WITHHELD });
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn locks(names: &[&str]) -> Vec<(Key, Fence)> {
        names.iter().zip(7..).map(|(name, n)| (Key::new(name).unwrap(), Fence::new(n))).collect()
    }

    const REMOVED: &str = "(removed)";

    /// What the command will find under `name`, which must have been set or removed.
    fn value(command: &Command, name: &str) -> String {
        let (_, value) = command.get_envs().find(|(key, _)| *key == OsStr::new(name)).unwrap();
        value.map_or(REMOVED.to_owned(), |value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn one_key_has_a_fence_and_several_have_a_line_each() {
        let mut command = Command::new("true");
        set(&mut command, &locks(&["a"]), None, "file:/x", false);
        assert_eq!(value(&command, KEY), "a");
        assert_eq!(value(&command, FENCE), "7");
        assert_eq!(value(&command, FENCES), REMOVED, "an outer value must not show");
        assert_eq!(value(&command, TOKEN), REMOVED);
        assert_eq!(value(&command, DEADLINE), REMOVED);
        let mut command = Command::new("true");
        let ends = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        set(&mut command, &locks(&["a", "b c"]), Some(ends), "file:/x", false);
        assert_eq!(value(&command, FENCES), "7 a\n8 b c");
        assert_eq!(value(&command, KEY), REMOVED);
        assert_eq!(value(&command, DEADLINE), "1");
    }

    #[test]
    fn a_store_with_a_password_is_withheld_unless_it_is_passed_on_purpose() {
        let mut command = Command::new("true");
        set(&mut command, &locks(&["a"]), None, "redis://h/1", false);
        assert_eq!(value(&command, STORE), "redis://h/1");
        set(&mut command, &locks(&["a"]), None, "redis://:pw@h", false);
        assert_eq!(value(&command, STORE), WITHHELD);
        set(&mut command, &locks(&["a"]), None, "redis://:pw@h", true);
        assert_eq!(value(&command, STORE), "redis://:pw@h");
    }
}
