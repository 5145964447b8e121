//! Many processes, few keys: no update is lost, and fences rise in the order of grants.

#![cfg(unix)]

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

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
