//! Taking a lock: waiting, retrying, handing over, giving up; and what a caller is told. All in
//! virtual time.

mod common;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Fault, SECOND, Step, builder, clock, eventually, scripted};
use holdtight_core::{
    DEFAULT_TTL, DistributedLock, ErrorKind, EventKind, Key, LockToken, MemoryStore, Owner,
    RetryPolicy, Secret, margin,
};

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_taken_and_given_back_in_two_steps() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    assert!(handle.is_held() && store.is_held("k").await);
    handle.release().await.unwrap();
    assert!(!store.is_held("k").await);
    assert_eq!((store.count(Step::Acquire), store.count(Step::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn busy_is_none_for_a_try_and_a_timeout_with_the_holder_for_a_wait() {
    let (lock, _, _) = scripted();
    let _held = lock.acquire("k").reason("nightly").await.unwrap();
    assert!(lock.try_acquire("k").await.unwrap().is_none());

    let error = lock.wait_for_lock("k", 3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.key().unwrap().as_str(), "k");
    assert_eq!(error.holder().unwrap().owner.reason.as_deref(), Some("nightly"));
    assert!(error.elapsed().unwrap() >= 3 * SECOND);
    assert!(error.attempts().unwrap() >= 1);
    assert!(error.to_string().contains("nightly"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_zero_makes_exactly_one_attempt() {
    let (lock, store, _) = scripted();
    let _held = lock.acquire("k").await.unwrap();
    let before = store.count(Step::Acquire);
    let error = lock.acquire("k").wait(Duration::ZERO).await.unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Timeout, Some(1)));
    assert_eq!(store.count(Step::Acquire) - before, 1);
}

#[tokio::test(start_paused = true)]
async fn there_is_an_attempt_at_the_deadline() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    store.wake_ups.store(false, Ordering::SeqCst);
    let lock = builder(&store, &clock).build().unwrap();
    let other = builder(&store, &clock).build().unwrap();
    // Held until just before the deadline; the timer would come only much later.
    let held = other.acquire("k").await.unwrap();
    let release_late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(4990)).await;
        held.release().await.unwrap();
    });
    let lazy = RetryPolicy::fixed(Duration::from_secs(60));
    assert!(lock.acquire("k").wait(5 * SECOND).retry(lazy).await.unwrap().is_held());
    release_late.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn max_retries_counts_timer_attempts() {
    let (lock, store, clock) = scripted();
    store.wake_ups.store(false, Ordering::SeqCst);
    let (lock_a, lock_b) = (lock, builder(&store, &clock).wait_forever().build().unwrap());
    let _held = lock_a.acquire("k").await.unwrap();
    let before = store.count(Step::Acquire);
    let policy = RetryPolicy::default().max_retries(3);
    let error = lock_b.acquire("k").retry(policy).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(store.count(Step::Acquire) - before, 4, "three retries are four attempts");
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter_of_another_process_at_once() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let held = lock.acquire("k").await.unwrap();
    // With this timer only a wake-up can be in time.
    let lazy = RetryPolicy::fixed(Duration::from_secs(600));
    let waiter = tokio::spawn(async move { other.acquire("k").wait_forever().retry(lazy).await });
    eventually("the waiter listens", async || store.inner.footprint() == 2).await;
    let before = tokio::time::Instant::now();
    held.release().await.unwrap();
    let handle = waiter.await.unwrap().unwrap();
    assert!(before.elapsed() < SECOND);
    assert!(handle.is_held());
}

/// Between the busy answer and the subscription nobody listens: so there is another look right
/// after subscribing.
#[tokio::test(start_paused = true)]
async fn a_release_just_before_the_subscription_is_not_missed() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let token = other.acquire("k").await.unwrap().detach().await.unwrap();
    *store.release_at_subscribe.lock().unwrap() =
        Some((token.key().clone(), token.secret().clone()));
    let lazy = RetryPolicy::fixed(Duration::from_secs(600));
    let before = tokio::time::Instant::now();
    let handle = lock.acquire("k").wait_forever().retry(lazy).await.unwrap();
    assert!(handle.is_held());
    assert!(before.elapsed() < SECOND, "waited {:?} for a lock that was free", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lost_wake_ups_only_cost_time() {
    let (lock, store, clock) = scripted();
    store.wake_ups.store(false, Ordering::SeqCst);
    let other = builder(&store, &clock).build().unwrap();
    let held = lock.acquire("k").await.unwrap();
    let waiter = tokio::spawn(async move { other.acquire("k").wait_forever().await });
    tokio::time::sleep(10 * SECOND).await;
    held.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_rechecks_when_the_holders_lease_ends() {
    let (lock, store, clock) = scripted();
    let dead = builder(&store, &clock).auto_renew(false).build().unwrap();
    // A holder that neither renews nor releases: its lease of two seconds just ends.
    std::mem::forget(dead.acquire("k").ttl(2 * SECOND).await.unwrap());
    let lazy = RetryPolicy::fixed(Duration::from_secs(600));
    let before = tokio::time::Instant::now();
    let handle = lock.acquire("k").wait_forever().retry(lazy).await.unwrap();
    assert!(before.elapsed() < 3 * SECOND, "waited {:?}", before.elapsed());
    assert!(handle.is_held());
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_served_in_order_and_by_hand_over() {
    let (lock, store, _) = scripted();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = lock.acquire("k").wait_forever().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..20 {
        let (lock, order) = (lock.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let handle = lock.acquire("k").wait_forever().await.unwrap();
            order.lock().unwrap().push((n, handle.fence()));
            handle.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    let attempts = store.count(Step::Acquire);
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert!(order.windows(2).all(|pair| pair[0].0 < pair[1].0), "out of order: {order:?}");
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "fences must rise: {order:?}");
    assert_eq!(
        store.count(Step::Acquire),
        attempts,
        "waiters behind a local holder do not ask the store"
    );
    assert_eq!(store.count(Step::Transfer), 20);
    assert!(!store.is_held("k").await);
}

#[tokio::test(start_paused = true)]
async fn one_process_asks_the_store_once_however_many_of_its_tasks_wait() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    let held = lock.acquire("k").await.unwrap();
    let before = store.count(Step::Acquire);
    let waiters: Vec<_> = (0..1000)
        .map(|_| {
            tokio::spawn({
                let other = other.clone();
                async move { other.acquire("k").wait_forever().await.unwrap().release().await }
            })
        })
        .collect();
    tokio::time::sleep(10 * SECOND).await;
    let asked = store.count(Step::Acquire) - before;
    assert!(asked <= 25, "{asked} requests in ten seconds for a thousand waiters");
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_hand_over_in_the_store_waiters_are_served_all_the_same() {
    let (lock, store, _) = scripted();
    store.transfer.store(false, Ordering::SeqCst);
    let lock2 = builder(&store, &clock()).wait_forever().build().unwrap();
    drop(lock);
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let lock = lock2.clone();
                async move { lock.acquire("k").await.unwrap().release().await.unwrap() }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(store.count(Step::Transfer), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_handed_over_counts_from_before_the_request() {
    let (lock, store, _) = scripted();
    let held = lock.acquire("k").await.unwrap();
    let waiting = tokio::spawn(lock.acquire("k").wait_forever().into_future());
    tokio::time::sleep(SECOND).await;
    store.next(Step::Transfer, &[Fault::SlowReply(3 * SECOND)]);
    held.release().await.unwrap();
    let handed = waiting.await.unwrap().unwrap();
    assert_eq!(store.count(Step::Transfer), 1);
    let used = handed.remaining() + margin(DEFAULT_TTL) + 3 * SECOND;
    assert!(used <= DEFAULT_TTL, "{:?} left", handed.remaining());
    handed.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_handed_to_somebody_who_leaves_goes_to_the_next_or_back() {
    let (lock, store, _) = scripted();
    for others in [1, 0] {
        let held = lock.acquire("k").await.unwrap();
        let wait = || tokio::spawn(lock.acquire("k").wait_forever().into_future());
        let leaving = wait();
        tokio::time::sleep(SECOND).await;
        let staying: Vec<_> = (0..others).map(|_| wait()).collect();
        tokio::time::sleep(SECOND).await;
        store.next(Step::Transfer, &[Fault::SlowReply(2 * SECOND)]);
        let releasing = tokio::spawn(held.release());
        tokio::time::sleep(SECOND).await;
        leaving.abort();
        releasing.await.unwrap().unwrap();
        for next in staying {
            next.await.unwrap().unwrap().release().await.unwrap();
        }
        assert!(!store.is_held("k").await, "{others} others: held by nobody");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_with_an_unknown_outcome_loses_nobody() {
    for fault in [
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::SlowReply(60 * SECOND),
        Fault::SlowRequest(60 * SECOND),
    ] {
        let (lock, store, _) = scripted();
        let first = lock.acquire("k").wait_forever().await.unwrap();
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire("k").wait_forever().await.unwrap() }
        });
        tokio::task::yield_now().await;
        store.next(Step::Transfer, &[fault]);
        first.release().await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let second = waiter.await.unwrap();
        assert!(second.is_held() && store.is_held("k").await, "{fault:?}");
        second.release().await.unwrap();
        assert!(!store.is_held("k").await, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_an_acquire_is_retried_under_the_same_secret() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::LoseReply]);
    let handle = lock.acquire("k").await.unwrap();
    assert!(handle.is_held());
    assert_eq!(store.count(Step::Acquire), 2, "the second attempt finds that the lock is ours");
    assert_eq!(store.count(Step::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_was_lost_for_good_leaves_nothing_behind() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::LoseReply]);
    let error = lock.try_acquire("k").ttl(3600 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous);
    eventually("the orphan is released", async || !store.is_held("k").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_lease_is_no_grant() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::SlowReply(3 * SECOND)]);
    match lock.try_acquire("k").ttl(2 * SECOND).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Ambiguous),
        Ok(handle) => panic!("granted: {handle:?}"),
    }
    eventually("nothing is left", async || !store.is_held("k").await).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_tolerated_for_a_while_and_then_reported() {
    let (lock, store, _) = scripted();
    let down = Fault::Refuse(ErrorKind::Unavailable);
    store.next(Step::Acquire, &[down, down, down]);
    assert!(lock.acquire("k").await.unwrap().is_held(), "a short outage costs only time");

    store.always(Step::Acquire, down);
    let error = lock.acquire("l").wait_forever().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.elapsed().unwrap() < 10 * SECOND);
    let at_once = RetryPolicy::default().tolerate_outage(Duration::ZERO);
    assert_eq!(lock.acquire("l").retry(at_once).await.unwrap_err().attempts(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_will_not_pass_is_returned_at_once() {
    for kind in [ErrorKind::AuthFailed, ErrorKind::InvalidConfig, ErrorKind::Internal] {
        let (lock, store, _) = scripted();
        store.next(Step::Acquire, &[Fault::Refuse(kind)]);
        let error = lock.acquire("k").await.unwrap_err();
        assert_eq!((error.kind(), error.attempts()), (kind, Some(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_does_not_hold_the_caller_longer_than_asked() {
    let (lock, store, _) = scripted();
    store.always(Step::Acquire, Fault::SlowRequest(3600 * SECOND));
    let before = tokio::time::Instant::now();
    let error = lock.acquire("k").wait(2 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous);
    assert!(before.elapsed() <= 4 * SECOND, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused_before_any_step() {
    let (lock, store, _) = scripted();
    for (error, kind) in [
        (lock.acquire("").await.unwrap_err(), ErrorKind::InvalidKey),
        (lock.acquire("a\nb").await.unwrap_err(), ErrorKind::InvalidKey),
        (lock.try_acquire("x".repeat(513)).await.unwrap_err(), ErrorKind::InvalidKey),
        (lock.acquire("k").ttl(Duration::ZERO).await.unwrap_err(), ErrorKind::InvalidConfig),
        (lock.acquire("k").ttl(25 * 3600 * SECOND).await.unwrap_err(), ErrorKind::InvalidConfig),
        (lock.acquire("k").max_hold(Duration::ZERO).await.unwrap_err(), ErrorKind::InvalidConfig),
        (lock.lookup("").await.unwrap_err(), ErrorKind::InvalidKey),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!(store.count(Step::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn spellings_of_one_text_are_one_lock() {
    let (lock, _, _) = scripted();
    let _held = lock.acquire("cafe\u{301}").await.unwrap();
    assert!(lock.try_acquire("café").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn prefixes_keep_locks_apart_and_do_not_show() {
    let store: Arc<dyn holdtight_core::Backend> = Arc::new(MemoryStore::new());
    let of = |prefix: &str| {
        holdtight_core::Builder::shared(Arc::clone(&store)).prefix(prefix).build().unwrap()
    };
    let (a, b, all) = (of("a:"), of("b:"), of(""));
    let (one, _two) = (a.acquire("k").await.unwrap(), b.acquire("k").await.unwrap());
    assert_eq!((one.key().as_str(), one.info().key.as_str()), ("k", "k"));
    assert_eq!(a.list("").await.unwrap()[0].key.as_str(), "k");
    assert_eq!(all.list("").await.unwrap().len(), 2);
    assert!(a.try_acquire("k").await.unwrap().is_none());
    assert_eq!(a.wait_for_lock("k", SECOND).await.unwrap_err().key().unwrap().as_str(), "k");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_can_be_looked_up_listed_and_proven() {
    let (lock, _, _) = scripted();
    let handle = lock.acquire("job:1").owner(Owner::unknown().with_reason("why")).await.unwrap();
    let _other = lock.acquire("job:2").await.unwrap();
    let info = lock.lookup("job:1").await.unwrap().unwrap();
    assert_eq!((info.fence, info.owner.reason.as_deref()), (Some(handle.fence()), Some("why")));
    assert!(info.is_held && info.expires_at > info.acquired_at);
    let keys: Vec<_> =
        lock.list("job:").await.unwrap().into_iter().map(|info| info.key.to_string()).collect();
    assert_eq!(keys, ["job:1", "job:2"]);
    assert!(lock.is_locked("job:1").await.unwrap() && !lock.is_locked("job:3").await.unwrap());
    assert!(lock.owns(&handle.token()).await.unwrap());
    let forged = LockToken::new(Key::new("job:1").unwrap(), Secret::generate().unwrap());
    assert!(!lock.owns(&forged).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_new_locks_and_wakes_those_who_wait() {
    let (lock, store, _) = scripted();
    let held = lock.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire("k").wait_forever().await }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    store.always(Step::Release, Fault::SlowRequest(SECOND));
    drop(held);
    lock.shutdown().await.unwrap();
    assert!(!store.is_held("k").await, "shutdown waits for releases");
    for waiter in waiters {
        let ended = waiter.await.unwrap();
        assert!(ended.is_err_and(|error| error.kind() == ErrorKind::Closed));
    }
    assert_eq!(lock.acquire("k").await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_bounded_and_says_what_is_left() {
    let (lock, store, _) = scripted();
    let held = lock.acquire("k").await.unwrap();
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    drop(held);
    let before = tokio::time::Instant::now();
    let error = lock.shutdown_within(2 * SECOND).await.unwrap_err();
    assert!(before.elapsed() <= 3 * SECOND);
    assert!(error.to_string().contains("1 release"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn events_tell_the_story_and_a_panicking_sink_harms_nobody() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let lock = builder(&store, &clock)
        .on_event(move |event| {
            sink.lock().unwrap().push(event.kind);
            assert!(event.kind != EventKind::Released, "a sink that panics");
        })
        .build()
        .unwrap();
    let handle = lock.acquire("k").await.unwrap();
    assert!(lock.try_acquire("k").await.unwrap().is_none());
    tokio::time::sleep(15 * SECOND).await;
    handle.release().await.unwrap();
    assert_eq!(
        *told.lock().unwrap(),
        [EventKind::Acquired, EventKind::AcquireFailed, EventKind::Renewed, EventKind::Released]
    );
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let mut acquiring = std::pin::pin!(IntoFuture::into_future(lock.acquire("k")));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match acquiring.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Err(error)) => {
            assert!(error.to_string().contains("runtime"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_without_a_runtime_gets_that_error_too() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    // The one kind of tokio task that another executor can drive.
    let tasks = tokio::task::LocalSet::new();
    let acquiring = tasks.spawn_local(async move { lock.acquire("k").await });
    let mut both = std::pin::pin!(async {
        tasks.await;
        acquiring.await.unwrap()
    });
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match both.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Err(error)) => {
            assert!(error.to_string().contains("runtime"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_is_only_tried_is_skipped_if_busy_and_stopped_if_lost() {
    let (lock, _, _) = scripted();
    let handle = lock.acquire("k").await.unwrap();
    let skipped = lock.try_acquire("k").run(async |_| panic!("it is busy")).await;
    assert_eq!(skipped.unwrap(), None::<()>);
    handle.release().await.unwrap();

    assert_eq!(lock.try_acquire("k").run(async |held| held.is_held()).await.unwrap(), Some(true));
    let stopped = lock.try_acquire("k").run(async |held| {
        lock.force_release("k", held.fence()).await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(stopped.await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!lock.is_locked("k").await.unwrap());
}
