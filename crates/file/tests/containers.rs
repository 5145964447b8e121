//! Containers that share the directory: other process ids, another boot clock, other users, a
//! made-up boot id. They exclude each other as processes of one machine do.

#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend, Holder, Key, Liveness, Release, Secret};
use holdtight_file::FileStore;
use support::{Worker, block_on, hear, role, say, store};

const TTL: Duration = Duration::from_secs(600);

/// Other pid, user and time namespaces, with a boot clock that is days ahead or minutes behind.
const AHEAD: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--time",
    "--boottime",
    "100000",
];
const BEHIND: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--time",
    "--fork",
    "--kill-child",
    "--boottime",
    "-60",
];

/// What LXC and systemd-nspawn do: a boot id of the container's own.
const OWN_BOOT_ID: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "cat /proc/sys/kernel/random/uuid > $HOLDTIGHT_FILE_TEST_DIRECTORY/boot-id-$$ && \
     mount --bind $HOLDTIGHT_FILE_TEST_DIRECTORY/boot-id-$$ /proc/sys/kernel/random/boot_id && \
     exec \"$0\" \"$@\"",
];

const CONTAINERS: [&[&str]; 3] = [AHEAD, BEHIND, OWN_BOOT_ID];

/// Whether such containers can be made here; says so if not.
fn possible(container: &[&str]) -> bool {
    let place = tempfile::tempdir().unwrap();
    let made = Command::new(container[0])
        .args(&container[1..])
        .arg("true")
        .env("HOLDTIGHT_FILE_TEST_DIRECTORY", place.path())
        .output();
    let possible = made.is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: this machine does not allow {container:?}");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must allow {container:?}");
    }
    possible
}

#[test]
fn what_is_held_outside_is_refused_inside() {
    for liveness in [Liveness::Process, Liveness::Lease] {
        for container in CONTAINERS.into_iter().filter(|container| possible(container)) {
            let place = tempfile::tempdir().unwrap();
            let store = Arc::new(store(place.path()));
            let held = request().liveness(liveness);
            assert!(granted(&store, &held));
            let mut worker = Worker::start_under(container, "try", place.path(), &[]);
            worker.expect("busy");
            let left: u64 = worker.next().unwrap().parse().unwrap();
            assert!((500..=600).contains(&left), "{container:?}: {left} s left");
            let (key, secret) = (held.key.clone(), held.secret.clone());
            let released = block_on(Arc::clone(&store).release(key, secret)).unwrap();
            assert_eq!(released, Release::Released);
            worker.tell("again");
            worker.expect("granted");
        }
    }
}

#[test]
fn what_is_held_inside_is_refused_outside_and_free_when_its_process_is_killed() {
    for container in CONTAINERS.into_iter().filter(|container| possible(container)) {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(store(place.path()));
        let mut worker = Worker::start_under(container, "hold", place.path(), &[]);
        worker.expect("granted");
        assert!(!granted(&store, &request()), "{container:?}");
        let left = holder(&store).unwrap().remaining.unwrap().as_secs();
        assert!((500..=600).contains(&left), "{container:?}: {left} s left");
        worker.kill();
        let started = std::time::Instant::now();
        while !granted(&store, &request()) {
            assert!(started.elapsed() < TTL / 10, "{container:?}: a dead process holds");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_lease_that_was_left_inside_ends_outside_at_its_time() {
    for container in CONTAINERS.into_iter().filter(|container| possible(container)) {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(store(place.path()));
        let mut worker = Worker::start_under(container, "leave a short lease", place.path(), &[]);
        worker.expect("granted");
        assert!(worker.done().success());
        let started = std::time::Instant::now();
        while !granted(&store, &request()) {
            assert!(started.elapsed() < Duration::from_secs(30), "{container:?}: it never ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_release_inside_wakes_a_waiter_outside() {
    for container in CONTAINERS.into_iter().filter(|container| possible(container)) {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(store(place.path()));
        let mut worker = Worker::start_under(container, "hold", place.path(), &[]);
        worker.expect("granted");
        block_on(async {
            let key = Key::new("k").unwrap();
            let mut waiter = Arc::clone(&store).subscribe(key).await.unwrap();
            worker.tell("release");
            tokio::time::timeout(support::PATIENCE, waiter.heard()).await.unwrap();
        });
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    match role.as_str() {
        "try" => attempt_twice(&place),
        "hold" => {
            let store = Arc::new(store(&place));
            let held = request();
            assert!(granted(&store, &held));
            say("granted");
            hear();
            block_on(store.release(held.key, held.secret)).unwrap();
        }
        "leave a short lease" => {
            let store = Arc::new(store(&place));
            let mut request = request().liveness(Liveness::Lease);
            request.ttl = Duration::from_millis(300);
            assert!(granted(&store, &request));
            say("granted");
        }
        other => panic!("no such role: {other}"),
    }
}

fn attempt_twice(place: &Path) {
    let store = Arc::new(store(place));
    let mine = request();
    say(if granted(&store, &mine) { "granted" } else { "busy" });
    say(holder(&store).and_then(|holder| holder.remaining).map_or(0, |left| left.as_secs()));
    hear();
    say(if granted(&store, &mine) { "granted" } else { "busy" });
}

fn request() -> AcquireRequest {
    AcquireRequest::new(Key::new("k").unwrap(), Secret::generate().unwrap(), TTL)
}

fn granted(store: &Arc<FileStore>, request: &AcquireRequest) -> bool {
    let attempt = block_on(Arc::clone(store).acquire(request.clone())).unwrap();
    matches!(attempt, Attempt::Granted(_))
}

fn holder(store: &Arc<FileStore>) -> Option<Holder> {
    block_on(Arc::clone(store).lookup(Key::new("k").unwrap())).unwrap()
}
