//! What is counted and timed, through the `metrics` facade; nothing at all without the feature of
//! that name.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `holdtight_acquire_seconds` | histogram | `store`, `outcome`: `acquired`, `busy`, `failed`, `cancelled` |
//! | `holdtight_held_seconds` | histogram | `store` |
//! | `holdtight_waiters` | gauge | `store` |
//! | `holdtight_renewals_total` | counter | `store`, `outcome`: `renewed`, `failed`, `lost` |
//! | `holdtight_lost_total` | counter | `store`, `reason`: `expired`, `taken_away`, `max_hold` |
//! | `holdtight_store_errors_total` | counter | `store`, `kind` |
//!
//! Keys are not labels: there may be any number of them, and they may be private.

use std::time::Duration;

use crate::model::error::ErrorKind;
use crate::model::loss::Loss;

/// An acquire call ended.
#[inline]
pub(crate) fn acquire(
    store: &'static str,
    outcome: &'static str,
    elapsed: impl FnOnce() -> Duration,
) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("holdtight_acquire_seconds", "store" => store, "outcome" => outcome)
        .record(elapsed());
    #[cfg(not(feature = "metrics"))]
    let _ = (store, outcome, elapsed);
}

/// A lock is not held any more.
#[inline]
pub(crate) fn held(store: &'static str, elapsed: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("holdtight_held_seconds", "store" => store).record(elapsed());
    #[cfg(not(feature = "metrics"))]
    let _ = (store, elapsed);
}

/// The store answered a renewal, or did not.
#[inline]
pub(crate) fn renewal(store: &'static str, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("holdtight_renewals_total", "store" => store, "outcome" => outcome)
        .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (store, outcome);
}

/// A lock was lost.
#[inline]
pub(crate) fn lost(store: &'static str, loss: Loss) {
    #[cfg(feature = "metrics")]
    {
        let reason = match loss {
            Loss::Expired => "expired",
            Loss::TakenAway => "taken_away",
            Loss::MaxHold => "max_hold",
            Loss::Forked => "forked",
        };
        metrics::counter!("holdtight_lost_total", "store" => store, "reason" => reason)
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (store, loss);
}

/// The store failed to do a step.
#[inline]
pub(crate) fn store_error(store: &'static str, kind: ErrorKind) {
    #[cfg(feature = "metrics")]
    metrics::counter!("holdtight_store_errors_total", "store" => store, "kind" => label(kind))
        .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (store, kind);
}

#[cfg(feature = "metrics")]
fn label(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Timeout => "timeout",
        ErrorKind::Lost => "lost",
        ErrorKind::NotHeld => "not_held",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Ambiguous => "ambiguous",
        ErrorKind::AuthFailed => "auth_failed",
        ErrorKind::RateLimited => "rate_limited",
        ErrorKind::InvalidKey => "invalid_key",
        ErrorKind::InvalidToken => "invalid_token",
        ErrorKind::InvalidConfig => "invalid_config",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Closed => "closed",
        ErrorKind::Internal => "internal",
    }
}

/// One acquire call that has to wait, counted while this lives.
pub(crate) struct Waiting {
    #[cfg(feature = "metrics")]
    gauge: metrics::Gauge,
}

impl Waiting {
    #[inline]
    pub(crate) fn new(store: &'static str) -> Self {
        #[cfg(feature = "metrics")]
        {
            let gauge = metrics::gauge!("holdtight_waiters", "store" => store);
            gauge.increment(1.0);
            Self { gauge }
        }
        #[cfg(not(feature = "metrics"))]
        {
            let _ = store;
            Self {}
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for Waiting {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}
