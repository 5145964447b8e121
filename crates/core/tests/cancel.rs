//! Every future of the engine dropped at every one of its await points: nothing stays held, nothing
//! panics.
//!
//! A future is polled n times and dropped, for n = 0, 1, 2 … until it ends by itself: the points
//! are enumerated, not sampled. Every step of the scripted store has two await points of its own.

mod common;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::{Fault, SECOND, Scripted, Step, builder, clock, eventually};
use holdtight_core::{DistributedLock, EventKind, LockHandle, ManualClock, MemoryStore};

/// Longer than anything here takes: whatever is free much earlier was given back, and did not run
/// out.
const TTL: Duration = Duration::from_secs(120);

/// Where a future is dropped: after so many polls, and then at once, or when it has been woken for
/// the next one.
#[derive(Clone, Copy, Debug)]
struct Cut {
    polls: usize,
    woken: bool,
}

/// A lock with long leases over a scripted store.
fn scene() -> (DistributedLock, Arc<Scripted>, ManualClock) {
    let clock = clock();
    let store = Scripted::new(clock.clone());
    (builder(&store, &clock).ttl(TTL).build().unwrap(), store, clock)
}

/// Polls `future` as `cut` says, then drops it. Says whether it ended.
async fn poll_times<T>(future: impl Future<Output = T>, cut: Cut) -> Option<T> {
    let mut future = pin!(future);
    let mut left = cut.polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let answer = future.as_mut().poll(cx);
        if left == 0 && answer.is_pending() && !cut.woken {
            return Poll::Ready(None);
        }
        answer.map(Some)
    })
    .await
}

/// Runs `scene` with 0, 1, 2, … polls until the future under test ends by itself. Returns how many
/// points there were.
async fn at_every_point(mut scene: impl AsyncFnMut(Cut) -> bool) -> usize {
    let mut points = 0;
    for woken in [false, true] {
        points = 0;
        while !scene(Cut { polls: points, woken }).await {
            points += 1;
            assert!(points < 1000, "a thousand await points: it never ends");
        }
    }
    points
}

async fn nothing_stays(store: &Arc<Scripted>, lock: &DistributedLock, what: &str) {
    let before = tokio::time::Instant::now();
    eventually(what, async || !store.is_held("k").await).await;
    let took = before.elapsed();
    assert!(took < TTL / 4, "{what}: not given back, but run out after {took:?}");
    // And the lock can be had by the next one, in this process and in another.
    let next = lock
        .acquire("k")
        .wait(120 * SECOND)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    next.release().await.unwrap();
    let other = builder(store, &clock()).build().unwrap();
    other.acquire("k").wait(120 * SECOND).await.unwrap().release().await.unwrap();
}

/// What the store does meanwhile.
const FAULTS: [&[Fault]; 4] = [
    &[],
    &[Fault::LoseReply],
    &[Fault::LoseRequest, Fault::LoseReply],
    &[Fault::SlowReply(SECOND), Fault::SlowRequest(SECOND)],
];

#[tokio::test(start_paused = true)]
async fn acquiring_a_free_lock() {
    for faults in FAULTS {
        let points = at_every_point(async |cut| {
            let (lock, store, _) = scene();
            store.next(Step::Acquire, faults);
            let ended = poll_times(IntoFuture::into_future(lock.acquire("k")), cut).await.is_some();
            nothing_stays(&store, &lock, &format!("acquire of a free lock, {faults:?}, {cut:?}"))
                .await;
            ended
        })
        .await;
        assert!(points >= 2, "only {points} await points: the test is not looking");
    }
}

#[tokio::test(start_paused = true)]
async fn acquiring_a_lock_that_another_process_holds() {
    for faults in FAULTS {
        at_every_point(async |cut| {
            let (lock, store, clock) = scene();
            let other = builder(&store, &clock).build().unwrap();
            let held = other.acquire("k").await.unwrap();
            let release = tokio::spawn(async move {
                tokio::time::sleep(3 * SECOND).await;
                let _ = held.release().await;
            });
            store.next(Step::Acquire, faults);
            let ended = poll_times(IntoFuture::into_future(lock.acquire("k").wait_forever()), cut)
                .await
                .is_some();
            release.await.unwrap();
            nothing_stays(&store, &lock, &format!("acquire of a held lock, {faults:?}, {cut:?}"))
                .await;
            ended
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn acquiring_behind_another_task_of_the_same_process() {
    for faults in FAULTS {
        at_every_point(async |cut| {
            let (lock, store, _) = scene();
            let held = lock.acquire("k").await.unwrap();
            store.next(Step::Transfer, faults);
            let behind = lock.acquire("k").wait_forever().into_future();
            let release = tokio::spawn(async move {
                tokio::time::sleep(SECOND).await;
                let _ = held.release().await;
            });
            let ended = poll_times(behind, cut).await.is_some();
            release.await.unwrap();
            nothing_stays(&store, &lock, &format!("acquire behind a task, {faults:?}, {cut:?}"))
                .await;
            ended
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn releasing() {
    for faults in FAULTS {
        let points = at_every_point(async |cut| {
            let (lock, store, _) = scene();
            let handle = lock.acquire("k").await.unwrap();
            store.next(Step::Release, faults);
            let before = tokio::time::Instant::now();
            let ended = poll_times(handle.release(), cut).await;
            if let Some(released) = &ended {
                assert!(released.is_ok(), "{faults:?}: {released:?}");
            }
            eventually("released", async || !store.is_held("k").await).await;
            assert!(
                before.elapsed() < 20 * SECOND,
                "not released, but expired after {:?}",
                before.elapsed()
            );
            nothing_stays(&store, &lock, "release").await;
            ended.is_some()
        })
        .await;
        assert!(points >= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn releasing_to_a_waiter() {
    for faults in FAULTS {
        at_every_point(async |cut| {
            let (lock, store, _) = scene();
            let handle = lock.acquire("k").await.unwrap();
            let waiter = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire("k").wait_forever().await.unwrap() }
            });
            tokio::task::yield_now().await;
            store.next(Step::Transfer, faults);
            let ended = poll_times(handle.release(), cut).await.is_some();
            let next = waiter.await.unwrap();
            assert!(next.is_held());
            next.release().await.unwrap();
            nothing_stays(&store, &lock, "release to a waiter").await;
            ended
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn extending() {
    for faults in FAULTS {
        at_every_point(async |cut| {
            let (lock, store, _) = scene();
            let handle = lock.acquire("k").auto_renew(false).await.unwrap();
            store.next(Step::Extend, faults);
            let ended = poll_times(handle.extend(60 * SECOND), cut).await.is_some();
            assert!(handle.is_held(), "an extension that was dropped must not cost the lock");
            handle.release().await.unwrap();
            nothing_stays(&store, &lock, "extend").await;
            ended
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn detaching() {
    at_every_point(async |cut| {
        let (lock, store, _) = scene();
        let handle = lock.acquire("k").await.unwrap();
        let ended = poll_times(handle.detach(), cut).await;
        let detached = ended.is_some();
        if let Some(token) = ended {
            lock.release_token(&token.unwrap()).await.unwrap();
        }
        nothing_stays(&store, &lock, "detach").await;
        detached
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn working_under_a_lock() {
    for faults in FAULTS {
        at_every_point(async |cut| {
            let (lock, store, _) = scene();
            store.next(Step::Acquire, faults);
            store.next(Step::Release, faults);
            let work = lock.with_lock("k", async |held| {
                for _ in 0..3 {
                    assert!(held.is_held());
                    tokio::time::sleep(SECOND).await;
                }
            });
            let ended = poll_times(work, cut).await.is_some();
            nothing_stays(&store, &lock, &format!("with_lock, {faults:?}, {cut:?}")).await;
            ended
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_work_gives_the_lock_back() {
    let (lock, store, _) = scene();
    let work = tokio::spawn({
        let lock = lock.clone();
        async move { lock.with_lock("k", async |_| panic!("the work failed")).await }
    });
    assert!(work.await.unwrap_err().is_panic());
    nothing_stays(&store, &lock, "a panic in the work").await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_lock_made_outside_of_any_runtime_goes_back_through_the_one_it_was_used_in() {
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let lock = builder(&store, &clock).ttl(TTL).build().unwrap();
    let home = runtime();
    drop(home.block_on(async { lock.acquire("k").await.unwrap() }));
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while home.block_on(store.is_held("k")) {
        assert!(std::time::Instant::now() < end, "nobody gave it back");
        std::thread::yield_now();
    }
}

#[test]
fn a_handle_may_be_dropped_anywhere_and_at_any_time() {
    fn take(runtime: &tokio::runtime::Runtime, lock: &DistributedLock) -> LockHandle {
        runtime.block_on(async { lock.acquire("k").wait(10 * SECOND).await.unwrap() })
    }
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let lock = builder(&store, &clock).ttl(6 * SECOND).build().unwrap();
    let home = runtime();

    // Outside of the runtime, which is alive: released through it.
    drop(take(&home, &lock));
    let again = take(&home, &lock);
    // On another thread, without any runtime.
    std::thread::spawn(move || drop(again)).join().unwrap();
    let last = take(&home, &lock);
    // After the runtime is gone: no panic, and the next runtime finishes the job or the lease ends.
    home.shutdown_timeout(Duration::from_secs(1));
    assert!(last.is_held(), "a lock outlives its runtime until its deadline");
    drop(last);
    let next = runtime();
    let handle = take(&next, &lock);
    assert!(handle.is_held());
    next.block_on(async { handle.release().await.unwrap() });
}

/// The keeper's runtime ends when the only other one that was seen has ended before it.
#[test]
fn runtimes_may_end_in_any_order_while_locks_are_held() {
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let lock = builder(&store, &clock).ttl(TTL).build().unwrap();
    let (first, second) = (runtime(), runtime());
    let held = [&first, &second].map(|runtime| {
        let key = format!("{:?}", runtime.handle().id());
        runtime.block_on(async { lock.acquire(key).await.unwrap() })
    });
    second.shutdown_timeout(Duration::from_secs(1));
    first.shutdown_timeout(Duration::from_secs(1));
    assert!(held.iter().all(LockHandle::is_held));
    // Whoever comes next finds a keeper's desk that nobody sits at, and sits down.
    let third = runtime();
    third.block_on(async {
        lock.acquire("k").await.unwrap().release().await.unwrap();
        for handle in held {
            handle.release().await.unwrap();
        }
    });
}

/// A program, or a test, that ends amid its work: whoever comes next does not wait for leases.
#[test]
fn a_runtime_that_ends_amid_holders_and_waiters_leaves_nothing_held() {
    let lock = DistributedLock::builder(MemoryStore::new()).ttl(TTL).build().unwrap();
    let next = runtime();
    for round in 0..20 {
        let home = runtime();
        let (told, grants) = std::sync::mpsc::channel();
        for _ in 0..6 {
            let (lock, told) = (lock.clone(), told.clone());
            home.spawn(async move {
                loop {
                    let handle = lock.acquire("k").wait_forever().await.unwrap();
                    let _ = told.send(());
                    tokio::task::yield_now().await;
                    handle.release().await.unwrap();
                }
            });
        }
        for _ in 0..10 + round {
            grants.recv_timeout(Duration::from_secs(30)).expect("nobody gets the lock");
        }
        home.shutdown_timeout(Duration::from_secs(1));
        let after = next.block_on(lock.acquire("k").wait(30 * SECOND).into_future());
        let handle = after.unwrap_or_else(|error| panic!("after round {round}: {error}"));
        next.block_on(handle.release()).unwrap();
    }
}

/// The lock is on its way from a holder to a waiter, the waiter has just left, and the runtime of
/// both ends.
#[test]
fn a_runtime_that_ends_during_a_hand_over_takes_no_lock_with_it() {
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let lock = builder(&store, &clock).ttl(TTL).build().unwrap();
    let (home, other) = (runtime(), runtime());
    home.block_on(async {
        let handle = lock.acquire("k").await.unwrap();
        let before = handle.fence();
        let mut waiting = Box::pin(lock.acquire("k").wait_forever().into_future());
        poll_fn(|cx| {
            assert!(waiting.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        store.next(Step::Transfer, &[Fault::SlowReply(TTL)]);
        let releasing = tokio::spawn(handle.release());
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while lock.lookup("k").await.unwrap().unwrap().fence == Some(before) {
            assert!(std::time::Instant::now() < end, "not handed over");
            tokio::task::yield_now().await;
        }
        drop(waiting);
        assert!(!releasing.is_finished(), "the answer is not there yet");
    });
    home.shutdown_timeout(Duration::from_secs(1));
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while other.block_on(store.is_held("k")) {
        assert!(std::time::Instant::now() < end, "held for a waiter that has left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets a sink go on, however a test ends.
struct GoOn(Arc<AtomicU32>);

impl Drop for GoOn {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

/// A sink that takes its time costs no other lock a renewal.
#[test]
fn a_sink_that_hangs_keeps_no_lock_from_being_renewed() {
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let (hanging, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (count, until) = (Arc::clone(&hanging), Arc::clone(&go_on));
    let go_on = GoOn(go_on);
    let lock = builder(&store, &clock)
        .ttl(3 * SECOND)
        .on_event(move |event| {
            if event.kind == EventKind::Renewed && count.fetch_add(1, Ordering::SeqCst) == 0 {
                while until.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })
        .build()
        .unwrap();
    let home = runtime();
    let held = ["a", "b"].map(|key| home.block_on(async { lock.acquire(key).await.unwrap() }));
    let end = std::time::Instant::now() + Duration::from_secs(30);
    let mut renewed = None;
    while renewed.is_none_or(|renewed| store.count(Step::Extend) < renewed + 3) {
        assert!(std::time::Instant::now() < end, "nothing is renewed beside a sink that hangs");
        if renewed.is_none() && hanging.load(Ordering::SeqCst) > 0 {
            renewed = Some(store.count(Step::Extend));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(go_on);
    home.block_on(async {
        for handle in held {
            drop(handle.release().await);
        }
    });
}

/// As in tests: one lock for all, and a runtime for each.
#[test]
fn locks_of_one_runtime_are_kept_when_another_one_ends() {
    let clock = ManualClock::over(holdtight_core::BootClock);
    let store = Scripted::new(clock.clone());
    let renewed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&renewed);
    let lock = builder(&store, &clock)
        .ttl(6 * SECOND)
        .on_event(move |event| {
            if event.kind == EventKind::Renewed {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    let (first, second) = (runtime(), runtime());
    // The keeper works in the first.
    let theirs = first.block_on(async { lock.acquire("theirs").await.unwrap() });
    let ours = second.block_on(async { lock.acquire("ours").await.unwrap() });
    first.shutdown_timeout(Duration::from_secs(1));
    let before = renewed.load(Ordering::SeqCst);
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while renewed.load(Ordering::SeqCst) == before {
        assert!(std::time::Instant::now() < end, "nobody renews any more");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(ours.is_held() && theirs.is_held());
    second.block_on(async {
        ours.release().await.unwrap();
        theirs.release().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_waiters_cancelled_at_random_leave_nothing() {
    let store = Arc::new(MemoryStore::new());
    let lock =
        holdtight_core::Builder::shared(Arc::clone(&store) as _).wait_forever().build().unwrap();
    let mut resident = Vec::new();
    for seed in 0..8 {
        storm(&lock, seed).await;
        resident.push(resident_kib());
    }
    // An allocator keeps some of what it had, now more, now less, and again for each thread that it
    // serves apart; a leak of one slot per waiter would be 60 MiB more after every storm, so 240 at
    // least between these.
    let (early, late) = (resident[..2].iter().max().unwrap(), resident[5..].iter().min().unwrap());
    assert!(*late < early + 160 * 1024, "memory after each storm, in KiB: {resident:?}");
    lock.shutdown().await.unwrap();
    assert_eq!(store.footprint(), 0, "something is still held or listening");
}

async fn storm(lock: &DistributedLock, seed: u64) {
    let held = lock.acquire("k").await.unwrap();
    let mut waiters: Vec<_> = (0..100_000)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire("k").await.unwrap().release().await.unwrap() })
        })
        .collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut waiters);
    let stay = waiters.split_off(99_000);
    let mut release = Some(held);
    for (n, waiter) in waiters.iter().enumerate() {
        waiter.abort();
        if n == 50_000 {
            // The other half is cancelled while the lock is on its way through the line.
            release.take().unwrap().release().await.unwrap();
        }
    }
    for waiter in stay {
        waiter.await.unwrap();
    }
    for waiter in waiters {
        let _ = waiter.await;
    }
}

/// Memory in use, in KiB; zero where the system does not tell.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
