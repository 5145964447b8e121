//! Who waits here: the bells of this process's waiters, and what is remembered of their places in
//! etcd's queue.
//!
//! Nothing here decides who holds a lock. It saves requests: a place whose predecessor is being
//! watched is not watched twice, a lease that was kept alive a moment ago is left alone, and a lock
//! that was just busy is looked at before a lease is made for it in vain.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdtight_core::Subscription;
use holdtight_kit::{WaiterRegistry, lock};
use tokio::task::AbortHandle;

use crate::names::{Place, Range};

/// How long a busy answer is taken as a hint that the next may be busy too.
const BUSY_HINT: Duration = Duration::from_secs(2);

/// How many such hints are kept.
const BUSY_HINTS: usize = 4096;

/// The places of one lock's waiters, by their entries.
type Places = HashMap<Vec<u8>, Waiting>;

/// Everybody in this store who waits.
#[derive(Default)]
pub(crate) struct Line {
    /// By the start of a lock's range.
    waiters: Arc<WaiterRegistry<Vec<u8>, Places>>,
    /// Locks that were busy, by the start of their range.
    busy: Mutex<HashMap<Vec<u8>, Instant>>,
}

/// One place in etcd's queue.
struct Waiting {
    created: i64,
    kept_alive: Instant,
    watcher: Option<AbortHandle>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
    }
}

impl Line {
    /// A waiter for `lock`, until the subscription is dropped.
    pub(crate) fn listen(&self, lock: Range) -> Subscription {
        self.waiters.subscribe(lock.start)
    }

    /// Wakes whoever waits for `lock` here.
    pub(crate) fn ring(&self, lock: &[u8]) {
        self.waiters.notify_all_of(lock);
    }

    /// Remembers the place that was made at `created` and just kept alive. Its predecessor is not
    /// watched yet.
    pub(crate) fn stand(&self, place: &Place, created: i64) {
        self.waiters.with(&place.lock.start, |places| {
            let now = Instant::now();
            match places.get_mut(&place.entry) {
                Some(waiting) if waiting.created == created => waiting.kept_alive = now,
                _ => {
                    let waiting = Waiting { created, kept_alive: now, watcher: None };
                    places.insert(place.entry.clone(), waiting);
                }
            }
        });
    }

    /// Whether this place was kept alive within `span`.
    pub(crate) fn is_fresh(&self, place: &Place, created: i64, span: Duration) -> bool {
        self.with(place, created, |waiting| waiting.kept_alive.elapsed() < span).unwrap_or(false)
    }

    /// Whether the predecessor of this place has a watcher that still watches; `None` if nobody
    /// here listens.
    pub(crate) fn is_watched(&self, place: &Place, created: i64) -> Option<bool> {
        self.with(place, created, |waiting| {
            waiting.watcher.as_ref().is_some_and(|watcher| !watcher.is_finished())
        })
    }

    /// Hands a place its watcher; ends it if nobody here listens any more.
    pub(crate) fn watch(&self, place: &Place, created: i64, watcher: AbortHandle) {
        let late = watcher.clone();
        let old = self.with(place, created, |waiting| waiting.watcher.replace(watcher));
        match old {
            Some(Some(old)) => old.abort(),
            Some(None) => {}
            None => late.abort(),
        }
    }

    /// Forgets a place that was used or given up.
    pub(crate) fn forget(&self, place: &Place) {
        self.waiters.with(&place.lock.start, |places| places.remove(&place.entry));
    }

    /// Whether this owner stands in line, as far as is known here.
    pub(crate) fn stands(&self, place: &Place) -> bool {
        self.waiters
            .with(&place.lock.start, |places| places.contains_key(&place.entry))
            .unwrap_or(false)
    }

    /// Notes that a lock was busy.
    pub(crate) fn note_busy(&self, range: &Range) {
        let mut busy = lock(&self.busy);
        if busy.len() >= BUSY_HINTS {
            busy.retain(|_, seen| seen.elapsed() < BUSY_HINT);
            if busy.len() >= BUSY_HINTS {
                busy.clear();
            }
        }
        busy.insert(range.start.clone(), Instant::now());
    }

    /// Notes that a lock was free.
    pub(crate) fn note_free(&self, range: &Range) {
        lock(&self.busy).remove(&range.start);
    }

    /// Whether a lock was busy a moment ago.
    pub(crate) fn was_busy(&self, range: &Range) -> bool {
        lock(&self.busy).get(&range.start).is_some_and(|seen| seen.elapsed() < BUSY_HINT)
    }

    fn with<T>(
        &self,
        place: &Place,
        created: i64,
        ask: impl FnOnce(&mut Waiting) -> T,
    ) -> Option<T> {
        let asked = self.waiters.with(&place.lock.start, |places| {
            places.get_mut(&place.entry).filter(|waiting| waiting.created == created).map(ask)
        });
        asked.flatten()
    }
}

#[cfg(test)]
mod tests {
    use holdtight_core::{Key, Secret};

    use super::*;
    use crate::names::Names;

    fn place(key: &str, secret: &str) -> Place {
        Names::new("p/").place(&Key::new(key).unwrap(), &Secret::parse(secret).unwrap())
    }

    #[tokio::test]
    async fn a_ring_is_heard_by_those_who_wait_for_that_lock() {
        let line = Arc::new(Line::default());
        let (one, two) = (place("a", "s"), place("b", "s"));
        let mut first = line.listen(one.lock.clone());
        let mut other = line.listen(two.lock.clone());
        line.ring(&one.lock.start);
        first.heard().await;
        let heard = tokio::time::timeout(Duration::from_millis(20), other.heard()).await;
        assert!(heard.is_err(), "a ring for another lock");
    }

    #[tokio::test]
    async fn watchers_end_with_the_last_listener() {
        let line = Arc::new(Line::default());
        let here = place("a", "s");
        let subscription = line.listen(here.lock.clone());
        assert_eq!(line.is_watched(&here, 5), None, "no place yet");
        line.stand(&here, 5);
        assert_eq!(line.is_watched(&here, 5), Some(false));
        let task = tokio::spawn(std::future::pending::<()>());
        line.watch(&here, 5, task.abort_handle());
        assert_eq!(line.is_watched(&here, 5), Some(true));
        assert!(line.is_fresh(&here, 5, Duration::from_secs(60)) && line.stands(&here));
        assert_eq!(line.is_watched(&here, 6), None, "a place that was made anew is another");
        drop(subscription);
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(!line.stands(&here));
        let late = tokio::spawn(std::future::pending::<()>());
        line.watch(&here, 5, late.abort_handle());
        assert!(late.await.unwrap_err().is_cancelled(), "nobody listens any more");
    }

    #[test]
    fn hints_are_bounded() {
        let line = Line::default();
        for n in 0..BUSY_HINTS * 2 {
            line.note_busy(&place(&format!("k{n}"), "s").lock);
        }
        assert!(lock(&line.busy).len() <= BUSY_HINTS);
        let here = place("a", "s").lock;
        line.note_busy(&here);
        assert!(line.was_busy(&here));
        line.note_free(&here);
        assert!(!line.was_busy(&here));
    }
}
