//! Contenders on the same work, taking turns: one warm-up each, then round by round, the order turning.
//!
//! Ratios are taken within each round and the median over rounds, so that a slow minute hits both sides of one
//! ratio and not one side of all.

use std::fmt;

use crate::Failure;
use crate::goal::{Goal, Verdict, Yardstick};
use crate::stats::Summary;

/// How much to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effort {
    /// Rounds that count, after the warm-up.
    pub rounds: usize,
    /// A smoke run: contenders do a small part of their work.
    pub quick: bool,
}

impl Effort {
    /// A run whose numbers may be quoted.
    pub const FULL: Self = Self { rounds: 11, quick: false };
    /// A run that only shows that everything works.
    pub const QUICK: Self = Self { rounds: 3, quick: true };

    /// `full` units of work, or a twentieth in a quick run, at least one.
    pub fn work(self, full: u64) -> u64 {
        if self.quick { (full / 20).max(1) } else { full }
    }
}

/// One line of the table of goals: its number there, and what builds its comparisons.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row {
    /// `P6`.
    pub id: &'static str,
    /// What is done, for `--list`.
    pub about: &'static str,
    /// Starts what it needs (servers stop when the comparisons are dropped) and says who competes.
    pub prepare: fn(Effort) -> Result<Vec<Comparison>, Failure>,
}

impl Row {
    /// A row for the table of goals.
    pub const fn new(
        id: &'static str,
        about: &'static str,
        prepare: fn(Effort) -> Result<Vec<Comparison>, Failure>,
    ) -> Self {
        Self { id, about, prepare }
    }
}

/// Us and others on one piece of work. The first contender is us.
#[derive(Debug)]
pub struct Comparison {
    work: String,
    unit: &'static str,
    contenders: Vec<Contender>,
    goals: Vec<Goal>,
}

/// Somebody who does the work once per round and says the measure.
pub struct Contender {
    name: &'static str,
    round: Box<dyn FnMut(Effort) -> Result<f64, Failure>>,
}

/// All samples of one contender.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Series {
    /// Who.
    pub name: &'static str,
    /// The measure of each round.
    pub summary: Summary,
}

/// What came out of a comparison.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The work, with its size.
    pub work: String,
    /// What the numbers count.
    pub unit: &'static str,
    /// Us first, then the others.
    pub series: Vec<Series>,
    /// What became of the goals.
    pub verdicts: Vec<Verdict>,
}

impl Contender {
    /// `round` does the work once and returns the measure: a rate, a time, a count.
    pub fn new(
        name: &'static str,
        round: impl FnMut(Effort) -> Result<f64, Failure> + 'static,
    ) -> Self {
        Self { name, round: Box::new(round) }
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Comparison {
    /// A comparison of `us` with nobody yet.
    pub fn new(work: impl Into<String>, unit: &'static str, us: Contender) -> Self {
        Self { work: work.into(), unit, contenders: vec![us], goals: Vec::new() }
    }

    /// Adds a yardstick or a peer.
    pub fn against(mut self, other: Contender) -> Self {
        self.contenders.push(other);
        self
    }

    /// Adds what we want to reach.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// Runs it: a warm-up, then the rounds.
    ///
    /// # Errors
    /// A contender failed, a goal names nobody who competes, or a measure is not a number.
    pub fn run(mut self, effort: Effort) -> Result<Measured, Failure> {
        let places: Vec<usize> =
            self.goals.iter().map(|goal| self.place(*goal)).collect::<Result<_, _>>()?;
        let count = self.contenders.len();
        let mut samples: Vec<Vec<f64>> = vec![Vec::with_capacity(effort.rounds); count];
        for round in 0..=effort.rounds {
            for turn in 0..count {
                let who = (round + turn) % count;
                let contender = &mut self.contenders[who];
                let measure = (contender.round)(effort)
                    .map_err(|why| format!("{}: {}: {why}", self.work, contender.name))?;
                let warm_up = round == 0;
                if !warm_up {
                    samples[who].push(measure);
                }
            }
        }
        let mut series = Vec::new();
        for (contender, samples) in self.contenders.iter().zip(&samples) {
            let summary = Summary::of(samples)
                .ok_or_else(|| format!("{}: {} measured nothing", self.work, contender.name))?;
            series.push(Series { name: contender.name, summary });
        }
        let verdicts = self
            .goals
            .iter()
            .zip(places)
            .map(|(goal, place)| goal.judge(value(*goal, &samples[0], &samples[place])))
            .collect();
        Ok(Measured { work: self.work, unit: self.unit, series, verdicts })
    }

    /// Whose samples the goal is measured with.
    fn place(&self, goal: Goal) -> Result<usize, String> {
        match goal.yardstick {
            Yardstick::Itself => Ok(0),
            Yardstick::Ratio(name) | Yardstick::Difference(name) => self
                .contenders
                .iter()
                .position(|contender| contender.name == name)
                .ok_or_else(|| format!("{}: the goal names `{name}`, who is absent", self.work)),
        }
    }
}

/// The median over rounds of what the goal looks at; no number if a round gave none.
fn value(goal: Goal, ours: &[f64], theirs: &[f64]) -> f64 {
    let pairs = ours.iter().zip(theirs);
    let rounds: Vec<f64> = match goal.yardstick {
        Yardstick::Ratio(_) => pairs.map(|(ours, theirs)| ours / theirs).collect(),
        Yardstick::Difference(_) => pairs.map(|(ours, theirs)| ours - theirs).collect(),
        Yardstick::Itself => ours.to_vec(),
    };
    Summary::of(&rounds).map_or(f64::NAN, |summary| summary.median)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::goal::Bound;

    fn steady(name: &'static str, measure: f64) -> Contender {
        Contender::new(name, move |_| Ok(measure))
    }

    #[test]
    fn contenders_take_turns_and_the_order_turns_too() {
        let log = Rc::new(RefCell::new(String::new()));
        let noting = |name: &'static str| {
            let log = Rc::clone(&log);
            Contender::new(name, move |_| {
                log.borrow_mut().push_str(name);
                Ok(1.0)
            })
        };
        let comparison = Comparison::new("w", "u", noting("a")).against(noting("b"));
        comparison.run(Effort { rounds: 3, quick: true }).unwrap();
        assert_eq!(*log.borrow(), "abbaabba", "the first pair is the warm-up");
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut cold = true;
        let us = Contender::new("us", move |_| {
            Ok(if std::mem::take(&mut cold) { 1_000_000.0 } else { 2.0 })
        });
        let measured = Comparison::new("w", "u", us).run(Effort::QUICK).unwrap();
        assert_eq!(measured.series[0].summary, Summary::of(&[2.0, 2.0, 2.0]).unwrap());
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // Both halve their speed every round: medians of each side mean little, the ratio is always three.
        let slowing = |name, mut speed: f64| {
            Contender::new(name, move |_| {
                speed /= 2.0;
                Ok(speed)
            })
        };
        let measured = Comparison::new("w", "u", slowing("us", 3_000.0))
            .against(slowing("peer", 1_000.0))
            .goal(Goal::ratio("peer", Bound::AtLeast(2.9)))
            .goal(Goal::ratio("peer", Bound::AtLeast(3.1)))
            .run(Effort::FULL)
            .unwrap();
        let met: Vec<bool> = measured.verdicts.iter().map(|verdict| verdict.met).collect();
        assert_eq!(met, [true, false]);
        assert!((measured.verdicts[0].value - 3.0).abs() < 1e-9);
    }

    #[test]
    fn differences_and_counts_are_judged_too() {
        let measured = Comparison::new("w", "ms", steady("us", 9.0))
            .against(steady("flock", 2.0))
            .goal(Goal::difference("flock", Bound::AtMost(8.0)))
            .goal(Goal::count(Bound::AtMost(8.0)))
            .run(Effort::QUICK)
            .unwrap();
        let met: Vec<bool> = measured.verdicts.iter().map(|verdict| verdict.met).collect();
        assert_eq!(met, [true, false]);
    }

    #[test]
    fn a_goal_that_names_nobody_fails_before_anything_runs() {
        let us = Contender::new("us", |_| panic!("must not run"));
        let comparison = Comparison::new("w", "u", us);
        let problem = comparison
            .goal(Goal::ratio("peer", Bound::AtLeast(1.0)))
            .run(Effort::QUICK)
            .unwrap_err();
        assert!(problem.to_string().contains("`peer`"));
    }

    #[test]
    fn a_failing_contender_is_named() {
        let us = Contender::new("us", |_| Err("refused".into()));
        let problem = Comparison::new("pairs", "u", us).run(Effort::QUICK).unwrap_err();
        assert_eq!(problem.to_string(), "pairs: us: refused");
    }

    #[test]
    fn a_quick_run_does_a_twentieth_and_at_least_something() {
        assert_eq!(Effort::QUICK.work(1_000), 50);
        assert_eq!(Effort::QUICK.work(3), 1);
        assert_eq!(Effort::FULL.work(3), 3);
    }
}
