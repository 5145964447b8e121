//! What a trial stands on: one store, more clients of it, its time, and short words for "must be
//! granted".

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, BootClock, Busy, Capabilities, Clock, DistributedLock,
    ExtendBy, ExtendRequest, Extension, Fence, Holder, Key, Lease, LockError, ManualClock, Moment,
    Release, Secret,
};

use crate::{Fixture, Proxy};

/// How long a trial waits at most for something that must happen: long enough for a starved
/// machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One fresh store and what a trial needs to know of it.
pub(super) struct Stage {
    pub(super) store: Arc<dyn Backend>,
    pub(super) capabilities: Capabilities,
    pub(super) address: Option<String>,
    pub(super) proxy: Option<Proxy>,
    pub(super) fixture_name: &'static str,
    /// How long to wait for something that must happen: [`PATIENCE`], or less if the whole trial
    /// has little time.
    pub(super) patience: Duration,
    clock: Option<ManualClock>,
    fixture: Box<dyn Opener>,
}

/// A fixture without its type.
trait Opener: Send + Sync {
    fn open(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send + '_>>;
    fn join(&self, address: String) -> Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send>>;
}

impl<F: Fixture> Opener for F {
    fn open(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send + '_>> {
        Box::pin(Fixture::open(self))
    }

    fn join(&self, address: String) -> Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send>> {
        Box::pin(F::join(address))
    }
}

impl Stage {
    pub(super) async fn set<F: Fixture>(limit: Duration) -> Self {
        let fixture = F::start().await;
        let store = Fixture::open(&fixture).await;
        Self {
            capabilities: store.capabilities(),
            store,
            address: fixture.address(),
            proxy: fixture.proxy(),
            fixture_name: F::NAME,
            patience: PATIENCE.min(limit / 4),
            clock: fixture.clock(),
            fixture: Box::new(fixture),
        }
    }

    /// One more client.
    pub(super) async fn open(&self) -> Arc<dyn Backend> {
        self.fixture.open().await
    }

    /// One more client, which reaches the server through `way` instead of straight through the
    /// fixture's own proxy.
    pub(super) async fn open_through(&self, way: &Proxy) -> Arc<dyn Backend> {
        let straight = self.proxy.as_ref().expect("a trial that needs a proxy").address();
        let address = self.address.as_ref().expect("a trial that needs an address");
        let detour = address.replace(&straight.to_string(), &way.address().to_string());
        assert_ne!(detour, *address, "the address of the fixture names its proxy");
        self.fixture.join(detour).await
    }

    /// Several clients, as several processes would be.
    pub(super) async fn open_many(&self, count: usize) -> Vec<Arc<dyn Backend>> {
        let mut clients = vec![Arc::clone(&self.store)];
        while clients.len() < count {
            clients.push(self.open().await);
        }
        clients
    }

    pub(super) fn key(&self, text: &str) -> Key {
        Key::with_form(text, self.capabilities.key_form).unwrap()
    }

    /// A lease that does not end while a trial runs.
    pub(super) fn long(&self) -> Duration {
        Duration::from_secs(600).clamp(self.capabilities.min_ttl, self.capabilities.max_ttl)
    }

    /// A lease whose end a trial waits for. With a clock of the test's own it is long enough that
    /// no slow machine ends it early; without one, as short as a busy machine allows.
    pub(super) fn short(&self) -> Duration {
        let short = if self.clock.is_some() { 60_000 } else { 1000 };
        Duration::from_millis(short).clamp(self.capabilities.min_ttl, self.capabilities.max_ttl)
    }

    /// A lease whose end the engine waits for, in real time whatever clock the store has.
    pub(super) fn brief(&self) -> Duration {
        Duration::from_secs(3).clamp(self.capabilities.min_ttl, self.capabilities.max_ttl)
    }

    /// The engine over one client of the store, with leases that do not end while a trial runs.
    pub(super) fn engine(&self, store: &Arc<dyn Backend>) -> DistributedLock {
        let builder = holdtight_core::Builder::shared(Arc::clone(store));
        builder.ttl(self.long()).wait(self.patience).build().unwrap()
    }

    /// Now, on the clock that [`Stage::pass`] moves.
    pub(super) fn now(&self) -> Moment {
        self.clock.as_ref().map_or_else(|| BootClock.now(), Clock::now)
    }

    /// Whether time can be made to go by without waiting for it.
    pub(super) fn can_jump(&self) -> bool {
        self.clock.is_some()
    }

    /// Lets time go by: by jumping, where the store's clock can be moved.
    pub(super) async fn pass(&self, span: Duration) {
        match &self.clock {
            Some(clock) => clock.jump(span),
            None => tokio::time::sleep(span).await,
        }
    }

    /// Waits until the lease of `ttl` on `key`, taken before this call, is over in the store.
    pub(super) async fn expire(&self, key: &Key, ttl: Duration) {
        self.pass(ttl + self.capabilities.ttl_slack).await;
        self.until(&format!("the lease on {key:?} ends by itself"), async || {
            self.lookup(key).await.is_none()
        })
        .await;
    }

    /// Asks until the answer is yes, for as long as patience lasts.
    pub(super) async fn until(&self, what: &str, mut happened: impl AsyncFnMut() -> bool) {
        let started = tokio::time::Instant::now();
        let mut pause = Duration::from_millis(1);
        while !happened().await {
            let waited = started.elapsed();
            assert!(waited < self.patience, "waited {waited:?} in vain until {what}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    pub(super) async fn attempt(
        &self,
        key: &Key,
        secret: &Secret,
        ttl: Duration,
    ) -> Result<Attempt, LockError> {
        attempt(&self.store, key, secret, ttl).await
    }

    /// Takes `key`, which must be free or `secret`'s own.
    pub(super) async fn granted(&self, key: &Key, secret: &Secret, ttl: Duration) -> Lease {
        granted(&self.store, key, secret, ttl).await
    }

    /// Takes `key` as somebody new.
    pub(super) async fn taken(&self, key: &Key, ttl: Duration) -> (Secret, Lease) {
        let secret = secret();
        let lease = self.granted(key, &secret, ttl).await;
        (secret, lease)
    }

    /// Tries `key` as somebody new, and must be refused.
    pub(super) async fn refused(&self, key: &Key) -> Busy {
        let stranger = secret();
        match self.attempt(key, &stranger, self.long()).await {
            Ok(Attempt::Busy(busy)) => busy,
            other => panic!("{key:?} is held: an attempt must be answered Busy, not {other:?}"),
        }
    }

    pub(super) async fn release(&self, key: &Key, secret: &Secret) -> Release {
        release(&self.store, key, secret).await
    }

    pub(super) async fn extend(&self, key: &Key, secret: &Secret, by: ExtendBy) -> Extension {
        extend(&self.store, key, secret, by).await
    }

    pub(super) async fn extended(&self, key: &Key, secret: &Secret, by: ExtendBy) -> Lease {
        match self.extend(key, secret, by).await {
            Extension::Extended(lease) => lease,
            other => panic!("{key:?} is ours: an extension by {by:?} must succeed, not {other:?}"),
        }
    }

    pub(super) async fn lookup(&self, key: &Key) -> Option<Holder> {
        Arc::clone(&self.store).lookup(key.clone()).await.unwrap()
    }

    /// `key` must be held by `secret` with `fence`, in the eyes of lookup, of extend, and of a
    /// stranger.
    pub(super) async fn must_be_held(&self, key: &Key, secret: &Secret, fence: Fence) {
        let shown = self.lookup(key).await;
        let shown = shown.unwrap_or_else(|| panic!("{key:?} is held, but lookup says it is free"));
        assert_eq!(shown.key, *key, "lookup must name the key it was asked for");
        self.must_show(&shown, fence);
        let lease = self.extended(key, secret, ExtendBy::AtLeast(Duration::ZERO)).await;
        assert_eq!(lease.fence, fence, "the fence of {key:?} must stay that of its grant");
        self.refused(key).await;
    }

    /// What a store tells of a holder must be true; a fence may be unknown only where nothing needs
    /// it.
    pub(super) fn must_show(&self, shown: &Holder, fence: Fence) {
        if shown.fence.is_some() || self.capabilities.force_release {
            assert_eq!(shown.fence, Some(fence), "wrong fence shown for {:?}", shown.key);
        }
    }

    /// Nobody may hold `key`, in the eyes of lookup and of somebody who takes it and gives it back.
    pub(super) async fn must_be_free(&self, key: &Key) {
        let shown = self.lookup(key).await;
        assert!(shown.is_none(), "{key:?} is free, but lookup shows {shown:?}");
        let (secret, _) = self.taken(key, self.long()).await;
        assert_eq!(self.release(key, &secret).await, Release::Released);
    }
}

pub(super) fn secret() -> Secret {
    Secret::generate().unwrap()
}

pub(super) async fn attempt(
    store: &Arc<dyn Backend>,
    key: &Key,
    secret: &Secret,
    ttl: Duration,
) -> Result<Attempt, LockError> {
    Arc::clone(store).acquire(AcquireRequest::new(key.clone(), secret.clone(), ttl)).await
}

pub(super) async fn granted(
    store: &Arc<dyn Backend>,
    key: &Key,
    secret: &Secret,
    ttl: Duration,
) -> Lease {
    match attempt(store, key, secret, ttl).await {
        Ok(Attempt::Granted(lease)) => lease,
        other => panic!("{key:?} is free or ours: an attempt must be granted, not {other:?}"),
    }
}

pub(super) async fn release(store: &Arc<dyn Backend>, key: &Key, secret: &Secret) -> Release {
    Arc::clone(store).release(key.clone(), secret.clone()).await.unwrap()
}

pub(super) async fn extend(
    store: &Arc<dyn Backend>,
    key: &Key,
    secret: &Secret,
    by: ExtendBy,
) -> Extension {
    let request = ExtendRequest::new(key.clone(), secret.clone(), by);
    let mut answers = Arc::clone(store).extend(vec![request]).await.unwrap();
    assert_eq!(answers.len(), 1, "one request must get one answer");
    answers.remove(0).unwrap()
}
