//! Limits on what a server may send, kept while its bytes arrive: the client library reads whatever
//! comes.
//!
//! No answer is longer than a mebibyte. And nobody is told that a subscription has ended: we never
//! ask for that, but a node whose slot moves away says so unasked, and the client library would
//! take it for the answer to the oldest request, so that from then on every request got the answer
//! of another.
//!
//! [`Gauge`] follows the protocol just far enough to know where an answer ends. What is in it is
//! the parser's affair.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// No answer of a sane server is longer: a listing step tells of 128 locks.
const LIMIT: u64 = 1 << 20;

/// A stream of answers, none of which is longer than a mebibyte.
pub(crate) struct Bounded<S> {
    stream: S,
    gauge: Gauge,
}

impl<S> Bounded<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, gauge: Gauge::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.gauge.pass(&buffer.filled()[before..]).map_err(|refused| match refused {
            Refused::TooLong => io::Error::new(
                io::ErrorKind::InvalidData,
                "the server's answer is longer than 1 MiB",
            ),
            Refused::OutOfStep => io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the server ended a subscription, as when a slot moves to another node",
            ),
        }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Why nothing more is read.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// An answer is, or says that it will be, longer than the limit.
    TooLong,
    /// Something came that the client would take for an answer.
    OutOfStep,
}

use Refused::{OutOfStep, TooLong};

/// What a server says unasked when it ends a subscription, perhaps with a letter before it that
/// says of what kind.
const ENDED: &[u8] = b"unsubscribe";

/// How much of the current answer has come, and what must come before it ends.
#[derive(Debug, Default)]
struct Gauge {
    /// Bytes of this answer so far.
    length: u64,
    /// Values that have not ended yet, as far as is known; none between two answers.
    open: u64,
    place: Place,
    /// The next value says what kind of message was pushed.
    pushed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    /// Before the byte that says what kind of value comes.
    #[default]
    Kind,
    /// In the line after it, which for many kinds is a number, or a negative one for nothing.
    Line { kind: u8, number: u64, negative: bool },
    /// In a text of known length, its line end included.
    Text { left: usize },
    /// At some byte of the text that says what kind of message was pushed.
    Name { length: usize, at: usize },
}

impl Gauge {
    /// Takes in what came.
    fn pass(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        while let Some(&first) = bytes.first() {
            let mut taken = 1;
            self.place = match self.place {
                Place::Kind => {
                    self.open = self.open.max(1);
                    Place::Line { kind: first, number: 0, negative: false }
                }
                Place::Line { kind, number, negative } => match first {
                    b'0'..=b'9' => {
                        let number =
                            number.saturating_mul(10).saturating_add(u64::from(first - b'0'));
                        Place::Line { kind, number, negative }
                    }
                    b'-' => Place::Line { kind, number, negative: true },
                    b'\n' => self.line_ended(kind, if negative { 0 } else { number }, negative)?,
                    _ => Place::Line { kind, number, negative },
                },
                Place::Text { left } => {
                    taken = left.min(bytes.len());
                    if taken == left {
                        self.value_ended()
                    } else {
                        Place::Text { left: left - taken }
                    }
                }
                Place::Name { length, at } => {
                    let skipped = length - ENDED.len();
                    let differs = at >= skipped && first != ENDED[at - skipped];
                    match at + 1 {
                        next if differs => Place::Text { left: length - next + 2 },
                        next if next == length => return Err(OutOfStep),
                        next => Place::Name { length, at: next },
                    }
                }
            };
            bytes = &bytes[taken..];
            self.length += taken as u64;
            if self.length > LIMIT {
                return Err(TooLong);
            }
            if self.open == 0 {
                self.length = 0;
            }
        }
        Ok(())
    }

    /// The line of a value has ended: what follows it.
    fn line_ended(&mut self, kind: u8, number: u64, negative: bool) -> Result<Place, Refused> {
        let pushed = std::mem::take(&mut self.pushed);
        let inside = match kind {
            b'$' | b'=' | b'!' if !negative => {
                let length = usize::try_from(number).ok().filter(|_| number <= LIMIT);
                let length = length.ok_or(TooLong)?;
                if pushed && (ENDED.len()..=ENDED.len() + 1).contains(&length) {
                    return Ok(Place::Name { length, at: 0 });
                }
                return Ok(Place::Text { left: length + 2 });
            }
            b'>' => {
                self.pushed = true;
                number
            }
            b'*' | b'~' => number,
            b'%' => number.saturating_mul(2),
            // Attributes are pairs in front of a value.
            b'|' => number.saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        self.open = self.open.saturating_add(inside);
        // A value has three bytes at least: so many cannot come within the limit.
        if self.open > LIMIT / 3 { Err(TooLong) } else { Ok(self.value_ended()) }
    }

    fn value_ended(&mut self) -> Place {
        self.open = self.open.saturating_sub(1);
        Place::Kind
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether the gauge stands between two answers after `bytes`, given to it in pieces of `size`.
    fn whole(bytes: &[u8], size: usize) -> Result<bool, Refused> {
        let mut gauge = Gauge::default();
        for piece in bytes.chunks(size) {
            gauge.pass(piece)?;
        }
        Ok(gauge.open == 0 && gauge.length == 0)
    }

    const ANSWERS: &[&str] = &[
        "+OK\r\n",
        "-ERR 12 no\r\n",
        ":-12\r\n",
        "$5\r\nh\r\nlo\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "_\r\n",
        "#t\r\n",
        ",-1.5e3\r\n",
        "(12345678901234567890\r\n",
        "=6\r\ntxt:ab\r\n",
        "!5\r\nERR x\r\n",
        "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
        "%1\r\n$5\r\nproto\r\n:3\r\n",
        "~2\r\n:1\r\n:2\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        "|1\r\n+a\r\n:1\r\n*1\r\n:5\r\n",
    ];

    #[test]
    fn the_end_of_every_kind_of_answer_is_found_however_it_is_cut() {
        for answer in ANSWERS {
            for size in 1..=answer.len() {
                assert_eq!(whole(answer.as_bytes(), size), Ok(true), "{answer:?} by {size}");
            }
            for end in 1..answer.len() {
                assert_eq!(whole(&answer.as_bytes()[..end], 3), Ok(false), "{:?}", &answer[..end]);
            }
        }
        let all = ANSWERS.concat().repeat(10_000);
        assert!(all.len() as u64 > 2 * LIMIT);
        assert_eq!(whole(all.as_bytes(), 4096), Ok(true), "many answers are not a long one");
    }

    #[test]
    fn what_is_or_will_be_too_long_is_refused_at_once() {
        for promise in [
            "$1048577\r\n",
            "$99999999999999999999999\r\n",
            "*1000000\r\n",
            "%1000000\r\n",
            "|18446744073709551615\r\n",
            "*300000\r\n*300000\r\n",
        ] {
            assert_eq!(whole(promise.as_bytes(), 5), Err(TooLong), "{promise:?}");
        }
        let limit = usize::try_from(LIMIT).unwrap();
        assert_eq!(whole(&vec![b'+'; limit + 1], 1000), Err(TooLong));
        let nested = "*1\r\n".repeat(limit / 4 + 1);
        assert_eq!(whole(nested.as_bytes(), 1000), Err(TooLong));
        let texts =
            format!("*2\r\n${0}\r\n{1}\r\n${0}\r\n{1}\r\n", limit / 2, "x".repeat(limit / 2));
        assert_eq!(whole(texts.as_bytes(), 1000), Err(TooLong), "parts count together");
    }

    #[test]
    fn the_end_of_a_subscription_is_noticed_however_it_is_cut() {
        for kind in ["unsubscribe", "sunsubscribe", "punsubscribe"] {
            let push = format!(">3\r\n${}\r\n{kind}\r\n$1\r\nc\r\n:0\r\n", kind.len());
            let all = ["+OK\r\n", &push, "+OK\r\n"].concat();
            for size in 1..all.len() {
                assert_eq!(whole(all.as_bytes(), size), Err(OutOfStep), "{kind} by {size}");
            }
            // As an answer, or anywhere else, it is a text like any other.
            let text = format!("${}\r\n{kind}\r\n", kind.len());
            for innocent in [
                text.clone(),
                format!("*1\r\n{text}"),
                format!(">2\r\n$7\r\nmessage\r\n{text}"),
                format!(">0\r\n:1\r\n{text}"),
            ] {
                assert_eq!(whole(innocent.as_bytes(), 4), Ok(true), "{innocent:?}");
            }
        }
        for other in ["subscribe", "ssubscribe", "xunsubscribf", "unsubscribf", "unsubscribed"] {
            let push = format!(">1\r\n${}\r\n{other}\r\n", other.len());
            for size in 1..push.len() {
                assert_eq!(whole(push.as_bytes(), size), Ok(true), "{other} by {size}");
            }
        }
    }

    proptest! {
        #[test]
        fn anything_is_measured_without_panic_and_alike_however_it_is_cut(bytes: Vec<u8>, size in 1usize..9) {
            prop_assert_eq!(whole(&bytes, size), whole(&bytes, bytes.len().max(1)));
        }
    }
}
