//! When to ask a busy store again. Pure: a policy and a uniform random number in, a delay out.
//!
//! Wake-ups, holders' lease ends and deadlines are mixed in by the wait loop, not here.

use std::time::Duration;

use crate::model::error::LockError;

/// How the delay between two timer attempts is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// Half of the delay, plus a random share of the other half. The default.
    #[default]
    Equal,
    /// A random share of the whole delay.
    Full,
    /// The delay itself. Many waiters that start together then ask together.
    None,
}

/// How a waiter rechecks a busy lock: 100 ms, doubling, equal jitter, at most 1 s between two
/// attempts.
///
/// A wake-up from the store never waits for this timer and does not count against `max_retries`.
///
/// ```
/// use std::time::Duration;
/// use holdtight_core::{Jitter, RetryPolicy};
/// let policy = RetryPolicy::default().base(Duration::from_millis(50)).jitter(Jitter::Full).max_retries(10);
/// assert_eq!(policy.delay(0, 0.5), Duration::from_millis(25));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    base: Duration,
    cap: Duration,
    doubling: bool,
    jitter: Jitter,
    max_retries: Option<u32>,
    outage: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(1),
            doubling: true,
            jitter: Jitter::Equal,
            max_retries: None,
            outage: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// The same delay every time instead of a doubling one.
    pub fn fixed(delay: Duration) -> Self {
        Self { base: delay, cap: delay, doubling: false, ..Self::default() }
    }

    /// The first delay. Whoever waits asks again after 10 ms at the earliest, also if this is zero.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// The longest delay.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// How delays are spread.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Gives up after so many timer attempts: `n` retries are `n + 1` attempts, and one more in
    /// stores where waiting begins with a second look (memory, file, etcd). Default: no limit. The
    /// wait is a limit of its own, 5 s unless told otherwise: to be bound by retries alone, ask for
    /// [`wait_forever`](crate::Acquire::wait_forever).
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// How long a store that cannot be reached is asked again before its error is returned. Default
    /// 5 s, and never longer than the wait; zero returns the first error.
    pub fn tolerate_outage(mut self, outage: Duration) -> Self {
        self.outage = outage;
        self
    }

    /// The delay before retry number `retry` (the first is 0); `random` is uniform in `0.0..1.0`,
    /// and what is not between these counts as the nearest that is, what is no number as zero.
    pub fn delay(&self, retry: u32, random: f64) -> Duration {
        let factor = if self.doubling { 1u32.checked_shl(retry).unwrap_or(u32::MAX) } else { 1 };
        let whole = self.base.checked_mul(factor).unwrap_or(self.cap).min(self.cap);
        let random = if random.is_nan() { 0.0 } else { random.clamp(0.0, 1.0) };
        // The longest durations are rounded up to what is none any more.
        let share = |of: Duration| {
            Duration::try_from_secs_f64(of.as_secs_f64() * random).unwrap_or(of).min(of)
        };
        match self.jitter {
            Jitter::Equal => whole / 2 + share(whole / 2),
            Jitter::Full => share(whole),
            Jitter::None => whole,
        }
    }

    pub(crate) fn exhausted(&self, retries: u32) -> bool {
        self.max_retries.is_some_and(|max| retries >= max)
    }

    pub(crate) fn outage(&self) -> Duration {
        self.outage
    }

    /// Checks that the policy makes sense.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the first delay is longer than the
    /// longest.
    pub fn check(&self) -> Result<(), LockError> {
        if self.base > self.cap {
            return Err(LockError::invalid_config(format!(
                "the first retry delay {:?} is longer than the cap {:?}; raise `cap` or lower `base`",
                self.base, self.cap
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn delays_double_up_to_the_cap() {
        let policy = RetryPolicy::default().jitter(Jitter::None);
        let delays: Vec<_> = (0..6).map(|n| policy.delay(n, 0.0)).collect();
        assert_eq!(delays, [MS(100), MS(200), MS(400), MS(800), MS(1000), MS(1000)]);
        assert_eq!(policy.delay(u32::MAX, 0.0), MS(1000));
        assert_eq!(RetryPolicy::fixed(MS(70)).jitter(Jitter::None).delay(9, 0.3), MS(70));
    }

    #[test]
    fn jitter_matches_the_seed_vectors() {
        let base = RetryPolicy::default();
        assert_eq!(base.clone().jitter(Jitter::Full).delay(0, 0.25), MS(25));
        assert_eq!(base.jitter(Jitter::Equal).delay(0, 0.5), MS(75));
    }

    #[test]
    fn a_random_number_that_is_none_makes_a_delay_all_the_same() {
        for longest in [MS(100), Duration::MAX] {
            for jitter in [Jitter::Equal, Jitter::Full] {
                let policy = RetryPolicy::fixed(longest).jitter(jitter);
                let (least, most) = (policy.delay(0, 0.0), policy.delay(0, 1.0));
                for (random, delay) in [
                    (f64::NAN, least),
                    (f64::NEG_INFINITY, least),
                    (-1e300, least),
                    (1e300, most),
                    (f64::INFINITY, most),
                ] {
                    assert_eq!(policy.delay(0, random), delay, "{random} with {policy:?}");
                }
            }
        }
    }

    #[test]
    fn zero_means_at_once_and_nonsense_is_refused() {
        assert_eq!(RetryPolicy::default().base(Duration::ZERO).delay(5, 0.9), Duration::ZERO);
        assert!(RetryPolicy::default().base(MS(5000)).check().is_err());
        assert!(RetryPolicy::default().max_retries(2).exhausted(2));
        assert!(!RetryPolicy::default().max_retries(2).exhausted(1));
    }
}
