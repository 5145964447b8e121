//! Lease arithmetic: how long a holder may believe in a lock.
//!
//! Pure functions of the moment a request left and the lease the store granted; no I/O, no clock of
//! its own.

use std::time::Duration;

use crate::model::clock::{Moment, nanos};
use crate::model::error::LockError;

/// The shortest lease that may be asked for. A store may demand more.
pub const MIN_TTL: Duration = Duration::from_millis(1);

/// The longest lease that may be asked for. A store may allow less.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The lease a lock gets when nothing else is said.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How much earlier than the store the holder stops: 1 % of the lease for clocks that run at
/// different rates, 2 ms for the granularity of the store's own clock, and a twentieth of the
/// lease, at most 10 ms, for the timer that tells the holder, which may be late; never more than
/// half of a tiny lease.
pub fn margin(ttl: Duration) -> Duration {
    Duration::from_nanos(margin_nanos(nanos(ttl)))
}

/// The same in nanoseconds, because every grant needs it: division of a `Duration` takes several
/// times as long.
fn margin_nanos(ttl: u64) -> u64 {
    (ttl / 100 + 2_000_000 + (ttl / 20).min(10_000_000)).min(ttl / 2)
}

/// When the holder of a lease must have stopped.
///
/// `sent_at` is taken *before* the request leaves: the store cannot have started the lease earlier,
/// so it cannot end it before `sent_at + ttl`. The time of the reply says nothing.
pub fn valid_until(sent_at: Moment, ttl: Duration) -> Moment {
    let ttl = nanos(ttl);
    sent_at.after(Duration::from_nanos(ttl - margin_nanos(ttl)))
}

/// When to renew a lease of `ttl` that began at `sent_at`: after a third, spread by ±10 % so that
/// locks taken together are not renewed together for ever. `jitter` is uniform in `0.0..1.0`.
pub(crate) fn renew_at(sent_at: Moment, ttl: Duration, jitter: f64) -> Moment {
    let third = nanos(ttl) / 3;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a jitter needs no precision, and an `as` saturates"
    )]
    let spread = (third as f64 * (0.9 + 0.2 * jitter.clamp(0.0, 1.0))) as u64;
    sent_at.after(Duration::from_nanos(spread))
}

/// Checks a lease against the limits of holdtight and of one store.
///
/// # Errors
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), naming both limits.
pub(crate) fn check_ttl(ttl: Duration, min: Duration, max: Duration) -> Result<(), LockError> {
    let (min, max) = (min.max(MIN_TTL), max.min(MAX_TTL));
    if ttl < min || ttl > max {
        return Err(LockError::invalid_config(format!(
            "a TTL of {ttl:?} is outside what this store allows: {min:?} to {max:?}",
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_holder_stops_before_the_store_can_let_go(sent in 0u64..1 << 60, ms in 1u64..86_400_000, delay in 0u64..1 << 40) {
            let (sent_at, ttl) = (Moment::from_nanos(sent), Duration::from_millis(ms));
            // However late the store starts the lease, it ends after the holder stopped.
            let store_end = sent_at.after(Duration::from_nanos(delay)).after(ttl);
            prop_assert!(valid_until(sent_at, ttl) < store_end);
            prop_assert!(valid_until(sent_at, ttl) > sent_at, "every legal lease is worth something");
        }

        #[test]
        fn the_margin_covers_one_percent_of_clock_drift(ms in 10u64..86_400_000) {
            let ttl = Duration::from_millis(ms);
            // A store whose clock runs 1 % fast ends the lease after ttl/1.01 of our time.
            prop_assert!(ttl <= ttl.div_f64(1.01) + margin(ttl));
        }

        #[test]
        fn the_margin_also_covers_a_timer_that_tells_of_the_loss_late(ms in 200u64..60_000) {
            let (ttl, late) = (Duration::from_millis(ms), Duration::from_millis(10));
            // The store's clock, as fast as above, is also as coarse as a millisecond.
            let late = late + Duration::from_millis(1);
            let told = valid_until(Moment::from_nanos(0), ttl).after(late);
            let end = Moment::from_nanos(0).after(ttl.div_f64(1.01));
            prop_assert!(told <= end, "told {told:?}, and the next one may start {end:?}");
        }

        #[test]
        fn renewal_comes_early_enough_for_two_more_tries(ms in 10u64..86_400_000, jitter in 0.0f64..1.0) {
            let (sent_at, ttl) = (Moment::from_nanos(0), Duration::from_millis(ms));
            let first = renew_at(sent_at, ttl, jitter);
            prop_assert!(first.after(ttl / 3) < valid_until(sent_at, ttl));
        }
    }

    #[test]
    fn limits_are_those_of_the_store_within_ours() {
        let (min, max) = (Duration::from_secs(2), Duration::from_secs(10));
        assert!(check_ttl(Duration::from_secs(2), min, max).is_ok());
        assert!(check_ttl(Duration::from_secs(10), min, max).is_ok());
        let text = check_ttl(Duration::from_secs(11), min, max).unwrap_err().to_string();
        assert!(text.contains("2s") && text.contains("10s"), "{text}");
        assert!(check_ttl(Duration::ZERO, Duration::ZERO, Duration::MAX).is_err());
        assert!(check_ttl(MAX_TTL + MIN_TTL, Duration::ZERO, Duration::MAX).is_err());
    }
}
