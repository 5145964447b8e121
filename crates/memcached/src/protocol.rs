//! The words of the meta protocol that we use: requests as bytes, and bytes as replies.
//!
//! No I/O. Whatever the server sends, [`Inbox`] holds at most one bounded reply of it, and
//! everything that is not exactly what the protocol says is [`Malformed`]: a stream out of step
//! must never look like a grant.

use std::fmt;
use std::io::Write as _;

/// The longest line of a reply. Memcached's longest is that of a key and its flags, well below.
const LINE_BYTES: usize = 1024;

/// The longest value that is kept; of a longer one only the fact is reported, and its bytes are let
/// go by.
pub(crate) const VALUE_BYTES: usize = crate::record::RECORD_BYTES;

/// The longest value that a server can hold at all (`-I`).
const SERVER_VALUE_BYTES: u64 = 1 << 30;

/// The most lines of statistics.
const STATISTICS: usize = 1024;

/// When a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// Only if there is none.
    Add,
    /// Only if the item still has this CAS number.
    Replace(u64),
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// `mn`: is this a server that knows the meta protocol?
    NoOp,
    /// `mg`: the value, its CAS number, and the seconds it has left.
    Get { name: &'a str },
    /// `ms`: write for so many seconds; the answer has the new CAS number.
    Set { name: &'a str, value: &'a [u8], write: Write, seconds: u64 },
    /// `md`: delete if the item still has this CAS number.
    Delete { name: &'a str, cas: u64 },
    /// `stats`, or `stats` of something.
    Statistics { of: &'static str },
    /// `version`.
    Version,
}

impl Request<'_> {
    /// Whether the server's state may differ after it.
    pub(crate) fn writes(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Delete { .. })
    }

    /// The request as it is sent. Names come from `names.rs`, which lets nothing through that could
    /// end a line.
    pub(crate) fn encode(self) -> Vec<u8> {
        // Words, numbers and ends of lines are shorter than this.
        let room = 64 + self.name().len() + self.value().len();
        let mut out = Vec::with_capacity(room);
        let line = match self {
            Self::NoOp => out.write_all(b"mn"),
            Self::Version => out.write_all(b"version"),
            Self::Statistics { of: "" } => out.write_all(b"stats"),
            Self::Statistics { of } => write!(out, "stats {of}"),
            Self::Get { name } => write!(out, "mg {name} v c t"),
            Self::Delete { name, cas } => write!(out, "md {name} C{cas}"),
            Self::Set { name, value, write: Write::Add, seconds } => {
                write!(out, "ms {name} {} ME T{seconds} c\r\n", value.len())
            }
            Self::Set { name, value, write: Write::Replace(cas), seconds } => {
                write!(out, "ms {name} {} C{cas} T{seconds} c\r\n", value.len())
            }
        };
        debug_assert!(line.is_ok(), "a vector takes everything");
        out.extend_from_slice(self.value());
        out.extend_from_slice(b"\r\n");
        out
    }

    fn name(&self) -> &str {
        match self {
            Self::Get { name } | Self::Set { name, .. } | Self::Delete { name, .. } => name,
            Self::NoOp | Self::Statistics { .. } | Self::Version => "",
        }
    }

    fn value(&self) -> &[u8] {
        match self {
            Self::Set { value, .. } => value,
            _ => b"",
        }
    }
}

/// What the server says beside its status: the two flags that we ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) cas: Option<u64>,
    pub(crate) left: Option<Left>,
}

/// How much longer an item lives, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Seconds(u64),
    Forever,
}

/// One reply.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Reply {
    /// `HD`: done.
    Done(Flags),
    /// `VA`: a value; `None` if it was longer than any of ours.
    Value(Flags, Option<Vec<u8>>),
    /// `EN`: a miss.
    Missing,
    /// `NS`: not stored, there is one already.
    NotStored,
    /// `EX`: the CAS number is another one now.
    Changed,
    /// `NF`: there is nothing to change.
    NotFound,
    /// `MN`.
    NoOp,
    /// `VERSION`.
    Version(String),
    /// `STAT` … `END`.
    Statistics(Vec<(String, String)>),
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`, with the rest of the line.
    Refused(Refusal, String),
}

/// How a server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It does not know the command.
    Command,
    /// It finds fault with the request. What it makes of the bytes that follow is anybody's guess.
    Request,
    /// It cannot do it now.
    Server,
}

/// The server did not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Bytes from the server on their way to being replies.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// A value of which only the end is awaited: the bytes still to come, with its line end, and
    /// its flags.
    passing: Option<(u64, Flags)>,
    statistics: Option<Vec<(String, String)>>,
}

impl Inbox {
    /// Where the next bytes are read into. Never holds more than one unfinished reply when
    /// [`Inbox::next`] said so.
    pub(crate) fn space(&mut self) -> &mut Vec<u8> {
        self.bytes.reserve(VALUE_BYTES + LINE_BYTES);
        &mut self.bytes
    }

    /// The next whole reply; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Malformed> {
        loop {
            if let Some(flags) = self.pass_by()? {
                return Ok(Some(Reply::Value(flags, None)));
            }
            if self.passing.is_some() {
                return Ok(None);
            }
            let Some(end) = self.line_end()? else { return Ok(None) };
            let line = text(&self.bytes[..end])?;
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            if self.statistics.is_some() || word == "STAT" {
                let entry = match (word, rest.split_once(' ')) {
                    ("STAT", Some((name, value))) => Some((name.to_owned(), value.to_owned())),
                    // Some statistics are empty.
                    ("STAT", None) if !rest.is_empty() => Some((rest.to_owned(), String::new())),
                    ("END", None) if rest.is_empty() => None,
                    _ => return Err(Malformed("statistics broke off")),
                };
                self.bytes.drain(..end + 2);
                let so_far = self.statistics.get_or_insert_default();
                match entry {
                    Some(_) if so_far.len() == STATISTICS => {
                        return Err(Malformed("statistics without end"));
                    }
                    Some(entry) => so_far.push(entry),
                    None => return Ok(self.statistics.take().map(Reply::Statistics)),
                }
                continue;
            }
            if word == "VA" {
                let (length, flags) = rest.split_once(' ').unwrap_or((rest, ""));
                let length = number(length).filter(|length| *length <= SERVER_VALUE_BYTES);
                let length = length.ok_or(Malformed("a value has no sensible length"))?;
                let flags = Flags::parse(flags)?;
                let Some(kept) = usize::try_from(length).ok().filter(|kept| *kept <= VALUE_BYTES)
                else {
                    self.bytes.drain(..end + 2);
                    self.passing = Some((length + 2, flags));
                    continue;
                };
                let (from, to) = (end + 2, end + 2 + kept);
                let Some(ending) = self.bytes.get(to..to + 2) else { return Ok(None) };
                if ending != b"\r\n" {
                    return Err(Malformed("a value is not as long as was said"));
                }
                let value = self.bytes[from..to].to_vec();
                self.bytes.drain(..to + 2);
                return Ok(Some(Reply::Value(flags, Some(value))));
            }
            let reply = status(word, rest)?;
            self.bytes.drain(..end + 2);
            return Ok(Some(reply));
        }
    }

    /// Lets the bytes of a value go by that is too long to be ours; its flags when it is over.
    fn pass_by(&mut self) -> Result<Option<Flags>, Malformed> {
        let Some((mut left, flags)) = self.passing else { return Ok(None) };
        // The last two bytes are looked at together.
        let go = usize::try_from(left - 2).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.drain(..go);
        left -= go as u64;
        self.passing = Some((left, flags));
        if left > 2 || self.bytes.len() < 2 {
            return Ok(None);
        }
        if !self.bytes.starts_with(b"\r\n") {
            return Err(Malformed("a value is not as long as was said"));
        }
        self.bytes.drain(..2);
        self.passing = None;
        Ok(Some(flags))
    }

    /// Where the first line ends, without its `\r\n`.
    fn line_end(&self) -> Result<Option<usize>, Malformed> {
        let seen = &self.bytes[..self.bytes.len().min(LINE_BYTES)];
        match seen.iter().position(|byte| *byte == b'\n') {
            Some(at) if at > 0 && seen[at - 1] == b'\r' => Ok(Some(at - 1)),
            Some(_) => Err(Malformed("a line does not end as lines do")),
            None if seen.len() == LINE_BYTES => Err(Malformed("a line is too long")),
            None => Ok(None),
        }
    }
}

fn status(word: &str, rest: &str) -> Result<Reply, Malformed> {
    Ok(match word {
        "HD" => Reply::Done(Flags::parse(rest)?),
        "NS" => Flags::parse(rest).map(|_| Reply::NotStored)?,
        "EX" => Flags::parse(rest).map(|_| Reply::Changed)?,
        "NF" => Flags::parse(rest).map(|_| Reply::NotFound)?,
        "EN" if rest.is_empty() => Reply::Missing,
        "MN" if rest.is_empty() => Reply::NoOp,
        "VERSION" => Reply::Version(rest.to_owned()),
        "ERROR" => Reply::Refused(Refusal::Command, rest.to_owned()),
        "CLIENT_ERROR" => Reply::Refused(Refusal::Request, rest.to_owned()),
        "SERVER_ERROR" => Reply::Refused(Refusal::Server, rest.to_owned()),
        _ => return Err(Malformed("a status that the protocol does not have")),
    })
}

impl Flags {
    fn parse(text: &str) -> Result<Self, Malformed> {
        let mut flags = Self::default();
        for token in text.split(' ').filter(|token| !token.is_empty()) {
            let known = match token.split_at_checked(1) {
                Some(("c", cas)) if flags.cas.is_none() => {
                    flags.cas = number(cas);
                    flags.cas.is_some()
                }
                Some(("t", "-1")) if flags.left.is_none() => {
                    flags.left = Some(Left::Forever);
                    true
                }
                Some(("t", left)) if flags.left.is_none() => {
                    flags.left = number(left).map(Left::Seconds);
                    flags.left.is_some()
                }
                // Somebody marked the item as stale, or to be recomputed: no affair of a lock.
                Some(("W" | "X" | "Z", "")) => true,
                _ => false,
            };
            if !known {
                return Err(Malformed("a flag that was not asked for, or twice, or out of range"));
            }
        }
        Ok(flags)
    }
}

fn text(line: &[u8]) -> Result<&str, Malformed> {
    let printable = line.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = std::str::from_utf8(line).ok().filter(|_| printable);
    text.ok_or(Malformed("a line with characters that have no place there"))
}

/// Plain digits only: `parse` alone would take a sign.
fn number(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
