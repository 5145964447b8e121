//! Answers that come late or never, and holders that do not come for what they were given: nobody
//! else may pay for it. Virtual time.

mod common;

use std::future::{Future as _, poll_fn};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use common::{Fault, SECOND, Scripted, Step, builder, eventually, scripted};
use holdtight_core::{
    Acquiring, Backend as _, BootClock, DistributedLock, ErrorKind, LockHandle, ManualClock,
};
use tokio::time::timeout;

/// The first attempt is given up, the second is granted under the same secret, and its token goes
/// to somebody else. Then the answer to the first one comes.
#[tokio::test(start_paused = true)]
async fn a_late_answer_takes_nothing_from_whoever_has_the_token() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::SlowReply(8 * SECOND)]);
    let handle = lock.acquire("k").ttl(10 * SECOND).wait(60 * SECOND).await.unwrap();
    assert_eq!(store.count(Step::Acquire), 2);
    let token = handle.detach().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert!(store.is_held("k").await, "released under its owner");
    assert!(lock.owns(&token).await.unwrap());
}

/// A request that was given up has what every other one needs: it must be driven on, or all wait
/// for it for ever.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_given_up_blocks_nobody_longer_than_it_takes() {
    let (lock, store, _) = scripted();
    let other = lock.acquire("other").ttl(9 * SECOND).await.unwrap();
    store.next(Step::Acquire, &[Fault::Block(6 * SECOND)]);
    let handle = lock.acquire("k").ttl(2 * SECOND).wait(60 * SECOND).await.unwrap();
    handle.release().await.unwrap();
    assert!(other.is_held(), "its renewals waited as well");
    other.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_in_a_renewal_does_not_cost_the_lock() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").ttl(10 * SECOND).await.unwrap();
    store.next(Step::Extend, &[Fault::Panic]);
    tokio::time::sleep(30 * SECOND).await;
    assert!(store.count(Step::Extend) > 1);
    assert!(handle.is_held());
    handle.release().await.unwrap();
}

/// A waiter that got the lock but is not polled any more, as a future that somebody forgot: it must
/// not hold it for ever.
#[tokio::test(start_paused = true)]
async fn a_lock_handed_to_somebody_who_does_not_come_for_it_ends_with_its_lease() {
    let (lock, store, clock) = scripted();
    let first = lock.acquire("k").await.unwrap();
    let mut forgotten = Box::pin(lock.acquire("k").ttl(20 * SECOND).wait_forever().into_future());
    poll_fn(|cx| {
        assert!(forgotten.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    first.release().await.unwrap();
    assert!(store.is_held("k").await, "handed over");
    let other = builder(&store, &clock).build().unwrap();
    other.acquire("k").wait(60 * SECOND).await.unwrap().release().await.unwrap();
    // Whoever comes late after all starts anew.
    let late = forgotten.await.unwrap();
    assert!(late.is_held());
    late.release().await.unwrap();
}

/// One who comes in time has a lock that is renewed.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_over_is_renewed_once_its_holder_has_come() {
    let (lock, store, _) = scripted();
    let first = lock.acquire("k").await.unwrap();
    let second = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire("k").ttl(20 * SECOND).wait_forever().await.unwrap() }
    });
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    tokio::time::sleep(90 * SECOND).await;
    assert!(second.is_held());
    second.release().await.unwrap();
    eventually("free", async || !store.is_held("k").await).await;
}

/// A future at the front of the line that is not polled any more: those behind it are served all
/// the same, and if it is polled again, it is served as well.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_polls_does_not_keep_those_behind_it_waiting() {
    for polls in [1, 2, 10] {
        let (lock, store, clock) = scripted();
        let other = builder(&store, &clock).build().unwrap();
        let held = other.acquire("k").await.unwrap();
        let mut forgotten = Box::pin(lock.acquire("k").wait_forever().into_future());
        for _ in 0..polls {
            poll_fn(|cx| {
                assert!(forgotten.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        let behind: Vec<_> = (0..3)
            .map(|_| tokio::spawn(lock.acquire("k").wait(60 * SECOND).into_future()))
            .collect();
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        for waiter in behind {
            let handle = waiter.await.unwrap();
            handle
                .unwrap_or_else(|error| panic!("after {polls} polls: {error}"))
                .release()
                .await
                .unwrap();
        }
        let late = forgotten.await.unwrap();
        assert!(late.is_held() && other.try_acquire("k").await.unwrap().is_none());
        let last = tokio::spawn(lock.acquire("k").wait(60 * SECOND).into_future());
        tokio::task::yield_now().await;
        late.release().await.unwrap();
        last.await.unwrap().unwrap().release().await.unwrap();
        assert!(!store.is_held("k").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_over_before_the_store_answers_is_told_as_such() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::SlowReply(SECOND / 10)]);
    let error = lock.acquire("k").max_hold(SECOND / 100).await.unwrap_err();
    assert_eq!(error.kind(), holdtight_core::ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("max_hold"), "{error}");
    eventually("free", async || !store.is_held("k").await).await;
}

/// The answer that granted it was lost, and then the store could not be asked again: the last error
/// says that nothing was done, and speaks only for itself.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_may_have_been_granted_is_not_told_as_refused() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::LoseReply]);
    store.always(Step::Acquire, Fault::Refuse(ErrorKind::Unavailable));
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    let error = lock.acquire("k").ttl(60 * SECOND).wait(20 * SECOND).await.unwrap_err();
    assert!(store.is_held("k").await);
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("stays held for"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_may_have_been_done_is_not_told_as_refused() {
    let (lock, store, _) = scripted();
    let handle = lock.acquire("k").ttl(60 * SECOND).await.unwrap();
    store.next(Step::Release, &[Fault::LoseReply]);
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    let error = handle.release().await.unwrap_err();
    assert!(!store.is_held("k").await);
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
}

/// Its holder stopped in time. That the lease ended while the release was on its way takes nothing
/// from the work.
#[tokio::test(start_paused = true)]
async fn a_release_that_outlasts_its_lease_does_not_make_finished_work_a_lost_one() {
    let (lock, store, _) = scripted();
    store.always(Step::Release, Fault::SlowRequest(4 * SECOND));
    let acquire = || lock.acquire("k").ttl(3 * SECOND).auto_renew(false);
    assert_eq!(acquire().run(async |_| 7).await.unwrap(), 7);
    let error = acquire().await.unwrap().release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    // Gone while the lease was running is another matter.
    store.always(Step::Release, Fault::None);
    let handle = acquire().await.unwrap();
    let key = holdtight_core::Key::new("k").unwrap();
    std::sync::Arc::clone(&store).force_release(key, handle.fence()).await.unwrap();
    assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// As `buffer_unordered` leaves them while its consumer is busy: each was polled, and then none is.
async fn left_alone(lock: &DistributedLock, count: usize) -> Vec<Acquiring<LockHandle>> {
    let mut alone: Vec<Acquiring<LockHandle>> = Vec::new();
    for _ in 0..count {
        alone.push(Box::pin(lock.acquire("k").ttl(SECOND).wait_forever().into_future()));
    }
    poll_fn(|cx| {
        assert!(alone.iter_mut().all(|waiter| waiter.as_mut().poll(cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    alone
}

/// They are not polled, whether the lock is handed to the first of them or it is called to the
/// front: a live waiter goes on after as long as one of them would cost, those after it at once,
/// and none of them loses its place.
#[tokio::test(start_paused = true)]
async fn many_waiters_that_nobody_polls_cost_no_more_than_one() {
    for hands_over in [true, false] {
        let (_, store, clock) = scripted();
        store.transfer.store(hands_over, Ordering::SeqCst);
        let lock = builder(&store, &clock).ttl(SECOND).build().unwrap();
        let held = lock.acquire("k").await.unwrap();
        let alone = left_alone(&lock, 16).await;
        held.release().await.unwrap();
        // Whose wait ends looks at the store once more, so these do not.
        let live: Vec<_> =
            (0..3).map(|_| tokio::spawn(lock.acquire("k").wait_forever().into_future())).collect();
        let serve_all = async {
            for waiter in live {
                waiter.await.unwrap().unwrap().release().await.unwrap();
            }
        };
        // The lease of the first, if the lock was handed to it, and two seconds for the one that is
        // called then.
        assert!(timeout(4 * SECOND, serve_all).await.is_ok(), "handed over: {hands_over}");
        // Nobody is left but those who do not come: they are in nobody's way.
        for _ in 0..16 {
            let next = timeout(SECOND / 10, lock.acquire("k").wait_forever()).await;
            next.unwrap().unwrap().release().await.unwrap();
        }
        // Somebody polls them after all: each is served, those that were not called in their order.
        let mut served = Vec::new();
        for waiter in alone {
            let handle = waiter.await.unwrap();
            served.push(handle.fence());
            handle.release().await.unwrap();
        }
        assert!(served.is_sorted());
        eventually("free", async || !store.is_held("k").await).await;
    }
}

/// While those who do not come keep their places, whoever is polled again has its own, before all
/// who came later.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_polled_again_is_served_before_those_who_came_later() {
    let (lock, _, _) = scripted();
    let held = lock.acquire("k").ttl(SECOND).await.unwrap();
    let mut alone = left_alone(&lock, 4).await;
    held.release().await.unwrap();
    let live = timeout(4 * SECOND, lock.acquire("k").wait_forever()).await.unwrap().unwrap();
    // The first was called and did not come, the others are still in line.
    let again = tokio::spawn(alone.pop().unwrap());
    tokio::task::yield_now().await;
    let later = tokio::spawn(lock.acquire("k").wait_forever().into_future());
    tokio::task::yield_now().await;
    live.release().await.unwrap();
    let again = again.await.unwrap().unwrap();
    assert!(!later.is_finished());
    again.release().await.unwrap();
    later.await.unwrap().unwrap().release().await.unwrap();
}

/// Releases run in the background, in real time, while tokio's clock in a test jumps to the end of
/// the limit at once.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_releases_also_if_only_tokios_clock_is_paused() {
    let clock = ManualClock::over(BootClock);
    let store = Scripted::new(clock.clone());
    let lock = builder(&store, &clock).build().unwrap();
    store.next(Step::Release, &[Fault::SlowReply(Duration::from_millis(20))]);
    drop(lock.acquire("k").await.unwrap());
    lock.shutdown().await.unwrap();
    assert!(!store.is_held("k").await);
}
