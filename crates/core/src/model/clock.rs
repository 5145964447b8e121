//! Time as leases see it: a clock that runs on while the machine sleeps, and never steps.
//!
//! Timers only wake code up; whether a lease is over is always read here. The wall clock is for
//! display.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A point on a [`Clock`], in nanoseconds since an origin that only that clock knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than everything: the end of something that has no end.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// A moment from nanoseconds since the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment moved later; stays at [`Moment::FAR_FUTURE`] instead of wrapping.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This moment moved earlier, at most to the clock's origin.
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// The time from `earlier` to here; zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A span in nanoseconds, the largest number for all that are longer.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Where leases read the time.
///
/// Programs use [`BootClock`]; tests inject [`ManualClock`] or [`TokioClock`].
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on a clock that never steps back and runs during suspend.
    fn now(&self) -> Moment;

    /// Whether it follows tokio's clock, which a test may pause: then background work must share
    /// the test's runtime, or time would pass there and not here. Programs have no such clock.
    fn is_driven_by_tokio(&self) -> bool {
        false
    }

    /// The wall clock. For people only: no lease depends on it.
    fn wall(&self) -> SystemTime {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads it, for display")]
        SystemTime::now()
    }
}

/// The machine's boot-time clock: `CLOCK_BOOTTIME` on Linux, its equal elsewhere.
///
/// ```
/// use holdtight_core::{BootClock, Clock};
/// let earlier = BootClock.now();
/// assert!(BootClock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        boot_nanos()
    }
}

#[cfg(unix)]
fn boot_nanos() -> Moment {
    use rustix::time::{ClockId, clock_gettime};
    // CLOCK_MONOTONIC stops in suspend on Linux, but not on macOS, which has no CLOCK_BOOTTIME.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let at = clock_gettime(clock);
    let (seconds, rest) =
        (u64::try_from(at.tv_sec).unwrap_or(0), u64::try_from(at.tv_nsec).unwrap_or(0));
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

#[cfg(not(unix))]
fn boot_nanos() -> Moment {
    use std::sync::LazyLock;
    use std::time::Instant;
    // On Windows `Instant` counts through sleep.
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment(nanos(ORIGIN.elapsed()))
}

/// Follows tokio's clock, so that a test with paused time drives leases and timers together.
#[derive(Clone, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that starts now, at one hour past its origin so that the past can be expressed.
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment(3_600_000_000_000).after(self.origin.elapsed())
    }

    fn is_driven_by_tokio(&self) -> bool {
        true
    }
}

/// Adds a jump of the test's choice to another clock: a suspended machine, whose timers stood
/// still.
#[derive(Clone, Debug)]
pub struct ManualClock {
    base: Arc<dyn Clock>,
    ahead: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that agrees with `base` until it is moved.
    pub fn over(base: impl Clock) -> Self {
        Self { base: Arc::new(base), ahead: Arc::default() }
    }

    /// Moves this clock, and all its clones, ahead of its base.
    pub fn jump(&self, by: Duration) {
        self.ahead.fetch_add(nanos(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.base.now().after(Duration::from_nanos(self.ahead.load(Ordering::SeqCst)))
    }

    fn is_driven_by_tokio(&self) -> bool {
        self.base.is_driven_by_tokio()
    }

    fn wall(&self) -> SystemTime {
        self.base.wall()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        let now = Moment::from_nanos(5);
        assert_eq!(now.before(Duration::from_secs(1)), Moment::from_nanos(0));
        assert_eq!(now.after(Duration::MAX), Moment::FAR_FUTURE);
        assert_eq!(now.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(now.since(Moment::from_nanos(2)), Duration::from_nanos(3));
    }

    #[test]
    fn a_jump_is_seen_by_every_clone() {
        let clock = ManualClock::over(BootClock);
        let (twin, before) = (clock.clone(), clock.now());
        twin.jump(Duration::from_secs(3600));
        assert!(clock.now().since(before) >= Duration::from_secs(3600));
    }
}
