//! What is known about a held lock, laid out for people and for programs.
//!
//! The same facts in the same order wherever they appear: conflicts, `status`, `ls`.

use std::fmt;
use std::time::{Duration, SystemTime};

use holdtight::{Fence, Holder, LockError, LockInfo, Owner};
use holdtight_kit::duration;
use serde::Serialize;

use crate::output::{Span, clean, local, now, rfc3339};

/// Who holds a key, since when, and until when.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) key: String,
    pub(crate) fence: Option<Fence>,
    pub(crate) owner: Owner,
    since: Option<SystemTime>,
    expires: Option<SystemTime>,
    now: SystemTime,
}

/// The facts for programs. What is not known is null; a fence is a string, because numbers of JSON
/// are not integers.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    key: &'a str,
    held: bool,
    fence: Option<String>,
    host: Option<&'a str>,
    pid: Option<u32>,
    user: Option<&'a str>,
    command: Option<&'a str>,
    reason: Option<&'a str>,
    acquired_at: Option<String>,
    expires_at: Option<String>,
}

impl From<&Holder> for Facts {
    fn from(holder: &Holder) -> Self {
        let now = now();
        Self {
            key: holder.key.as_str().to_owned(),
            fence: holder.fence,
            owner: holder.owner.clone(),
            since: holder.age.and_then(|age| now.checked_sub(age)),
            expires: holder.remaining.and_then(|left| now.checked_add(left)),
            now,
        }
    }
}

impl From<&LockInfo> for Facts {
    fn from(info: &LockInfo) -> Self {
        Self {
            key: info.key.as_str().to_owned(),
            fence: info.fence,
            owner: info.owner.clone(),
            since: info.acquired_at,
            expires: info.expires_at,
            now: now(),
        }
    }
}

impl Facts {
    /// The facts for programs.
    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            key: &self.key,
            held: true,
            fence: self.fence.map(|fence| fence.to_string()),
            host: self.owner.host.as_deref(),
            pid: self.owner.pid,
            user: self.owner.user.as_deref(),
            command: self.owner.command.as_deref(),
            reason: self.owner.reason.as_deref(),
            acquired_at: self.since.and_then(rfc3339),
            expires_at: self.expires.and_then(rfc3339),
        }
    }

    /// Until when a run with `--keep-for` keeps it, if that is so and still to come.
    pub(crate) fn kept_until(&self) -> Option<String> {
        let (_, time) = self.owner.reason.as_deref()?.rsplit_once(KEPT)?;
        let until = self.since?.checked_add(duration::parse(time).ok()?)?;
        (until > self.now).then(|| local(until))
    }

    /// Whether the holder is a run that this process is a part of.
    pub(crate) fn is_around_us(&self) -> bool {
        self.fence.is_some_and(|fence| is_around_us(&self.key, fence))
    }

    /// How long it has been held, for a column of a table.
    pub(crate) fn age(&self) -> String {
        self.since.map_or_else(|| "?".to_owned(), |since| span_between(since, self.now))
    }

    /// How long its lease still runs, for a column of a table.
    pub(crate) fn left(&self) -> String {
        self.expires.map_or_else(|| "never".to_owned(), |end| span_between(self.now, end))
    }
}

/// The reason of a holder that keeps its key for so long after it got it.
pub(crate) fn kept(reason: Option<&str>, time: Duration) -> String {
    let gap = if reason.is_some() { "; " } else { "" };
    // Cut here rather than at its end by the store, which would cut off the time.
    let reason: String = reason.unwrap_or_default().chars().take(MOST_REASON).collect();
    format!("{reason}{gap}{KEPT}{}", duration::text(time))
}

/// Few enough that the time still fits into what stores keep, whatever the characters.
const MOST_REASON: usize = 25;

const KEPT: &str = "kept for ";

/// Whether this process runs under `key` with `fence`, as the environment says.
pub(crate) fn is_around_us(key: &str, fence: Fence) -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let fence = fence.to_string();
    let one = variable("HOLDTIGHT_KEY") == key && variable("HOLDTIGHT_FENCE") == fence;
    one || variable("HOLDTIGHT_FENCES").lines().any(|line| line == format!("{fence} {key}"))
}

fn span_between(from: SystemTime, to: SystemTime) -> String {
    Span(to.duration_since(from).unwrap_or_default()).to_string()
}

/// One fact to a line, indented; what is not known is left out.
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: Option<String>| match value {
            Some(value) => writeln!(f, "  {name:<9}{}", clean(&value)),
            None => Ok(()),
        };
        let Owner { host, pid, user, command, reason, .. } = &self.owner;
        line("Host:", host.clone())?;
        line("PID:", pid.map(|pid| pid.to_string()))?;
        line("User:", user.clone())?;
        line("Command:", command.clone())?;
        line("Reason:", reason.clone())?;
        let since = self
            .since
            .map(|since| format!("{} ({} ago)", local(since), span_between(since, self.now)));
        line("Since:", since)?;
        let end = match self.expires {
            Some(end) => format!("{} (in {})", local(end), span_between(self.now, end)),
            None => "never".to_owned(),
        };
        line("Expires:", Some(end))?;
        line("Fence:", self.fence.map(|fence| fence.to_string()))
    }
}

/// A key that nobody holds, for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Free<'a> {
    pub(crate) key: &'a str,
    held: bool,
}

impl<'a> Free<'a> {
    pub(crate) fn new(key: &'a str) -> Self {
        Self { key, held: false }
    }
}

/// A record that cannot be read, for programs: whose it is and whether it is held, nobody knows.
#[derive(Debug, Serialize)]
pub(crate) struct Unreadable {
    key: Option<String>,
    held: Option<bool>,
    damaged: String,
}

impl Unreadable {
    pub(crate) fn new(damaged: &LockError) -> Self {
        Self { key: None, held: None, damaged: damaged.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use holdtight::Key;

    use super::*;

    fn holder() -> Holder {
        let owner = Owner::from_text("host=web-1 pid=42 user=ann command=ship.sh");
        Holder::of(Key::new("deploy").unwrap())
            .owner(owner.with_reason("release 7"))
            .fence(Fence::new(u64::MAX))
            .age(Duration::from_secs(125))
            .remaining(Duration::from_secs(20))
    }

    #[test]
    fn every_fact_has_a_line() {
        let text = Facts::from(&holder()).to_string();
        for part in [
            "  Host:    web-1\n",
            "  PID:     42\n",
            "  User:    ann\n",
            "  Command: ship.sh\n",
            "  Reason:  release 7\n",
            "(2 min 5 s ago)\n",
            "(in 20.0 s)\n",
            "  Fence:   18446744073709551615\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_foreign_lock_without_an_end_says_never_and_nothing_it_does_not_know() {
        let facts = Facts::from(&Holder::of(Key::new("theirs").unwrap()));
        assert_eq!(facts.to_string(), "  Expires: never\n");
        let json = serde_json::to_value(facts.record()).unwrap();
        assert_eq!(json["expires_at"], serde_json::Value::Null);
        assert_eq!(json["fence"], serde_json::Value::Null);
    }

    #[test]
    fn a_key_that_is_kept_says_until_when_as_long_as_that_is_to_come() {
        let kept = |time| {
            let mut holder = holder();
            holder.owner =
                holder.owner.with_reason(kept(Some("report"), Duration::from_secs(time)));
            Facts::from(&holder)
        };
        assert!(kept(300).kept_until().is_some());
        assert!(kept(300).to_string().contains("report; kept for 5m\n"));
        assert!(kept(60).kept_until().is_none(), "its holder runs for longer");
        assert!(Facts::from(&holder()).kept_until().is_none());
    }

    #[test]
    fn a_fence_is_a_string_in_json() {
        let facts = Facts::from(&holder());
        let json = serde_json::to_value(facts.record()).unwrap();
        assert_eq!(json["fence"], "18446744073709551615");
        assert_eq!(json["pid"], 42);
    }
}
