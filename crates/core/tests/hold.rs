//! Holding a lock: validity, renewal, loss, extension, detaching; and the work that is stopped in
//! time. Virtual time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Fault, SECOND, Step, builder, eventually, scripted};
use holdtight_core::{
    AcquireRequest, Attempt, Backend, Builder, Clock, DistributedLock, ErrorKind, Key, Loss,
    ManualClock, MemoryStore, Moment, Secret, TokioClock, margin,
};

const TTL: Duration = Duration::from_secs(30);

/// Rule 1: another owner tries without pause; when it first succeeds, the holder must have stopped
/// before.
#[tokio::test(start_paused = true)]
async fn the_holder_stops_before_anyone_else_can_start() {
    for delay in [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(2)] {
        let (lock, store, clock) = scripted();
        // The answer is slow: validity counts from before the request left, not from the reply.
        store.next(Step::Acquire, &[Fault::SlowReply(delay)]);
        let handle = lock.acquire("k").ttl(4 * SECOND).auto_renew(false).await.unwrap();
        let mut stopped: Option<Moment> = None;
        loop {
            let now = clock.now();
            if !handle.is_held() {
                stopped.get_or_insert(now);
            }
            let rival =
                AcquireRequest::new(Key::new("k").unwrap(), Secret::generate().unwrap(), SECOND);
            if let Attempt::Granted(_) = Arc::clone(&store.inner).acquire(rival).await.unwrap() {
                let stopped = stopped.unwrap_or_else(|| panic!("two holders, delay {delay:?}"));
                assert!(
                    now.since(stopped) >= margin(4 * SECOND) / 2,
                    "too close: {:?}",
                    now.since(stopped)
                );
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_as_long_as_it_is_held() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(10 * SECOND).await;
        assert!(handle.is_held() && store.is_held("k").await);
        assert!(handle.remaining() > TTL / 3, "{:?}", handle.remaining());
    }
    let renewals = store.count(Step::Extend);
    assert!((90..=120).contains(&renewals), "{renewals} renewals in 1000 s");
    handle.release().await.unwrap();
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(store.count(Step::Extend), renewals, "what was given back is not renewed");
}

#[tokio::test(start_paused = true)]
async fn many_locks_are_renewed_in_few_requests() {
    let (lock, store, _) = scripted();
    let mut held = Vec::new();
    for n in 0..1000 {
        held.push(lock.acquire(format!("k{n}")).await.unwrap());
    }
    tokio::time::sleep(60 * SECOND).await;
    assert!(held.iter().all(holdtight_core::LockHandle::is_held));
    let requests = store.count(Step::Extend);
    assert!(requests < 120, "{requests} requests for six renewals of a thousand locks");
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_lease_costs_nothing() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    for fault in [
        Fault::Refuse(ErrorKind::Unavailable),
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::SlowRequest(3600 * SECOND),
    ] {
        store.always(Step::Extend, fault);
        tokio::time::sleep(18 * SECOND).await;
        assert!(handle.is_held(), "{fault:?}");
        store.always(Step::Extend, Fault::None);
        eventually("renewed again", async || handle.remaining() > 25 * SECOND).await;
    }
    handle.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_of_a_short_lease_is_tried_again_before_the_lease_ends() {
    let (lock, store, _) = scripted();
    // Two failures in a row, and less time than the keeper sleeps when it expects nothing.
    let handle = lock.acquire("k").ttl(Duration::from_millis(120)).await.unwrap();
    for renewed in 1..=50 {
        store.next(Step::Extend, &[Fault::Refuse(ErrorKind::Unavailable); 2]);
        eventually("two failed and one done", async || store.count(Step::Extend) >= renewed * 3)
            .await;
        assert!(handle.is_held(), "lost at renewal {renewed}");
    }
    handle.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_is_a_loss_and_is_told_in_time() {
    let (lock, store, clock) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    let taken = clock.now();
    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    assert_eq!(handle.lost().await, Loss::Expired);
    let told = clock.now().since(taken);
    assert!(told < TTL && told > 29 * SECOND, "told after {told:?}");
    assert!(store.is_held("k").await, "the store still keeps it from others");
    assert!(!handle.is_held() && handle.remaining() == Duration::ZERO);
    assert_eq!(handle.extend(TTL).await.unwrap_err().kind(), ErrorKind::Lost, "lost is lost");
    let error = handle.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("fence"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_taken_away_is_lost_at_the_next_renewal() {
    let (lock, _, clock) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    lock.force_release("k", handle.fence()).await.unwrap();
    let before = clock.now();
    assert_eq!(handle.lost().await, Loss::TakenAway);
    assert!(clock.now().since(before) < TTL / 2);
    assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let wrong = lock.acquire("k").await.unwrap();
    let error = lock.force_release("k", holdtight_core::Fence::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert!(wrong.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_a_rival_took_over_is_not_confused_with_ours() {
    let (lock, _, _) = scripted();
    let first = lock.acquire("k").await.unwrap();
    lock.force_release("k", first.fence()).await.unwrap();
    let second = lock.try_acquire("k").await.unwrap().unwrap();
    assert!(second.fence() > first.fence());
    assert_eq!(first.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(
        second.is_held() && lock.owns(&second.token()).await.unwrap(),
        "the old handle must not harm the new one"
    );
    second.release().await.unwrap();
}

/// The machine sleeps: its timers stand still, the boot clock and the store go on.
#[tokio::test(start_paused = true)]
async fn after_a_suspend_the_first_thing_the_holder_learns_is_the_loss() {
    let (lock, _, clock) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    let held = handle.held();
    let told = tokio::spawn(async move {
        let loss = held.lost().await;
        (loss, tokio::time::Instant::now())
    });
    tokio::time::sleep(SECOND).await;
    let woke = tokio::time::Instant::now();
    clock.jump(3600 * SECOND);
    assert!(!handle.is_held(), "one clock read, no timer needed");
    let (loss, at) = told.await.unwrap();
    assert_eq!(loss, Loss::Expired);
    assert!(at - woke <= Duration::from_millis(260), "told {:?} after the machine woke", at - woke);
}

#[tokio::test(start_paused = true)]
async fn a_suspend_shorter_than_the_lease_is_survived() {
    let (lock, _, clock) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    for _ in 0..10 {
        clock.jump(20 * SECOND);
        tokio::time::sleep(SECOND).await;
        assert!(handle.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_when_its_lock_is_lost() {
    let (lock, store, clock) = scripted();
    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    let (dropped, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (on_drop, at_end) = (OnDrop(Arc::clone(&dropped)), Arc::clone(&finished));
    let started = clock.now();
    let error = lock
        .with_lock("k", async move |held| {
            let _on_drop = on_drop;
            while held.is_held() {
                tokio::time::sleep(Duration::from_millis(7)).await;
            }
            tokio::time::sleep(3600 * SECOND).await;
            at_end.store(true, Ordering::SeqCst);
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(dropped.load(Ordering::SeqCst) && !finished.load(Ordering::SeqCst));
    assert!(clock.now().since(started) < TTL, "stopped before the store lets go");
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_ended_in_time_is_ok_though_its_lock_cannot_be_given_back() {
    let (lock, store, _) = scripted();
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    assert!(lock.with_lock("k", async |held| held.fence().get()).await.unwrap() > 0);
}

/// Compiles only if the futures can be moved between threads.
#[tokio::test]
async fn work_under_a_lock_can_be_spawned() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let task = tokio::spawn(async move {
        lock.acquire("k")
            .ttl(TTL)
            .run(async |held| {
                tokio::task::yield_now().await;
                held.is_held()
            })
            .await
    });
    assert!(task.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_it_however_well_it_is_renewed() {
    let (lock, store, clock) = scripted();
    let handle = lock.acquire("k").max_hold(100 * SECOND).await.unwrap();
    let started = clock.now();
    assert_eq!(handle.lost().await, Loss::MaxHold);
    let held = clock.now().since(started);
    assert!(held >= 99 * SECOND && held <= 101 * SECOND, "{held:?}");
    assert!(
        store.is_held("k").await,
        "it is not passed on before its holder lets go or its lease ends"
    );
    drop(handle);
    eventually("released", async || !store.is_held("k").await).await;
}

#[tokio::test(start_paused = true)]
async fn without_renewal_a_lock_lasts_as_long_as_its_lease_and_its_extensions() {
    let (lock, store, clock) = scripted();
    let handle = lock.acquire("k").auto_renew(false).await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    handle.extend(TTL).await.unwrap();
    assert!(handle.remaining() > 29 * SECOND);
    handle.extend(SECOND).await.unwrap();
    assert!(handle.remaining() > 29 * SECOND, "an extension never shortens");
    handle.extend_by(10 * SECOND).await.unwrap();
    assert!(
        handle.remaining() > 38 * SECOND && handle.remaining() < 41 * SECOND,
        "{:?}",
        handle.remaining()
    );
    let before = clock.now();
    assert_eq!(handle.lost().await, Loss::Expired);
    assert!(clock.now().since(before) > 38 * SECOND);
    assert!(store.count(Step::Extend) == 3);
    for bad in [Duration::ZERO, 25 * 3600 * SECOND] {
        assert_eq!(handle.extend(bad).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

/// Rule 4: renewals that are under way when the lock is released must not bring it back.
#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_cannot_outlive_the_release() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    store.always(Step::Extend, Fault::SlowRequest(3 * SECOND));
    eventually("a renewal is under way", async || store.count(Step::Extend) == 1).await;
    handle.release().await.unwrap();
    let next = lock.acquire("k").auto_renew(false).ttl(5 * SECOND).await.unwrap();
    tokio::time::sleep(4 * SECOND).await;
    assert!(next.is_held(), "the late answer concerns another grant");
    tokio::time::sleep(2 * SECOND).await;
    assert!(!store.is_held("k").await, "nobody renews what nobody asked to renew");
    assert!(!next.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handle_is_released_in_the_background() {
    let (lock, store, _) = scripted();
    drop(lock.acquire("k").await.unwrap());
    eventually("released", async || !store.is_held("k").await).await;
    assert_eq!(store.count(Step::Release), 1);
    // Through an outage as well.
    let handle = lock.acquire("k").await.unwrap();
    store.next(
        Step::Release,
        &[Fault::Refuse(ErrorKind::Unavailable), Fault::LoseRequest, Fault::LoseReply],
    );
    let before = tokio::time::Instant::now();
    drop(handle);
    eventually("released", async || !store.is_held("k").await).await;
    assert!(before.elapsed() < 5 * SECOND, "released, not expired: {:?}", before.elapsed());
}

#[tokio::test]
async fn a_dropped_handle_of_the_memory_store_is_released_at_once() {
    let store = Arc::new(MemoryStore::new());
    let lock = holdtight_core::Builder::shared(Arc::clone(&store) as _).build().unwrap();
    drop(lock.acquire("k").await.unwrap());
    assert_eq!(store.footprint(), 0);
}

#[tokio::test(start_paused = true)]
async fn release_tells_whether_it_was_ours() {
    let (lock, store, _) = scripted();
    for faults in [
        &[Fault::LoseReply][..],
        &[Fault::LoseRequest, Fault::LoseReply],
        &[Fault::Refuse(ErrorKind::Unavailable)],
    ] {
        store.next(Step::Release, faults);
        lock.acquire("k")
            .await
            .unwrap()
            .release()
            .await
            .unwrap_or_else(|error| panic!("{faults:?}: {error}"));
        assert!(!store.is_held("k").await);
    }
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    let handle = lock.acquire("k").await.unwrap();
    let before = tokio::time::Instant::now();
    assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(before.elapsed() < 10 * SECOND, "a dead store must not hang the caller");
    store.always(Step::Release, Fault::None);
    let before = tokio::time::Instant::now();
    eventually("released in the background", async || !store.is_held("k").await).await;
    assert!(before.elapsed() < 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_lives_by_its_lease_and_is_taken_up_by_another() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let handle = lock.acquire("k").await.unwrap();
    let (fence, extends) = (handle.fence(), store.count(Step::Extend));
    let text = handle.detach().await.unwrap().expose();
    tokio::time::sleep(20 * SECOND).await;
    assert!(store.count(Step::Extend) <= extends + 1, "nobody renews a detached lock");

    let token = text.parse().unwrap();
    other.extend_token(&token, TTL).await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    let resumed = other.resume(token.clone()).await.unwrap();
    assert!(resumed.is_held() && resumed.fence() > fence, "another holder, another fence");
    tokio::time::sleep(100 * SECOND).await;
    assert!(resumed.is_held(), "renewed again");
    resumed.release().await.unwrap();
    assert_eq!(other.resume(token.clone()).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(other.release_token(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(!store.is_held("k").await, "resuming what is over must not take it anew");
}

#[tokio::test(start_paused = true)]
async fn keep_for_leaves_the_lock_held_for_so_long_and_no_longer() {
    let (lock, store, _) = scripted();
    lock.acquire("k").await.unwrap().keep_for(60 * SECOND).await.unwrap();
    tokio::time::sleep(59 * SECOND).await;
    assert!(store.is_held("k").await);
    tokio::time::sleep(2 * SECOND).await;
    assert!(!store.is_held("k").await);
    let handle = lock.acquire("k").await.unwrap();
    let too_long = handle.keep_for(48 * 3600 * SECOND).await.unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::InvalidConfig);
    tokio::time::sleep(23 * 3600 * SECOND).await;
    assert!(store.is_held("k").await, "too long a cooldown is better than none");
    tokio::time::sleep(2 * 3600 * SECOND).await;
    assert!(!store.is_held("k").await);
}

/// Waiters of this process must not wait behind a holder that has lost the lock.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_holder_that_lost_it_asks_the_store_itself() {
    let (lock, store, _) = scripted();
    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    let zombie = lock.acquire("k").await.unwrap();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire("k").auto_renew(false).wait_forever().await }
    });
    let handle = waiter.await.unwrap().unwrap();
    assert!(handle.is_held() && !zombie.is_held());
    assert!(handle.fence() > zombie.fence());
}

/// Other processes get their chance although this one could hand the lock round for ever.
#[tokio::test(start_paused = true)]
async fn a_busy_process_does_not_starve_the_others() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..50)
        .map(|_| {
            tokio::spawn({
                let (lock, stop) = (lock.clone(), Arc::clone(&stop));
                async move {
                    while !stop.load(Ordering::SeqCst) {
                        let handle = lock.acquire("k").wait_forever().await.unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        handle.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let lone = other.acquire("k").wait(20 * SECOND).await;
        lone.expect("the lone waiter starves").release().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for task in crowd {
        task.await.unwrap();
    }
}

/// Whoever is near the store could take the lock again before those far from it have heard that it
/// was free.
#[tokio::test(start_paused = true)]
async fn whoever_gave_it_back_lets_those_who_waited_go_first() {
    let (far, store, clock) = scripted();
    store.always(Step::Acquire, Fault::SlowRequest(Duration::from_millis(3)));
    let near = Builder::shared(Arc::clone(&store.inner) as _).clock(clock).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let greedy = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            while !stop.load(Ordering::SeqCst) {
                let handle = near.acquire("k").wait_forever().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                handle.release().await.unwrap();
            }
        }
    });
    for _ in 0..50 {
        let patient = far.acquire("k").wait(SECOND).await;
        patient.expect("the patient one starves").release().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    greedy.await.unwrap();
}

#[test]
fn nothing_of_the_secret_shows() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
        let handle = lock.acquire("k").await.unwrap();
        let secret = handle.token().secret().expose().to_owned();
        let info = lock.lookup("k").await.unwrap();
        let error = lock.wait_for_lock("k", Duration::from_millis(5)).await.unwrap_err();
        let shown = format!(
            "{lock:?} {handle:?} {:?} {:?} {:?} {info:?} {error:?} {error}",
            handle.held(),
            handle.token(),
            handle.info()
        );
        assert!(!shown.contains(&secret), "{shown}");
    });
}

#[tokio::test(start_paused = true)]
async fn the_clock_that_is_injected_is_the_one_that_counts() {
    let clock = ManualClock::over(TokioClock::new());
    let lock = DistributedLock::builder(MemoryStore::with_clock(clock.clone()))
        .clock(clock.clone())
        .build()
        .unwrap();
    let handle = lock.acquire("k").auto_renew(false).await.unwrap();
    clock.jump(TTL.saturating_sub(margin(TTL)).saturating_sub(Duration::from_millis(1)));
    assert!(handle.is_held());
    clock.jump(Duration::from_millis(1));
    assert!(!handle.is_held());
}

/// The first request lies in a proxy while the second is granted and given back. Then it arrives,
/// and is granted to nobody: that must not last for the whole lease.
#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_its_lock_was_given_back_does_not_hold_it_for_long() {
    for given_back in ["released", "dropped"] {
        let (lock, store, clock) = scripted();
        store.next(Step::Acquire, &[Fault::Straggle(10 * SECOND)]);
        let handle = lock.acquire("k").ttl(300 * SECOND).await.unwrap();
        if given_back == "released" {
            handle.release().await.unwrap();
        } else {
            drop(handle);
        }
        eventually("given back", async || !store.is_held("k").await).await;
        let arrived = async || store.stragglers.load(Ordering::SeqCst) == 1;
        eventually("the straggler arrives", arrived).await;
        let arrived = clock.now();
        eventually("and is undone", async || !store.is_held("k").await).await;
        assert!(clock.now().since(arrived) < 10 * SECOND, "{given_back}");
    }
}
