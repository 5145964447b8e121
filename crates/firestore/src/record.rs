//! What we know of a held lock, in either layout, and how the native one writes it down.

use std::time::Duration;

use holdtight_core::{Fence, Secret};
use serde_json::{Map, Value, json};

use crate::time::Micros;

/// How long the document of a lease that ended may stay, where a TTL policy on `purgeAfter` removes
/// it.
const PURGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The fields that we write.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) secret: Secret,
    pub(crate) key: String,
    pub(crate) lease: Duration,
    /// The fence, once `updateTime` is no longer that of the grant.
    pub(crate) fence: Option<Fence>,
    /// [`Owner::to_text`].
    pub(crate) owner: String,
    /// Counts extensions, so that each one changes something: a commit that changes nothing keeps
    /// `updateTime`.
    pub(crate) renewals: u64,
}

/// A lock as its document says, in either layout.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) record: Record,
    pub(crate) fence: Fence,
    pub(crate) granted: Micros,
    /// When the lease ends, and how long after it nobody else takes it.
    pub(crate) end: Micros,
    pub(crate) grace: Duration,
}

impl Record {
    /// The fields as Firestore's JSON. `now` is a time of the server.
    pub(crate) fn to_fields(&self, now: Micros) -> Value {
        let text = |text: &str| json!({ "stringValue": text });
        // 64-bit integers travel as text, because JSON's numbers are not exact.
        let number = |number: u64| json!({ "integerValue": number.to_string() });
        let mut fields = Map::new();
        fields.insert("secret".into(), text(self.secret.expose()));
        fields.insert("key".into(), text(&self.key));
        fields.insert("owner".into(), text(&self.owner));
        fields.insert("leaseMicros".into(), number(micros(self.lease)));
        fields.insert("renewals".into(), number(self.renewals));
        let purge = now.after(self.lease).after(PURGE);
        fields.insert("purgeAfter".into(), json!({ "timestampValue": purge.to_text() }));
        if let Some(fence) = self.fence {
            fields.insert("fence".into(), number(fence.get()));
        }
        Value::Object(fields)
    }

    pub(crate) fn from_fields(fields: &Value) -> Option<Self> {
        let text = |name: &str| fields.get(name)?.get("stringValue")?.as_str();
        let number = |name: &str| {
            let digits = fields.get(name)?.get("integerValue")?.as_str()?;
            digits.parse::<u64>().ok()
        };
        let fence = match fields.get("fence") {
            None => None,
            Some(_) => Some(Fence::new(number("fence")?)),
        };
        let owner = text("owner").filter(|owner| owner.len() <= 4096)?;
        Some(Self {
            secret: Secret::parse(text("secret")?).ok()?,
            key: text("key")?.to_owned(),
            lease: Duration::from_micros(number("leaseMicros")?),
            fence,
            owner: owner.to_owned(),
            renewals: number("renewals")?,
        })
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
