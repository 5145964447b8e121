//! Reads what a script answered: exact types, bounded sizes, and the nonce of this very request.
//!
//! The nonce makes a reply that belongs to another request, however it came here, an error and never a grant.

use std::time::Duration;

use holdtight_core::{Fence, Holder, Key, LockError, MAX_TTL, Owner};
use redis::Value;

/// No text in an answer is longer: an owner's description has less than 2 KiB.
const TEXT_BYTES: usize = 8 * 1024;

/// What a lock without an end has left, in the scripts' answers.
const NO_END: i64 = -1;

/// An answer whose nonce was right, read from front to back.
pub(crate) struct Answer {
    items: std::vec::IntoIter<Value>,
    /// The letter that says which kind of answer this is.
    pub(crate) tag: u8,
}

fn malformed() -> LockError {
    LockError::internal(
        "the server's answer is not what the script gives; is a proxy or a different script in between?",
    )
}

impl Answer {
    /// Opens the answer to the request that carried `nonce`.
    pub(crate) fn open(value: Value, nonce: u64) -> Result<Self, LockError> {
        let Value::Array(items) = value else { return Err(malformed()) };
        let mut answer = Self { items: items.into_iter(), tag: 0 };
        match answer.text()?.as_bytes() {
            [tag] => answer.tag = *tag,
            _ => return Err(malformed()),
        }
        if answer.text()?.parse() != Ok(nonce) {
            return Err(LockError::internal(
                "the answer belongs to another request; the connection is out of step",
            ));
        }
        Ok(answer)
    }

    /// Refuses a kind of answer that was not expected.
    pub(crate) fn unexpected<T>(&self) -> Result<T, LockError> {
        tracing::debug!(tag = self.tag, "an answer of a kind that this step does not give");
        Err(malformed())
    }

    /// Nothing may follow.
    pub(crate) fn end(mut self) -> Result<(), LockError> {
        match self.items.next() {
            None => Ok(()),
            Some(_) => Err(malformed()),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, LockError> {
        match self.items.next() {
            Some(Value::BulkString(bytes)) if bytes.len() <= TEXT_BYTES => {
                String::from_utf8(bytes).map_err(|_| malformed())
            }
            _ => Err(malformed()),
        }
    }

    pub(crate) fn integer(&mut self) -> Result<i64, LockError> {
        match self.items.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(malformed()),
        }
    }

    /// A fence; `None` where the answer has an empty text.
    pub(crate) fn fence(&mut self) -> Result<Option<Fence>, LockError> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        let digits = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && number < 1 << 53 => Ok(Some(Fence::new(number))),
            _ => Err(malformed()),
        }
    }

    pub(crate) fn some_fence(&mut self) -> Result<Fence, LockError> {
        self.fence()?.ok_or_else(malformed)
    }

    /// What is left of a lease of ours, at most a day.
    pub(crate) fn lease(&mut self) -> Result<Duration, LockError> {
        let left = u64::try_from(self.integer()?).map_err(|_| malformed())?;
        Ok(Duration::from_millis(left).min(MAX_TTL))
    }

    /// What is left of anybody's lease.
    pub(crate) fn left(&mut self) -> Result<Left, LockError> {
        match self.integer()? {
            NO_END => Ok(Left::Forever),
            ms => match u64::try_from(ms) {
                Ok(ms) => Ok(Left::For(Duration::from_millis(ms))),
                Err(_) => Ok(Left::Gone),
            },
        }
    }

    /// The server's clock in microseconds.
    pub(crate) fn clock(&mut self) -> Result<u64, LockError> {
        self.text()?.parse().map_err(|_| malformed())
    }
}

/// What is left of a lease that a script saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The key does not exist.
    Gone,
    /// It never ends.
    Forever,
    /// So much.
    For(Duration),
}

/// Who holds `key`, from a description `FENCE GRANTED OWNER`; what does not look like one is a foreign lock.
pub(crate) fn holder(key: Key, description: &str, left: Left, now: u64) -> Holder {
    let mut holder = Holder::of(key);
    if let Left::For(left) = left {
        holder = holder.remaining(left);
    }
    let mut fields = description.splitn(3, ' ');
    if let (Some(Ok(fence)), Some(Ok(granted)), Some(owner)) =
        (fields.next().map(str::parse::<u64>), fields.next().map(str::parse::<u64>), fields.next())
    {
        holder = holder
            .fence(Fence::new(fence))
            .age(Duration::from_micros(now.saturating_sub(granted)))
            .owner(Owner::from_text(owner));
    }
    holder
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn granted(nonce: &str, fence: &str) -> Value {
        Value::Array(vec![bulk("G"), bulk(nonce), bulk(fence), Value::Int(1000), Value::Int(-1)])
    }

    #[test]
    fn a_good_answer_is_read_to_its_end() {
        let mut answer = Answer::open(granted("7", "1790000000000000"), 7).unwrap();
        assert_eq!(answer.tag, b'G');
        assert_eq!(answer.some_fence().unwrap(), Fence::new(1_790_000_000_000_000));
        assert_eq!(answer.lease().unwrap(), Duration::from_secs(1));
        assert_eq!(answer.integer().unwrap(), -1);
        answer.end().unwrap();
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        assert!(Answer::open(granted("8", "1"), 7).is_err());
        assert!(Answer::open(granted("", "1"), 7).is_err());
    }

    #[test]
    fn malformed_answers_are_refused() {
        for value in [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            bulk("G"),
            Value::Array(vec![]),
            Value::Array(vec![bulk("GG"), bulk("7")]),
            Value::Array(vec![Value::Int(1), bulk("7")]),
            Value::Array(vec![bulk("G")]),
        ] {
            assert!(Answer::open(value.clone(), 7).is_err(), "{value:?}");
        }
        for fence in ["", "-1", "1.5", "1e3", "9007199254740992", "00000000000000001", "x"] {
            let mut answer = Answer::open(granted("7", fence), 7).unwrap();
            assert!(answer.some_fence().is_err(), "{fence:?}");
        }
        let mut negative =
            Answer::open(Value::Array(vec![bulk("G"), bulk("7"), Value::Int(-5)]), 7).unwrap();
        assert!(negative.lease().is_err());
        let long = Value::Array(vec![bulk("G"), bulk("7"), bulk(&"x".repeat(TEXT_BYTES + 1))]);
        assert!(Answer::open(long, 7).unwrap().text().is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_become_a_grant_or_a_panic(bytes: Vec<u8>, nonce: u64) {
            if let Ok(value) = redis::parse_redis_value(&bytes) {
                prop_assert!(Answer::open(value, nonce).is_err());
            }
        }

        #[test]
        fn arbitrary_descriptions_are_read_without_panic(text: String, now: u64) {
            let key = Key::new("k").unwrap();
            let read = holder(key, &text, Left::Forever, now);
            prop_assert!(read.remaining.is_none());
        }
    }
}
