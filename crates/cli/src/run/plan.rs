//! The times of one run, checked before anything is locked: lease, grace, limits, and when a group must be dead.
//!
//! Pure arithmetic on the boot clock. Whoever acts on it is the supervisor, and the guardian when it cannot.

use std::time::Duration;

use holdtight::{MAX_TTL, Moment};

use super::RunOptions;

/// The lease when nothing else is said.
const TTL: Duration = Duration::from_secs(30);

/// The shortest lease that is chosen without being asked for.
const SHORT_TTL: Duration = Duration::from_secs(5);

/// Time, at most, from the last KILL to the deadline.
const LEAD: Duration = Duration::from_millis(250);

/// The times of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) ttl: Duration,
    /// From TERM to the deadline.
    pub(super) kill_after: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) keep_for: Option<Duration>,
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
        let kill_after = match options.kill_after {
            Some(grace) if grace >= ttl / 2 => {
                return Err(format!(
                    "--kill-after {grace:?} must be less than half of --ttl {ttl:?}: the command is stopped that long \
                     before its lock ends"
                ));
            }
            Some(grace) if options.max_hold.is_some_and(|most| grace >= most) => {
                return Err(format!("--kill-after {grace:?} must be less than --max-hold"));
            }
            Some(grace) => grace,
            None => (ttl / 10).min(options.max_hold.map_or(Duration::MAX, |most| most / 4)),
        };
        Ok(Self { ttl, kill_after, max_hold: options.max_hold, keep_for })
    }

    /// When to stop a group whose lock cannot be trusted after `deadline`.
    pub(super) fn schedule(&self, deadline: Moment) -> Schedule {
        let lead = (self.ttl / 50).clamp(Duration::from_millis(5), LEAD);
        let kill_at = deadline.before(lead);
        Schedule { term_at: deadline.before(self.kill_after.max(lead)), kill_at }
    }

    /// How often at least the lease is looked at. Timers stand still while the machine sleeps; this bounds the harm.
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
    /// The same for whoever acts only if the first one does not: TERM a little later, KILL at the same time.
    pub(super) fn for_second(self) -> Self {
        let slack = self.kill_at.since(self.term_at) / 4;
        Self { term_at: self.term_at.after(slack), ..self }
    }

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
    fn a_short_max_hold_shortens_the_grace() {
        let plan = Plan::new(&RunOptions { max_hold: Some(secs(2)), ..options() }).unwrap();
        assert_eq!(plan.kill_after, Duration::from_millis(500));
        let both = RunOptions { max_hold: Some(secs(2)), kill_after: Some(secs(2)), ..options() };
        assert!(Plan::new(&both).is_err());
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
                let second = schedule.for_second();
                assert!(second.term_at >= schedule.term_at && second.kill_at == schedule.kill_at);
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
