//! A process killed at every place where the store changes the disk: whatever it leaves, nobody
//! holds twice, nothing is stuck, and fences go on rising.

#![cfg(unix)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ExtendBy, ExtendRequest, Extension, Intent, Key, Lease,
    Liveness, LockToken, ManyAttempt, Release, Secret, Transfer, TransferRequest,
};
use holdtight_file::{Config, FileStore};
use support::{Ended, at_every_crash_point, block_on, role, run, run_until, say};

const BOOT: &str = "HOLDTIGHT_FILE_BOOT";
const TTL: Duration = Duration::from_secs(600);

/// Held by the test itself while workers die around it.
const FOREIGN: &str = "held by somebody else";

/// Keys that the worker takes, bound to its process.
const KEYS: [&str; 4] = ["one", "two", "three", "swept"];

#[test]
fn whatever_a_killed_process_leaves_nobody_holds_twice_and_fences_rise() {
    enumerate("live", false, |place| Config::new(place));
}

#[test]
fn the_same_in_a_store_that_others_use_and_have_died_in() {
    enumerate("live", true, |place| Config::new(place));
}

#[test]
fn the_same_with_every_step_synced() {
    enumerate("live-sync", true, |place| Config::new(place).sync(true));
}

/// Whatever a worker has done when it is killed, all is as it should be afterwards.
fn enumerate(role: &str, in_use: bool, config: impl Fn(&Path) -> Config) {
    at_every_crash_point(60, |crash_at| {
        let place = tempfile::tempdir().unwrap();
        let bystander = in_use.then(|| Bystander::new(config(place.path())));
        if in_use {
            // What a process leaves that died while it held nothing.
            std::fs::write(place.path().join("live").join("0".repeat(32)), b"").unwrap();
        }
        let worker = run_until(crash_at, role, place.path(), &[]);
        let mut last = Acknowledged::default();
        last.note_all(&worker);
        if let Some(bystander) = &bystander {
            bystander.must_hold(crash_at);
        }
        recovered(&config(place.path()), &last, crash_at);
        if let Some(bystander) = &bystander {
            bystander.must_hold(crash_at);
        }
        worker.status
    });
}

/// What a worker said before it died.
#[derive(Debug, Default)]
struct Acknowledged {
    /// The highest fence of each key.
    fences: [u64; KEYS.len()],
    /// A lock that may be detached from the dead process, and so be held still.
    detached: Option<LockToken>,
}

impl Acknowledged {
    fn note_all(&mut self, worker: &Ended) {
        for said in &worker.said {
            self.note(said);
        }
    }

    fn note(&mut self, said: &str) {
        let mut words = said.split(' ');
        if let (Some("fence"), Some(key), Some(fence)) = (words.next(), words.next(), words.next())
        {
            let nth = KEYS.iter().position(|name| *name == key).unwrap();
            let fence: u64 = fence.parse().unwrap();
            assert!(fence > self.fences[nth], "{key}: {fence} after {}", self.fences[nth]);
            self.fences[nth] = fence;
        }
        if let Some(token) = said.strip_prefix("detaching ") {
            self.detached = Some(token.parse().unwrap());
        }
    }
}

/// Every key that the dead process held is free at once, with a higher fence, and held once.
fn recovered(config: &Config, last: &Acknowledged, crash_at: u64) {
    block_on(async {
        let open = || Arc::new(FileStore::open_blocking(config.clone()).unwrap());
        let (store, rival) = (open(), open());
        if let Some(token) = last.detached.clone() {
            let (key, secret) = (token.key().clone(), token.secret().clone());
            Arc::clone(&store).release(key, secret).await.unwrap();
        }
        for (key, before) in KEYS.iter().zip(last.fences) {
            let (mine, theirs) = (request(key), request(key));
            let lease = granted(&store, mine.clone())
                .await
                .unwrap_or_else(|| panic!("crash point {crash_at}: {key} is stuck"));
            assert!(lease.fence.get() > before, "crash point {crash_at}: {key} repeats a fence");
            assert!(granted(&rival, theirs).await.is_none(), "crash point {crash_at}: {key} twice");
            let released = Arc::clone(&store).release(mine.key, mine.secret).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        // Nothing stays: what the dead one left unfinished goes with the next sweep.
        drop(rival);
        let swept = store.sweep(Duration::ZERO).unwrap();
        assert!(swept.complete, "crash point {crash_at}: {swept:?}");
        let unfinished = std::fs::read_dir(config.directory().join("new")).unwrap().count();
        assert_eq!(unfinished, 0, "crash point {crash_at}");
        let probe = Arc::clone(&store).probe().await.unwrap();
        assert!(probe.level() < holdtight_core::Level::Unsafe);
    });
}

/// A lock that is held all the time by a living process: the test.
struct Bystander {
    store: Arc<FileStore>,
    request: AcquireRequest,
    fence: u64,
}

impl Bystander {
    fn new(config: Config) -> Self {
        let store = Arc::new(FileStore::open_blocking(config).unwrap());
        let request = request(FOREIGN);
        let lease = block_on(granted(&store, request.clone())).unwrap();
        Self { store, request, fence: lease.fence.get() }
    }

    fn must_hold(&self, crash_at: u64) {
        let ask = ExtendRequest::new(
            self.request.key.clone(),
            self.request.secret.clone(),
            ExtendBy::AtLeast(Duration::ZERO),
        );
        let mut answers = block_on(Arc::clone(&self.store).extend(vec![ask])).unwrap();
        match answers.pop().unwrap().unwrap() {
            Extension::Extended(lease) => assert_eq!(lease.fence.get(), self.fence),
            other => panic!("crash point {crash_at}: a bystander lost its lock: {other:?}"),
        }
    }
}

#[test]
fn a_reboot_voids_all_leases_at_once_and_a_crash_while_clearing_them_is_made_good() {
    at_every_crash_point(10, |crash_at| {
        let place = tempfile::tempdir().unwrap();
        let mut fences = Acknowledged::default();
        for role in ["before the reboot", "power cut"] {
            let worker = run(role, place.path(), &[(BOOT, "1")]);
            fences.note_all(&worker);
            assert!(worker.status.success());
        }
        let first = run_until(crash_at, "after the reboot", place.path(), &[(BOOT, "2")]);
        fences.note_all(&first);
        let second = run("after the reboot", place.path(), &[(BOOT, "2")]);
        fences.note_all(&second);
        assert!(second.status.success(), "crash point {crash_at}");
        first.status
    });
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    match role.as_str() {
        "before the reboot" => return block_on(before_the_reboot(&place)),
        "power cut" => return cut_the_power(&place),
        "after the reboot" => return block_on(after_the_reboot(&place)),
        _ => {}
    }
    let config = Config::new(place).sync(role == "live-sync");
    block_on(live(config));
}

/// Does everything that a store can do, and says every fence before it goes on.
async fn live(config: Config) {
    let store = Arc::new(FileStore::open(config).await.unwrap());
    assert!(granted_to(&store, FOREIGN).await.is_none_or(|lease| lease.fence.get() > 0));

    let one = request("one");
    say_fence("one", granted(&store, one.clone()).await.unwrap());
    let next = request("one");
    let moved = Arc::clone(&store).transfer(TransferRequest::new(one.secret, next.clone()));
    let Transfer::Transferred(lease) = moved.await.unwrap() else { panic!("not transferred") };
    say_fence("one", lease);

    let listening = Arc::clone(&store).subscribe(next.key.clone()).await.unwrap();
    assert!(granted(&store, request("one").intent(Intent::Queue)).await.is_none());
    let longer = ExtendBy::AtLeast(TTL * 2);
    let extend = ExtendRequest::new(next.key.clone(), next.secret.clone(), longer);
    let extended = Arc::clone(&store).extend(vec![extend]).await.unwrap().pop().unwrap().unwrap();
    assert!(matches!(extended, Extension::Extended(_)));
    let released = Arc::clone(&store).release(next.key.clone(), next.secret).await.unwrap();
    assert_eq!(released, Release::Released);
    drop(listening);
    say_fence("one", granted_to(&store, "one").await.unwrap());

    let both = vec![request("two"), request("three")];
    let all = Arc::clone(&store).acquire_many(both.clone()).await.unwrap();
    let ManyAttempt::Granted(leases) = all else { panic!("not granted: {all:?}") };
    say_fence("two", leases[0]);
    say_fence("three", leases[1]);
    let two = &both[0];
    say(format!("detaching {}", LockToken::new(two.key.clone(), two.secret.clone()).expose()));
    let loose = Arc::clone(&store).detach(two.key.clone(), two.secret.clone(), TTL).await.unwrap();
    assert!(matches!(loose, Extension::Extended(_)));
    let resumed = TransferRequest::new(two.secret.clone(), request("two"));
    let bound = Arc::clone(&store).transfer(resumed).await.unwrap();
    let Transfer::Transferred(lease) = bound else { panic!("not resumed") };
    say_fence("two", lease);
    let forced = Arc::clone(&store).force_release(both[1].key.clone(), leases[1].fence).await;
    assert_eq!(forced.unwrap(), Release::Released);

    // A key that is swept away and comes again.
    for _ in 0..2 {
        let swept = request("swept");
        say_fence("swept", granted(&store, swept.clone()).await.unwrap());
        let released = Arc::clone(&store).release(swept.key, swept.secret).await.unwrap();
        assert_eq!(released, Release::Released);
        store.sweep(Duration::ZERO).unwrap();
    }
}

/// Leaves leases that would last for long.
async fn before_the_reboot(place: &Path) {
    let store = Arc::new(FileStore::open(Config::new(place)).await.unwrap());
    for key in KEYS {
        let request = request(key).liveness(Liveness::Lease);
        say_fence(key, granted(&store, request).await.unwrap());
    }
}

/// What a power cut leaves of files that were never synced: nothing, or a part.
fn cut_the_power(place: &Path) {
    let empty = place.join("keys").join("00");
    let _ = std::fs::create_dir(&empty);
    std::fs::write(empty.join("0".repeat(62)), b"").unwrap();
    std::fs::write(empty.join("1".repeat(62)), b"HTky\x01\x00").unwrap();
}

/// Everything is free, and every fence is higher than before.
async fn after_the_reboot(place: &Path) {
    let store = Arc::new(FileStore::open(Config::new(place)).await.unwrap());
    for key in KEYS {
        say_fence(key, granted_to(&store, key).await.expect("a lease of the last boot is void"));
    }
    assert!(!place.join("keys/00").join("0".repeat(62)).exists());
}

fn say_fence(key: &str, lease: Lease) {
    say(format!("fence {key} {}", lease.fence));
}

fn request(key: &str) -> AcquireRequest {
    AcquireRequest::new(Key::new(key).unwrap(), Secret::generate().unwrap(), TTL)
}

async fn granted(store: &Arc<FileStore>, request: AcquireRequest) -> Option<Lease> {
    match Arc::clone(store).acquire(request).await.unwrap() {
        Attempt::Granted(lease) => Some(lease),
        _ => None,
    }
}

async fn granted_to(store: &Arc<FileStore>, key: &str) -> Option<Lease> {
    granted(store, request(key)).await
}
