//! Reads what a script answered: one text of bounded size, a field on each line, and the id of this
//! very request.
//!
//! The id makes a reply that belongs to another request, however it came here, an error and never a
//! grant. One text and not an array: making an array costs the server more than a command.

use std::time::Duration;

use holdtight_core::{Busy, Fence, Holder, Key, Lease, LockError, MAX_TTL, Owner};
use redis::{RedisWrite, ToRedisArgs, Value};

/// No answer is longer: the longest tells of 128 locks.
const ANSWER_BYTES: usize = 1 << 20;

/// What a lock without an end has left, in the scripts' answers.
const NO_END: i64 = -1;

/// The id of a request, that no other request of any store has.
#[derive(Clone, Copy)]
pub(crate) struct Id<'a> {
    /// The name of this store among waiters: 22 random characters.
    pub(crate) client: &'a str,
    pub(crate) number: u64,
}

impl Id<'_> {
    fn is(&self, text: &str) -> bool {
        let number = text.strip_prefix(self.client).and_then(|rest| rest.strip_prefix(':'));
        number.is_some_and(|number| number.parse() == Ok(self.number))
    }
}

impl ToRedisArgs for Id<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(format_args!("{}:{}", self.client, self.number));
    }
}

/// An answer whose id was right, read from front to back.
pub(crate) struct Answer {
    text: String,
    /// Where the next field begins; beyond the end when there is none.
    next: usize,
    /// The letter that says which kind of answer this is.
    pub(crate) tag: u8,
}

fn malformed() -> LockError {
    LockError::internal(
        "the server's answer is not what the script gives; is a proxy or a different script in between?",
    )
}

impl Answer {
    /// Opens the answer to the request that carried `id`.
    pub(crate) fn open(value: Value, id: Id<'_>) -> Result<Self, LockError> {
        let text = match value {
            Value::BulkString(bytes) if bytes.len() <= ANSWER_BYTES => {
                // A value of somebody else may hold any bytes, and is told of all the same.
                String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
            _ => return Err(malformed()),
        };
        let mut answer = Self { text, next: 0, tag: 0 };
        match answer.text()?.as_bytes() {
            [tag] => answer.tag = *tag,
            _ => return Err(malformed()),
        }
        if !id.is(answer.text()?) {
            return Err(LockError::ambiguous(
                "the answer belongs to another request, so this one may or may not have been done; the connection \
                 was out of step and is opened again",
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
    pub(crate) fn end(self) -> Result<(), LockError> {
        if self.next > self.text.len() { Ok(()) } else { Err(malformed()) }
    }

    /// The next field.
    pub(crate) fn text(&mut self) -> Result<&str, LockError> {
        let rest = self.text.get(self.next..).ok_or_else(malformed)?;
        // Fields are short: looking at each byte beats a search that is made for long texts.
        let length = rest.bytes().position(|byte| byte == b'\n').unwrap_or(rest.len());
        self.next += length + 1;
        Ok(&rest[..length])
    }

    pub(crate) fn integer(&mut self) -> Result<i64, LockError> {
        self.text()?.parse().map_err(|_| malformed())
    }

    /// A fence; `None` where the answer has an empty field.
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

/// Who holds `key`, from a description `FENCE GRANTED OWNER`; what does not look like one is a
/// foreign lock.
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

/// When a queued waiter asks again at the latest, so that its place does not expire: a third of
/// what `scripts/lib/queue.lua` gives it.
const QUEUE_REFRESH: Duration = Duration::from_secs(10);

/// A lease in whole milliseconds, rounded up: never shorter than asked.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Reads a grant.
pub(crate) fn granted(answer: &mut Answer) -> Result<Lease, LockError> {
    let lease = Lease::new(answer.some_fence()?, answer.lease()?);
    Ok(match usize::try_from(answer.integer()?) {
        Ok(others) => lease.contended(others > 0),
        Err(_) => lease,
    })
}

/// Reads who holds the lock, and when to ask again.
pub(crate) fn refused(answer: &mut Answer, key: &Key, queues: bool) -> Result<Busy, LockError> {
    let (left, now) = (answer.left()?, answer.clock()?);
    let busy = Busy::held_by(holder(key.clone(), answer.text()?, left, now));
    if left == Left::Gone {
        return Ok(busy.retry_after(Duration::ZERO));
    }
    if !queues {
        return Ok(busy);
    }
    let after = busy.retry_after.map_or(QUEUE_REFRESH, |left| left.min(QUEUE_REFRESH));
    Ok(busy.retry_after(after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ME: Id<'static> = Id { client: "client", number: 7 };

    fn open(text: &str) -> Result<Answer, LockError> {
        Answer::open(Value::BulkString(text.into()), ME)
    }

    #[test]
    fn a_good_answer_is_read_to_its_end() {
        let mut answer = open("G\nclient:7\n1790000000000000\n1000\n-1").unwrap();
        assert_eq!(answer.tag, b'G');
        assert_eq!(answer.some_fence().unwrap(), Fence::new(1_790_000_000_000_000));
        assert_eq!(answer.lease().unwrap(), Duration::from_secs(1));
        assert_eq!(answer.integer().unwrap(), -1);
        answer.end().unwrap();
        let mut answer = open("E\nclient:7\n\n0").unwrap();
        assert_eq!((answer.fence().unwrap(), answer.lease().unwrap()), (None, Duration::ZERO));
        answer.end().unwrap();
        open("R\nclient:7").unwrap().end().unwrap();
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        for id in ["client:8", "clien:7", "other:7", "client7", "client:", "", "7"] {
            assert!(open(&format!("G\n{id}\n1\n1000\n-1")).is_err(), "{id:?}");
        }
    }

    #[test]
    fn malformed_answers_are_refused() {
        for value in [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![])] {
            assert!(Answer::open(value.clone(), ME).is_err(), "{value:?}");
        }
        for text in ["", "G", "GG\nclient:7", "\nclient:7", "G client:7", "G\r\nclient:7"] {
            assert!(open(text).is_err(), "{text:?}");
        }
        assert!(Answer::open(Value::BulkString(vec![b'G', b'\n', 0xff]), ME).is_err());
        let mut foreign =
            Answer::open(Value::BulkString(b"L\nclient:7\nht1 \xff".to_vec()), ME).unwrap();
        assert_eq!(foreign.text().unwrap(), "ht1 \u{fffd}");
        for fence in ["", "-1", "1.5", "1e3", "9007199254740992", "00000000000000001", "x", "+1"] {
            let mut answer = open(&format!("G\nclient:7\n{fence}\n1000\n-1")).unwrap();
            assert!(answer.some_fence().is_err(), "{fence:?}");
        }
        assert!(open("G\nclient:7\n-5").unwrap().lease().is_err());
        assert!(open("R\nclient:7\n").unwrap().end().is_err(), "an empty field is one too many");
        let mut short = open("G\nclient:7\n1").unwrap();
        short.some_fence().unwrap();
        assert!(short.lease().is_err());
        assert!(open(&format!("G\nclient:7\n{}", "x".repeat(ANSWER_BYTES))).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_become_a_grant_or_a_panic(bytes: Vec<u8>) {
            if let Ok(value) = redis::parse_redis_value(&bytes) {
                prop_assert!(Answer::open(value, ME).is_err());
            }
        }

        #[test]
        fn arbitrary_fields_are_read_without_panic(text: String) {
            let mut answer = open(&format!("G\nclient:7\n{text}")).unwrap();
            while answer.text().is_ok() {}
            let mut answer = open(&format!("G\nclient:7\n{text}")).unwrap();
            let _ = (answer.fence(), answer.lease(), answer.left(), answer.clock());
            let _ = answer.end();
        }

        #[test]
        fn arbitrary_descriptions_are_read_without_panic(text: String, now: u64) {
            let key = Key::new("k").unwrap();
            let read = holder(key, &text, Left::Forever, now);
            prop_assert!(read.remaining.is_none());
        }
    }
}
