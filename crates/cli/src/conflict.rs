//! What is said when a lock is busy: who has it, since when, until when, and what can be done about
//! it.

use std::fmt::Write as _;

use holdtight::LockError;
use serde::Serialize;

use crate::facts::{Facts, Record};
use crate::output::{self, Span};

/// Tells about a lock that stayed busy, on standard error: the whole block, or one line of JSON.
///
/// `error` is the library's `Timeout`, which knows the key, the holder, and how long it was waited
/// for.
pub(crate) fn report(error: &LockError, exit: u8, json: bool) {
    if json {
        output::complain_json(&Conflict::of(error, exit).json());
    } else {
        output::complain(Conflict::of(error, exit).text().trim_end());
    }
}

/// What [`report`] would say of a lock in the store `place`, as lines for somebody else to print.
pub(crate) fn told(error: &LockError, exit: u8, json: bool, place: &str) -> String {
    let conflict = Conflict { place: Some(place.to_owned()), ..Conflict::of(error, exit) };
    if json {
        serde_json::to_string(&conflict.json()).unwrap_or_default()
    } else {
        format!("holdtight: {}", conflict.text().trim_end())
    }
}

struct Conflict {
    /// The store and who chose it.
    place: Option<String>,
    key: String,
    facts: Option<Facts>,
    waited: Option<String>,
    waited_ms: Option<u128>,
    exit: u8,
}

#[derive(Serialize)]
struct Json<'a> {
    error: &'static str,
    key: &'a str,
    holder: Option<Record<'a>>,
    waited_ms: Option<u128>,
    exit: u8,
}

impl Conflict {
    fn of(error: &LockError, exit: u8) -> Self {
        let waited = error.elapsed().filter(|_| error.attempts() != Some(1));
        Self {
            place: None,
            key: error.key().map(|key| key.as_str().to_owned()).unwrap_or_default(),
            facts: error.holder().map(Facts::from),
            waited: waited.map(|waited| Span(waited).to_string()),
            waited_ms: error.elapsed().map(|waited| waited.as_millis()),
            exit,
        }
    }

    fn json(&self) -> Json<'_> {
        Json {
            error: "busy",
            key: &self.key,
            holder: self.facts.as_ref().map(Facts::record),
            waited_ms: self.waited_ms,
            exit: self.exit,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{} is busy", quoted(&self.key));
        if let Some(waited) = &self.waited {
            let _ = write!(text, "; gave up after {waited}");
        }
        let Some(facts) = &self.facts else {
            text.push_str("; wait longer with -w");
            return text;
        };
        let _ = write!(text, ". Lock info:\n{facts}");
        if let Some(place) = &self.place {
            let _ = writeln!(text, "  {:<9}{place}", "Store:");
        }
        if let Some(until) = facts.kept_until() {
            let _ = write!(text, "It is kept until {until}, also when its holder has ended");
            return text;
        }
        if facts.is_around_us() {
            text.push_str("Its holder is the run around this one: it cannot get the key before that has ended");
            return text;
        }
        text.push_str("If its holder is surely gone: ");
        let _ = match facts.fence {
            Some(fence) => {
                write!(text, "holdtight force-release --fence {fence} {}", shell_word(&self.key))
            }
            None => write!(
                text,
                "another program took it, so remove its record from the store by that program's means"
            ),
        };
        text
    }
}

/// A key as messages show it.
pub(crate) fn quoted(key: &str) -> String {
    format!("\"{}\"", key.escape_debug())
}

/// A key as it can be pasted into a shell.
pub(crate) fn shell_word(key: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@%+,=".contains(&b);
    if !key.is_empty() && !key.starts_with('-') && key.bytes().all(plain) {
        return key.to_owned();
    }
    let dashes = if key.starts_with('-') { "-- " } else { "" };
    format!("{dashes}'{}'", key.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdtight::{ErrorKind, Fence, Holder, Key, Owner};

    use super::*;

    fn busy(attempts: u32) -> LockError {
        let key = Key::new("nightly job").unwrap();
        let holder = Holder::of(key.clone())
            .owner(Owner::from_text("host=web-1 pid=42"))
            .fence(Fence::new(7))
            .remaining(Duration::from_secs(9));
        LockError::new(ErrorKind::Timeout, "")
            .with_key(&key)
            .with_holder(Some(holder))
            .with_attempts(attempts, Duration::from_millis(5100))
    }

    #[test]
    fn the_block_names_the_key_the_wait_the_holder_and_the_way_out() {
        let text = Conflict::of(&busy(3), 75).text();
        assert!(text.starts_with("\"nightly job\" is busy; gave up after 5.1 s. Lock info:\n"));
        assert!(text.contains("  Host:    web-1\n  PID:     42\n"), "{text}");
        assert!(text.ends_with("holdtight force-release --fence 7 'nightly job'"), "{text}");
    }

    #[test]
    fn of_a_lock_that_another_program_took_the_way_out_is_told_too() {
        let key = Key::new("theirs").unwrap();
        let error = LockError::new(ErrorKind::Timeout, "")
            .with_key(&key)
            .with_holder(Some(Holder::of(key.clone())))
            .with_attempts(1, Duration::ZERO);
        let text = Conflict::of(&error, 75).text();
        assert!(text.contains("never") && text.contains("another program took it"), "{text}");
        assert!(!text.contains("force-release"), "it needs a fence: {text}");
    }

    #[test]
    fn a_single_attempt_is_not_called_waiting() {
        assert!(
            Conflict::of(&busy(1), 75).text().starts_with("\"nightly job\" is busy. Lock info")
        );
    }

    #[test]
    fn json_has_the_holder_and_the_exit_code() {
        let json = serde_json::to_value(Conflict::of(&busy(2), 3).json()).unwrap();
        assert_eq!(json["error"], "busy");
        assert_eq!(json["key"], "nightly job");
        assert_eq!(json["holder"]["fence"], "7");
        assert_eq!((&json["waited_ms"], &json["exit"]), (&5100.into(), &3.into()));
    }

    #[test]
    fn keys_survive_being_pasted_into_a_shell() {
        assert_eq!(shell_word("user:1"), "user:1");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word("-n"), "-- '-n'");
        assert_eq!(shell_word("$(x)"), "'$(x)'");
    }
}
