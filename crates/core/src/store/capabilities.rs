//! What a store can do: the engine adapts to it, and the conformance suite chooses its tests by it.

use std::time::Duration;

use crate::model::key::KeyForm;
use crate::model::lease::{MAX_TTL, MIN_TTL};

/// How a store tells waiters that a key may be free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WakeUps {
    /// Not at all: waiters ask again by the timer.
    #[default]
    None,
    /// Subscribing to a key costs a request, so it is done only after a busy answer.
    PerKey,
    /// Subscribing is free (the connection listens anyway), so it is done before the first attempt.
    Standing,
}

/// What a store can do.
///
/// ```
/// use std::time::Duration;
/// use holdtight_core::{Capabilities, WakeUps};
/// let mine = Capabilities::new("mine").wake_ups(WakeUps::PerKey).min_ttl(Duration::from_secs(2));
/// assert!(!mine.transfer);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states")]
pub struct Capabilities {
    /// The store's name in errors and telemetry.
    pub name: &'static str,
    /// How keys are normalised.
    pub key_form: KeyForm,
    /// The shortest lease.
    pub min_ttl: Duration,
    /// The longest lease.
    pub max_ttl: Duration,
    /// How much longer than asked a lease may last in the store: the tick of its clock, or its
    /// grace.
    pub ttl_slack: Duration,
    /// How waiters are woken.
    pub wake_ups: WakeUps,
    /// Waiters of different processes are served in the order they came; so nobody hands a lock to
    /// a waiter of its own process, past the others.
    pub fifo: bool,
    /// [`transfer`](crate::Backend::transfer) works. Without it nobody can take up a lock by its
    /// token.
    pub transfer: bool,
    /// [`acquire_many`](crate::Backend::acquire_many) works.
    pub acquire_many: bool,
    /// [`force_release`](crate::Backend::force_release) works.
    pub force_release: bool,
    /// [`list`](crate::Backend::list) works.
    pub list: bool,
    /// A holder whose process died is replaced at once, not at the end of its lease.
    pub process_liveness: bool,
    /// How many leases one [`extend`](crate::Backend::extend) may carry.
    pub max_batch: usize,
}

macro_rules! with {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl Capabilities {
    /// The least a store can do: grant, extend, release, look up and list, without wake-ups.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            key_form: KeyForm::Nfc,
            min_ttl: MIN_TTL,
            max_ttl: MAX_TTL,
            ttl_slack: Duration::ZERO,
            wake_ups: WakeUps::None,
            fifo: false,
            transfer: false,
            acquire_many: false,
            force_release: false,
            list: true,
            process_liveness: false,
            max_batch: 256,
        }
    }

    with! {
        /// Says how keys are normalised.
        key_form: KeyForm;
        /// Says what the shortest lease is.
        min_ttl: Duration;
        /// Says what the longest lease is.
        max_ttl: Duration;
        /// Says how much longer than asked a lease may last.
        ttl_slack: Duration;
        /// Says how waiters are woken.
        wake_ups: WakeUps;
        /// Says whether waiters of all processes are served in order.
        fifo: bool;
        /// Says whether [`transfer`](crate::Backend::transfer) works.
        transfer: bool;
        /// Says whether [`acquire_many`](crate::Backend::acquire_many) works.
        acquire_many: bool;
        /// Says whether [`force_release`](crate::Backend::force_release) works.
        force_release: bool;
        /// Says whether [`list`](crate::Backend::list) works.
        list: bool;
        /// Says whether a dead holder's lock is freed at once.
        process_liveness: bool;
        /// Says how many leases one [`extend`](crate::Backend::extend) may carry; at least one.
        max_batch: usize;
    }
}
