//! What a check found, in words: each violation with its key, its times, its fences, and how to see
//! it again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use holdtight_core::{ErrorKind, Moment};

use super::story::Story;

/// What happened in a history, and what of it must not.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where the history is from; names the seed.
    pub label: String,
    /// How often what happened.
    pub counts: Counts,
    /// For each key, the longest that somebody who would have waited for ever waited until it was
    /// granted.
    pub longest_waits: BTreeMap<String, Duration>,
    /// What must not happen.
    pub violations: Vec<Violation>,
}

/// How often what happened in a history: a run in which nothing was tried proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Wishes for a lock.
    pub claims: u64,
    /// Locks granted.
    pub grants: u64,
    /// Single attempts that found the lock held.
    pub busy: u64,
    /// Waits that ended in vain.
    pub timeouts: u64,
    /// Wishes that were dropped.
    pub cancelled: u64,
    /// Tokens that opened nothing.
    pub not_held: u64,
    /// Wishes that the store refused to serve.
    pub failed: u64,
    /// Wishes and releases of which nobody knows whether they were done.
    pub unknown: u64,
    /// Wishes without any answer: of processes that were killed.
    pub unanswered: u64,
    /// Holders that were told that they had lost their lock.
    pub losses: u64,
    /// Locks that went to the next holder because a lease ended.
    pub takeovers: u64,
    /// Locks that went to somebody who stood in line when the holder before let go.
    pub hand_overs: u64,
    /// Tokens resumed.
    pub resumed: u64,
    /// Tokens released.
    pub released_by_token: u64,
    /// Locks released by force.
    pub forced: u64,
}

/// One thing that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise is broken.
    pub kind: Broken,
    /// Of which key.
    pub key: String,
    text: String,
}

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Broken {
    /// Two claims of one key were certainly valid at one moment.
    TwoHolders,
    /// Two grants of one key have the same fence.
    SameFence,
    /// A grant has a smaller fence than one that was there before it was asked for.
    FenceFell,
    /// A lock that nobody had touched, and whose lease was not over, was found gone by its holder.
    FoundGone,
    /// One token was resumed more than once.
    ResumedAgain,
    /// Work that had lost its lock was called done.
    WorkedWithout,
    /// A lock is still held after everybody let go.
    Left,
    /// Somebody waits for ever, or out of all proportion.
    Starved,
    /// An error that a sound store never gives to a sound request.
    Unexpected,
}

impl Report {
    /// Whether no promise was broken.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether a promise of this kind was broken.
    pub fn found(&self, kind: Broken) -> bool {
        self.violations.iter().any(|violation| violation.kind == kind)
    }

    /// Panics with the whole report unless no promise was broken and each of `happened` did happen:
    /// pairs of a name and a count of [`Report::counts`].
    ///
    /// # Panics
    /// As said: this is the last line of a test.
    pub fn assert_clean(&self, happened: &[(&str, u64)]) {
        assert!(self.is_clean(), "{self}");
        for (what, count) in happened {
            assert!(*count > 0, "a run without {what} shows nothing\n{self}");
        }
    }
}

/// So many violations are told in full.
const TOLD: usize = 5;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {} violations", self.label, self.counts, self.violations.len())?;
        let mut kinds: Vec<_> = self.violations.iter().map(|violation| violation.kind).collect();
        kinds.sort_unstable();
        for same in kinds.chunk_by(|one, next| one == next) {
            write!(f, "\n  {} x {:?}", same.len(), same[0])?;
        }
        for violation in self.violations.iter().take(TOLD) {
            write!(f, "\n{violation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("grants", self.grants),
            ("busy", self.busy),
            ("timeouts", self.timeouts),
            ("cancelled", self.cancelled),
            ("refused tokens", self.not_held),
            ("failed", self.failed),
            ("unknown", self.unknown),
            ("unanswered", self.unanswered),
            ("losses", self.losses),
            ("takeovers", self.takeovers),
            ("hand-overs", self.hand_overs),
            ("resumed", self.resumed),
            ("released by token", self.released_by_token),
            ("forced", self.forced),
        ];
        write!(f, "{} claims", self.claims)?;
        all.iter()
            .filter(|(_, count)| *count > 0)
            .try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Violation {}

impl Violation {
    fn new(kind: Broken, key: &str, text: String) -> Self {
        Self { kind, key: key.to_owned(), text }
    }

    pub(super) fn two_holders(one: &Story, two: &Story, start: Moment) -> Self {
        let overlap = one
            .certain()
            .zip(two.certain())
            .map_or(Duration::ZERO, |(one, two)| one.1.min(two.1).since(one.0.max(two.0)));
        let text = format!(
            "two holders of {:?} at once, for {overlap:?}\n{}\n{}",
            one.key,
            told(one, start),
            told(two, start)
        );
        Self::new(Broken::TwoHolders, &one.key, text)
    }

    pub(super) fn same_fence(one: &Story, two: &Story, start: Moment) -> Self {
        let text = format!(
            "two grants of {:?} with one fence\n{}\n{}",
            one.key,
            told(one, start),
            told(two, start)
        );
        Self::new(Broken::SameFence, &one.key, text)
    }

    pub(super) fn fence_fell(earlier: &Story, later: &Story, start: Moment) -> Self {
        let text = format!(
            "the fence of {:?} fell: the second was asked for after the first was granted\n{}\n{}",
            earlier.key,
            told(earlier, start),
            told(later, start)
        );
        Self::new(Broken::FenceFell, &earlier.key, text)
    }

    pub(super) fn found_gone(story: &Story, step: &str, start: Moment) -> Self {
        let text = format!(
            "a lock of {:?} was gone when it was {step}: its lease was not over, and nobody had ended it\n{}",
            story.key,
            told(story, start)
        );
        Self::new(Broken::FoundGone, &story.key, text)
    }

    pub(super) fn resumed_again(story: &Story, times: usize, start: Moment) -> Self {
        let text = format!(
            "one token of {:?} was resumed {times} times\n{}",
            story.key,
            told(story, start)
        );
        Self::new(Broken::ResumedAgain, &story.key, text)
    }

    pub(super) fn worked_without(story: &Story, start: Moment) -> Self {
        let text = format!(
            "work under {:?} was called done, although its lock was lost before its end\n{}",
            story.key,
            told(story, start)
        );
        Self::new(Broken::WorkedWithout, &story.key, text)
    }

    pub(super) fn left(key: &str) -> Self {
        let text = format!("{key:?} is still held after everybody let go");
        Self::new(Broken::Left, key, text)
    }

    pub(super) fn starved(
        story: &Story,
        waited: Option<Duration>,
        median: Duration,
        start: Moment,
    ) -> Self {
        let waited = waited.map_or("for ever".to_owned(), |waited| format!("{waited:?}"));
        let text = format!(
            "a waiter of {:?} waited {waited}; half of the endless waits for it took at most {median:?}\n{}",
            story.key,
            told(story, start)
        );
        Self::new(Broken::Starved, &story.key, text)
    }

    pub(super) fn unexpected(story: &Story, kind: ErrorKind, start: Moment) -> Self {
        let text =
            format!("an error of kind {kind:?} about {:?}\n{}", story.key, told(story, start));
        Self::new(Broken::Unexpected, &story.key, text)
    }
}

/// A claim in one line, its times counted from the start of the history.
#[expect(clippy::format_push_string, reason = "a report is short, and writing to it cannot fail")]
fn told(story: &Story, start: Moment) -> String {
    let at = |moment: Moment| format!("+{:.6} s", moment.since(start).as_secs_f64());
    let mut text =
        format!("  claim {} ({}) asked {}", story.id, story.form.word(), at(story.asked));
    if let Some((when, fence)) = story.granted {
        text.push_str(&format!(", granted {} with fence {fence}", at(when)));
    }
    if let Some(seen) = story.seen {
        text.push_str(&format!(", certainly held until {}", at(seen)));
    }
    for ending in &story.endings {
        let answer = ending.answered.map_or("no answer".to_owned(), |(_, how)| how.to_string());
        text.push_str(&format!(", ended by {} {} ({answer})", ending.how.word(), at(ending.begun)));
    }
    if let Some((when, how)) = story.letting_go {
        text.push_str(&format!(", let go by {} {}", how.word(), at(when)));
    }
    if let Some((when, answer)) = story.gone {
        text.push_str(&format!(" and told {} ({answer})", at(when)));
    }
    if let Some((when, why)) = story.refused {
        text.push_str(&format!(", refused {} ({why})", at(when)));
    }
    text
}
