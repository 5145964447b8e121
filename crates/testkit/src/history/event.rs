//! One thing that happened to one claim, at one moment, and its form as a line of text.
//!
//! Processes print their histories line by line, so that one that is killed leaves all that it did
//! before.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use holdtight_core::{ErrorKind, Fence, LockError, Loss, Moment};

/// One line of a history.
///
/// ```
/// use holdtight_core::Moment;
/// use holdtight_testkit::history::{Event, Refusal, What};
///
/// let event = Event { at: Moment::from_nanos(7), claim: 3, what: What::Refused(Refusal::Busy) };
/// assert_eq!(event.to_string(), "7 3 refused busy");
/// assert_eq!(event.to_string().parse(), Ok(event));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by the boot clock: one for all processes of a machine.
    ///
    /// Of a call it is the moment before the call, of an answer the moment after it.
    pub at: Moment,
    /// Which claim: the number that [`Recorder::ask`](super::Recorder::ask) gave to one wish for
    /// one key.
    pub claim: u64,
    /// What happened.
    pub what: What,
}

/// What can happen to a claim, in the order in which it usually does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// Somebody begins to ask for the lock.
    Asked {
        /// Of which key.
        key: String,
        /// By which way in.
        form: Form,
        /// For how long at most.
        patience: Patience,
    },
    /// The asking ended without a lock.
    Refused(Refusal),
    /// The asking ended with a lock.
    Granted {
        /// Its fence.
        fence: Fence,
        /// What [`remaining`](holdtight_core::Held::remaining) said right after; zero if it was
        /// lost already.
        left: Duration,
    },
    /// The holder looked, and was told that it holds the lock for so much longer.
    Seen {
        /// What `remaining` said.
        left: Duration,
    },
    /// The holder was told that the lock is lost.
    Told(Loss),
    /// The holder begins to extend its lease.
    Extending,
    /// An extension ended.
    Extended(Answer),
    /// Somebody who is not the handle begins to end this claim: by its token, or by force.
    Ending(Foreign),
    /// What came of it.
    Ended(Answer),
    /// The holder begins to give the lock back, or ends its work under it.
    LettingGo(LetGo),
    /// What came of it.
    Gone(Answer),
    /// What the caller of `run`, `with_lock`, `once_per` or `lead` was told of its work.
    Worked(Answer),
    /// Long after everybody had let go, the store still showed a holder of this key.
    Left {
        /// The key.
        key: String,
    },
    /// Whoever wrote this history came to its end: claims without an answer are still waiting.
    Over,
}

/// By which way in somebody asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named after the methods of `DistributedLock`")]
pub enum Form {
    Acquire,
    Try,
    Run,
    Set,
    Campaign,
    Lead,
    Turn,
    Resume,
    /// Through another face of the library: the blocking one, or the command.
    Other,
}

/// How long somebody is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Not at all, or up to a deadline.
    Limited,
    /// For as long as it takes.
    Endless,
}

/// Why somebody got no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody else had it, at the only attempt.
    Busy,
    /// Somebody else had it, until the wait was over.
    Timeout,
    /// The asker went away.
    Cancelled,
    /// A token opened nothing.
    NotHeld,
    /// The store did not serve: nothing was done.
    Failed,
    /// The store did not answer: it may or may not have been done.
    Unknown,
    /// An error that a sound store never gives to a sound request.
    Unexpected(ErrorKind),
}

/// How a step on a held lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// As asked.
    Done,
    /// The lock was not held any more.
    Lost,
    /// The store did not serve, or did not answer.
    Unknown,
    /// The store cannot do this.
    Unsupported,
    /// An error that a sound store never gives to a sound request.
    Unexpected(ErrorKind),
}

/// How a holder lets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LetGo {
    /// By a call: `release`, `step_down`.
    Release,
    /// By dropping the handle, or the future that held it.
    Drop,
    /// By `detach`: the lock goes on without a handle.
    Detach,
    /// By the end of its work in `run`, `with_lock`, `once_per`, `lead`.
    Work,
}

/// How somebody else ends a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Foreign {
    /// `resume` of its token.
    Resume,
    /// `release_token`.
    ReleaseToken,
    /// `force_release`.
    Force,
}

impl Refusal {
    /// What an acquire's error says of its outcome.
    pub fn of(error: &LockError) -> Self {
        match error.kind() {
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::NotHeld => Self::NotHeld,
            // A lease that ended before its answer came.
            ErrorKind::Ambiguous | ErrorKind::Lost => Self::Unknown,
            ErrorKind::Unavailable
            | ErrorKind::RateLimited
            | ErrorKind::Closed
            | ErrorKind::Unsupported => Self::Failed,
            other => Self::Unexpected(other),
        }
    }
}

impl Answer {
    /// What the result of a step on a held lock says of its outcome.
    pub fn of<T>(result: &Result<T, LockError>) -> Self {
        let Err(error) = result else { return Self::Done };
        match error.kind() {
            ErrorKind::Lost | ErrorKind::NotHeld => Self::Lost,
            ErrorKind::Ambiguous
            | ErrorKind::Unavailable
            | ErrorKind::RateLimited
            | ErrorKind::Closed => Self::Unknown,
            ErrorKind::Unsupported => Self::Unsupported,
            other => Self::Unexpected(other),
        }
    }
}

/// Why a line is no event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnEvent(String);

impl fmt::Display for NotAnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a line of a history: {:?}", self.0)
    }
}

impl std::error::Error for NotAnEvent {}

/// Words for values, both ways.
macro_rules! words {
    ($type:ty { $($value:path = $word:literal),+ $(,)? }) => {
        impl $type {
            pub(super) fn word(self) -> &'static str {
                #[allow(unreachable_patterns, reason = "some types may grow elsewhere")]
                match self { $($value => $word,)+ _ => "other" }
            }

            fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($value),)+ _ => None }
            }
        }
    };
}

words!(Form {
    Self::Acquire = "acquire", Self::Try = "try", Self::Run = "run", Self::Set = "set",
    Self::Campaign = "campaign", Self::Lead = "lead", Self::Turn = "turn",
    Self::Resume = "resume", Self::Other = "other",
});
words!(Patience { Self::Limited = "limited", Self::Endless = "endless" });
words!(LetGo {
    Self::Release = "release", Self::Drop = "drop", Self::Detach = "detach", Self::Work = "work",
});
words!(Foreign {
    Self::Resume = "resume", Self::ReleaseToken = "release-token", Self::Force = "force",
});

/// Error kinds that a history can name; others become the first of them.
const KINDS: &[(ErrorKind, &str)] = &[
    (ErrorKind::Internal, "internal"),
    (ErrorKind::AuthFailed, "auth-failed"),
    (ErrorKind::InvalidKey, "invalid-key"),
    (ErrorKind::InvalidToken, "invalid-token"),
    (ErrorKind::InvalidConfig, "invalid-config"),
    (ErrorKind::Lost, "lost"),
    (ErrorKind::NotHeld, "not-held"),
    (ErrorKind::Timeout, "timeout"),
];

fn kind_word(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("internal", |(_, word)| word)
}

fn kind_from(word: &str) -> Option<ErrorKind> {
    KINDS.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
}

const LOSSES: &[(Loss, &str)] = &[
    (Loss::Expired, "expired"),
    (Loss::TakenAway, "taken-away"),
    (Loss::MaxHold, "max-hold"),
    (Loss::Forked, "forked"),
];

fn loss_word(loss: Loss) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == loss).map_or("expired", |(_, word)| word)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::NotHeld => "not-held",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Unexpected(kind) => return write!(f, "unexpected:{}", kind_word(*kind)),
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
            Self::Unsupported => "unsupported",
            Self::Unexpected(kind) => return write!(f, "unexpected:{}", kind_word(*kind)),
        })
    }
}

fn refusal(word: &str) -> Option<Refusal> {
    Some(match word {
        "busy" => Refusal::Busy,
        "timeout" => Refusal::Timeout,
        "cancelled" => Refusal::Cancelled,
        "not-held" => Refusal::NotHeld,
        "failed" => Refusal::Failed,
        "unknown" => Refusal::Unknown,
        _ => Refusal::Unexpected(kind_from(word.strip_prefix("unexpected:")?)?),
    })
}

fn answer(word: &str) -> Option<Answer> {
    Some(match word {
        "done" => Answer::Done,
        "lost" => Answer::Lost,
        "unknown" => Answer::Unknown,
        "unsupported" => Answer::Unsupported,
        _ => Answer::Unexpected(kind_from(word.strip_prefix("unexpected:")?)?),
    })
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at.as_nanos(), self.claim)?;
        match &self.what {
            What::Asked { key, form, patience } => {
                write!(f, "asked {} {} {key}", form.word(), patience.word())
            }
            What::Refused(why) => write!(f, "refused {why}"),
            What::Granted { fence, left } => {
                write!(f, "granted {} {}", fence.get(), nanos(*left))
            }
            What::Seen { left } => write!(f, "seen {}", nanos(*left)),
            What::Told(loss) => write!(f, "told {}", loss_word(*loss)),
            What::Extending => f.write_str("extending"),
            What::Extended(answer) => write!(f, "extended {answer}"),
            What::Ending(how) => write!(f, "ending {}", how.word()),
            What::Ended(answer) => write!(f, "ended {answer}"),
            What::LettingGo(how) => write!(f, "letting-go {}", how.word()),
            What::Gone(answer) => write!(f, "gone {answer}"),
            What::Worked(answer) => write!(f, "worked {answer}"),
            What::Left { key } => write!(f, "left {key}"),
            What::Over => f.write_str("over"),
        }
    }
}

impl FromStr for Event {
    type Err = NotAnEvent;

    fn from_str(line: &str) -> Result<Self, NotAnEvent> {
        read(line).ok_or_else(|| NotAnEvent(line.to_owned()))
    }
}

fn read(line: &str) -> Option<Event> {
    let mut parts = line.splitn(4, ' ');
    let at = Moment::from_nanos(parts.next()?.parse().ok()?);
    let claim = parts.next()?.parse().ok()?;
    let (word, rest) = (parts.next()?, parts.next().unwrap_or_default());
    let span = |text: &str| text.parse().ok().map(Duration::from_nanos);
    let what = match word {
        "asked" => {
            // The key comes last, because it may hold spaces.
            let (form, rest) = rest.split_once(' ')?;
            let (patience, key) = rest.split_once(' ')?;
            What::Asked {
                key: key.to_owned(),
                form: Form::from_word(form)?,
                patience: Patience::from_word(patience)?,
            }
        }
        "refused" => What::Refused(refusal(rest)?),
        "granted" => {
            let (fence, left) = rest.split_once(' ')?;
            What::Granted { fence: Fence::new(fence.parse().ok()?), left: span(left)? }
        }
        "seen" => What::Seen { left: span(rest)? },
        "told" => What::Told(LOSSES.iter().find(|(_, known)| *known == rest)?.0),
        "extending" => What::Extending,
        "extended" => What::Extended(answer(rest)?),
        "ending" => What::Ending(Foreign::from_word(rest)?),
        "ended" => What::Ended(answer(rest)?),
        "letting-go" => What::LettingGo(LetGo::from_word(rest)?),
        "gone" => What::Gone(answer(rest)?),
        "worked" => What::Worked(answer(rest)?),
        "left" => What::Left { key: rest.to_owned() },
        "over" => What::Over,
        _ => return None,
    };
    Some(Event { at, claim, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_read_back_from_its_line() {
        let span = Duration::from_micros(1500);
        let key = || "a key: ä b".to_owned();
        let unexpected = ErrorKind::Internal;
        let mut all = vec![
            What::Granted { fence: Fence::new(u64::MAX), left: span },
            What::Seen { left: span },
            What::Extending,
            What::Extended(Answer::Unsupported),
            What::Ended(Answer::Lost),
            What::Gone(Answer::Unknown),
            What::Worked(Answer::Done),
            What::Left { key: key() },
            What::Over,
            What::Refused(Refusal::Unexpected(unexpected)),
            What::Gone(Answer::Unexpected(unexpected)),
        ];
        let forms = [
            Form::Acquire,
            Form::Try,
            Form::Run,
            Form::Set,
            Form::Campaign,
            Form::Lead,
            Form::Turn,
            Form::Resume,
            Form::Other,
        ];
        for form in forms {
            for patience in [Patience::Limited, Patience::Endless] {
                all.push(What::Asked { key: key(), form, patience });
            }
        }
        for why in ["busy", "timeout", "cancelled", "not-held", "failed", "unknown"] {
            all.push(What::Refused(refusal(why).unwrap()));
        }
        all.extend([LetGo::Release, LetGo::Drop, LetGo::Detach, LetGo::Work].map(What::LettingGo));
        all.extend([Foreign::Resume, Foreign::ReleaseToken, Foreign::Force].map(What::Ending));
        all.extend([Loss::Expired, Loss::TakenAway, Loss::MaxHold, Loss::Forked].map(What::Told));
        for what in all {
            let event = Event { at: Moment::from_nanos(12), claim: 9, what };
            assert_eq!(event.to_string().parse::<Event>().as_ref(), Ok(&event));
        }
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for line in ["", "1", "1 2", "1 2 over-there", "x 2 over", "1 2 refused perhaps"] {
            assert!(line.parse::<Event>().is_err(), "{line:?}");
        }
    }
}
