//! The documents of the Node library `syncguard`, field by field, so that both can keep locks in
//! one collection.
//!
//! There the end of a lease is written as a time, which its clients take from their own clocks; we
//! take it from the server's. The fence is a counter in a second document, written in the same
//! commit. Other differences: no owner is kept, and keys with a slash cannot be represented.

use std::time::Duration;

use holdtight_core::{Fence, Key, LockError, Secret};
use serde_json::{Value, json};

use crate::record::{Held, Record};
use crate::time::Micros;

/// How long after its end a lock is left alone: the tolerance that every client of this layout
/// keeps.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(1);

/// Beyond this the clients of this layout refuse to count, and so do we.
const LAST_FENCE: u64 = 900_000_000_000_000;

/// The ids of the lock's document and of its counter.
///
/// # Errors
/// `InvalidKey` for what the Node client would put elsewhere, or nowhere.
pub(crate) fn ids(key: &Key) -> Result<(String, String), LockError> {
    let id = key.as_str();
    if id.contains('/') || id == "." || id == ".." || (id.starts_with("__") && id.ends_with("__")) {
        return Err(LockError::invalid_key(
            "layout=syncguard cannot represent keys with a slash, \".\", \"..\" and \"__x__\"; use another key",
        )
        .with_key(key));
    }
    Ok((id.to_owned(), format!("fence:{id}")))
}

/// Reads the fields of a lock.
pub(crate) fn held(fields: &Value) -> Option<Held> {
    let text = |name: &str| fields.get(name)?.get("stringValue")?.as_str();
    // Other clients write integers that happen to be whole as they like.
    let millis = |name: &str| {
        let value = fields.get(name)?;
        let number =
            value.get("integerValue").and_then(|number| number.as_str()?.parse::<u64>().ok());
        number.and_then(|millis| millis.checked_mul(1000)).map(Micros)
    };
    let (end, granted) = (millis("expiresAtMs")?, millis("acquiredAtMs")?);
    let fence = number(text("fence")?)?;
    let record = Record {
        secret: Secret::parse(text("lockId")?).ok()?,
        key: text("key")?.to_owned(),
        lease: end.since(granted),
        fence: Some(Fence::new(fence)),
        owner: String::new(),
        renewals: 0,
    };
    Some(Held { record, fence: Fence::new(fence), granted, end, grace: TOLERANCE })
}

/// The fields of a new lock.
pub(crate) fn lock_fields(record: &Record, now: Micros, fence: Fence) -> Value {
    json!({
        "lockId": { "stringValue": record.secret.expose() },
        "expiresAtMs": { "integerValue": end(now, record.lease).to_string() },
        "acquiredAtMs": { "integerValue": millis_up(now).to_string() },
        "key": { "stringValue": record.key },
        "fence": { "stringValue": digits(fence) },
    })
}

/// The one field that an extension changes.
pub(crate) fn end_fields(now: Micros, lease: Duration) -> Value {
    json!({ "expiresAtMs": { "integerValue": end(now, lease).to_string() } })
}

/// The fields of the counter.
pub(crate) fn counter_fields(fence: Fence, key: &Key) -> Value {
    json!({ "fence": { "stringValue": digits(fence) }, "keyDebug": { "stringValue": key.as_str() } })
}

/// The fence after the one in the counter's document; `None` is a counter that never counted.
pub(crate) fn next_fence(counter: Option<&Value>) -> Result<Fence, LockError> {
    let last = match counter {
        None => Some(0),
        Some(document) => {
            let text = document.pointer("/fields/fence/stringValue").and_then(Value::as_str);
            text.and_then(number)
        }
    };
    match last {
        Some(last) if last < LAST_FENCE => Ok(Fence::new(last + 1)),
        Some(_) => Err(LockError::internal("the fence counter of this key is used up")),
        None => Err(LockError::internal(
            "the fence counter of this key is no number of at most 15 digits",
        )),
    }
}

fn digits(fence: Fence) -> String {
    format!("{:015}", fence.get())
}

fn number(text: &str) -> Option<u64> {
    let plain =
        !text.is_empty() && text.len() <= 15 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Rounded up, so that no lease gets shorter.
fn millis_up(time: Micros) -> u64 {
    time.0.div_ceil(1000)
}

fn end(now: Micros, lease: Duration) -> u64 {
    millis_up(now.after(lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_node_puts_in_the_same_place_are_taken() {
        let key = |text| Key::new(text).unwrap();
        let (lock, counter) = ids(&key("user:1")).unwrap();
        assert_eq!((lock.as_str(), counter.as_str()), ("user:1", "fence:user:1"));
        for text in ["a/b", "a//b", "/", ".", "..", "__x__"] {
            assert!(ids(&key(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn fences_count_up_to_their_last_and_not_further() {
        let counter = |text: &str| json!({ "fields": { "fence": { "stringValue": text } } });
        assert_eq!(next_fence(None).unwrap(), Fence::new(1));
        assert_eq!(next_fence(Some(&counter("000000000000041"))).unwrap(), Fence::new(42));
        for bad in ["", "x", "-1", "900000000000000", "0000000000000001"] {
            assert!(next_fence(Some(&counter(bad))).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (secret, now) = (Secret::generate().unwrap(), Micros(1_790_000_000_000_001));
        let lease = Duration::from_secs(30);
        let record = Record {
            secret,
            key: "k".into(),
            lease,
            fence: None,
            owner: String::new(),
            renewals: 0,
        };
        let held = held(&lock_fields(&record, now, Fence::new(7))).unwrap();
        assert!(held.record.secret == record.secret && held.fence == Fence::new(7));
        assert_eq!(held.end, Micros(1_790_000_030_001_000));
    }
}
