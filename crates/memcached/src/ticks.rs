//! Leases in whole seconds of a clock that ticks once a second: what to ask for, and what an answer
//! is worth.
//!
//! Memcached counts in ticks, and a tick comes a second after the last one *was handled*. An item
//! set with `T n` just before a late tick therefore lives little more than `n - 2` seconds less the
//! delay of that tick (measured: `T4` lived 2.06 s), and never longer than `n` seconds and the
//! delay of the ticks. So three seconds are added to every lease: enough for ticks that come up to
//! a second late.

use std::time::Duration;

use holdtight_core::MAX_TTL;

/// What an item may live shorter than its number of seconds says.
const LOST_TICKS: u64 = 3;

/// How much longer than asked a lease may last: the three ticks, and the fraction that was rounded
/// up.
pub(crate) const SLACK: Duration = Duration::from_secs(LOST_TICKS + 1);

/// The longest number ever sent. Beyond 30 days memcached takes it for a date, and the item is gone
/// at once.
const MOST: u64 = MAX_TTL.as_secs() + LOST_TICKS;
const _: () = assert!(MOST < 30 * 24 * 60 * 60);

/// The seconds to ask for, so that an item lives at least `ttl`.
pub(crate) fn ask(ttl: Duration) -> u64 {
    let whole = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    whole.saturating_add(LOST_TICKS).min(MOST)
}

/// The seconds to ask for, so that an item that has `left` seconds lives `extra` longer, up to the
/// longest lease.
pub(crate) fn ask_more(left: u64, extra: Duration) -> u64 {
    left.saturating_add(ask(extra) - LOST_TICKS).min(MOST)
}

/// How long an item lives at least, of which the server says that `left` seconds are left.
pub(crate) fn at_least(left: u64) -> Duration {
    Duration::from_secs(left.saturating_sub(LOST_TICKS)).min(MAX_TTL)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A server whose ticks come late, by up to a second each time, never ends a lease early.
        #[test]
        fn no_lease_ends_early_whatever_the_ticks_do(
            ttl_ms in 1u64..20_000,
            phase in 0u64..1000,
            late in proptest::collection::vec(0u64..1000, 64),
            set_after in 0u64..30_000,
        ) {
            // Milliseconds; the server reads the whole second at each tick and keeps it until the
            // next one.
            let mut ticks = vec![phase];
            for delay in late {
                ticks.push(ticks.last().unwrap() + 1000 + delay);
            }
            let read = |at: u64| ticks.iter().rev().find(|tick| **tick <= at).map_or(0, |tick| tick / 1000);
            let set_at = phase + set_after;
            let asked = ask(Duration::from_millis(ttl_ms));
            let end = read(set_at) + asked;
            let gone_at = *ticks.iter().find(|tick| **tick / 1000 >= end).unwrap();
            prop_assert!(gone_at >= set_at + ttl_ms, "set at {set_at}, gone at {gone_at}");
        }
    }

    #[test]
    fn seconds_are_rounded_up_and_three_are_added() {
        for (ttl, seconds) in [(0, 3), (1, 4), (999, 4), (1000, 4), (1001, 5), (30_000, 33)] {
            assert_eq!(ask(Duration::from_millis(ttl)), seconds, "{ttl} ms");
        }
        assert_eq!(at_least(ask(Duration::from_secs(30))), Duration::from_secs(30));
        assert_eq!(at_least(1), Duration::ZERO);
        assert_eq!(ask_more(33, Duration::from_secs(30)), 63);
    }

    #[test]
    fn nothing_ever_looks_like_a_date() {
        for huge in [Duration::MAX, Duration::from_secs(30 * 24 * 3600), MAX_TTL] {
            assert_eq!(ask(huge), MOST);
            assert_eq!(ask_more(u64::MAX, huge), MOST);
            assert!(at_least(u64::MAX) <= MAX_TTL);
        }
    }
}
