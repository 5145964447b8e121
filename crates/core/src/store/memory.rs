//! The store that needs nothing: a map behind a mutex, for tests and for locks within one process.
//!
//! It fulfils the whole contract of [`Backend`], so that a program tested on it behaves the same
//! elsewhere.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::model::clock::{BootClock, Clock, Moment};
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::health::{Finding, Guarantees, Level};
use crate::model::holder::Holder;
use crate::model::key::{Key, KeyMap};
use crate::model::lease::MAX_TTL;
use crate::model::owner::Owner;
use crate::model::secret::Secret;
use crate::store::{
    AcquireRequest, Attempt, Backend, Bell, Busy, Capabilities, ExtendBy, ExtendRequest, Extension,
    Intent, Lease, ManyAttempt, Release, Reply, Subscription, Transfer, TransferRequest, WakeUps,
};

/// Locks in the memory of this process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// use holdtight_core::{DistributedLock, MemoryStore};
/// let lock = DistributedLock::builder(MemoryStore::new()).build()?;
/// let handle = lock.acquire("user:123").await?;
/// assert!(handle.is_held());
/// handle.release().await
/// # }
/// ```
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: KeyMap<Record>,
    bells: KeyMap<VecDeque<Bell>>,
    /// One counter for all keys, so that nothing stays behind per key.
    last_fence: u64,
    /// Expired records are swept out when the map has doubled since the last time.
    sweep_at: usize,
}

struct Record {
    secret: Secret,
    fence: Fence,
    owner: Arc<Owner>,
    granted_at: Moment,
    expires_at: Moment,
}

impl MemoryStore {
    /// An empty store of its own.
    pub fn new() -> Self {
        Self::with_clock(BootClock)
    }

    /// An empty store that reads the time from `clock`.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), state: Mutex::default() }
    }

    /// The store called `name` in this process: the same one for everybody who asks while somebody
    /// has it.
    pub fn shared(name: &str) -> Arc<Self> {
        static NAMED: LazyLock<Mutex<HashMap<String, Weak<MemoryStore>>>> =
            LazyLock::new(Mutex::default);
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Arc::new(Self::new());
        named.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// How many records are kept, expired ones included: for tests of what stays behind.
    pub fn footprint(&self) -> usize {
        let state = self.state();
        state.records.len() + state.bells.len()
    }

    /// A panic cannot leave a step half done, because nothing inside one calls foreign code.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step<T>(&self, step: impl FnOnce(&mut State, Moment) -> T) -> T {
        let mut state = self.state();
        let now = self.clock.now();
        step(&mut state, now)
    }
}

impl State {
    fn live(&self, key: &Key, now: Moment) -> Option<&Record> {
        self.records.get(key).filter(|record| record.expires_at > now)
    }

    fn owned(&mut self, key: &Key, secret: &Secret, now: Moment) -> Option<&mut Record> {
        self.records.get_mut(key).filter(|record| record.is_owned(secret, now))
    }

    fn attempt(&mut self, request: AcquireRequest, now: Moment) -> Result<Attempt, LockError> {
        let listening = usize::from(request.intent == Intent::Queue);
        let contended = self.listeners(&request.key) > listening;
        if let Some(record) = self.owned(&request.key, &request.secret, now) {
            record.expires_at = record.expires_at.max(now.after(request.ttl));
            return Ok(Attempt::Granted(record.lease(now).contended(contended)));
        }
        if let Some(record) = self.live(&request.key, now) {
            return Ok(Attempt::Busy(Busy::held_by(record.holder(request.key, now))));
        }
        Ok(Attempt::Granted(self.grant(request, now)?.contended(contended)))
    }

    /// The fence is minted before anything is written: if it cannot be, nothing happens.
    fn grant(&mut self, request: AcquireRequest, now: Moment) -> Result<Lease, LockError> {
        let fence = mint(&mut self.last_fence, &request.key, now)?;
        let lease = Lease::new(fence, request.ttl);
        let (key, record) = Record::new(request, fence, now);
        self.records.insert(key, record);
        if self.records.len() > self.sweep_at {
            self.records.retain(|_, record| record.expires_at > now);
            self.sweep_at = (self.records.len() * 2).max(64);
        }
        Ok(lease)
    }

    /// The record stays where it is and gets a new owner.
    fn transfer(&mut self, request: TransferRequest, now: Moment) -> Result<Transfer, LockError> {
        let TransferRequest { from, to, .. } = request;
        let contended = self.listeners(&to.key) > 0;
        match self.records.get_mut(&to.key) {
            // Done before, by a request whose answer was lost: the same grant, with its fence.
            Some(record) if record.is_owned(&to.secret, now) => {
                record.expires_at = record.expires_at.max(now.after(to.ttl));
                Ok(Transfer::Transferred(record.lease(now).contended(contended)))
            }
            Some(record) if record.is_owned(&from, now) => {
                let fence = mint(&mut self.last_fence, &to.key, now)?;
                let lease = Lease::new(fence, to.ttl).contended(contended);
                *record = Record::new(to, fence, now).1;
                Ok(Transfer::Transferred(lease))
            }
            _ => Ok(Transfer::NotHeld),
        }
    }

    fn free(&mut self, key: &Key) -> Release {
        self.records.remove(key);
        self.wake(key);
        Release::Released
    }

    /// Rings for the waiter that came first, and forgets those that left.
    fn wake(&mut self, key: &Key) {
        if let Some(bells) = self.bells.get_mut(key) {
            while bells.front().is_some_and(Bell::is_abandoned) {
                bells.pop_front();
            }
            match bells.front() {
                Some(bell) => bell.ring(),
                None => drop(self.bells.remove(key)),
            }
        }
    }

    fn listeners(&self, key: &Key) -> usize {
        if self.bells.is_empty() {
            return 0;
        }
        self.bells
            .get(key)
            .map_or(0, |bells| bells.iter().filter(|bell| !bell.is_abandoned()).count())
    }

    /// A waiter left. If it was woken and did not use it, the next one must be.
    fn unsubscribe(&mut self, key: &Key, now: Moment) {
        if let Some(bells) = self.bells.get_mut(key) {
            bells.retain(|bell| !bell.is_abandoned());
            if bells.is_empty() {
                self.bells.remove(key);
            }
        }
        if self.live(key, now).is_none() {
            self.wake(key);
        }
    }
}

fn mint(last: &mut u64, key: &Key, now: Moment) -> Result<Fence, LockError> {
    let floor = now.as_nanos() / 1000;
    let fence = Fence::new(*last).next(floor).ok_or_else(|| {
        LockError::internal("no fence is left: the counter reached its end").with_key(key)
    })?;
    *last = fence.get();
    Ok(fence)
}

impl Record {
    fn new(request: AcquireRequest, fence: Fence, now: Moment) -> (Key, Self) {
        let expires_at = now.after(request.ttl);
        let AcquireRequest { key, secret, owner, .. } = request;
        (key, Self { secret, fence, owner, granted_at: now, expires_at })
    }

    fn is_owned(&self, secret: &Secret, now: Moment) -> bool {
        self.expires_at > now && self.secret == *secret
    }

    fn lease(&self, now: Moment) -> Lease {
        Lease::new(self.fence, self.expires_at.since(now))
    }

    fn holder(&self, key: Key, now: Moment) -> Holder {
        Holder::of(key)
            .fence(self.fence)
            .owner((*self.owner).clone())
            .age(now.since(self.granted_at))
            .remaining(self.expires_at.since(now))
    }
}

/// An answer that is already known.
fn ready<T: Send + 'static>(answer: Result<T, LockError>) -> Reply<T> {
    Box::pin(std::future::ready(answer))
}

impl Backend for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory")
            .wake_ups(WakeUps::PerKey)
            .transfer(true)
            .acquire_many(true)
            .force_release(true)
            .process_liveness(true)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        ready(self.step(|state, now| state.attempt(request, now)))
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        ready(self.release_now(&key, &secret).unwrap_or(Ok(Release::NotHeld)))
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        Some(Ok(self.step(|state, now| match state.owned(key, secret, now) {
            Some(_) => state.free(key),
            None => Release::NotHeld,
        })))
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        ready(Ok(self.step(|state, now| {
            let extend =
                |request: ExtendRequest| match state.owned(&request.key, &request.secret, now) {
                    None => Ok(Extension::NotHeld),
                    Some(record) => {
                        let end = match request.by {
                            ExtendBy::AtLeast(ttl) => now.after(ttl),
                            ExtendBy::Add(extra) => {
                                record.expires_at.after(extra).min(now.after(MAX_TTL))
                            }
                        };
                        record.expires_at = record.expires_at.max(end);
                        Ok(Extension::Extended(record.lease(now)))
                    }
                };
            leases.into_iter().map(extend).collect()
        })))
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        ready(Ok(self.step(|state, now| {
            state.live(&key, now).map(|record| record.holder(key.clone(), now))
        })))
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        ready(Ok(self.step(|state, now| {
            let ours = |(key, record): &(&Key, &Record)| {
                key.as_str().starts_with(&prefix) && record.expires_at > now
            };
            let found = state.records.iter().filter(ours).take(limit);
            found.map(|(key, record)| record.holder(key.clone(), now)).collect()
        })))
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        let (bell, subscription) = Subscription::channel();
        self.state().bells.entry(key.clone()).or_default().push_back(bell);
        let store = Arc::downgrade(&self);
        ready(Ok(subscription.on_drop(move || {
            if let Some(store) = store.upgrade() {
                store.step(|state, now| state.unsubscribe(&key, now));
            }
        })))
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        let findings = vec![Finding::new(
            Level::Good,
            "scope",
            "locks live and die with this process; nothing outside it is excluded",
        )];
        ready(Ok(Guarantees::new("memory", findings)))
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        ready(self.step(|state, now| state.transfer(request, now)))
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        ready(self.step(|state, now| {
            let ours = |state: &mut State, r: &AcquireRequest| {
                state.owned(&r.key, &r.secret, now).is_some()
            };
            for request in &requests {
                if !ours(state, request)
                    && let Some(record) = state.live(&request.key, now)
                {
                    let busy = Busy::held_by(record.holder(request.key.clone(), now));
                    return Ok(ManyAttempt::Busy(request.key.clone(), busy));
                }
            }
            let mut leases = Vec::with_capacity(requests.len());
            for request in requests {
                match state.attempt(request, now)? {
                    Attempt::Granted(lease) => leases.push(lease),
                    Attempt::Busy(_) => {
                        return Err(LockError::internal(
                            "the same key was asked for by two owners",
                        ));
                    }
                }
            }
            Ok(ManyAttempt::Granted(leases))
        }))
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        ready(Ok(self.step(|state, now| match state.live(&key, now) {
            Some(record) if record.fence == fence => state.free(&key),
            _ => Release::NotHeld,
        })))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.state().records.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn named_stores_are_shared_and_unnamed_ones_are_not() {
        let one = MemoryStore::shared("memory-tests");
        assert!(Arc::ptr_eq(&one, &MemoryStore::shared("memory-tests")));
        assert!(!Arc::ptr_eq(&one, &MemoryStore::shared("memory-tests-2")));
        let address = Arc::downgrade(&one);
        drop(one);
        assert!(address.upgrade().is_none(), "a store that nobody has is gone");
    }

    #[tokio::test]
    async fn expired_records_do_not_pile_up() {
        let store = Arc::new(MemoryStore::new());
        let tiny = Duration::from_millis(1);
        for n in 0..10_000 {
            let key = Key::new(&format!("k{n}")).unwrap();
            let request = AcquireRequest::new(key, Secret::generate().unwrap(), tiny);
            Arc::clone(&store).acquire(request).await.unwrap();
        }
        // Some of the last ones may be alive still; ten thousand cannot be.
        assert!(store.footprint() < 10_000, "{} records", store.footprint());
    }

    #[tokio::test]
    async fn fences_that_are_used_up_are_an_error_and_write_nothing() {
        let store = Arc::new(MemoryStore::new());
        store.state().last_fence = u64::MAX;
        let key = Key::new("k").unwrap();
        let request = AcquireRequest::new(key, Secret::generate().unwrap(), Duration::from_secs(1));
        assert!(Arc::clone(&store).acquire(request).await.is_err());
        assert_eq!(store.footprint(), 0);
    }
}
