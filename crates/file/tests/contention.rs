//! Many processes, few keys: no update is lost, and fences rise in the order of grants.

#![cfg(unix)]

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use holdtight_core::{DistributedLock, RetryPolicy};
use support::{Worker, block_on, lock, role};

const PROCESSES: usize = 50;
const KEYS: usize = 4;
const ROUNDS: usize = 400;

#[test]
fn twenty_thousand_updates_by_fifty_processes_lose_none_and_fences_rise() {
    let (locks, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut workers: Vec<Worker> = (0..PROCESSES)
        .map(|_| {
            let place = place.path().to_str().unwrap();
            Worker::start_under(&[], "count", locks.path(), &[("PLACE", place)])
        })
        .collect();
    for worker in &mut workers {
        assert!(worker.done().success(), "a worker failed; see above");
    }
    let mut total = 0;
    for key in 0..KEYS {
        let count: usize = read(&place.path().join(format!("count-{key}"))).parse().unwrap();
        let fences = read(&place.path().join(format!("fences-{key}")));
        let fences: Vec<u64> = fences.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(fences.len(), count, "key {key}: an update was lost");
        assert!(fences.is_sorted_by(|one, next| one < next), "key {key}: fences must rise");
        total += count;
    }
    assert_eq!(total, PROCESSES * ROUNDS);
    // Nothing stays: one sweep takes the files of the keys, and what the processes left.
    let store = support::store(locks.path());
    let swept = store.sweep(Duration::ZERO).unwrap();
    assert_eq!((swept.removed, swept.kept), (KEYS, 0), "{swept:?}");
    for part in ["keys", "live", "new"] {
        assert_eq!(fs::read_dir(locks.path().join(part)).unwrap().count(), 0, "{part}");
    }
}

#[test]
fn any_number_of_waiters_is_woken_one_after_the_other_in_the_order_of_their_coming() {
    const WAITERS: usize = 100;
    let place = tempfile::tempdir().unwrap();
    let served = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    block_on(async {
        let open = || DistributedLock::builder(support::store(place.path()));
        let held = open().build().unwrap().acquire("k").await.unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for waiter in 0..WAITERS {
            // A store each, as if each were a process of its own. No timer rings: each one has to
            // be called.
            let lock = open().retry(RetryPolicy::fixed(Duration::from_secs(3600))).build().unwrap();
            let served = std::sync::Arc::clone(&served);
            waiters.spawn(async move {
                let handle = lock.acquire("k").wait(support::PATIENCE).await.unwrap();
                served.lock().unwrap().push(waiter);
                handle.release().await.unwrap();
            });
            // It comes to the line in the step that follows its pipe, and the next one has to make
            // a store first.
            let end = Instant::now() + support::PATIENCE;
            while support::waiting(place.path()) <= waiter {
                assert!(Instant::now() < end, "waiter {waiter} is not in the line");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        held.release().await.unwrap();
        while let Some(done) = waiters.join_next().await {
            done.unwrap();
        }
    });
    // A machine that is starved may let one come too late; most come in turn.
    let served = served.lock().unwrap();
    let in_turn = served.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(in_turn > WAITERS * 3 / 4, "{in_turn} of {WAITERS} in turn: {served:?}");
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((_, locks)) = role() else { return };
    let place = std::env::var_os("PLACE").unwrap();
    block_on(count(&locks, Path::new(&place)));
}

async fn count(locks: &Path, place: &Path) {
    let lock = lock(locks);
    let start = std::process::id() as usize;
    for round in 0..ROUNDS {
        let key = (start + round * 7) % KEYS;
        let handle = lock.acquire(format!("key {key}")).wait_forever().await.unwrap();
        let (count, fences) =
            (place.join(format!("count-{key}")), place.join(format!("fences-{key}")));
        let seen: usize = fs::read_to_string(&count).unwrap_or_default().parse().unwrap_or(0);
        let mut log = fs::File::options().create(true).append(true).open(fences).unwrap();
        writeln!(log, "{}", handle.fence()).unwrap();
        fs::write(&count, (seen + 1).to_string()).unwrap();
        handle.release().await.unwrap();
    }
    lock.shutdown().await.unwrap();
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
