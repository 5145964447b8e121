//! Several locks at once: all or none, no deadlock, and one lost is all lost. Virtual time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Fault, SECOND, Scripted, Step, builder, eventually, scripted};
use holdtight_core::{Builder, DistributedLock, ErrorKind, Loss, MemoryStore, TokioClock};

/// A store that takes several keys in one step, one that does not, and one that can but has its
/// waiters stand in line.
fn every_way() -> [DistributedLock; 3] {
    let clock = TokioClock::new();
    let atomic = Arc::new(MemoryStore::with_clock(clock.clone()));
    let in_line = {
        let clock = common::clock();
        let store = Scripted::new(clock.clone());
        store.line.store(true, Ordering::SeqCst);
        builder(&store, &clock).build().unwrap()
    };
    [Builder::shared(atomic).clock(clock).build().unwrap(), scripted().0, in_line]
}

/// Two objects on one store: one that takes several keys in one step, and one that does not.
fn every_pair() -> [(DistributedLock, DistributedLock); 2] {
    let clock = TokioClock::new();
    let atomic = Arc::new(MemoryStore::with_clock(clock.clone()));
    let over = || Builder::shared(Arc::clone(&atomic) as _).clock(clock.clone()).build().unwrap();
    let (lock, store, clock) = scripted();
    [(over(), over()), (lock, builder(&store, &clock).build().unwrap())]
}

#[tokio::test(start_paused = true)]
async fn all_are_taken_or_none() {
    for lock in every_way() {
        let one = lock.acquire("b").await.unwrap();
        let error = lock.acquire_all(["c", "a", "b"]).wait(2 * SECOND).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.key().unwrap().as_str()),
            (ErrorKind::Timeout, "b"),
            "{error}"
        );
        eventually("none is kept", async || lock.list("").await.unwrap().len() == 1).await;

        one.release().await.unwrap();
        let set = lock.acquire_all(["c", "a", "b", "a"]).wait(2 * SECOND).await.unwrap();
        let keys: Vec<_> = set.fences().into_iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert!(set.is_held() && set.remaining() > Duration::ZERO);
        set.release().await.unwrap();
        assert!(lock.list("").await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_zero_is_one_look() {
    for lock in every_way() {
        let _one = lock.acquire("b").await.unwrap();
        let before = tokio::time::Instant::now();
        let error = lock.acquire_all(["a", "b"]).wait(Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(before.elapsed() < SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_want_the_same_locks_in_any_order_all_get_them() {
    for lock in every_way() {
        let busy = Arc::new([const { AtomicU32::new(0) }; 5]);
        let tasks: Vec<_> = (0..40u64)
            .map(|n| {
                let (lock, busy) = (lock.clone(), Arc::clone(&busy));
                tokio::spawn(async move {
                    let mut random = fastrand::Rng::with_seed(n);
                    for _ in 0..5 {
                        let mut keys: Vec<usize> = (0..5).collect();
                        random.shuffle(&mut keys);
                        keys.truncate(random.usize(1..=3));
                        let set = lock
                            .acquire_all(keys.iter().map(usize::to_string))
                            .wait_forever()
                            .await
                            .unwrap();
                        for key in &keys {
                            assert_eq!(
                                busy[*key].fetch_add(1, Ordering::SeqCst),
                                0,
                                "two holders of {key}"
                            );
                        }
                        tokio::time::sleep(Duration::from_millis(random.u64(0..5))).await;
                        assert!(set.is_held());
                        for key in &keys {
                            busy[*key].fetch_sub(1, Ordering::SeqCst);
                        }
                        set.release().await.unwrap();
                    }
                })
            })
            .collect();
        let all = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        tokio::time::timeout(3600 * SECOND, all).await.expect("a deadlock");
    }
}

/// Somebody who takes locks one after the other, in the wrong order, is no reason to stand still
/// for ever.
#[tokio::test(start_paused = true)]
async fn a_caller_that_holds_one_and_wants_the_other_does_not_block_a_set_for_ever() {
    for lock in every_way() {
        let b = lock.acquire("b").await.unwrap();
        let set = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire_all(["a", "b"]).wait_forever().await.unwrap() }
        });
        tokio::time::sleep(3 * SECOND).await;
        let a = lock
            .acquire("a")
            .wait(5 * SECOND)
            .await
            .expect("the set holds `a` while it waits for `b`");
        a.release().await.unwrap();
        b.release().await.unwrap();
        assert!(set.await.unwrap().is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn one_lost_is_all_lost() {
    let (lock, store, _) = scripted();
    let set = lock.acquire_all(["a", "b"]).await.unwrap();
    let fence = set.fences()[1].1;
    lock.force_release("b", fence).await.unwrap();
    let (key, loss) = set.lost().await;
    assert_eq!((key.as_str(), loss), ("b", Loss::TakenAway));
    assert!(!set.is_held());
    assert_eq!(set.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!store.is_held("a").await, "the others are given back all the same");

    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    let error = lock
        .acquire_all(["a", "b"])
        .run(async |held| {
            assert_eq!(held.len(), 2);
            tokio::time::sleep(3600 * SECOND).await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn work_under_several_locks_returns_what_it_made() {
    for lock in every_way() {
        let sum = lock
            .acquire_all(["a", "b"])
            .run(async |held| held.iter().filter(|one| one.is_held()).count())
            .await;
        assert_eq!(sum.unwrap(), 2);
        eventually("given back", async || lock.list("").await.unwrap().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_refused_before_anything_is_taken() {
    for lock in every_way() {
        let none: [&str; 0] = [];
        assert_eq!(lock.acquire_all(none).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        assert_eq!(lock.acquire_all(["a", ""]).await.unwrap_err().kind(), ErrorKind::InvalidKey);
        let many = (0..65).map(|n| n.to_string());
        assert_eq!(lock.acquire_all(many).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        assert!(lock.list("").await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_not_waited_for_leaves_nothing() {
    for polls in 0..60 {
        for lock in every_way() {
            let blocker = lock.acquire("c").await.unwrap();
            {
                let mut taking =
                    std::pin::pin!(lock.acquire_all(["a", "b", "c"]).wait_forever().into_future());
                let mut left = polls;
                let polled = std::future::poll_fn(|cx| {
                    if left == 0 || taking.as_mut().poll(cx).is_ready() {
                        return std::task::Poll::Ready(());
                    }
                    left -= 1;
                    if left == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                });
                // In line behind the blocker nothing wakes it any more: that too is a point to
                // leave at.
                let _ = tokio::time::timeout(30 * SECOND, polled).await;
            }
            blocker.release().await.unwrap();
            eventually("nothing is left", async || lock.list("").await.unwrap().is_empty()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_that_one_step_did_not_get_stands_in_line_where_there_is_one() {
    let clock = common::clock();
    let store = Scripted::new(clock.clone());
    store.line.store(true, Ordering::SeqCst);
    let [here, there] = [0, 1].map(|_| builder(&store, &clock).build().unwrap());
    let held = there.acquire("b").await.unwrap();
    let waiting = tokio::spawn(async move { here.acquire_all(["a", "b"]).wait(60 * SECOND).await });
    // Asking for one key, which only those who wait in line do.
    eventually("it stands in line", async || store.count(Step::Acquire) > 1).await;
    held.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    assert!(set.is_held());
    set.release().await.unwrap();
}

/// Each key is in use nearly all the time, and never all of them are free at once.
#[tokio::test(start_paused = true)]
async fn a_set_is_served_beside_those_who_want_one_of_its_keys() {
    for (lock, other) in every_pair() {
        let done = Arc::new(AtomicU32::new(0));
        let singles: Vec<_> = (0..6u64)
            .map(|n| {
                let (lock, done) =
                    (if n % 2 == 0 { &lock } else { &other }.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    let key = ["a", "b", "c"][usize::try_from(n / 2).unwrap()];
                    while done.load(Ordering::SeqCst) < 10 {
                        let handle = lock.acquire(key).wait_forever().await.unwrap();
                        tokio::time::sleep(Duration::from_millis(17 + n)).await;
                        handle.release().await.unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..10 {
            let set = lock.acquire_all(["c", "a", "b"]).wait(10 * SECOND).await;
            set.unwrap_or_else(|error| panic!("starved: {error}")).release().await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        }
        for single in singles {
            single.await.unwrap();
        }
    }
}

/// Somebody takes locks by hand, in the wrong order, and waits for one while holding the other.
#[tokio::test(start_paused = true)]
async fn a_set_is_no_part_of_a_deadlock_that_lasts() {
    for (lock, other) in every_pair() {
        let later = other.acquire("b").await.unwrap();
        let set = tokio::spawn(lock.acquire_all(["a", "b"]).wait_forever().into_future());
        tokio::time::sleep(5 * SECOND).await;
        let earlier = other.acquire("a").wait(120 * SECOND).await.unwrap();
        earlier.release().await.unwrap();
        later.release().await.unwrap();
        set.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// As in a `select!` loop that is busy with another arm.
#[tokio::test(start_paused = true)]
async fn a_set_that_nobody_polls_keeps_none_of_its_keys_for_ever() {
    for (lock, other) in every_pair() {
        let take = async |key| other.acquire(key).ttl(600 * SECOND).await.unwrap();
        let (mut first, mut second) = (Some(take("a").await), Some(take("b").await));
        let mut set = Box::pin(lock.acquire_all(["a", "b"]).ttl(10 * SECOND).wait_forever());
        // Three rounds in vain: it gets one key and finds the other one busy, in turn.
        for round in 0..3 {
            let (freed, key) = if round % 2 == 0 { (&mut first, "a") } else { (&mut second, "b") };
            let _ = tokio::time::timeout(SECOND, &mut set).await;
            freed.take().unwrap().release().await.unwrap();
            let _ = tokio::time::timeout(SECOND, &mut set).await;
            if round < 2 {
                *freed = Some(take(key).await);
            }
        }
        // From here on it waits for the second while it holds the first.
        while other.lookup("a").await.unwrap().is_none() {
            let _ = tokio::time::timeout(SECOND / 10, &mut set).await;
        }
        // It is left alone while it holds the first key.
        let wait = other.acquire("a").wait(120 * SECOND).await;
        wait.expect("given back although nobody polls the set").release().await.unwrap();
        second.unwrap().release().await.unwrap();
        // Polled again, it does what it was asked to do.
        set.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_tolerates_outages_as_single_locks_do() {
    let (lock, store, _) = scripted();
    for fault in
        [Fault::Refuse(ErrorKind::Unavailable), Fault::LoseReply, Fault::SlowReply(2 * SECOND)]
    {
        // The first key is taken, and then the store stands still for a while.
        store.next(Step::Acquire, &[Fault::None, fault, Fault::None, fault]);
        let set = lock.acquire_all(["a", "b"]).wait_forever().await;
        let set = set.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        set.release().await.unwrap();
        eventually("free", async || !store.is_held("a").await && !store.is_held("b").await).await;
    }
    // Not for ever.
    store.always(Step::Acquire, Fault::Refuse(ErrorKind::Unavailable));
    let error = lock.acquire_all(["a", "b"]).wait_forever().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_set_gives_a_store_up_that_is_away_as_early_as_a_single_lock_does() {
    let (lock, store, _) = scripted();
    store.always(Step::Acquire, Fault::Refuse(ErrorKind::Unavailable));
    let start = tokio::time::Instant::now();
    lock.acquire("a").wait_forever().await.unwrap_err();
    let single = start.elapsed();
    let start = tokio::time::Instant::now();
    lock.acquire_all(["a", "b"]).wait_forever().await.unwrap_err();
    let set = start.elapsed();
    assert!(set < single + 2 * SECOND, "{set:?}, and a single lock {single:?}");
}
