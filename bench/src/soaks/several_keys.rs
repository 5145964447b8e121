//! Several keys at once, in bad weather and under kill -9, in one step and one by one side by side:
//! nobody ever has a key that somebody else has, and nobody waits for ever.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Builder, Capabilities, DistributedLock, ExtendRequest,
    Extension, Fence, Guarantees, Holder, Key, LockError, LockSet, MemoryStore, Release, Reply,
    Secret, Subscription, TokioClock, Transfer, TransferRequest,
};
use holdtight_file::{Config, FileStore};
use holdtight_testkit::Chaos;
use holdtight_testkit::servers::Directory;

use super::share;
use super::under_faults::{
    Claims, Crew, Rounds, TTL, WEATHER, Witness, badness, in_virtual_time, role, say_round,
};
use crate::Failure;

const ROUNDS: u64 = 10_000;
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Rounds under one seed, in one store.
const BATCH: u64 = 100;

const FOR_EVER: Duration = Duration::from_secs(3600);

/// Two to four keys, in any order.
fn some_keys(random: &mut fastrand::Rng) -> Vec<&'static str> {
    let mut keys = KEYS;
    random.shuffle(&mut keys);
    keys[..random.usize(2..=4)].to_vec()
}

pub(super) fn in_bad_weather(scale: f64) -> Result<String, Failure> {
    let rounds = share(ROUNDS, scale);
    in_virtual_time(async move |done| {
        let (mut seed, mut lost) = (0, 0);
        while done.count() < rounds {
            seed += 1;
            lost += batch(seed, done, (done.count() + BATCH).min(rounds))
                .await
                .map_err(|problem| format!("seed {seed}: {problem}"))?;
        }
        Ok(format!("{rounds} sets of {seed} seeds, {lost} lost a key, never one twice"))
    })
}

type Ledger = BTreeMap<&'static str, Claims>;

/// Lets five callers of three processes take sets until `until` rounds are done; how many sets lost
/// a key.
async fn batch(seed: u64, done: &Rounds, until: u64) -> Result<u64, Failure> {
    let clock = TokioClock::new();
    let chaos = Chaos::around(Arc::new(MemoryStore::with_clock(clock.clone())));
    chaos.random(seed, badness(seed), WEATHER);
    let ledger: Ledger = KEYS.iter().map(|key| (*key, Claims::default())).collect();
    let build = |store: Arc<dyn Backend>| {
        let builder = Builder::shared(store).clock(clock.clone());
        builder.ttl(TTL).step_timeout(Duration::from_millis(500)).build()
    };
    let locks = [
        build(Arc::clone(&chaos) as _)?,
        build(Arc::clone(&chaos) as _)?,
        build(Arc::new(OneByOne(Arc::clone(&chaos) as _)))?,
    ];
    let take = |lock, n| caller(lock, seed * 10 + n, &ledger, done, until);
    let (first, second, third, fourth, fifth) = tokio::join!(
        take(&locks[0], 1),
        take(&locks[0], 2),
        take(&locks[1], 3),
        take(&locks[2], 4),
        take(&locks[2], 5),
    );
    let lost = first? + second? + third? + fourth? + fifth?;
    chaos.heal();
    for lock in &locks {
        lock.shutdown_within(FOR_EVER).await?;
    }
    let left = locks[0].list("").await?;
    if left.is_empty() { Ok(lost) } else { Err(format!("left behind: {left:?}").into()) }
}

async fn caller(
    lock: &DistributedLock,
    seed: u64,
    ledger: &Ledger,
    done: &Rounds,
    until: u64,
) -> Result<u64, Failure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lost = 0;
    while done.count() < until {
        let keys = some_keys(&mut random);
        let patience = match random.u8(..4) {
            0 => Duration::from_millis(random.u64(..3_000)),
            _ => FOR_EVER,
        };
        let taking = lock.acquire_all(keys.clone()).wait_forever().into_future();
        let set = match tokio::time::timeout(patience, taking).await {
            Ok(Ok(set)) => set,
            Ok(Err(error)) if error.kind().is_transient() || is_lost(&error) => continue,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) if patience == FOR_EVER => {
                return Err(format!("{keys:?} cannot be had any more").into());
            }
            Err(_) => continue,
        };
        let claims = begin(&set, ledger, done)?;
        let work = tokio::time::sleep(Duration::from_millis(random.u64(..6_000)));
        let ended_by_loss = tokio::select! {
            _ = set.lost() => true,
            () = work => false,
        };
        lost += u64::from(ended_by_loss);
        for (claims, id) in claims {
            claims.end(id);
        }
        if random.bool() {
            drop(set);
        } else {
            // In this weather a release may fail; what counts is that the keys come free.
            let _ = set.release().await;
        }
    }
    Ok(lost)
}

/// A key that was taken first may be lost while the last one is waited for.
fn is_lost(error: &LockError) -> bool {
    error.kind() == holdtight_core::ErrorKind::Lost
}

fn begin<'a>(
    set: &LockSet,
    ledger: &'a Ledger,
    done: &Rounds,
) -> Result<Vec<(&'a Claims, u64)>, Failure> {
    let mut begun = Vec::new();
    for held in set.held() {
        let claims = ledger.get(held.key().as_str()).ok_or("a key that nobody asked for")?;
        // The set is one round, not each of its keys.
        let round = begun.is_empty().then_some(done);
        begun.push((claims, claims.begin(held, round)?));
    }
    Ok(begun)
}

pub(super) fn under_kills(scale: f64) -> Result<String, Failure> {
    if let Some((place, number)) = role() {
        return take_sets(&place, number);
    }
    let rounds = share(ROUNDS, scale);
    let place = Directory::new();
    let mut crew = Crew::start("several-keys-kills", place.path(), 4)?;
    let mut kills = 0;
    for _ in 0..rounds {
        crew.round()?;
        if fastrand::u8(..4) == 0 {
            crew.kill_one()?;
            kills += 1;
        }
    }
    Ok(format!("{rounds} sets, {kills} processes killed, never a key twice"))
}

/// One process that takes set after set until it is killed. Every other one takes its keys one by
/// one.
fn take_sets(place: &Path, number: u64) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Arc::new(FileStore::open(Config::new(place.join("locks"))).await?);
        let store: Arc<dyn Backend> =
            if number.is_multiple_of(2) { store } else { Arc::new(OneByOne(store)) };
        let lock = Builder::shared(store).build()?;
        let mut random = fastrand::Rng::new();
        loop {
            let set = lock.acquire_all(some_keys(&mut random)).wait_forever().await?;
            let notes = set
                .fences()
                .into_iter()
                .map(|(key, fence)| Witness::begin(&place.join(format!("holder-of-{key}")), fence));
            let notes = notes.collect::<Result<Vec<_>, _>>()?;
            say_round()?;
            tokio::time::sleep(Duration::from_micros(random.u64(..2_000))).await;
            set.check()?;
            notes.into_iter().try_for_each(Witness::end)?;
            if random.bool() {
                drop(set);
            } else {
                set.release().await?;
            }
        }
    })
}

/// A store that cannot take several keys in one step.
#[derive(Debug)]
struct OneByOne(Arc<dyn Backend>);

impl OneByOne {
    fn inner(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.0)
    }
}

impl Backend for OneByOne {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities().acquire_many(false)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        self.inner().acquire(request)
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        self.inner().release(key, secret)
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        self.inner().extend(leases)
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        self.inner().lookup(key)
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        self.inner().list(prefix, limit)
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        self.inner().subscribe(key)
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        self.inner().probe()
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        self.inner().transfer(request)
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        self.inner().force_release(key, fence)
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        self.0.release_now(key, secret)
    }
}
