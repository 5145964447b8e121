//! One trial as a value: its name, what the store must be able to do for it, and the code.

use std::future::Future;
use std::pin::Pin;

use holdtight_core::WakeUps;

use super::stage::Stage;

/// A trial.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Need],
    pub(super) run: for<'a> fn(&'a Stage) -> Running<'a>,
}

/// Not `Send`: it runs on the thread that blocks on it, and so may use async closures freely.
pub(super) type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What a store or its fixture must offer for a trial to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    AcquireMany,
    ForceRelease,
    List,
    Transfer,
    WakeUps,
    /// [`Fixture::address`](crate::Fixture::address): other processes can join.
    Processes,
    ProcessLiveness,
    /// [`Fixture::proxy`](crate::Fixture::proxy).
    Proxy,
}

impl Need {
    /// Why a trial with this need does not apply on `stage`, if it does not.
    pub(super) fn unmet(self, stage: &Stage) -> Option<&'static str> {
        let can = &stage.capabilities;
        let (met, why) = match self {
            Self::AcquireMany => (can.acquire_many, "the store cannot take several keys at once"),
            Self::ForceRelease => (can.force_release, "the store cannot force a release"),
            Self::List => (can.list, "the store cannot list"),
            Self::Transfer => (can.transfer, "the store cannot transfer"),
            Self::WakeUps => (can.wake_ups != WakeUps::None, "the store gives no wake-ups"),
            Self::Processes => (stage.address.is_some(), "no other process can join the fixture"),
            Self::ProcessLiveness => {
                (can.process_liveness, "the store does not watch the holder's process")
            }
            Self::Proxy => (stage.proxy.is_some(), "the fixture has no proxy"),
        };
        (!met).then_some(why)
    }
}

/// Lists trials: `cases![first, second]`, or `cases![if Transfer; first, second]`.
macro_rules! cases {
    (@list $needs:tt; $($name:ident),+) => {
        &[$($crate::conformance::case::Case {
            name: stringify!($name),
            needs: &$needs,
            run: |stage| ::std::boxed::Box::pin($name(stage)),
        }),+]
    };
    (if $($need:ident),+; $($name:ident),+ $(,)?) => {
        cases!(@list [$($crate::conformance::case::Need::$need),+]; $($name),+)
    };
    ($($name:ident),+ $(,)?) => { cases!(@list []; $($name),+) };
}

pub(super) use cases;
