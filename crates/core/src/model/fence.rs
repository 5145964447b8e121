//! The number a protected resource checks: larger for every later grant of the same key.
//!
//! Stores mint fences in the same atomic step as the grant; this file only says what a fence looks
//! like.

use std::fmt;

/// A fencing token: strictly increasing per key in the order of grants.
///
/// A resource that remembers the largest fence it has seen, and refuses smaller ones, is safe from
/// a holder that was paused past its lease.
///
/// Two text forms exist. [`Display`](fmt::Display) is plain decimal, for JSON strings and
/// environment variables. [`Fence::ordered`] is padded to 20 digits so that text order is number
/// order.
///
/// ```
/// use holdtight_core::Fence;
/// let (old, new) = (Fence::new(99), Fence::new(100));
/// assert!(old < new && old.ordered() < new.ordered());
/// assert_eq!(new.ordered().parse::<Fence>()?, new);
/// # Ok::<(), holdtight_core::LockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// Wraps a number that a store minted.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The fence after this one, at least `floor`: the rule by which every store mints.
    ///
    /// `None` when the numbers are used up, which a store must answer with an error and never with
    /// a grant.
    pub fn next(self, floor: u64) -> Option<Self> {
        Some(Self(self.0.checked_add(1)?.max(floor)))
    }

    /// Twenty digits with leading zeros: sorts as text the way it sorts as a number.
    pub fn ordered(self) -> String {
        format!("{:020}", self.0)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_round_trip_and_sort() {
        for n in [0, 1, 9, 10, 1_790_000_000_000_000, u64::MAX] {
            let fence = Fence::new(n);
            assert_eq!(fence.to_string().parse::<Fence>().unwrap(), fence);
            assert_eq!(fence.ordered().parse::<Fence>().unwrap(), fence);
            assert_eq!(fence.ordered().len(), 20);
        }
        assert!(Fence::new(9).ordered() < Fence::new(10).ordered());
    }

    #[test]
    fn what_is_not_a_plain_number_is_refused() {
        for text in [
            "",
            "+1",
            "-1",
            " 1",
            "1.0",
            "1e3",
            "0x1",
            "18446744073709551616",
            "000000000000000000001",
        ] {
            assert!(text.parse::<Fence>().is_err(), "{text:?} must be refused");
        }
    }

    #[test]
    fn minting_never_repeats_and_never_wraps() {
        assert_eq!(Fence::new(5).next(3), Some(Fence::new(6)));
        assert_eq!(Fence::new(5).next(100), Some(Fence::new(100)));
        assert_eq!(Fence::new(u64::MAX).next(0), None);
    }
}
