//! A lock as plain data: who may take it up, how often, and what becomes of whoever held it before.
//! Virtual time.

mod common;

use std::time::Duration;

use common::{Fault, SECOND, Step, builder, eventually, scripted};
use holdtight_core::{ErrorKind, Loss, RetryPolicy};

#[tokio::test(start_paused = true)]
async fn a_token_is_good_for_one_holder() {
    let (lock, store, clock) = scripted();
    let first = lock.acquire("k").await.unwrap();
    let before = first.fence();
    let token = first.detach().await.unwrap();

    let mut holders = Vec::new();
    for _ in 0..8 {
        let other = builder(&store, &clock).ttl(3 * SECOND).build().unwrap();
        match other.resume(token.clone()).await {
            Ok(handle) => holders.push((other, handle)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotHeld);
                assert!(error.to_string().contains("lock \"k\""), "{error}");
            }
        }
    }
    tokio::time::sleep(10 * SECOND).await;
    let [(_, holder)] = &holders[..] else { panic!("{} holders of one token", holders.len()) };
    assert!(holder.is_held(), "renewed");
    assert!(holder.fence() > before, "what the first holder left behind is refused");
    assert!(!lock.owns(&token).await.unwrap(), "used up");
    assert_eq!(lock.release_token(&token).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(holder.is_held() && store.is_held("k").await);
}

#[tokio::test(start_paused = true)]
async fn eight_calls_at_once_with_one_token_make_one_holder() {
    let (lock, store, clock) = scripted();
    let token = lock.acquire("k").await.unwrap().detach().await.unwrap();
    let calls: Vec<_> = (0..8)
        .map(|n| {
            let lock =
                if n % 2 == 0 { lock.clone() } else { builder(&store, &clock).build().unwrap() };
            let token = token.clone();
            tokio::spawn(async move { lock.resume(token).await })
        })
        .collect();
    let mut held = Vec::new();
    for call in calls {
        held.extend(call.await.unwrap());
    }
    assert_eq!(held.iter().filter(|handle| handle.is_held()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handle_whose_token_is_resumed_has_lost_its_lock() {
    let (lock, store, clock) = scripted();
    // Through the same object: at once.
    let handle = lock.acquire("k").await.unwrap();
    let resumed = lock.resume(handle.token()).await.unwrap();
    assert!(!handle.is_held() && resumed.is_held() && resumed.fence() > handle.fence());
    assert_eq!(handle.lost().await, Loss::TakenAway);
    assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(resumed.is_held() && store.is_held("k").await, "the first holder freed nothing");

    // Elsewhere: at its next renewal, and it cannot renew what is not its own.
    let other = builder(&store, &clock).build().unwrap();
    let elsewhere = other.resume(resumed.token()).await.unwrap();
    let told = tokio::time::timeout(20 * SECOND, resumed.lost()).await.unwrap();
    assert_eq!(told, Loss::TakenAway);
    drop(resumed);
    tokio::time::sleep(60 * SECOND).await;
    assert!(elsewhere.is_held());
    elsewhere.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_resume_is_asked_for_again() {
    for fault in [
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::SlowReply(20 * SECOND),
        Fault::SlowRequest(20 * SECOND),
        Fault::Straggle(2 * SECOND),
        Fault::Refuse(ErrorKind::Unavailable),
    ] {
        let (lock, store, _) = scripted();
        let token = lock.acquire("k").ttl(600 * SECOND).await.unwrap().detach().await.unwrap();
        store.next(Step::Transfer, &[fault]);
        let handle = lock.resume_for(token.clone(), 600 * SECOND).await.unwrap_or_else(|error| {
            panic!("{fault:?}: {error}");
        });
        tokio::time::sleep(300 * SECOND).await;
        assert!(handle.is_held(), "{fault:?}");
        assert_eq!(lock.resume(token).await.unwrap_err().kind(), ErrorKind::NotHeld, "{fault:?}");
        handle.release().await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(!store.is_held("k").await, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_given_up_leaves_the_lock_with_its_token() {
    for fault in [Fault::LoseReply, Fault::SlowReply(3 * SECOND), Fault::SlowRequest(3 * SECOND)] {
        for cancelled in [true, false] {
            let (lock, store, clock) = scripted();
            let token = lock.acquire("k").ttl(600 * SECOND).await.unwrap().detach().await.unwrap();
            if cancelled {
                store.next(Step::Transfer, &[fault]);
                let resume = lock.resume_for(token.clone(), 600 * SECOND);
                drop(tokio::time::timeout(SECOND / 50, resume).await);
            } else {
                store.always(Step::Transfer, fault);
                let impatient =
                    builder(&store, &clock).ttl(600 * SECOND).step_timeout(SECOND).build().unwrap();
                let error = impatient.resume(token.clone()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Ambiguous);
                store.always(Step::Transfer, Fault::None);
                eventually("handed back", async || lock.owns(&token).await.unwrap()).await;
            }
            // The same call again, at once: it waits until the lock is back.
            let handle = lock.resume(token).await.unwrap_or_else(|error| {
                panic!("{fault:?}, cancelled: {cancelled}: {error}");
            });
            tokio::time::sleep(60 * SECOND).await;
            assert!(handle.is_held(), "{fault:?}, cancelled: {cancelled}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_released_through_the_object_that_holds_it_is_lost_before_that() {
    let (lock, store, _) = scripted();
    for forced in [true, false] {
        let handle = lock.acquire("k").await.unwrap();
        store.next(Step::Release, &[Fault::SlowReply(SECOND)]);
        let other = lock.clone();
        let (token, fence) = (handle.token(), handle.fence());
        let releasing = tokio::spawn(async move {
            if forced {
                other.force_release("k", fence).await
            } else {
                other.release_token(&token).await
            }
        });
        eventually("free", async || !store.is_held("k").await).await;
        assert!(!handle.is_held(), "forced: {forced}: the lock is free, and its handle held");
        assert_eq!(handle.lost().await, Loss::TakenAway);
        releasing.await.unwrap().unwrap();
        assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
    }
    // Somebody else's release is nobody's loss.
    let handle = lock.acquire("k").await.unwrap();
    let foreign = lock.acquire("l").await.unwrap().token();
    let foreign = holdtight_core::LockToken::new(handle.key(), foreign.secret().clone());
    assert_eq!(lock.release_token(&foreign).await.unwrap_err().kind(), ErrorKind::NotHeld);
    let later = holdtight_core::Fence::new(handle.fence().get() + 1);
    assert_eq!(lock.force_release("k", later).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(handle.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_cannot_be_true_beside_a_later_one_ends_at_once() {
    let (lock, store, clock) = scripted();
    for take in [0, 1, 2] {
        let first = lock.acquire("k").await.unwrap();
        // Behind our back: the store lost its memory, or an operator was at work.
        let admin = builder(&store, &clock).build().unwrap();
        admin.force_release("k", first.fence()).await.unwrap();
        assert!(first.is_held(), "nobody has told us");
        let second = match take {
            0 => lock.try_acquire("k").await.unwrap().unwrap(),
            1 => lock.acquire_all(["k"]).await.unwrap().into_handles().pop().unwrap(),
            _ => {
                let token = admin.acquire("k").await.unwrap().detach().await.unwrap();
                lock.resume(token).await.unwrap()
            }
        };
        assert!(!first.is_held() && second.is_held() && second.fence() > first.fence());
        assert_eq!(first.lost().await, Loss::TakenAway);
        drop(first);
        second.release().await.unwrap();
        assert!(!store.is_held("k").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_is_as_long_as_asked_for() {
    let (lock, store, clock) = scripted();
    let rival = builder(&store, &clock).build().unwrap();
    let handle = lock.acquire("k").await.unwrap();
    handle.keep_for(SECOND).await.unwrap();
    assert!(rival.try_acquire("k").await.unwrap().is_none());
    tokio::time::sleep(SECOND + SECOND / 10).await;
    let handle = rival.try_acquire("k").await.unwrap().expect("a second is over, not thirty");

    // Too long: said, and kept for as long as can be.
    let error = handle.keep_for(Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("lock \"k\""), "{error}");
    tokio::time::sleep(3600 * SECOND).await;
    assert!(store.is_held("k").await);
}

/// The first request of the call that got the lock was given up, and arrives when the lock has gone
/// through other hands: it takes the lock under the secret of that call, for nobody.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_delayed_makes_no_used_token_good_again() {
    let (lock, store, clock) = scripted();
    let other = builder(&store, &clock).build().unwrap();
    store.next(Step::Acquire, &[Fault::Straggle(20 * SECOND)]);
    let handle = lock.acquire("k").await.unwrap();
    let token = handle.detach().await.unwrap();
    other.resume(token.clone()).await.unwrap().release().await.unwrap();
    for _ in 0..100 {
        assert_eq!(other.resume(token.clone()).await.unwrap_err().kind(), ErrorKind::NotHeld);
        tokio::time::sleep(SECOND / 2).await;
    }
    assert_eq!(store.stragglers.load(std::sync::atomic::Ordering::SeqCst), 1, "it has arrived");
    eventually("what it took is given back", async || !store.is_held("k").await).await;
}

/// As above, and the answer to the detaching is lost: nothing may be held by nobody.
#[tokio::test(start_paused = true)]
async fn a_detach_that_fails_leaves_nothing_behind() {
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::SlowReply(9 * SECOND)] {
        let (lock, store, _) = scripted();
        store.next(Step::Acquire, &[Fault::LoseReply]);
        let handle = lock.acquire("k").ttl(3600 * SECOND).await.unwrap();
        store.next(Step::Transfer, &[fault]);
        let error = handle.detach().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{fault:?}");
        eventually("free", async || !store.is_held("k").await).await;
    }
}

/// The lock has another secret already, and the answer that says so is slow. A renewal under the
/// old one finds nothing: that is no loss.
#[tokio::test(start_paused = true)]
async fn a_renewal_during_a_slow_detach_loses_nothing() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::LoseReply]);
    let handle = lock.acquire("k").ttl(6 * SECOND).await.unwrap();
    store.next(Step::Transfer, &[Fault::SlowReply(3 * SECOND)]);
    let held = handle.held();
    let late = tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        held.extend(6 * SECOND).await
    });
    let token = handle.detach().await.unwrap();
    // The lock was given away on purpose: a view that comes too late is told so, and not of a loss.
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lock.owns(&token).await.unwrap());
    lock.release_token(&token).await.unwrap();

    let handle = lock.acquire("k").ttl(6 * SECOND).await.unwrap();
    store.next(Step::Transfer, &[Fault::SlowReply(3 * SECOND)]);
    handle.keep_for(60 * SECOND).await.unwrap();
    assert!(store.is_held("k").await);
}

/// A cooldown may be shorter than what is left of the lease. Whoever still has a view of the lock
/// must not believe in it for longer than the store, however slow its answer is.
#[tokio::test(start_paused = true)]
async fn a_view_of_a_lock_that_is_kept_for_less_is_not_believed_beside_the_next_holder() {
    let (lock, store, clock) = scripted();
    let rival = builder(&store, &clock).build().unwrap();
    let handle = lock.acquire("k").ttl(60 * SECOND).await.unwrap();
    let held = handle.held();
    store.next(Step::Transfer, &[Fault::SlowReply(4 * SECOND)]);
    let keeping = tokio::spawn(handle.keep_for(SECOND));
    tokio::time::sleep(2 * SECOND).await;
    let next = rival.try_acquire("k").await.unwrap().expect("the cooldown is over");
    assert!(next.is_held() && !held.is_held(), "two believe in it");
    assert_eq!(held.remaining(), Duration::ZERO);
    keeping.await.unwrap().unwrap();
}

/// As above with a cooldown: what arrives late must not hold the lock for nobody when the cooldown
/// is over.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_delayed_makes_no_cooldown_longer() {
    let (lock, store, _) = scripted();
    store.next(Step::Acquire, &[Fault::Straggle(20 * SECOND)]);
    let handle = lock.acquire("k").ttl(3600 * SECOND).await.unwrap();
    handle.keep_for(SECOND).await.unwrap();
    let arrived = || store.stragglers.load(std::sync::atomic::Ordering::SeqCst) == 1;
    eventually("it has arrived", async || arrived()).await;
    let free = eventually("free", async || !store.is_held("k").await);
    tokio::time::timeout(60 * SECOND, free).await.expect("held by nobody until its lease ends");
}

/// A policy may ask for no pause at all; a store that is away is not asked without one.
#[tokio::test(start_paused = true)]
async fn a_resume_without_pauses_does_not_storm_a_store_that_is_away() {
    let (lock, store, clock) = scripted();
    let token = lock.acquire("k").await.unwrap().detach().await.unwrap();
    let hasty = builder(&store, &clock).retry(RetryPolicy::fixed(Duration::ZERO)).build().unwrap();
    store.always(Step::Transfer, Fault::Refuse(ErrorKind::Unavailable));
    assert_eq!(hasty.resume(token).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(store.count(Step::Transfer) <= 501, "asked {} times", store.count(Step::Transfer));
}
