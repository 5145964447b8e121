//! Why a lock is not held any more.

use std::fmt;

/// Why a lock is no longer held although its holder did not give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out before it could be renewed.
    Expired,
    /// The store says that somebody else has it, or nobody.
    TakenAway,
    /// It was held as long as `max_hold` allows.
    MaxHold,
    /// This process is a forked child of the one that holds it, and has nothing but a copy of the
    /// handle.
    Forked,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out before it was renewed",
            Self::TakenAway => "the store says that this holder no longer has it",
            Self::MaxHold => "it was held as long as `max_hold` allows",
            Self::Forked => "the process from which this one was forked holds it",
        })
    }
}
