//! What stands in the document of a held lock, and what its times mean.
//!
//! The lease runs from the document's `updateTime`, which the server sets at each commit, and is
//! over when the server's `readTime` says so: no client's clock takes part. The fence is the
//! `updateTime` of the granting commit, which that commit cannot contain; the first extension,
//! which moves `updateTime`, writes it down.

use std::time::Duration;

use holdtight_core::{Fence, Owner, Secret};
use serde_json::Value;

use crate::config::Layout;
use crate::record::{Held, Record};
use crate::syncguard;
use crate::time::Micros;

/// How long after the end of a lease nobody else takes it: servers of one database differ by some
/// milliseconds.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// A document as it was read.
#[derive(Clone)]
pub(crate) struct Found {
    /// The text of `updateTime`, for preconditions.
    pub(crate) version: String,
    pub(crate) read: Micros,
    /// `None` if it is not one of ours.
    pub(crate) held: Option<Held>,
}

impl Found {
    /// Reads a document of Firestore's JSON; `None` if it has no sensible times.
    pub(crate) fn from_json(document: &Value, read: Micros, layout: Layout) -> Option<Self> {
        let version = document.get("updateTime")?.as_str()?.to_owned();
        let updated = Micros::parse(&version)?;
        let held = document.get("fields").and_then(|fields| match layout {
            Layout::Native => native(fields, updated),
            Layout::Syncguard => syncguard::held(fields),
        });
        Some(Self { version, read, held })
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.held.as_ref().map(|held| held.fence)
    }

    /// What was left of the lease when it was read; `None` for what is not ours, and has no end
    /// that we know.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| held.end.since(self.read))
    }

    /// How long until somebody else can take it, counted from when it was read.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| held.end.after(held.grace).since(self.read))
    }

    /// Whether the lease was over when it was read. What is not ours never is.
    pub(crate) fn is_over(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.end.after(held.grace) <= self.read)
    }

    /// The lock, if `secret` is its owner and the lease is not over.
    pub(crate) fn held_by(&self, secret: &Secret) -> Option<&Held> {
        self.held.as_ref().filter(|held| held.record.secret == *secret && !self.is_over())
    }

    pub(crate) fn owner(&self) -> Owner {
        self.held.as_ref().map_or_else(Owner::unknown, |held| Owner::from_text(&held.record.owner))
    }

    pub(crate) fn age(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| self.read.since(held.granted))
    }
}

/// The lease runs from the last commit; the fence is the time of the first.
fn native(fields: &Value, updated: Micros) -> Option<Held> {
    let record = Record::from_fields(fields)?;
    let fence = record.fence.unwrap_or(Fence::new(updated.0));
    let (granted, end) = (Micros(fence.get()), updated.after(record.lease));
    Some(Held { record, fence, granted, end, grace: GRACE })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> Record {
        Record {
            secret: Secret::parse("abc").unwrap(),
            key: "a/b".into(),
            lease: Duration::from_secs(30),
            fence: None,
            owner: "host=a".into(),
            renewals: 0,
        }
    }

    fn found(record: &Record, updated: u64, read: u64) -> Found {
        let fields = record.to_fields(Micros(updated));
        let document = json!({ "fields": fields, "updateTime": Micros(updated).to_text() });
        Found::from_json(&document, Micros(read), Layout::Native).unwrap()
    }

    #[test]
    fn only_the_servers_times_end_a_lease() {
        let start = 1_790_000_000_000_000;
        let at = |seconds: u64| found(&record(), start, start + seconds * 1_000_000);
        assert_eq!(at(0).left(), Some(Duration::from_secs(30)));
        assert_eq!(at(29).left(), Some(Duration::from_secs(1)));
        assert!(!at(30).is_over(), "there is a grace");
        assert!(at(31).is_over() && at(31).held_by(&record().secret).is_none());
        assert_eq!(at(5).age(), Some(Duration::from_secs(5)));
        // A read that is older than the write it saw is no reason to end a lease.
        assert!(!found(&record(), start, start - 1_000_000).is_over());
    }

    #[test]
    fn the_fence_is_the_same_before_and_after_it_is_written_down() {
        let fresh = found(&record(), 1_790_000_000_000_007, 1_790_000_000_000_008);
        let fence = fresh.fence().unwrap();
        assert_eq!(fence.get(), 1_790_000_000_000_007);
        let extended = Record { fence: Some(fence), renewals: 1, ..record() };
        assert_eq!(
            found(&extended, 1_790_000_099_000_000, 1_790_000_099_000_001).fence(),
            Some(fence)
        );
    }

    #[test]
    fn what_we_did_not_write_is_somebody_elses_for_ever() {
        let good = record().to_fields(Micros(5));
        for (field, value) in [
            ("secret", json!({ "stringValue": "" })),
            ("secret", json!({ "integerValue": "1" })),
            ("leaseMicros", json!({ "integerValue": "-1" })),
            ("leaseMicros", json!({ "integerValue": 1 })),
            ("fence", json!({ "stringValue": "1" })),
            ("renewals", json!({ "doubleValue": 1.0 })),
            ("owner", json!({ "nullValue": null })),
        ] {
            let mut fields = good.clone();
            fields[field] = value;
            let document = json!({ "fields": fields, "updateTime": "2026-01-01T00:00:00Z" });
            let found = Found::from_json(&document, Micros(u64::MAX), Layout::Native).unwrap();
            assert!(found.held.is_none() && !found.is_over() && found.left().is_none(), "{field}");
        }
        let timeless = json!({ "fields": good });
        assert!(Found::from_json(&timeless, Micros(5), Layout::Native).is_none(), "no updateTime");
    }
}
