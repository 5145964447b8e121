//! Contenders on the same work, taking turns: one warm-up each, then round by round, the order
//! turning.
//!
//! Ratios are taken within each round and the median over rounds, so that a slow minute hits both
//! sides of one ratio and not one side of all.

use std::fmt;

use crate::Failure;
use crate::goal::{Bound, Goal, Verdict, Yardstick};
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

/// Us and others on one piece of work, with one measure of it or several. The first contender is
/// us.
#[derive(Debug)]
pub struct Comparison {
    work: String,
    measures: Vec<Measure>,
    contenders: Vec<Contender>,
    absent: Vec<Absent>,
    growth: Option<Growth>,
    most_rounds: usize,
    warm_up: bool,
}

/// What was more or less of in a comparison that shows how cost grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// Tasks, waiters, keys.
    pub of: &'static str,
    /// How many.
    pub at: u64,
}

/// One number that every contender reports.
#[derive(Debug)]
struct Measure {
    unit: &'static str,
    goals: Vec<Goal>,
}

/// Somebody who does the work once per round and says the measures.
pub struct Contender {
    name: &'static str,
    role: Role,
    round: Box<dyn FnMut(Effort) -> Result<Vec<f64>, Failure>>,
}

/// What somebody is compared with us for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Ourselves.
    Us,
    /// A limit: what the work costs without a library.
    Limit,
    /// Somebody else's lock, which a user could have chosen.
    Peer,
}

/// Somebody who does not compete, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent {
    /// Who.
    pub name: &'static str,
    /// Why not.
    pub why: String,
}

/// All samples of one contender.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Series {
    /// Who.
    pub name: &'static str,
    /// As what.
    pub role: Role,
    /// The measure of each round.
    pub summary: Summary,
    /// Ours divided by theirs, round by round, the median: what may be quoted.
    pub ratio: f64,
}

/// What came out of a comparison, for one of its measures.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The work, with its size.
    pub work: String,
    /// What the numbers count.
    pub unit: &'static str,
    /// Us first, then the others.
    pub series: Vec<Series>,
    /// Who could not do the work.
    pub absent: Vec<Absent>,
    /// Where on a curve it stands, if on one.
    pub growth: Option<Growth>,
    /// What became of the goals.
    pub verdicts: Vec<Verdict>,
}

impl Contender {
    /// `round` does the work once and returns the measure: a rate, a time, a count.
    pub fn new(
        name: &'static str,
        role: Role,
        mut round: impl FnMut(Effort) -> Result<f64, Failure> + 'static,
    ) -> Self {
        Self::of_several(name, role, move |effort| Ok(vec![round(effort)?]))
    }

    /// `round` does the work once and returns the measures in the order of the comparison.
    pub fn of_several(
        name: &'static str,
        role: Role,
        round: impl FnMut(Effort) -> Result<Vec<f64>, Failure> + 'static,
    ) -> Self {
        Self { name, role, round: Box::new(round) }
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
        let measures = vec![Measure { unit, goals: Vec::new() }];
        let (contenders, absent) = (vec![us], Vec::new());
        Self {
            work: work.into(),
            measures,
            contenders,
            absent,
            growth: None,
            most_rounds: usize::MAX,
            warm_up: true,
        }
    }

    /// Adds a yardstick or a peer.
    pub fn against(mut self, other: Contender) -> Self {
        self.contenders.push(other);
        self
    }

    /// Names somebody who cannot do this work, or not here; goals that look at nobody else are left
    /// out.
    pub fn without(mut self, name: &'static str, why: impl Into<String>) -> Self {
        self.absent.push(Absent { name, why: why.into() });
        self
    }

    /// Adds a measure: every contender reports one number more.
    pub fn also(mut self, unit: &'static str) -> Self {
        self.measures.push(Measure { unit, goals: Vec::new() });
        self
    }

    /// Adds what we want to reach, by the measure that was added last.
    pub fn goal(mut self, goal: Goal) -> Self {
        // There is one from the beginning.
        if let Some(measure) = self.measures.last_mut() {
            measure.goals.push(goal);
        }
        self
    }

    /// Makes it a point of a curve: the same work with `at` of something.
    pub fn growing(mut self, of: &'static str, at: u64) -> Self {
        self.growth = Some(Growth { of, at });
        self
    }

    /// Does no more rounds than that: for work that takes long.
    pub fn rounds_at_most(mut self, most: usize) -> Self {
        self.most_rounds = self.most_rounds.min(most);
        self
    }

    /// Does one round and no warm-up: for counts that take long and are the same each time.
    pub fn counted_once(mut self) -> Self {
        (self.most_rounds, self.warm_up) = (1, false);
        self
    }

    /// Runs it: a warm-up, then the rounds. One result for each measure.
    ///
    /// # Errors
    /// A contender failed, a goal names nobody who competes, or a measure is not a number.
    pub fn run(mut self, effort: Effort) -> Result<Vec<Measured>, Failure> {
        for goal in self.measures.iter().flat_map(|measure| &measure.goals) {
            self.places(*goal)?;
        }
        let (count, rounds) = (self.contenders.len(), effort.rounds.min(self.most_rounds));
        // By measure, then by contender.
        let mut samples = vec![vec![Vec::with_capacity(rounds); count]; self.measures.len()];
        for round in usize::from(!self.warm_up)..=rounds {
            for turn in 0..count {
                let who = (round + turn) % count;
                let contender = &mut self.contenders[who];
                let numbers = (contender.round)(effort)
                    .map_err(|why| format!("{}: {}: {why}", self.work, contender.name))?;
                if numbers.len() != samples.len() {
                    let name = contender.name;
                    return Err(format!("{}: {name}: not all measures", self.work).into());
                }
                let warm_up = round == 0;
                if !warm_up {
                    for (measure, number) in samples.iter_mut().zip(numbers) {
                        measure[who].push(number);
                    }
                }
            }
        }
        let measures = self.measures.iter().zip(&samples);
        measures.map(|(measure, samples)| self.measured(measure, samples)).collect()
    }

    fn measured(&self, measure: &Measure, samples: &[Vec<f64>]) -> Result<Measured, Failure> {
        let mut series = Vec::new();
        for (contender, theirs) in self.contenders.iter().zip(samples) {
            let (name, role) = (contender.name, contender.role);
            let summary = Summary::of(theirs)
                .ok_or_else(|| format!("{}: {name} measured nothing", self.work))?;
            let ratio = median(samples[0].iter().zip(theirs).map(|(ours, theirs)| ours / theirs));
            series.push(Series { name, role, summary, ratio });
        }
        let mut verdicts = Vec::new();
        for goal in &measure.goals {
            let places = self.places(*goal)?;
            // The others of whom it speaks are not here.
            if !places.is_empty() {
                verdicts.push(goal.judge(value(*goal, samples, &places)));
            }
        }
        let (work, unit, absent) = (self.work.clone(), measure.unit, self.absent.clone());
        Ok(Measured { work, unit, series, absent, growth: self.growth, verdicts })
    }

    /// Whose samples the goal is measured with; nobody's if all of whom it speaks are absent.
    fn places(&self, goal: Goal) -> Result<Vec<usize>, String> {
        let names = match goal.yardstick {
            Yardstick::Itself => return Ok(vec![0]),
            Yardstick::Ratio(ref name) | Yardstick::Difference(ref name) => {
                std::slice::from_ref(name)
            }
            Yardstick::Best(names) => names,
        };
        let mut places = Vec::new();
        for name in names {
            let place = self.contenders.iter().position(|contender| contender.name == *name);
            if place.is_none() && self.absent.iter().all(|absent| absent.name != *name) {
                return Err(format!("{}: the goal names `{name}`, who is unknown", self.work));
            }
            places.extend(place);
        }
        Ok(places)
    }
}

/// The median over rounds of what the goal looks at; no number if a round gave none.
fn value(goal: Goal, samples: &[Vec<f64>], places: &[usize]) -> f64 {
    let rounds = 0..samples[0].len();
    median(rounds.map(|round| {
        let ours = samples[0][round];
        let theirs = places.iter().map(|place| samples[*place][round]);
        match goal.yardstick {
            Yardstick::Itself => ours,
            Yardstick::Difference(_) => ours - theirs.fold(f64::NAN, f64::max),
            Yardstick::Ratio(_) | Yardstick::Best(_) => match goal.bound {
                // The best of them: the fastest where more is better, else the one with least.
                Bound::AtLeast(_) => ours / theirs.fold(f64::NAN, f64::max),
                Bound::AtMost(_) | Bound::Exactly(_) => ours / theirs.fold(f64::NAN, f64::min),
            },
        }
    }))
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let numbers: Vec<f64> = numbers.collect();
    Summary::of(&numbers).map_or(f64::NAN, |summary| summary.median)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn steady(name: &'static str, measure: f64) -> Contender {
        Contender::new(name, Role::Limit, move |_| Ok(measure))
    }

    #[test]
    fn contenders_take_turns_and_the_order_turns_too() {
        let log = Rc::new(RefCell::new(String::new()));
        let noting = |name: &'static str| {
            let log = Rc::clone(&log);
            Contender::new(name, Role::Limit, move |_| {
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
        let us = Contender::new("us", Role::Us, move |_| {
            Ok(if std::mem::take(&mut cold) { 1_000_000.0 } else { 2.0 })
        });
        let measured = Comparison::new("w", "u", us).run(Effort::QUICK).unwrap().remove(0);
        assert_eq!(measured.series[0].summary, Summary::of(&[2.0, 2.0, 2.0]).unwrap());
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // Both halve their speed every round: medians of each side mean little, the ratio is always
        // three.
        let slowing = |name, mut speed: f64| {
            Contender::new(name, Role::Limit, move |_| {
                speed /= 2.0;
                Ok(speed)
            })
        };
        let measured = Comparison::new("w", "u", slowing("us", 3_000.0))
            .against(slowing("peer", 1_000.0))
            .goal(Goal::ratio("peer", Bound::AtLeast(2.9)))
            .goal(Goal::ratio("peer", Bound::AtLeast(3.1)))
            .run(Effort::FULL)
            .unwrap()
            .remove(0);
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
            .unwrap()
            .remove(0);
        let met: Vec<bool> = measured.verdicts.iter().map(|verdict| verdict.met).collect();
        assert_eq!(met, [true, false]);
    }

    #[test]
    fn a_goal_that_names_nobody_fails_before_anything_runs() {
        let us = Contender::new("us", Role::Us, |_| panic!("must not run"));
        let comparison = Comparison::new("w", "u", us);
        let problem = comparison
            .goal(Goal::ratio("peer", Bound::AtLeast(1.0)))
            .run(Effort::QUICK)
            .unwrap_err();
        assert!(problem.to_string().contains("`peer`"));
    }

    #[test]
    fn a_failing_contender_is_named() {
        let us = Contender::new("us", Role::Us, |_| Err("refused".into()));
        let problem = Comparison::new("pairs", "u", us).run(Effort::QUICK).unwrap_err();
        assert_eq!(problem.to_string(), "pairs: us: refused");
    }

    #[test]
    fn a_quick_run_does_a_twentieth_and_at_least_something() {
        assert_eq!(Effort::QUICK.work(1_000), 50);
        assert_eq!(Effort::QUICK.work(3), 1);
        assert_eq!(Effort::FULL.work(3), 3);
    }

    #[test]
    fn several_measures_are_judged_each_by_their_own_goals() {
        let two = |name, role, first, second| {
            Contender::of_several(name, role, move |_| Ok(vec![first, second]))
        };
        let all = Comparison::new("w", "µs", two("us", Role::Us, 1.0, 10.0))
            .against(two("peer", Role::Peer, 2.0, 5.0))
            .goal(Goal::ratio("peer", Bound::AtMost(1.0)))
            .also("requests")
            .goal(Goal::ratio("peer", Bound::AtMost(1.0)))
            .run(Effort::QUICK)
            .unwrap();
        let seen: Vec<_> = all.iter().map(|one| (one.unit, one.verdicts[0].met)).collect();
        assert_eq!(seen, [("µs", true), ("requests", false)]);
        assert!((all[0].series[1].ratio - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_best_of_several_peers_counts_and_absent_ones_do_not() {
        const PEERS: &[&str] = &["slow", "fast", "gone"];
        let best = |bound| {
            Comparison::new("w", "u", steady("us", 9.0))
                .against(steady("slow", 1.0))
                .against(steady("fast", 3.0))
                .without("gone", "not installed")
                .goal(Goal::best(PEERS, bound))
                .run(Effort::QUICK)
                .unwrap()
                .remove(0)
        };
        assert!((best(Bound::AtLeast(3.0)).verdicts[0].value - 3.0).abs() < 1e-9);
        assert!((best(Bound::AtMost(3.0)).verdicts[0].value - 9.0).abs() < 1e-9);
        assert_eq!(best(Bound::AtLeast(3.0)).absent[0].name, "gone");
    }

    #[test]
    fn a_goal_about_absent_peers_only_is_left_out() {
        let comparison = Comparison::new("w", "u", steady("us", 9.0)).without("gone", "no waiting");
        let goal = Goal::ratio("gone", Bound::AtLeast(1.0));
        assert_eq!(comparison.goal(goal).run(Effort::QUICK).unwrap()[0].verdicts, []);
    }

    #[test]
    fn long_work_is_done_fewer_times() {
        let count = Rc::new(RefCell::new(0));
        let counted = Rc::clone(&count);
        let us = Contender::new("us", Role::Us, move |_| {
            *counted.borrow_mut() += 1;
            Ok(1.0)
        });
        Comparison::new("w", "u", us).rounds_at_most(2).run(Effort::FULL).unwrap();
        assert_eq!(*count.borrow(), 3, "with the warm-up");
    }
}
