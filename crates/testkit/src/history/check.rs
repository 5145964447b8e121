//! From a history to what is wrong with it: a pure function, in O(n log n).
//!
//! It calls wrong only what cannot have been right. A claim *certainly* holds from the moment after
//! its grant to the last moment at which its holder asked and was told so, unless somebody else
//! began to end it before. What may or may not have been, such as a release without an answer,
//! proves nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use holdtight_core::{Fence, Loss, Moment};

use super::event::{Answer, Foreign, Patience, Refusal};
use super::record::History;
use super::report::{Counts, Report, Violation};
use super::story::{Ending, Story, stories};

/// Which promises hold for a history, beyond those that always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nobody waits much longer than the others: not promised while a store is hurt.
    pub fair: bool,
    /// A lock that was not lost is there when it is given back: not promised where requests are
    /// done twice, because the second answer is that of a lock that is gone.
    pub kept: bool,
    /// Answers arrive: a release whose first answer was lost cannot tell whether the lock was gone
    /// before or because of it, so work is then called lost only if its holder was told before it
    /// ended.
    pub heard: bool,
}

impl Rules {
    /// All promises: of a store that nobody hurts.
    pub const CALM: Self = Self { fair: true, kept: true, heard: true };

    /// What is promised while requests and replies are lost and processes are stopped or killed.
    pub const FAULTS: Self = Self { fair: false, kept: true, heard: false };
}

/// A wait shorter than this is never called starvation.
const SHORT: Duration = Duration::from_secs(20);

/// Nor one that is shorter than so many times what others wait.
const RATIO: u32 = 50;

/// Says what is wrong with a history, and what happened in it.
///
/// ```
/// use holdtight_testkit::history::{History, Rules, check};
///
/// let mut history = History::default();
/// // Two claims; the first believes in its lock at 30 and the second was granted at 20.
/// history.merge("10 1 asked acquire limited k\n11 1 granted 5 1000\n30 1 seen 900\n").unwrap();
/// history.merge("10 2 asked acquire limited k\n20 2 granted 6 1000\n").unwrap();
/// let report = check(&history, Rules::CALM);
/// assert_eq!(report.counts.grants, 2);
/// assert!(report.violations[0].to_string().contains("two holders of \"k\""), "{report}");
/// ```
pub fn check(history: &History, rules: Rules) -> Report {
    let (stories, left, over) = stories(history);
    let start = history.events.iter().map(|event| event.at).min();
    let start = start.unwrap_or(Moment::from_nanos(0));
    let mut found = Findings { start, violations: Vec::new() };
    let mut by_key: BTreeMap<&str, Vec<&Story>> = BTreeMap::new();
    for story in &stories {
        by_key.entry(&story.key).or_default().push(story);
    }
    let mut counts = Counts::default();
    for claims in by_key.values() {
        found.overlaps(claims);
        found.fences(claims);
        found.waits(claims, &over, rules);
        count_successions(claims, &mut counts);
    }
    for story in &stories {
        found.one(story, rules);
        count(story, &mut counts);
    }
    found.violations.extend(left.into_iter().map(|key| Violation::left(&key)));
    let mut longest_waits = BTreeMap::new();
    for story in stories.iter().filter(|story| story.patience == Patience::Endless) {
        let longest: &mut Duration = longest_waits.entry(story.key.clone()).or_default();
        *longest = story.waited().unwrap_or_default().max(*longest);
    }
    Report { label: history.label.clone(), counts, longest_waits, violations: found.violations }
}

struct Findings {
    start: Moment,
    violations: Vec<Violation>,
}

impl Findings {
    /// No two claims of a key are certainly valid at one moment.
    fn overlaps(&mut self, claims: &[&Story]) {
        let mut spans: Vec<_> =
            claims.iter().filter_map(|story| Some((story.certain()?, *story))).collect();
        spans.sort_by_key(|((start, end), _)| (*start, *end));
        let mut last: Option<(Moment, &Story)> = None;
        for ((start, end), story) in spans {
            if let Some((until, other)) = last
                && start < until
            {
                self.violations.push(Violation::two_holders(other, story, self.start));
            }
            if last.is_none_or(|(until, _)| end > until) {
                last = Some((end, story));
            }
        }
    }

    /// Fences are unique, and larger than those of all grants that were over with before the asking
    /// began.
    fn fences(&mut self, claims: &[&Story]) {
        let granted: Vec<_> = claims
            .iter()
            .filter_map(|story| story.granted.map(|(at, fence)| (at, fence, *story)))
            .collect();
        let mut by_number: Vec<_> =
            granted.iter().map(|(at, fence, s)| (*fence, *at, *s)).collect();
        by_number.sort_by_key(|(fence, at, _)| (*fence, *at));
        for pair in by_number.windows(2) {
            if pair[0].0 == pair[1].0 {
                self.violations.push(Violation::same_fence(pair[0].2, pair[1].2, self.start));
            }
        }
        let mut by_grant = granted.clone();
        by_grant.sort_by_key(|(at, _, _)| *at);
        let mut by_ask = granted;
        by_ask.sort_by_key(|(_, _, story)| story.asked);
        let (mut next, mut largest) = (0, None::<(Fence, &Story)>);
        for (_, fence, story) in by_ask {
            while let Some((at, earlier, of)) = by_grant.get(next)
                && *at < story.asked
            {
                if largest.is_none_or(|(known, _)| *earlier > known) {
                    largest = Some((*earlier, of));
                }
                next += 1;
            }
            if let Some((before, of)) = largest
                && before > fence
            {
                self.violations.push(Violation::fence_fell(of, story, self.start));
            }
        }
    }

    /// What can be wrong with a claim by itself.
    fn one(&mut self, story: &Story, rules: Rules) {
        let mut gone = |step: &str| {
            self.violations.push(Violation::found_gone(story, step, self.start));
        };
        if rules.kept {
            let found_gone =
                |step: &(Moment, Answer)| step.1 == Answer::Lost && story.undisturbed_at(step.0);
            if story.gone.as_ref().is_some_and(found_gone) {
                gone("given back");
            } else if story.extended.iter().any(found_gone) {
                gone("extended");
            } else if let Some((at, Loss::TakenAway)) = story.told
                && story.undisturbed_at(at)
            {
                gone("renewed");
            }
        }
        let by_resume = |ending: &&Ending| {
            ending.how == Foreign::Resume && matches!(ending.answered, Some((_, Answer::Done)))
        };
        let times = story.endings.iter().filter(by_resume).count();
        if times > 1 {
            self.violations.push(Violation::resumed_again(story, times, self.start));
        }
        if story.worked == Some(Answer::Done) && story.was_lost_before_the_end(rules.heard) {
            self.violations.push(Violation::worked_without(story, self.start));
        }
        let refused = match story.refused {
            Some((_, Refusal::Unexpected(kind))) => Some(kind),
            _ => None,
        };
        let answers = story.extended.iter().map(|(_, answer)| *answer);
        let answers = answers.chain(story.gone.map(|(_, answer)| answer)).chain(story.worked);
        let answers = answers.chain(story.endings.iter().filter_map(|end| Some(end.answered?.1)));
        let unexpected = answers.filter_map(|answer| match answer {
            Answer::Unexpected(kind) => Some(kind),
            _ => None,
        });
        if let Some(kind) = refused.into_iter().chain(unexpected).next() {
            self.violations.push(Violation::unexpected(story, kind, self.start));
        }
    }

    /// Everybody who waits for one key without end is served, and nobody out of all proportion to
    /// the others.
    fn waits(&mut self, claims: &[&Story], over: &HashMap<u64, Moment>, rules: Rules) {
        let endless: Vec<_> =
            claims.iter().filter(|story| story.patience == Patience::Endless).collect();
        let mut waits: Vec<Duration> = endless.iter().filter_map(|story| story.waited()).collect();
        waits.sort_unstable();
        let median = waits.get(waits.len() / 2).copied().unwrap_or_default();
        let longest = SHORT.max(median.saturating_mul(RATIO));
        for story in endless {
            let answered = story.granted.map(|(at, _)| at).or(story.refused.map(|(at, _)| at));
            // An answer after the end is that of a runtime that was shut down.
            let forgotten = over
                .get(&(story.id >> 32))
                .is_some_and(|over| answered.is_none_or(|answered| answered > *over));
            let starved = rules.fair && story.waited().is_some_and(|waited| waited > longest);
            if forgotten || starved {
                let waited = story.waited();
                self.violations.push(Violation::starved(story, waited, median, self.start));
            }
        }
    }
}

fn count(story: &Story, counts: &mut Counts) {
    counts.claims += 1;
    match story.refused.map(|(_, why)| why) {
        Some(Refusal::Busy) => counts.busy += 1,
        Some(Refusal::Timeout) => counts.timeouts += 1,
        Some(Refusal::Cancelled) => counts.cancelled += 1,
        Some(Refusal::NotHeld) => counts.not_held += 1,
        Some(Refusal::Failed) => counts.failed += 1,
        Some(Refusal::Unknown) => counts.unknown += 1,
        Some(Refusal::Unexpected(_)) => {}
        None if story.granted.is_some() => counts.grants += 1,
        None => counts.unanswered += 1,
    }
    counts.losses += u64::from(story.told.is_some());
    counts.unknown += u64::from(matches!(story.gone, Some((_, Answer::Unknown))));
    for ending in &story.endings {
        if matches!(ending.answered, Some((_, Answer::Done))) {
            *match ending.how {
                Foreign::Resume => &mut counts.resumed,
                Foreign::ReleaseToken => &mut counts.released_by_token,
                Foreign::Force => &mut counts.forced,
            } += 1;
        }
    }
}

/// Counts how each holder of a key followed the one before.
fn count_successions(claims: &[&Story], counts: &mut Counts) {
    let mut holders: Vec<_> = claims.iter().filter(|story| story.granted.is_some()).collect();
    holders.sort_by_key(|story| story.granted);
    for pair in holders.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let Some((granted, _)) = after.granted else { continue };
        match before.letting_go {
            // The next one stood in line when the lock became free.
            Some((freed, _)) if freed < granted => {
                counts.hand_overs += u64::from(after.asked < freed);
            }
            _ if before.first_ending().is_none_or(|begun| begun > granted) => counts.takeovers += 1,
            _ => {}
        }
    }
}
