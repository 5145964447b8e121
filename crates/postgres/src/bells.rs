//! Who waits in this process: bells by key, rung one at a time in the order they came.
//!
//! When to ring is known by `listen`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdtight_core::{Bell, Key, Subscription};

#[derive(Default)]
pub(crate) struct Bells {
    by_key: Mutex<HashMap<String, VecDeque<Bell>>>,
}

impl Bells {
    fn all(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Bell>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A subscription that hears the rings for `key` until it is dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key) -> Subscription {
        let (bell, subscription) = Subscription::channel();
        self.all().entry(key.as_str().to_owned()).or_default().push_back(bell);
        let bells = Arc::downgrade(self);
        let key = key.clone();
        subscription.on_drop(move || {
            if let Some(bells) = bells.upgrade() {
                bells.forget(key.as_str());
            }
        })
    }

    fn forget(&self, key: &str) {
        let mut all = self.all();
        if let Some(bells) = all.get_mut(key) {
            bells.retain(|bell| !bell.is_abandoned());
            if bells.is_empty() {
                all.remove(key);
            }
        }
    }

    /// Wakes the waiter for `key` that came first, and puts it last: if it does not use the ring, another gets the next.
    /// Says whether there was one.
    pub(crate) fn ring(&self, key: &str) -> bool {
        let mut all = self.all();
        let Some(bells) = all.get_mut(key) else { return false };
        bells.retain(|bell| !bell.is_abandoned());
        let Some(bell) = bells.pop_front() else { return false };
        bell.ring();
        bells.push_back(bell);
        true
    }

    /// Wakes everybody: something may have been missed.
    pub(crate) fn ring_all(&self) {
        self.all().values().flatten().for_each(Bell::ring);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn heard(subscription: &mut Subscription) -> bool {
        pin!(subscription.heard()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_ring_wakes_one_waiter_of_that_key_and_the_next_ring_another() {
        let bells = Arc::new(Bells::default());
        let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let (mut first, mut second, mut other) =
            (bells.subscribe(&a), bells.subscribe(&a), bells.subscribe(&b));
        assert!(bells.ring("a"));
        assert!(heard(&mut first) && !heard(&mut second) && !heard(&mut other));
        assert!(bells.ring("a"));
        assert!(!heard(&mut first) && heard(&mut second));
        bells.ring_all();
        assert!(heard(&mut first) && heard(&mut second) && heard(&mut other));
    }

    #[test]
    fn waiters_that_left_are_forgotten() {
        let bells = Arc::new(Bells::default());
        let key = Key::new("a").unwrap();
        let (first, mut second) = (bells.subscribe(&key), bells.subscribe(&key));
        drop(first);
        assert!(bells.ring("a"));
        assert!(heard(&mut second));
        drop(second);
        assert!(bells.all().is_empty());
        assert!(!bells.ring("a"), "nobody is there to be woken");
    }
}
