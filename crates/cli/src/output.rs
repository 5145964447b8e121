//! What is printed and how: text or JSON on standard output, complaints on standard error, times
//! and spans.
//!
//! A reader that went away (`holdtight ls | head -1`) ends the command quietly.

use std::fmt;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use holdtight::{BootClock, Clock as _};
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use crate::exit::{self, Failure};

/// Prints `text` as it is.
pub(crate) fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(|error| unwritten(&error))
}

/// Prints one JSON value on a line of its own.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(exit::SOFTWARE, format!("cannot write JSON: {error}")))?;
    print(format_args!("{text}\n"))
}

fn unwritten(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::silent(exit::OK);
    }
    Failure::new(exit::LOST, format!("cannot write to standard output: {error}"))
}

/// Says something on standard error. If nobody can hear it, there is nobody left to tell.
pub(crate) fn complain(message: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "holdtight: {message}");
}

/// What [`note`] would say, as a line for somebody else to print.
pub(crate) fn line(json: bool, kind: &str, message: impl fmt::Display) -> String {
    if json {
        serde_json::json!({ kind: message.to_string() }).to_string()
    } else {
        format!("holdtight: {message}")
    }
}

/// Prints a finished line on standard error.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says something that is no failure on standard error: a sentence, or one line of JSON with `kind`
/// as its name.
pub(crate) fn note(json: bool, kind: &str, message: impl fmt::Display) {
    if json {
        complain_json(&serde_json::json!({ kind: message.to_string() }));
    } else {
        complain(message);
    }
}

/// The same, if it can be written without waiting for a reader: for those who hold a lock.
#[cfg(unix)]
pub(crate) fn note_if_heard(json: bool, kind: &str, message: impl fmt::Display) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stderr = io::stderr();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once));
    if matches!(ready, Ok(1..)) {
        note(json, kind, message);
    }
}

/// Warns of something on standard error.
pub(crate) fn warn(json: bool, message: impl fmt::Display) {
    if json {
        note(json, "warning", message);
    } else {
        complain(format_args!("warning: {message}"));
    }
}

/// Says something on standard error as one line of JSON.
pub(crate) fn complain_json(value: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Now, for display.
pub(crate) fn now() -> SystemTime {
    BootClock.wall()
}

/// A time in UTC as RFC 3339, for programs.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    Some(format!("{time:.3}"))
}

/// A time in the user's zone as RFC 3339, for people.
pub(crate) fn local(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(time) => {
            let zoned = time.to_zoned(TimeZone::system());
            zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
        }
        Err(_) => "an unknown time".to_owned(),
    }
}

/// A span for people: `250 ms`, `12.3 s`, `5 min 2 s`.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match seconds {
            0 => write!(f, "{millis} ms"),
            1..60 => write!(f, "{seconds}.{} s", millis / 100),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
        }
    }
}

/// Text of unknown origin, without anything that could move a terminal's cursor.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc_for_programs() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_250);
        assert_eq!(rfc3339(time).as_deref(), Some("2026-09-21T14:13:20.250Z"));
        assert!(local(time).starts_with("2026-09-2"));
    }

    #[test]
    fn spans_are_short_at_every_size() {
        for (millis, text) in [
            (0, "0 ms"),
            (12_345, "12.3 s"),
            (302_000, "5 min 2 s"),
            (3_660_000, "1 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(Span(Duration::from_millis(millis)).to_string(), text);
        }
    }
}
