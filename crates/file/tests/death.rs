//! Holders that die, hang or leave children behind: who gets the lock then, and what the old holder
//! learns.

#![cfg(unix)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use holdtight_core::{
    AcquireRequest, Backend as _, DistributedLock, ErrorKind, ExtendBy, ExtendRequest, Extension,
    Key, Liveness, RetryPolicy, Secret,
};
use rustix::process::Signal;
use support::{PATIENCE, Worker, block_on, hear, lock, role, say};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_waiter_replaces_a_killed_holder_long_before_its_lease_ends() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("hold", place.path());
    holder.expect("held");
    block_on(async {
        let lock = lock(place.path());
        assert!(lock.try_acquire("k").await.unwrap().is_none());
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire("k").wait(MINUTE).await }
        });
        // It hangs in its wait by now, or will find the holder dead: both must work.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let killed = Instant::now();
        holder.kill();
        let handle = waiter.await.unwrap().unwrap();
        assert!(killed.elapsed() < MINUTE / 4, "took {:?}", killed.elapsed());
        handle.release().await.unwrap();
    });
}

#[test]
fn the_death_of_a_holder_is_heard_and_not_asked_for() {
    let place = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let mut holder = Worker::start("hold", place.path());
        holder.expect("held");
        block_on(async {
            let config = holdtight_file::Config::new(place.path());
            let store = holdtight_file::FileStore::open(config).await.unwrap();
            // Its timer never rings.
            let lock = DistributedLock::builder(store).retry(RetryPolicy::fixed(60 * MINUTE));
            let lock = lock.build().unwrap();
            let waiter = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire("k").wait(MINUTE).await }
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!waiter.is_finished());
            // Not waited for: the waiter may be awake before all of the holder is gone.
            holder.signal(Signal::KILL);
            let heard = tokio::time::timeout(MINUTE / 4, waiter).await;
            let heard = heard.unwrap_or_else(|_| panic!("round {round}: nothing was heard"));
            heard.unwrap().unwrap().release().await.unwrap();
        });
    }
}

#[test]
fn a_child_of_the_holder_does_not_keep_its_lock() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("hold-with-child", place.path());
    let child = holder.next().unwrap();
    holder.expect("held");
    let child: i32 = child.strip_prefix("child ").unwrap().parse().unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    holder.kill();
    block_on(async {
        let started = Instant::now();
        let handle = lock(place.path()).acquire("k").wait(MINUTE).await.unwrap();
        assert!(started.elapsed() < MINUTE / 4, "took {:?}", started.elapsed());
        assert!(rustix::process::test_kill_process(child).is_ok(), "the child must live still");
        drop(handle);
    });
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

/// What a forked child has of its parent: the same open files, of those by which a process shows
/// that it lives.
#[cfg(target_os = "linux")]
fn as_a_forked_child_of(holder: &Worker) -> Vec<std::os::fd::OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let pid = i32::try_from(holder.pid()).unwrap();
    let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    let mut copies = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        if std::fs::read_link(&path).is_ok_and(|to| to.to_str().unwrap().contains("/live/")) {
            let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            copies.push(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).unwrap());
        }
    }
    assert_eq!(copies.len(), 2, "the lock and the pipe");
    copies
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_of_a_killed_holder_does_not_keep_its_lock() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("hold", place.path());
    holder.expect("held");
    let child = as_a_forked_child_of(&holder);
    block_on(async {
        let lock = lock(place.path());
        assert!(lock.try_acquire("k").await.unwrap().is_none(), "its holder lives");
        holder.kill();
        let started = Instant::now();
        let handle = lock.acquire("k").wait(MINUTE).await.unwrap();
        assert!(started.elapsed() < MINUTE / 4, "took {:?}", started.elapsed());
        drop(handle);
    });
    drop(child);
}

#[cfg(target_os = "linux")]
#[test]
fn who_was_given_the_liveness_of_a_holder_keeps_its_lock_to_the_end_of_the_lease() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("hold-and-share", place.path());
    holder.expect("held");
    let heir = as_a_forked_child_of(&holder);
    holder.kill();
    block_on(async {
        let lock = lock(place.path());
        for key in ["long", "short"] {
            assert!(lock.try_acquire(key).await.unwrap().is_none(), "{key}: its heir lives");
        }
        // Nobody renews it, so it ends with its lease; and the other one with the heir.
        drop(lock.acquire("short").wait(PATIENCE).await.unwrap());
        assert!(lock.try_acquire("long").await.unwrap().is_none(), "its heir lives");
        drop(heir);
        drop(lock.acquire("long").wait(MINUTE / 4).await.unwrap());
    });
}

#[test]
fn a_stopped_holder_is_replaced_at_the_end_of_its_lease_and_learns_it_first_of_all() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("hold-briefly", place.path());
    holder.expect("held");
    holder.signal(Signal::STOP);
    let fence = block_on(async {
        let lock = lock(place.path());
        let handle = lock.acquire("k").wait(PATIENCE).await.unwrap();
        holder.tell("look");
        holder.signal(Signal::CONT);
        let lost: u64 =
            holder.next().unwrap().strip_prefix("lost with fence ").unwrap().parse().unwrap();
        assert!(lost < handle.fence().get());
        // It tried to release what it lost: that must not have touched ours.
        holder.expect("release: the lock was lost");
        handle.extend(MINUTE).await.unwrap();
        let fence = handle.fence();
        handle.release().await.unwrap();
        fence
    });
    assert!(fence.get() > 0);
}

#[test]
fn a_lease_without_a_process_survives_it_and_can_be_released_by_token() {
    let place = tempfile::tempdir().unwrap();
    let mut holder = Worker::start("detach", place.path());
    let token = holder.next().unwrap();
    assert!(holder.done().success());
    block_on(async {
        let lock = lock(place.path());
        assert!(lock.try_acquire("k").await.unwrap().is_none());
        lock.release_token(&token.parse().unwrap()).await.unwrap();
        assert!(lock.try_acquire("k").await.unwrap().is_some());
    });
}

#[test]
fn a_process_frozen_inside_a_step_blocks_its_key_with_a_reason_and_no_other() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let config = holdtight_file::Config::new(place.path()).patience(Duration::from_millis(100));
        let store = holdtight_file::FileStore::open(config).await.unwrap();
        let lock = DistributedLock::builder(store).build().unwrap();
        drop(lock.acquire("k").await.unwrap());
        let record = record_of(place.path());
        // Whoever has this lock is inside a step.
        let frozen = std::fs::File::open(&record).unwrap();
        frozen.lock().unwrap();
        let error = lock.try_acquire("k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains("\"k\"") && text.contains("stopped"), "{text}");
        assert!(text.contains(record.to_str().unwrap()), "{text}");
        assert!(!lock.is_locked("k").await.unwrap(), "looking needs no step");
        lock.acquire("another").await.unwrap().release().await.unwrap();
        frozen.unlock().unwrap();
        lock.acquire("k").await.unwrap().release().await.unwrap();
    });
}

#[test]
fn however_long_one_waits_a_frozen_step_is_told_with_its_path() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let lock = lock(place.path());
        drop(lock.acquire("k").await.unwrap());
        let record = record_of(place.path());
        let frozen = std::fs::File::open(&record).unwrap();
        frozen.lock().unwrap();
        for wait in [Duration::ZERO, Duration::from_secs(2)] {
            let error = lock.acquire("k").wait(wait).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{wait:?}: {error}");
            assert!(error.to_string().contains(record.to_str().unwrap()), "{wait:?}: {error}");
        }
        frozen.unlock().unwrap();
        lock.acquire("k").await.unwrap().release().await.unwrap();
    });
}

#[test]
fn a_process_frozen_inside_a_step_does_not_keep_the_renewal_of_other_keys() {
    let place = tempfile::tempdir().unwrap();
    block_on(async {
        let config = holdtight_file::Config::new(place.path()).patience(10 * MINUTE);
        let store = std::sync::Arc::new(holdtight_file::FileStore::open(config).await.unwrap());
        let store = || std::sync::Arc::clone(&store);
        let mut renewals = Vec::new();
        let mut frozen = None;
        for name in ["frozen", "other"] {
            let (key, secret) = (Key::new(name).unwrap(), Secret::generate().unwrap());
            store()
                .acquire(AcquireRequest::new(key.clone(), secret.clone(), MINUTE))
                .await
                .unwrap();
            frozen.get_or_insert_with(|| std::fs::File::open(record_of(place.path())).unwrap());
            renewals.push(ExtendRequest::new(key, secret, ExtendBy::AtLeast(10 * MINUTE)));
        }
        let frozen = frozen.unwrap();
        frozen.lock().unwrap();
        let answers = tokio::spawn(store().extend(renewals));
        let end = Instant::now() + PATIENCE;
        let left = async || {
            let other = store().lookup(Key::new("other").unwrap()).await.unwrap();
            other.unwrap().remaining.unwrap()
        };
        while left().await <= MINUTE {
            assert!(Instant::now() < end, "it waits for the frozen one");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(!answers.is_finished());
        frozen.unlock().unwrap();
        for answer in answers.await.unwrap().unwrap() {
            assert!(matches!(answer.unwrap(), Extension::Extended(_)));
        }
    });
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    block_on(async {
        let lock = lock(&place);
        match role.as_str() {
            "hold" => {
                let _held = lock.acquire("k").ttl(MINUTE).await.unwrap();
                say("held");
                hear();
            }
            "hold-with-child" => {
                let _held = lock.acquire("k").ttl(MINUTE).await.unwrap();
                #[expect(clippy::zombie_processes, reason = "it must outlive this process")]
                let child = std::process::Command::new("sleep")
                    .arg("300")
                    .stdin(std::process::Stdio::null())
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap();
                say(format!("child {}", child.id()));
                say("held");
                hear();
            }
            "hold-and-share" => {
                let config = holdtight_file::Config::new(&place);
                let store = holdtight_file::FileStore::open(config).await.unwrap();
                let store = std::sync::Arc::new(store);
                for (key, ttl) in [("long", 10 * MINUTE), ("short", MINUTE / 20)] {
                    let (key, secret) = (Key::new(key).unwrap(), Secret::generate().unwrap());
                    let request = AcquireRequest::new(key, secret, ttl);
                    std::sync::Arc::clone(&store).acquire(request).await.unwrap();
                }
                drop(store.share_liveness().unwrap());
                say("held");
                hear();
            }
            "hold-briefly" => {
                let held = lock.acquire("k").ttl(Duration::from_millis(500)).await.unwrap();
                say("held");
                // Blocks this thread, and with it the keeper: as a process that hangs would.
                hear();
                assert!(!held.is_held(), "the first look must say that it is lost");
                say(format!("lost with fence {}", held.fence()));
                let error = held.release().await.unwrap_err();
                say(format!("release: {}", error.kind()));
            }
            "detach" => {
                let held = lock.acquire("k").ttl(MINUTE).liveness(Liveness::Process).await.unwrap();
                say(held.detach().await.unwrap().expose());
            }
            other => panic!("no such role: {other}"),
        }
    });
}

fn record_of(place: &Path) -> std::path::PathBuf {
    let part = std::fs::read_dir(place.join("keys")).unwrap().next().unwrap().unwrap().path();
    std::fs::read_dir(part).unwrap().next().unwrap().unwrap().path()
}
