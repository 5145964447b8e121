//! Nothing stays behind for ever, and nobody is harmed by what takes it away.

#![cfg(unix)]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend, DistributedLock, Key, Release, Secret};
use holdtight_file::{Config, FileStore};
use support::{Worker, block_on, hear, role, say, store};

/// All files and directories of a store.
fn footprint(place: &Path) -> usize {
    let count = |path: &Path| fs::read_dir(path).unwrap().count();
    let parts = fs::read_dir(place.join("keys")).unwrap();
    let keys: usize = parts.map(|part| 1 + count(&part.unwrap().path())).sum();
    keys + count(place) + count(&place.join("live")) + count(&place.join("new"))
}

#[test]
fn many_keys_used_once_leave_as_many_files_as_before() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let store = Arc::new(store(place.path()));
        let lock = DistributedLock::builder(store_of(place.path())).build().unwrap();
        drop(lock.acquire("first").await.unwrap());
        store.sweep(Duration::ZERO).unwrap();
        let before = footprint(place.path());
        for n in 0..5000 {
            lock.acquire(format!("key {n}")).await.unwrap().release().await.unwrap();
        }
        assert!(footprint(place.path()) > before + 4000);
        let swept = store.sweep(Duration::ZERO).unwrap();
        assert!(swept.complete && swept.kept == 0, "{swept:?}");
        assert_eq!(footprint(place.path()), before);
    });
}

fn store_of(place: &Path) -> FileStore {
    FileStore::open_blocking(Config::new(place)).unwrap()
}

#[test]
fn a_sweep_takes_no_key_that_is_held_waited_for_or_used_lately() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let store = Arc::new(store(place.path()));
        let held = acquire(&store, "held").await.unwrap();
        let late = acquire(&store, "used lately").await.unwrap();
        release(&store, &late).await;
        let waiter = Arc::clone(&store).subscribe(Key::new("waited for").unwrap()).await.unwrap();
        let swept = store.sweep(Duration::from_secs(60)).unwrap();
        assert_eq!((swept.removed, swept.kept), (0, 3));
        let swept = store.sweep(Duration::ZERO).unwrap();
        assert_eq!((swept.removed, swept.kept), (1, 2));
        drop(waiter);
        release(&store, &held).await;
        let swept = store.sweep(Duration::ZERO).unwrap();
        assert_eq!((swept.removed, swept.kept), (2, 0));
    });
}

#[test]
fn fences_go_on_rising_for_a_key_that_was_swept_away() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let store = Arc::new(store(place.path()));
        let mut last = 0;
        for _ in 0..20 {
            let (request, fence) = acquire_with_fence(&store, "k").await.unwrap();
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            release(&store, &request).await;
            assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 1);
        }
    });
}

#[test]
fn sweeps_in_the_midst_of_acquirers_cost_no_exclusion_and_no_fence() {
    let place = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let owner = std::sync::Mutex::new(());
    let last = std::sync::Mutex::new(0_u64);
    let removed = AtomicUsize::new(0);
    // However slow the sweep is: the two must have met.
    let met = || removed.load(Ordering::Relaxed) > 10;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let store = Arc::new(store(place.path()));
                    let mut grants = 0;
                    while grants < 1500 || !met() && grants < 200_000 {
                        let Some((request, fence)) = block_on(acquire_with_fence(&store, "k"))
                        else {
                            std::thread::yield_now();
                            continue;
                        };
                        let alone = owner.try_lock().expect("two holders at once");
                        let mut last = last.lock().unwrap();
                        assert!(fence > *last, "{fence} after {last}");
                        *last = fence;
                        drop((last, alone));
                        block_on(release(&store, &request));
                        grants += 1;
                    }
                })
            })
            .collect();
        let sweeper = scope.spawn(|| {
            let store = store(place.path());
            while !stop.load(Ordering::Relaxed) {
                let swept = store.sweep(Duration::ZERO).unwrap();
                removed.fetch_add(swept.removed, Ordering::Relaxed);
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        sweeper.join().unwrap();
        assert!(met(), "the sweep must have met the acquirers");
        for end in ended {
            end.unwrap();
        }
    });
}

#[test]
fn what_killed_processes_leave_is_buried_and_what_they_held_is_free() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    for _ in 0..3 {
        let mut worker = Worker::start("hold", place.path());
        worker.expect("held");
        worker.kill();
    }
    let mut living = Worker::start("hold", place.path());
    living.expect("held");
    let swept = store.sweep(Duration::ZERO).unwrap();
    assert_eq!((swept.removed, swept.kept, swept.buried), (3, 1, 3), "{swept:?}");
    // Its own file and its pipe.
    assert_eq!(fs::read_dir(place.path().join("live")).unwrap().count(), 2);
}

#[test]
fn who_has_the_old_file_of_a_swept_key_open_grants_nothing_by_it() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    let mut other = Worker::start("take and give back", place.path());
    let mut ask = |what| {
        other.tell(what);
        other.next().unwrap()
    };
    let mut last = 0;
    for _ in 0..20 {
        // From here on the other process has the file open, and knows what it says.
        let theirs: u64 = ask("take").parse().unwrap();
        assert!(theirs > last, "{theirs} after {last}");
        assert_eq!(ask("give back"), "given back");
        assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 1);
        let (mine, fence) = block_on(acquire_with_fence(&store, "k")).unwrap();
        assert!(fence > theirs, "{fence} after {theirs}");
        assert_eq!(ask("take"), "busy");
        block_on(release(&store, &mine));
        last = fence;
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    let store = Arc::new(store(&place));
    if role == "take and give back" {
        return take_and_give_back(&store);
    }
    block_on(async {
        let key = format!("key of {}", std::process::id());
        acquire(&store, &key).await.unwrap();
        say("held");
        hear();
    });
}

fn take_and_give_back(store: &Arc<FileStore>) {
    let mut held = None;
    while let Some(asked) = hear() {
        if asked == "take" {
            match block_on(acquire_with_fence(store, "k")) {
                Some((request, fence)) => {
                    held = Some(request);
                    say(fence);
                }
                None => say("busy"),
            }
        } else {
            block_on(release(store, &held.take().unwrap()));
            say("given back");
        }
    }
}

async fn acquire(store: &Arc<FileStore>, key: &str) -> Option<AcquireRequest> {
    acquire_with_fence(store, key).await.map(|(request, _)| request)
}

async fn acquire_with_fence(store: &Arc<FileStore>, key: &str) -> Option<(AcquireRequest, u64)> {
    let ttl = Duration::from_secs(600);
    let request = AcquireRequest::new(Key::new(key).unwrap(), Secret::generate().unwrap(), ttl);
    match Arc::clone(store).acquire(request.clone()).await.unwrap() {
        Attempt::Granted(lease) => Some((request, lease.fence.get())),
        _ => None,
    }
}

async fn release(store: &Arc<FileStore>, request: &AcquireRequest) {
    let (key, secret) = (request.key.clone(), request.secret.clone());
    assert_eq!(Arc::clone(store).release(key, secret).await.unwrap(), Release::Released);
}
