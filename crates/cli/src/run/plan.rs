//! The times of one run, checked before anything is locked: lease, grace, limits, and when a group
//! must be dead.
//!
//! Pure arithmetic on the boot clock. Whoever acts on it is the supervisor, and the guardian when
//! it cannot.

use std::time::Duration;

use holdtight::{MAX_TTL, Moment};
use holdtight_kit::duration;

use super::options::RunOptions;

/// The lease when nothing else is said.
const TTL: Duration = Duration::from_secs(30);

/// The shortest lease that is chosen without being asked for.
const SHORT_TTL: Duration = Duration::from_secs(5);

/// From TERM to KILL, if nothing else is said, for a command that was asked to stop and still has
/// its lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time, at most, from the last KILL to the deadline; for a script twice as long.
const LEAD: Duration = Duration::from_millis(250);

/// The times of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) ttl: Duration,
    /// From TERM to KILL: before the lease ends, or after `--max-hold`.
    pub(super) kill_after: Duration,
    /// From TERM to KILL for whoever was asked to stop while the lock is safe.
    pub(super) patience: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) keep_for: Option<Duration>,
    /// Time from the last KILL to the deadline.
    lead: Duration,
}

impl Plan {
    /// Reads the options.
    ///
    /// # Errors
    /// One sentence that names the options that do not fit together.
    pub(super) fn new(options: &RunOptions) -> Result<Self, String> {
        let keep_for = options.keep_for.filter(|keep| !keep.is_zero());
        // A lease that is longer than the cooldown would make the cooldown as long as the lease.
        let ttl =
            options.ttl.unwrap_or_else(|| keep_for.map_or(TTL, |keep| keep.clamp(SHORT_TTL, TTL)));
        if keep_for.is_some_and(|keep| keep > MAX_TTL) {
            return Err("--keep-for can be at most 24h".into());
        }
        if options.max_hold.is_some_and(|most| most.is_zero()) {
            return Err("--max-hold must be more than zero".into());
        }
        let kill_after = match (options.kill_after, options.usual_kill_after) {
            (Some(grace), _) if grace >= ttl / 2 => {
                let fitted = options.ttl.is_none() && keep_for.is_some();
                return Err(format!(
                    "--kill-after {} must be less than half the TTL of {}{}: the command is stopped that long before \
                     its lock ends; shorten it, or lengthen --ttl",
                    duration::text(grace),
                    duration::text(ttl),
                    if fitted { ", which was chosen to fit --keep-for" } else { "" },
                ));
            }
            (Some(grace), _) => grace,
            // A setting is meant for all runs, so it gives way to what this one needs.
            (None, Some(usual)) => usual.min(ttl * 2 / 5),
            (None, None) => ttl / 10,
        };
        let patience = options.kill_after.or(options.usual_kill_after).unwrap_or(PATIENCE);
        // Those of a script have to be looked for among all processes of the machine.
        let lead = if options.script.is_some() {
            (ttl * 3 / 100).clamp(Duration::from_millis(10), LEAD * 2)
        } else {
            (ttl / 50).clamp(Duration::from_millis(5), LEAD)
        };
        Ok(Self { ttl, kill_after, patience, max_hold: options.max_hold, keep_for, lead })
    }

    /// When to stop a group whose lock cannot be trusted after `deadline`.
    pub(super) fn schedule(&self, deadline: Moment) -> Schedule {
        let kill_at = deadline.before(self.lead);
        Schedule { term_at: deadline.before(self.kill_after.max(self.lead)), kill_at }
    }

    /// When somebody else must see to it, if the guardian has not: between its KILL and the end of
    /// the lease.
    pub(super) fn dead_by(&self, schedule: Schedule) -> Moment {
        schedule.kill_at.after(self.lead / 2)
    }

    /// How often at least the lease is looked at, and the wrapper told of it.
    pub(super) fn tick(&self) -> Duration {
        (self.ttl / 8).clamp(Duration::from_millis(5), Duration::from_millis(250))
    }

    /// What is left of `--keep-for` when the command has run for `elapsed`.
    pub(super) fn rest(&self, elapsed: Duration) -> Option<Duration> {
        self.keep_for?.checked_sub(elapsed).filter(|rest| !rest.is_zero())
    }
}

/// When a group is told to stop, and when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) term_at: Moment,
    pub(super) kill_at: Moment,
}

impl Schedule {
    /// What is due, for a group that has had its TERM or not.
    pub(super) fn due(self, now: Moment, told: bool) -> Option<Step> {
        if now >= self.kill_at {
            Some(Step::Kill)
        } else if now >= self.term_at && !told {
            Some(Step::Term)
        } else {
            None
        }
    }

    /// How long until something is due.
    pub(super) fn next(self, now: Moment, told: bool) -> Duration {
        if told { self.kill_at.since(now) } else { self.term_at.min(self.kill_at).since(now) }
    }
}

/// What is to be done to a group now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Term,
    Kill,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RunOptions {
        RunOptions { command: vec!["true".into()], ..RunOptions::for_keys(["k"]) }
    }

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_setting_that_does_not_fit_gives_way_and_a_flag_is_refused() {
        let usual = RunOptions { ttl: Some(secs(5)), usual_kill_after: Some(secs(5)), ..options() };
        assert_eq!(Plan::new(&usual).unwrap().kill_after, secs(2));
        let kept = RunOptions { keep_for: Some(secs(5)), kill_after: Some(secs(10)), ..options() };
        let refused = Plan::new(&kept).unwrap_err();
        assert!(refused.contains("--keep-for") && !refused.contains("--ttl 5"), "{refused}");
    }

    #[test]
    fn the_grace_is_a_small_part_of_the_lease_and_may_be_less_than_half_of_it() {
        assert_eq!(Plan::new(&options()).unwrap().kill_after, secs(3));
        let asked = |ttl, grace| {
            Plan::new(&RunOptions { ttl: Some(ttl), kill_after: Some(grace), ..options() })
        };
        assert_eq!(asked(secs(10), secs(4)).unwrap().kill_after, secs(4));
        let refused = asked(secs(10), secs(5)).unwrap_err();
        assert!(refused.contains("half") && refused.contains("--kill-after"), "{refused}");
        assert!(asked(secs(10), Duration::ZERO).is_ok());
    }

    #[test]
    fn the_grace_has_nothing_to_do_with_max_hold_which_is_the_time_until_term() {
        let both = RunOptions { max_hold: Some(secs(1)), kill_after: Some(secs(2)), ..options() };
        assert_eq!(Plan::new(&both).unwrap().kill_after, secs(2));
    }

    #[test]
    fn one_who_is_asked_to_stop_has_as_long_as_was_said_or_ten_seconds() {
        assert_eq!(Plan::new(&options()).unwrap().patience, secs(10));
        let said = RunOptions { kill_after: Some(secs(2)), ..options() };
        assert_eq!(Plan::new(&said).unwrap().patience, secs(2));
    }

    #[test]
    fn term_comes_first_then_kill_and_both_before_the_deadline() {
        for ttl in [50, 300, 5000, 30_000] {
            let ttl = Duration::from_millis(ttl);
            for grace in [Duration::ZERO, ttl / 10, ttl.mul_f64(0.49)] {
                let plan =
                    Plan::new(&RunOptions { ttl: Some(ttl), kill_after: Some(grace), ..options() })
                        .unwrap();
                let deadline = Moment::from_nanos(1 << 50);
                let schedule = plan.schedule(deadline);
                assert!(schedule.term_at <= schedule.kill_at && schedule.kill_at < deadline);
                assert!(
                    schedule.term_at.after(ttl / 2) >= deadline,
                    "renewal has had half the lease"
                );
                let second = plan.dead_by(schedule);
                assert!(second > schedule.kill_at && second < deadline);
                assert_eq!(
                    schedule.due(schedule.term_at.before(Duration::from_nanos(1)), false),
                    None
                );
                assert_eq!(schedule.due(deadline, false), Some(Step::Kill), "too late for TERM");
                assert_eq!(schedule.due(schedule.kill_at, true), Some(Step::Kill));
            }
        }
        let plan = Plan::new(&options()).unwrap();
        let schedule = plan.schedule(Moment::from_nanos(1 << 50));
        assert_eq!(schedule.due(schedule.term_at, false), Some(Step::Term));
        assert_eq!(schedule.due(schedule.term_at, true), None, "TERM is sent once");
    }

    #[test]
    fn a_cooldown_counts_from_the_start_of_the_command() {
        let plan = Plan::new(&RunOptions { keep_for: Some(secs(40)), ..options() }).unwrap();
        assert_eq!(plan.ttl, secs(30));
        assert_eq!(plan.rest(secs(1)), Some(secs(39)));
        assert_eq!(plan.rest(secs(40)), None);
        let short = Plan::new(&RunOptions { keep_for: Some(secs(8)), ..options() }).unwrap();
        assert_eq!(short.ttl, secs(8), "a longer lease would prolong the cooldown");
    }
}
