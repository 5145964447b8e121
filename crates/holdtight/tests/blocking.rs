//! The blocking face, called from where blocking code is found: plain threads, inside of runtimes,
//! destructors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdtight::blocking::{self, DistributedLock, Held, LockHandle, LockSet};
use holdtight::{ErrorKind, MemoryStore};

const SECOND: Duration = Duration::from_secs(1);

fn memory() -> DistributedLock {
    blocking::connect("memory:").unwrap()
}

/// One of each call.
fn tour(lock: &DistributedLock) {
    let handle = lock.acquire("a").ttl(30 * SECOND).wait(SECOND).reason("tour").get().unwrap();
    assert!(handle.is_held() && handle.remaining() > SECOND);
    assert!(lock.try_acquire("a").get().unwrap().is_none());
    assert_eq!(lock.try_acquire("a").run(|_| panic!("busy")).unwrap(), None::<()>);
    assert_eq!(lock.try_acquire("b").run(Held::is_held).unwrap(), Some(true));
    let busy = lock.wait_for_lock("a", Duration::from_millis(20)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Timeout);
    assert!(lock.is_locked("a").unwrap() && !lock.is_locked("b").unwrap());
    let info = lock.lookup("a").unwrap().unwrap();
    assert_eq!((info.fence, info.owner.reason.as_deref()), (Some(handle.fence()), Some("tour")));
    assert_eq!(handle.info().key, handle.key());
    assert_eq!(lock.list("").unwrap().len(), 1);
    handle.extend(60 * SECOND).unwrap();
    handle.extend_by(SECOND).unwrap();
    assert!(handle.remaining() > 45 * SECOND);
    assert_eq!(handle.lost_within(Duration::from_millis(1)).unwrap(), None);
    assert!(lock.owns(&handle.token()).unwrap());

    let token = handle.detach().unwrap();
    lock.extend_token(&token, 30 * SECOND).unwrap();
    let resumed = lock.resume(token.clone()).unwrap();
    resumed.release().unwrap();
    assert!(!lock.owns(&token).unwrap());
    assert_eq!(lock.release_token(&token).unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.resume(token).unwrap_err().kind(), ErrorKind::NotHeld);

    let first = lock.with_lock("a", Held::fence).unwrap();
    let second =
        lock.acquire("a").run(|held| held.check().map(|()| held.fence())).unwrap().unwrap();
    assert!(second > first);

    lock.acquire("cooldown").get().unwrap().keep_for(30 * SECOND).unwrap();
    let kept = lock.lookup("cooldown").unwrap().unwrap();
    lock.force_release("cooldown", kept.fence.unwrap()).unwrap();
    assert_eq!(lock.acquire("").get().unwrap_err().kind(), ErrorKind::InvalidKey);
    lock.probe().unwrap();
    drop(lock.acquire("a").get().unwrap());
    assert!(!lock.is_locked("a").unwrap(), "dropping gives back");
    several_keys(lock);
    once_per(lock);
    election(lock);
}

fn several_keys(lock: &DistributedLock) {
    let set = lock.acquire_all(["b", "a", "b"]).ttl(30 * SECOND).wait(SECOND).get().unwrap();
    let keys: Vec<String> = set.fences().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert!(set.is_held() && set.remaining() > SECOND && set.held().len() == 2);
    assert_eq!(set.lost_within(Duration::from_millis(1)).unwrap(), None);
    let busy = lock.acquire_all(["c", "b"]).wait(Duration::ZERO).get().unwrap_err();
    assert_eq!((busy.kind(), busy.key().unwrap().as_str()), (ErrorKind::Timeout, "b"));
    assert!(!lock.is_locked("c").unwrap(), "all or none");
    set.release().unwrap();

    let fences = lock.acquire_all(["a", "b"]).run(LockSet::fences).unwrap();
    assert_eq!(fences.len(), 2);
    drop(lock.acquire_all(["a", "b"]).get().unwrap());
    assert!(!lock.is_locked("a").unwrap() && !lock.is_locked("b").unwrap(), "dropping gives back");

    // One of them is taken away: none can be trusted.
    let set = lock.acquire_all(["a", "b"]).get().unwrap();
    let [_, second] = set.handles() else { panic!("two handles") };
    lock.force_release("b", second.fence()).unwrap();
    second.extend(30 * SECOND).unwrap_err();
    let (key, _) = set.lost_within(10 * SECOND).unwrap().unwrap();
    assert_eq!(key.as_str(), "b");
    assert_eq!(set.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!set.is_held());
    set.release().unwrap_err();
    assert!(!lock.is_locked("a").unwrap());

    lock.acquire_all(["a", "b"]).get().unwrap().keep_for(30 * SECOND).unwrap();
    for key in ["a", "b"] {
        let kept = lock.lookup(key).unwrap().unwrap();
        lock.force_release(key, kept.fence.unwrap()).unwrap();
    }
    for handle in lock.acquire_all(["a", "b"]).get().unwrap().into_handles() {
        handle.release().unwrap();
    }
}

fn once_per(lock: &DistributedLock) {
    let hour = 3600 * SECOND;
    assert_eq!(lock.once_per("report", hour, |held| held.check().is_ok()).unwrap(), Some(true));
    assert_eq!(lock.once_per("report", hour, |_| panic!("once")).unwrap(), None);
    let kept = lock.lookup("report").unwrap().unwrap();
    lock.force_release("report", kept.fence.unwrap()).unwrap();
    let lost = lock.once_per("report", hour, |held| {
        lock.force_release("report", held.fence()).unwrap();
        held.extend(SECOND).unwrap_err();
    });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!lock.is_locked("report").unwrap(), "what was lost does not count");
    let never = lock.once_per("report", Duration::ZERO, |_| ()).unwrap_err();
    assert_eq!(never.kind(), ErrorKind::InvalidConfig);
}

fn election(lock: &DistributedLock) {
    let election = lock.election("post").ttl(30 * SECOND).reason("node 7");
    assert!(election.leader().unwrap().is_none());
    let leadership = election.campaign().unwrap();
    assert!(leadership.is_leader() && leadership.held().check().is_ok());
    assert_eq!(leadership.lost_within(Duration::from_millis(1)).unwrap(), None);
    let seen = election.next_leader(None).unwrap();
    assert_eq!(seen.fence, Some(leadership.fence()));
    assert_eq!(seen.owner.reason.as_deref(), Some("node 7"));
    let moment = Duration::from_millis(20);
    assert!(election.campaign_within(moment).unwrap().is_none());
    assert!(election.next_leader_within(seen.fence, moment).unwrap().is_none());
    let first = leadership.fence();
    leadership.step_down().unwrap();

    drop(election.campaign_within(10 * SECOND).unwrap().unwrap());
    assert!(election.leader().unwrap().is_none(), "dropping steps down");

    // The first term is lost half-way; only the second counts.
    let mut terms = 0;
    let fence = election.lead(|held| {
        terms += 1;
        if terms == 1 {
            lock.force_release("post", held.fence()).unwrap();
            held.extend(SECOND).unwrap_err();
            assert!(held.check().is_err());
        }
        held.fence()
    });
    assert!(fence.unwrap() > first);
    assert_eq!(terms, 2);
    assert!(election.leader().unwrap().is_none(), "the post is given up");
}

#[test]
fn every_call_works_on_a_plain_thread() {
    let lock = memory();
    tour(&lock);
    lock.shutdown().unwrap();
    assert_eq!(lock.acquire("a").get().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn every_call_works_inside_a_runtime_of_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tour(&memory()) });
}

#[test]
fn every_call_works_inside_a_runtime_of_many_threads_and_in_its_tasks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tour(&memory());
        tokio::spawn(async { tour(&memory()) }).await.unwrap();
        tokio::task::spawn_blocking(|| tour(&memory())).await.unwrap();
    });
}

#[test]
fn a_store_that_is_ready_is_taken_with_options() {
    let builder = holdtight::DistributedLock::builder(MemoryStore::new())
        .prefix("p:")
        .ttl(10 * SECOND)
        .wait(Duration::ZERO);
    let lock = blocking::connect(builder).unwrap();
    tour(&lock);
}

#[test]
fn a_handle_got_inside_a_runtime_is_renewed_and_released_after_that_runtime_is_gone() {
    let lock = blocking::connect(holdtight::builder("memory:").ttl(6 * SECOND)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.block_on(async { lock.acquire("a").get().unwrap() });
    drop(runtime);
    let lost = handle.lost_within(7 * SECOND).unwrap();
    assert_eq!(lost, None, "kept by the background thread for longer than a lease");
    // A waiter of this process makes the release take the long way, through the reaper.
    let waiting = {
        let lock = lock.clone();
        thread::spawn(move || lock.wait_for_lock("a", 30 * SECOND).unwrap().release().unwrap())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move { drop(handle) });
    drop(runtime);
    waiting.join().unwrap();
    lock.shutdown().unwrap();
}

#[test]
fn many_threads_take_turns() {
    let lock = memory();
    let inside = Arc::new(AtomicU32::new(0));
    let total = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (lock, inside, total) = (lock.clone(), Arc::clone(&inside), Arc::clone(&total));
            thread::spawn(move || {
                for _ in 0..50 {
                    lock.acquire("turn")
                        .wait_forever()
                        .run(|_| {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            total.fetch_add(1, Ordering::SeqCst);
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(total.load(Ordering::SeqCst), 400);
    assert!(!lock.is_locked("turn").unwrap());
}

#[test]
fn work_that_panics_gives_the_lock_back_and_work_that_loses_it_is_told() {
    let lock = memory();
    let other = lock.clone();
    let panicked = thread::spawn(move || other.with_lock("a", |_| panic!("as planned"))).join();
    assert!(panicked.is_err());
    for work in [
        (|lock| drop(lock.once_per("b", 30 * SECOND, |_| panic!("as planned"))))
            as fn(DistributedLock),
        |lock| drop(lock.acquire_all(["a", "b"]).run(|_| panic!("as planned"))),
        |lock| drop(lock.election("b").lead(|_| panic!("as planned"))),
    ] {
        let other = lock.clone();
        assert!(thread::spawn(move || work(other)).join().is_err());
        assert!(!lock.is_locked("a").unwrap() && !lock.is_locked("b").unwrap());
    }
    let deposed = lock.with_lock("a", |held| {
        lock.force_release("a", held.fence()).unwrap();
        // The holder learns of it when it next asks.
        held.extend(30 * SECOND).unwrap_err().kind()
    });
    assert_eq!(deposed.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!lock.is_locked("a").unwrap());
}

#[test]
fn a_call_on_the_background_thread_is_refused_instead_of_waiting_for_itself() {
    use std::sync::{Mutex, mpsc};
    let (seen, saw) = mpsc::channel();
    let seen = Mutex::new(seen);
    let other = memory();
    // Connected and used inside a runtime, so that events happen on the background thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = holdtight::builder("memory:").on_event(move |_| {
            let answer = other.is_locked("x").map_err(|error| error.kind());
            let _ = seen.lock().unwrap().send(answer);
        });
        let lock = blocking::connect(builder).unwrap();
        lock.acquire("a").get().unwrap().release().unwrap();
    });
    assert_eq!(saw.recv_timeout(10 * SECOND).unwrap(), Err(ErrorKind::InvalidConfig));
}

#[test]
fn a_handle_left_to_a_thread_that_ends_is_given_back() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<LockHandle>> = const { std::cell::RefCell::new(None) };
    }
    let lock = memory();
    let other = lock.clone();
    thread::spawn(move || {
        let handle = other.acquire("a").get().unwrap();
        KEPT.with(|kept| *kept.borrow_mut() = Some(handle));
    })
    .join()
    .unwrap();
    let deadline = Instant::now() + 10 * SECOND;
    while lock.is_locked("a").unwrap() {
        assert!(Instant::now() < deadline, "the lock was kept");
        thread::sleep(Duration::from_millis(5));
    }
}
