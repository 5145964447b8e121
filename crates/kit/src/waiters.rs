//! The waiters of this process, by key: a store subscribes them, and notifies them of releases.
//!
//! When to notify is up to the store. Notifications are hints: a lost one costs time, never a lock.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use holdtight_core::{Bell, Subscription};

use crate::lock;

/// The waiters of this process, by key, with what the store remembers of each key meanwhile.
///
/// `T` is that memory: it begins with its default when the first waiter of a key comes, and is
/// dropped when the last one has left.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::sync::Arc;
/// use holdtight_kit::WaiterRegistry;
///
/// let waiters: Arc<WaiterRegistry<String>> = Arc::default();
/// let mut subscription = waiters.subscribe("a".to_owned());
/// assert!(waiters.notify_one("a"));
/// subscription.heard().await;
/// drop(subscription);
/// assert!(waiters.is_empty() && !waiters.notify_one("a"));
/// # }
/// ```
pub struct WaiterRegistry<K, T = ()> {
    keys: Mutex<HashMap<K, Waiters<T>>>,
}

struct Waiters<T> {
    /// Few: one waiter per key and process talks to the store.
    notifiers: VecDeque<Bell>,
    state: T,
}

impl<T> Waiters<T> {
    /// Two notifications reach two waiters: whoever got one is last in line for the next.
    fn notify_one(&mut self) -> bool {
        self.notifiers.retain(|notifier| !notifier.is_abandoned());
        let Some(first) = self.notifiers.front() else { return false };
        first.ring();
        self.notifiers.rotate_left(1);
        true
    }
}

impl<K: Hash + Eq, T: Default> WaiterRegistry<K, T> {
    /// Adds a waiter for `key`, until its subscription is dropped.
    pub fn subscribe(self: &Arc<Self>, key: K) -> Subscription
    where
        K: Clone + Send + Sync + 'static,
        T: Send + 'static,
    {
        let (notifier, subscription) = Subscription::channel();
        self.add(key.clone(), notifier);
        let registry = Arc::downgrade(self);
        subscription.on_drop(move || {
            if let Some(registry) = registry.upgrade() {
                registry.remove_dropped(&key);
            }
        })
    }

    /// Adds a waiter for `key`. Whoever uses this instead of [`subscribe`](Self::subscribe) calls
    /// [`remove_dropped`](Self::remove_dropped) when its subscription is dropped.
    pub fn add(&self, key: K, notifier: Bell) {
        let mut keys = self.keys();
        let waiters = keys.entry(key);
        let waiters =
            waiters.or_insert_with(|| Waiters { notifiers: VecDeque::new(), state: T::default() });
        waiters.notifiers.push_back(notifier);
    }
}

impl<K: Hash + Eq, T> WaiterRegistry<K, T> {
    /// Nothing that is called while this is held can panic, but for the closures of the caller.
    fn keys(&self) -> MutexGuard<'_, HashMap<K, Waiters<T>>> {
        lock(&self.keys)
    }

    /// Forgets the waiters for `key` whose subscriptions were dropped. Returns what was remembered
    /// of the key if nobody is left.
    pub fn remove_dropped<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let mut keys = self.keys();
        let waiters = keys.get_mut(key)?;
        waiters.notifiers.retain(|notifier| !notifier.is_abandoned());
        if !waiters.notifiers.is_empty() {
            return None;
        }
        keys.remove(key).map(|waiters| waiters.state)
    }

    /// Notifies the waiter for `key` that has waited longest for a notification. Returns whether
    /// there was one.
    pub fn notify_one<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys().get_mut(key).is_some_and(Waiters::notify_one)
    }

    /// Notifies one waiter of each key whose state fulfils `condition`.
    pub fn notify_one_where(&self, condition: impl Fn(&T) -> bool) {
        for waiters in self.keys().values_mut().filter(|waiters| condition(&waiters.state)) {
            waiters.notify_one();
        }
    }

    /// Notifies all waiters for `key`.
    pub fn notify_all_of<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(waiters) = self.keys().get(key) {
            waiters.notifiers.iter().for_each(Bell::ring);
        }
    }

    /// Notifies all waiters of all keys: after a connection broke, a notification may be lost.
    pub fn notify_all(&self) {
        self.keys().values().flat_map(|waiters| &waiters.notifiers).for_each(Bell::ring);
    }

    /// How many wait for `key`.
    pub fn count<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let waits = |notifier: &&Bell| !notifier.is_abandoned();
        self.keys().get(key).map_or(0, |waiters| waiters.notifiers.iter().filter(waits).count())
    }

    /// Whether nobody waits for anything.
    pub fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Reads or changes what is remembered of `key`; `None` if nobody waits for it.
    ///
    /// `change` must not call this registry.
    pub fn with<R, Q: Hash + Eq + ?Sized>(
        &self,
        key: &Q,
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
    {
        self.keys().get_mut(key).map(|waiters| change(&mut waiters.state))
    }

    /// Whether the state of any key fulfils `condition`.
    pub fn any(&self, condition: impl Fn(&T) -> bool) -> bool {
        self.keys().values().any(|waiters| condition(&waiters.state))
    }
}

impl<K, T> Default for WaiterRegistry<K, T> {
    fn default() -> Self {
        Self { keys: Mutex::default() }
    }
}

impl<K, T> fmt::Debug for WaiterRegistry<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterRegistry").field("keys", &lock(&self.keys).len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    type Registry = Arc<WaiterRegistry<String, u32>>;

    fn notified(subscription: &mut Subscription) -> bool {
        pin!(subscription.heard()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_notification_reaches_one_waiter_of_its_key_and_the_next_another() {
        let registry = Registry::default();
        let [mut first, mut second, mut other] =
            ["a", "a", "b"].map(|key| registry.subscribe(key.to_owned()));
        assert!(registry.notify_one("a"));
        assert!(notified(&mut first) && !notified(&mut second) && !notified(&mut other));
        assert!(registry.notify_one("a"));
        assert!(!notified(&mut first) && notified(&mut second));
        registry.notify_all_of("a");
        assert!(notified(&mut first) && notified(&mut second) && !notified(&mut other));
        registry.notify_all();
        assert!(notified(&mut first) && notified(&mut second) && notified(&mut other));
    }

    #[test]
    fn waiters_that_left_are_forgotten_and_their_key_with_the_last() {
        let registry = Registry::default();
        let (first, mut second) = (registry.subscribe("a".into()), registry.subscribe("a".into()));
        assert_eq!(registry.with("a", |state| std::mem::replace(state, 7)), Some(0));
        drop(first);
        assert_eq!(registry.count("a"), 1);
        assert!(registry.notify_one("a") && notified(&mut second));
        drop(second);
        assert!(registry.is_empty() && !registry.notify_one("a"));
        assert_eq!(registry.with("a", |state| *state), None, "nobody waits for it");
        let again = registry.subscribe("a".into());
        assert_eq!(registry.with("a", |state| *state), Some(0), "what was remembered is gone");
        drop(again);
    }

    #[test]
    fn what_is_remembered_of_keys_chooses_whom_to_notify() {
        let registry = Registry::default();
        let (notifier, one) = Subscription::channel();
        registry.add("a".into(), notifier);
        let mut other = registry.subscribe("b".into());
        registry.with("b", |state| *state = 5);
        registry.notify_one_where(|state| *state == 5);
        assert!(notified(&mut other) && registry.any(|state| *state == 5));
        registry.with("a", |state| *state = 3);
        assert_eq!(registry.remove_dropped("a"), None, "it still waits");
        drop(one);
        assert_eq!(registry.remove_dropped("a"), Some(3));
        assert_eq!(registry.remove_dropped("a"), None);
    }
}
