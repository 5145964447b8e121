//! A small store that keeps the whole contract, and breaks one point of it for each [`Flaw`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Bell, Busy, Capabilities, Clock as _, ExtendBy,
    ExtendRequest, Extension, Fence, Guarantees, Holder, Key, Lease, LockError, MAX_TTL,
    ManualClock, ManyAttempt, Moment, Owner, Release, Reply, Secret, Subscription, Transfer,
    TransferRequest, WakeUps,
};

/// What is wrong with a store. Each was a bug of some real one, or could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    ReleaseWithoutCompare,
    ReleaseFreesAllKeysOfTheOwner,
    ReleaseIsAlwaysReleased,
    ReleaseOfExpiredIsReleased,
    ReleaseNowOnlySaysSo,
    SecretsComparedByPrefix,
    SecretsComparedWithoutCase,
    ExtendWithoutCompare,
    ExtendRevives,
    ExtendShortens,
    ExtendDoesNothing,
    ExtendMintsAFence,
    AddCountsFromNow,
    AddHasNoEnd,
    ZeroExtends,
    BatchIsReversed,
    BatchIsAllOrNothing,
    FenceIsConstant,
    FenceFalls,
    FenceRestartsAfterRelease,
    FenceRestartsAfterExpiry,
    FenceMintedBeforeTheStep,
    RetryIsBusy,
    RetryMintsAFence,
    RetryShortens,
    RetryRevivesTheOldFence,
    BusyOverwrites,
    BusyMintsAFence,
    BusyLengthens,
    BusyIsAnError,
    BusyNamesAnotherKey,
    LeaseNeverEnds,
    LeaseEndsEarly,
    LeaseIsLongerThanSaid,
    GetThenSet,
    KeysIgnoreCase,
    KeysAreCut,
    KeysAreTrimmed,
    LookupShowsExpired,
    LookupShowsAWrongFence,
    LookupShowsTheLastAsker,
    LookupShowsTheSecret,
    LookupFrees,
    ListIgnoresThePrefix,
    ListTakesPatterns,
    ListIgnoresTheLimit,
    ListShowsExpired,
    ListIsOnePage,
    TransferWithoutCompare,
    TransferKeepsTheFence,
    TransferKeepsTheLease,
    TransferRevives,
    TransferCannotBeRepeated,
    TransferIsGivenAway,
    TransferLeavesTheOldSecretGood,
    ManyTakesSome,
    ManyIsNotIdempotent,
    ManyNamesAWrongKey,
    ForceIgnoresTheFence,
    ForceLowersTheFence,
    DetachWithoutCompare,
    DetachRevives,
    WakesNobody,
    WakesWhoLeft,
    CallsDoNotEnd,
    BreaksWhenDropped,
    CapabilitiesChange,
    ProbeTakesALock,
}

pub(crate) struct Flawed {
    flaw: Flaw,
    clock: ManualClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<Key, Record>,
    bells: BTreeMap<Key, Vec<Bell>>,
    /// Who had a lock before the one who got it by a transfer.
    former: BTreeMap<Key, Vec<Secret>>,
    last: u64,
    asked: u64,
}

#[derive(Clone)]
struct Record {
    secret: Secret,
    fence: Fence,
    owner: Arc<Owner>,
    granted_at: Moment,
    ends_at: Moment,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw, clock: ManualClock) -> Self {
        Self { flaw, clock, state: Mutex::default() }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn name(&self, key: &Key) -> Key {
        let text = key.as_str();
        let changed = match self.flaw {
            Flaw::KeysIgnoreCase => text.to_lowercase(),
            Flaw::KeysAreCut => text.chars().take(250).collect(),
            Flaw::KeysAreTrimmed => format!("{}.", text.trim()),
            _ => return key.clone(),
        };
        Key::new(&changed).unwrap()
    }

    fn same(&self, one: &Secret, two: &Secret) -> bool {
        let (one, two) = (one.expose(), two.expose());
        match self.flaw {
            Flaw::SecretsComparedByPrefix => one.starts_with(two) || two.starts_with(one),
            Flaw::SecretsComparedWithoutCase => one.eq_ignore_ascii_case(two),
            _ => one == two,
        }
    }

    fn is_over(&self, record: &Record, now: Moment) -> bool {
        let end = if self.has(Flaw::LeaseEndsEarly) {
            record.granted_at.after(record.ends_at.since(record.granted_at) / 2)
        } else if self.has(Flaw::LeaseIsLongerThanSaid) {
            record.ends_at.after(Duration::from_secs(3600))
        } else {
            record.ends_at
        };
        !self.has(Flaw::LeaseNeverEnds) && end <= now
    }

    fn live<'a>(&self, state: &'a State, key: &Key, now: Moment) -> Option<&'a Record> {
        state.records.get(key).filter(|record| !self.is_over(record, now))
    }

    fn owned(&self, state: &State, key: &Key, secret: &Secret, now: Moment) -> bool {
        self.live(state, key, now).is_some_and(|record| self.same(&record.secret, secret))
    }

    fn mint(&self, state: &mut State, key: &Key, now: Moment) -> Fence {
        state.asked += 1;
        match self.flaw {
            Flaw::FenceIsConstant => return Fence::new(7),
            Flaw::FenceFalls => return Fence::new(1_000_000 - state.asked),
            Flaw::FenceRestartsAfterExpiry if state.records.contains_key(key) => state.last = 0,
            _ => {}
        }
        let _ = now;
        state.last += 1;
        Fence::new(state.last)
    }

    fn grant(&self, state: &mut State, request: &AcquireRequest, now: Moment) -> Lease {
        let key = self.name(&request.key);
        let fence = match state.records.get(&key) {
            Some(old)
                if self.has(Flaw::RetryRevivesTheOldFence) && old.secret == request.secret =>
            {
                old.fence
            }
            _ => self.mint(state, &key, now),
        };
        let record = Record {
            secret: request.secret.clone(),
            fence,
            owner: Arc::clone(&request.owner),
            granted_at: now,
            ends_at: now.after(request.ttl),
        };
        state.records.insert(key, record);
        Lease::new(fence, request.ttl)
    }

    fn holder(&self, key: &Key, record: &Record, now: Moment) -> Holder {
        let fence = if self.has(Flaw::LookupShowsAWrongFence) {
            record.fence.get() + 1
        } else {
            record.fence.get()
        };
        let owner = if self.has(Flaw::LookupShowsTheSecret) {
            Owner::unknown().with_reason(record.secret.expose())
        } else {
            (*record.owner).clone()
        };
        Holder::of(key.clone())
            .fence(Fence::new(fence))
            .owner(owner)
            .age(now.since(record.granted_at))
            .remaining(record.ends_at.since(now))
    }

    fn attempt(
        &self,
        state: &mut State,
        request: &AcquireRequest,
        now: Moment,
    ) -> Result<Attempt, LockError> {
        let key = self.name(&request.key);
        if self.owned(state, &key, &request.secret, now) && !self.has(Flaw::RetryIsBusy) {
            let minted = self.has(Flaw::RetryMintsAFence).then(|| self.mint(state, &key, now));
            let record = state.records.get_mut(&key).unwrap();
            record.fence = minted.unwrap_or(record.fence);
            let end = now.after(request.ttl);
            record.ends_at =
                if self.has(Flaw::RetryShortens) { end } else { record.ends_at.max(end) };
            return Ok(Attempt::Granted(Lease::new(record.fence, record.ends_at.since(now))));
        }
        if self.live(state, &key, now).is_none() {
            return Ok(Attempt::Granted(self.grant(state, request, now)));
        }
        let minted = self.has(Flaw::BusyMintsAFence).then(|| self.mint(state, &key, now));
        let record = state.records.get_mut(&key).unwrap();
        match self.flaw {
            Flaw::BusyOverwrites => record.secret = request.secret.clone(),
            Flaw::BusyLengthens => record.ends_at = record.ends_at.max(now.after(request.ttl)),
            Flaw::LookupShowsTheLastAsker => {
                record.owner = Arc::new(Owner::unknown().with_reason("asker"));
            }
            Flaw::BusyIsAnError => return Err(LockError::unavailable("busy")),
            _ => record.fence = minted.unwrap_or(record.fence),
        }
        let named = if self.has(Flaw::BusyNamesAnotherKey) {
            Key::new("another").unwrap()
        } else {
            request.key.clone()
        };
        Ok(Attempt::Busy(Busy::held_by(self.holder(&named, &record.clone(), now))))
    }

    fn free(&self, state: &mut State, key: &Key) {
        let gone = state.records.remove(key);
        if self.has(Flaw::FenceRestartsAfterRelease) {
            state.last = 0;
        }
        if let Some(gone) = gone.filter(|_| self.has(Flaw::ReleaseFreesAllKeysOfTheOwner)) {
            state.records.retain(|_, record| record.secret != gone.secret);
        }
        let bells = state.bells.entry(key.clone()).or_default();
        if !self.has(Flaw::WakesWhoLeft) {
            bells.retain(|bell| !bell.is_abandoned());
        }
        if let Some(bell) = bells.first().filter(|_| !self.has(Flaw::WakesNobody)) {
            bell.ring();
        }
    }

    fn give_back(&self, key: &Key, secret: &Secret) -> Release {
        let (mut state, now, key) = (self.state.lock().unwrap(), self.clock.now(), self.name(key));
        let expired =
            state.records.get(&key).is_some_and(|record| self.same(&record.secret, secret));
        let may = self.owned(&state, &key, secret, now)
            || self.has(Flaw::ReleaseWithoutCompare) && self.live(&state, &key, now).is_some()
            || self.has(Flaw::ReleaseOfExpiredIsReleased) && expired;
        if may {
            self.free(&mut state, &key);
        }
        if may || self.has(Flaw::ReleaseIsAlwaysReleased) {
            Release::Released
        } else {
            Release::NotHeld
        }
    }

    fn extend_one(&self, request: &ExtendRequest) -> Extension {
        let (mut state, now, key) =
            (self.state.lock().unwrap(), self.clock.now(), self.name(&request.key));
        let ours = state
            .records
            .get(&key)
            .is_some_and(|record| self.same(&record.secret, &request.secret));
        let live = self.live(&state, &key, now).is_some();
        let may = ours && (live || self.has(Flaw::ExtendRevives))
            || live && self.has(Flaw::ExtendWithoutCompare);
        if !may {
            return Extension::NotHeld;
        }
        let minted = self.has(Flaw::ExtendMintsAFence).then(|| self.mint(&mut state, &key, now));
        let record = state.records.get_mut(&key).unwrap();
        record.fence = minted.unwrap_or(record.fence);
        let end = match request.by {
            ExtendBy::AtLeast(ttl) if self.has(Flaw::ZeroExtends) => {
                now.after(ttl.max(Duration::from_secs(300)))
            }
            ExtendBy::AtLeast(ttl) => now.after(ttl),
            ExtendBy::Add(extra) if self.has(Flaw::AddCountsFromNow) => now.after(extra),
            ExtendBy::Add(extra) if self.has(Flaw::AddHasNoEnd) => record.ends_at.after(extra),
            ExtendBy::Add(extra) => record.ends_at.after(extra).min(now.after(MAX_TTL)),
            _ => now,
        };
        match self.flaw {
            Flaw::ExtendShortens => record.ends_at = end,
            Flaw::ExtendDoesNothing => {}
            _ => record.ends_at = record.ends_at.max(end),
        }
        let left = if self.has(Flaw::ExtendDoesNothing) { end } else { record.ends_at };
        Extension::Extended(Lease::new(record.fence, left.since(now)))
    }

    fn find(&self, key: &Key) -> Option<Holder> {
        let (mut state, now, name) = (self.state.lock().unwrap(), self.clock.now(), self.name(key));
        let found = if self.has(Flaw::LookupShowsExpired) {
            state.records.get(&name)
        } else {
            self.live(&state, &name, now)
        };
        let found = found.map(|record| self.holder(key, record, now));
        if self.has(Flaw::LookupFrees) {
            state.records.remove(&name);
        }
        found
    }
}

/// An answer after a moment: real stores are not ready at once.
fn soon<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LockError> + Send + 'static,
) -> Reply<T> {
    Box::pin(async move {
        tokio::task::yield_now().await;
        work()
    })
}

impl Backend for Flawed {
    fn capabilities(&self) -> Capabilities {
        let mut state = self.state.lock().unwrap();
        state.asked += 1;
        let batch = if self.has(Flaw::CapabilitiesChange) {
            usize::try_from(state.asked).unwrap()
        } else {
            64
        };
        Capabilities::new("flawed")
            .wake_ups(WakeUps::Standing)
            .transfer(true)
            .acquire_many(true)
            .force_release(true)
            .max_batch(batch)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        match self.flaw {
            Flaw::CallsDoNotEnd => return Box::pin(std::future::pending()),
            Flaw::GetThenSet => {
                return Box::pin(async move {
                    let now = self.clock.now();
                    let free = self.live(&self.state.lock().unwrap(), &request.key, now).is_none();
                    tokio::task::yield_now().await;
                    let mut state = self.state.lock().unwrap();
                    if free {
                        return Ok(Attempt::Granted(self.grant(&mut state, &request, now)));
                    }
                    self.attempt(&mut state, &request, now)
                });
            }
            Flaw::FenceMintedBeforeTheStep => {
                return Box::pin(async move {
                    let (now, key) = (self.clock.now(), request.key.clone());
                    let fence = self.mint(&mut self.state.lock().unwrap(), &key, now);
                    for _ in 0..fastrand::u32(0..4) {
                        tokio::task::yield_now().await;
                    }
                    let mut state = self.state.lock().unwrap();
                    let held = self.live(&state, &key, now).is_some();
                    let answer = self.attempt(&mut state, &request, now)?;
                    if let (false, Attempt::Granted(lease)) = (held, &answer) {
                        state.records.get_mut(&key).unwrap().fence = fence;
                        return Ok(Attempt::Granted(Lease::new(fence, lease.ttl)));
                    }
                    Ok(answer)
                });
            }
            _ => {}
        }
        let broken = BreaksOnDrop(self.has(Flaw::BreaksWhenDropped).then(|| Arc::clone(&self)));
        Box::pin(async move {
            let mut broken = broken;
            tokio::task::yield_now().await;
            let answer = {
                let mut state = self.state.lock().unwrap();
                if state.asked == u64::MAX {
                    Err(LockError::internal("the connection is broken"))
                } else {
                    self.attempt(&mut state, &request, self.clock.now())
                }
            };
            broken.0 = None;
            answer
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        soon(move || Ok(self.give_back(&key, &secret)))
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        if self.has(Flaw::ReleaseNowOnlySaysSo) {
            let now = self.clock.now();
            let ours = self.owned(&self.state.lock().unwrap(), key, secret, now);
            return Some(Ok(if ours { Release::Released } else { Release::NotHeld }));
        }
        Some(Ok(self.give_back(key, secret)))
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        soon(move || {
            let mut answers: Vec<_> = leases.iter().map(|lease| self.extend_one(lease)).collect();
            if self.has(Flaw::BatchIsReversed) {
                answers.reverse();
            }
            if self.has(Flaw::BatchIsAllOrNothing) && answers.contains(&Extension::NotHeld) {
                answers.fill(Extension::NotHeld);
            }
            Ok(answers.into_iter().map(Ok).collect())
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        soon(move || Ok(self.find(&key)))
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        soon(move || {
            let (state, now) = (self.state.lock().unwrap(), self.clock.now());
            let fits = |key: &Key| match self.flaw {
                Flaw::ListIgnoresThePrefix => true,
                Flaw::ListTakesPatterns if prefix.ends_with('*') => {
                    key.as_str().starts_with(prefix.trim_end_matches('*'))
                }
                _ => key.as_str().starts_with(&prefix),
            };
            let limit = match self.flaw {
                Flaw::ListIgnoresTheLimit => usize::MAX,
                Flaw::ListIsOnePage => limit.min(100),
                _ => limit,
            };
            let found = state.records.iter().filter(|(key, record)| {
                fits(key) && (!self.is_over(record, now) || self.has(Flaw::ListShowsExpired))
            });
            Ok(found.take(limit).map(|(key, record)| self.holder(key, record, now)).collect())
        })
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        soon(move || {
            let (bell, subscription) = Subscription::channel();
            self.state.lock().unwrap().bells.entry(key).or_default().push(bell);
            Ok(subscription)
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        soon(move || {
            if self.has(Flaw::ProbeTakesALock) {
                self.state.lock().unwrap().records.clear();
            }
            Ok(Guarantees::new("flawed", Vec::new()))
        })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        soon(move || {
            let (mut state, now) = (self.state.lock().unwrap(), self.clock.now());
            let key = self.name(&request.to.key);
            let arrived = self.owned(&state, &key, &request.to.secret, now);
            if arrived && !self.has(Flaw::TransferCannotBeRepeated) {
                let record = state.records.get_mut(&key).unwrap();
                record.ends_at = record.ends_at.max(now.after(request.to.ttl));
                let lease = Lease::new(record.fence, record.ends_at.since(now));
                return Ok(Transfer::Transferred(lease));
            }
            let old = state.records.get(&key).cloned();
            let live = self.live(&state, &key, now).is_some();
            let former = self.has(Flaw::TransferLeavesTheOldSecretGood)
                && state.former.get(&key).is_some_and(|former| former.contains(&request.from));
            let ours =
                former || old.as_ref().is_some_and(|old| self.same(&old.secret, &request.from));
            let may = ours && (live || self.has(Flaw::TransferRevives))
                || live && self.has(Flaw::TransferWithoutCompare);
            let Some(old) = old.filter(|_| may) else { return Ok(Transfer::NotHeld) };
            let mut lease = self.grant(&mut state, &request.to, now);
            let record = state.records.get_mut(&key).unwrap();
            if self.has(Flaw::TransferKeepsTheFence) {
                record.fence = old.fence;
                lease = Lease::new(old.fence, lease.ttl);
            }
            if self.has(Flaw::TransferKeepsTheLease) {
                record.ends_at = old.ends_at;
            }
            state.former.entry(key.clone()).or_default().push(request.from.clone());
            // As if whoever handed it over did not know that it had arrived.
            if self.has(Flaw::TransferIsGivenAway) && lease.fence.get().is_multiple_of(5) {
                self.free(&mut state, &key);
            }
            Ok(Transfer::Transferred(lease))
        })
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        soon(move || {
            let (mut state, now) = (self.state.lock().unwrap(), self.clock.now());
            let before = state.records.clone();
            let mut leases = Vec::new();
            for request in &requests {
                let ours = self.owned(&state, &request.key, &request.secret, now);
                if ours && self.has(Flaw::ManyIsNotIdempotent) {
                    state.records.remove(&request.key);
                }
                match self.attempt(&mut state, request, now)? {
                    Attempt::Granted(lease) => leases.push(lease),
                    Attempt::Busy(busy) => {
                        if !self.has(Flaw::ManyTakesSome) {
                            state.records = before;
                        }
                        let wrong = self.has(Flaw::ManyNamesAWrongKey);
                        let named = if wrong { &requests[0].key } else { &request.key };
                        return Ok(ManyAttempt::Busy(named.clone(), busy));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Ok(ManyAttempt::Granted(leases))
        })
    }

    fn detach(self: Arc<Self>, key: Key, secret: Secret, ttl: Duration) -> Reply<Extension> {
        soon(move || {
            if self.has(Flaw::DetachRevives) {
                let now = self.clock.now();
                if let Some(record) = self.state.lock().unwrap().records.get_mut(&key) {
                    record.ends_at = record.ends_at.max(now.after(ttl));
                }
            }
            let held_by =
                self.state.lock().unwrap().records.get(&key).map(|record| record.secret.clone());
            let secret = held_by.filter(|_| self.has(Flaw::DetachWithoutCompare)).unwrap_or(secret);
            Ok(self.extend_one(&ExtendRequest::new(key, secret, ExtendBy::AtLeast(ttl))))
        })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        soon(move || {
            let (mut state, now) = (self.state.lock().unwrap(), self.clock.now());
            let right = self.live(&state, &key, now).is_some_and(|record| {
                record.fence == fence || self.has(Flaw::ForceIgnoresTheFence)
            });
            if !right {
                return Ok(Release::NotHeld);
            }
            self.free(&mut state, &key);
            if self.has(Flaw::ForceLowersTheFence) {
                state.last = 0;
            }
            Ok(Release::Released)
        })
    }
}

/// A connection that is out of step for good once a call on it was dropped half way.
struct BreaksOnDrop(Option<Arc<Flawed>>);

impl Drop for BreaksOnDrop {
    fn drop(&mut self) {
        if let Some(store) = self.0.take() {
            store.state.lock().unwrap().asked = u64::MAX;
        }
    }
}

impl fmt::Debug for Flawed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flawed").field(&self.flaw).finish()
    }
}
