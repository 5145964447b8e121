//! What a measurement is held against, and whether it stands.

use std::fmt;

/// A number we want to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Goal {
    /// What is compared.
    pub yardstick: Yardstick,
    /// With what it is compared.
    pub bound: Bound,
}

/// What of our measurement a goal looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Yardstick {
    /// Ours divided by that contender's, round by round.
    Ratio(&'static str),
    /// Ours minus that contender's, round by round.
    Difference(&'static str),
    /// Ours divided by the best of those, round by round.
    Best(&'static [&'static str]),
    /// Ours alone: for counts, never for times.
    Itself,
}

/// On which side of a number is good.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Bound {
    /// That much or more.
    AtLeast(f64),
    /// That much or less.
    AtMost(f64),
    /// That much: for counts. A hundredth more or less is a start-up or an end.
    Exactly(f64),
}

/// A goal and what became of it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// The goal.
    pub goal: Goal,
    /// The ratio, difference or count: the median over all rounds.
    pub value: f64,
    /// Whether the value is within the bound.
    pub met: bool,
}

impl Goal {
    /// Ours divided by `yardstick`'s is to be within `bound`.
    pub fn ratio(yardstick: &'static str, bound: Bound) -> Self {
        Self { yardstick: Yardstick::Ratio(yardstick), bound }
    }

    /// Ours divided by the best one's of `yardsticks` is to be within `bound`.
    pub fn best(yardsticks: &'static [&'static str], bound: Bound) -> Self {
        Self { yardstick: Yardstick::Best(yardsticks), bound }
    }

    /// Ours minus `yardstick`'s is to be within `bound`.
    pub fn difference(yardstick: &'static str, bound: Bound) -> Self {
        Self { yardstick: Yardstick::Difference(yardstick), bound }
    }

    /// Our own count is to be within `bound`.
    pub fn count(bound: Bound) -> Self {
        Self { yardstick: Yardstick::Itself, bound }
    }

    /// What becomes of the goal when the median is `value`.
    pub fn judge(self, value: f64) -> Verdict {
        let met = match self.bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::Exactly(number) => (value - number).abs() <= 0.01,
        };
        Verdict { goal: self, value, met }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, number) = match self.bound {
            Bound::AtLeast(number) => (">=", number),
            Bound::AtMost(number) => ("<=", number),
            Bound::Exactly(number) => ("=", number),
        };
        match self.yardstick {
            Yardstick::Ratio(name) => write!(f, "{sign} {number} x {name}"),
            Yardstick::Difference(name) => write!(f, "{sign} {name} + {number}"),
            Yardstick::Best(names) => {
                write!(f, "{sign} {number} x the best of {}", names.join(", "))
            }
            Yardstick::Itself => write!(f, "{sign} {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_at_its_bound_and_not_beyond() {
        let least = Goal::ratio("raw", Bound::AtLeast(0.9));
        assert!(least.judge(0.9).met && !least.judge(0.89).met);
        let most = Goal::count(Bound::AtMost(2.0));
        assert!(most.judge(2.0).met && !most.judge(2.01).met);
        let exactly = Goal::count(Bound::Exactly(2.0));
        assert!(exactly.judge(2.001).met && !exactly.judge(2.1).met && !exactly.judge(1.9).met);
    }

    #[test]
    fn a_value_that_is_no_number_meets_no_goal() {
        assert!(!Goal::count(Bound::AtMost(2.0)).judge(f64::NAN).met);
        assert!(!Goal::count(Bound::AtLeast(2.0)).judge(f64::NAN).met);
    }

    #[test]
    fn a_goal_reads_as_in_the_table_of_goals() {
        assert_eq!(Goal::ratio("raw", Bound::AtLeast(0.9)).to_string(), ">= 0.9 x raw");
        assert_eq!(Goal::difference("flock", Bound::AtMost(8.0)).to_string(), "<= flock + 8");
    }
}
