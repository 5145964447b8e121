//! What a watcher is told: every kind of event, its redaction, and losses that only the holder
//! notices. Virtual time.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Fault, SECOND, Step, builder, clock};
use holdtight_core::{Builder, DistributedLock, ErrorKind, EventKind, Loss, Operation};

/// What a sink may keep of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: EventKind,
    operation: Operation,
    ok: bool,
    reason: Option<&'static str>,
    key: Option<String>,
    hash: String,
    fence: bool,
    error: Option<String>,
}

type Log = Arc<Mutex<Vec<Seen>>>;

fn watched(builder: Builder) -> (DistributedLock, Log) {
    let log = Log::default();
    let sink = Arc::clone(&log);
    let lock = builder.on_event(move |event| {
        sink.lock().unwrap().push(Seen {
            kind: event.kind,
            operation: event.operation(),
            ok: event.is_ok(),
            reason: event.reason(),
            key: event.key.map(ToString::to_string),
            hash: event.key_hash(),
            fence: event.fence.is_some(),
            error: event.error.map(ToString::to_string),
        });
    });
    (lock.build().unwrap(), log)
}

fn take(log: &Log) -> Vec<Seen> {
    std::mem::take(&mut log.lock().unwrap())
}

/// The story in short: kind, whether it went well, and why not.
fn story(log: &Log) -> Vec<(EventKind, bool, Option<&'static str>)> {
    take(log).into_iter().map(|seen| (seen.kind, seen.ok, seen.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_call_and_every_failure_is_told_with_its_reason() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let (lock, log) = watched(builder(&store, &clock));

    let handle = lock.acquire("k").await.unwrap();
    assert!(lock.try_acquire("k").await.unwrap().is_none());
    assert!(lock.is_locked("k").await.unwrap());
    assert!(lock.lookup("free").await.unwrap().is_none());
    handle.extend(60 * SECOND).await.unwrap();
    handle.release().await.unwrap();
    assert_eq!(
        story(&log),
        [
            (EventKind::Acquired, true, None),
            (EventKind::AcquireFailed, false, Some("locked")),
            (EventKind::Checked { held: true }, true, None),
            (EventKind::LookedUp { held: false }, false, None),
            (EventKind::Extended, true, None),
            (EventKind::Released, true, None),
        ]
    );

    // The store refuses: an error, not a reason to believe that the lock is gone.
    let handle = lock.acquire("k").await.unwrap();
    store.next(Step::Extend, &[Fault::Refuse(ErrorKind::Unavailable)]);
    handle.extend(60 * SECOND).await.unwrap_err();
    lock.force_release("k", handle.fence()).await.unwrap();
    handle.extend(60 * SECOND).await.unwrap_err();
    handle.release().await.unwrap_err();
    assert_eq!(
        story(&log),
        [
            (EventKind::Acquired, true, None),
            (EventKind::ExtendFailed, false, Some("error")),
            (EventKind::Lost(Loss::TakenAway), false, Some("not-found")),
            (EventKind::ReleaseFailed, false, Some("not-found")),
        ]
    );

    store.next(Step::Acquire, &[Fault::Refuse(ErrorKind::AuthFailed)]);
    lock.acquire("k").await.unwrap_err();
    assert_eq!(story(&log), [(EventKind::AcquireFailed, false, Some("error"))]);
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_detached_lock_is_told_and_every_error_names_its_key() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let (lock, log) = watched(builder(&store, &clock).prefix("app:"));
    let token = lock.acquire("k").await.unwrap().detach().await.unwrap();
    assert!(lock.owns(&token).await.unwrap());
    lock.extend_token(&token, 60 * SECOND).await.unwrap();
    lock.release_token(&token).await.unwrap();
    assert!(!lock.owns(&token).await.unwrap());
    let gone = [
        lock.release_token(&token).await.unwrap_err(),
        lock.extend_token(&token, 60 * SECOND).await.unwrap_err(),
        lock.resume(token.clone()).await.unwrap_err(),
    ];
    assert_eq!(
        story(&log),
        [
            (EventKind::Acquired, true, None),
            (EventKind::LookedUp { held: true }, true, None),
            (EventKind::Extended, true, None),
            (EventKind::Released, true, None),
            (EventKind::LookedUp { held: false }, false, None),
            (EventKind::ReleaseFailed, false, Some("not-found")),
            (EventKind::ExtendFailed, false, Some("not-found")),
            (EventKind::ExtendFailed, false, Some("not-found")),
        ]
    );
    store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
    store.always(Step::Release, Fault::Refuse(ErrorKind::Unavailable));
    let failed = [
        lock.owns(&token).await.unwrap_err(),
        lock.extend_token(&token, 60 * SECOND).await.unwrap_err(),
        lock.release_token(&token).await.unwrap_err(),
    ];
    assert!(failed.iter().all(|error| error.kind() == ErrorKind::Unavailable));
    let never = lock.extend_token(&token, Duration::ZERO).await.unwrap_err();
    assert_eq!(never.kind(), ErrorKind::InvalidConfig);
    for error in gone.iter().chain(&failed).chain([&never]) {
        assert_eq!(error.key().unwrap().as_str(), "k", "as the user knows it: {error}");
        assert!(error.to_string().contains("lock \"k\""), "{error}");
    }
    let told = take(&log);
    assert!(told.iter().all(|seen| seen.reason == Some("error")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_taken_in_one_step_is_told() {
    let clock = clock();
    let store = holdtight_core::MemoryStore::with_clock(clock.clone());
    let (lock, log) = watched(DistributedLock::builder(store).clock(clock));
    let set = lock.acquire_all(["a", "b"]).await.unwrap();
    lock.acquire_all(["c", "b"]).wait(Duration::ZERO).await.unwrap_err();
    set.release().await.unwrap();
    assert_eq!(
        story(&log),
        [
            (EventKind::Acquired, true, None),
            (EventKind::Acquired, true, None),
            (EventKind::Busy, false, Some("locked")),
            (EventKind::AcquireFailed, false, Some("locked")),
            (EventKind::Released, true, None),
            (EventKind::Released, true, None),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn keys_are_hashed_in_events_and_in_their_errors_unless_revealed() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let (lock, log) = watched(builder(&store, &clock));
    let handle = lock.acquire("customer:ann").await.unwrap();
    assert!(lock.try_acquire("customer:ann").await.unwrap().is_none());
    let told = take(&log);
    assert!(!format!("{told:?}").contains("ann"), "{told:?}");
    assert!(told.iter().all(|seen| seen.hash == told[0].hash && seen.hash.len() == 24));
    assert!(told[0].fence && told[1].error.is_some(), "{told:?}");
    handle.release().await.unwrap();
    lock.acquire("customer:bob").await.unwrap().release().await.unwrap();
    assert_ne!(take(&log).pop().unwrap().hash, told[0].hash);

    // Asked event by event; a predicate that panics hides.
    let (lock, log) = watched(builder(&store, &clock).reveal_keys(|event| {
        assert!(event.key.is_none() && event.kind != EventKind::Released, "not for releases");
        event.operation() == Operation::Acquire
    }));
    let handle = lock.acquire("customer:ann").await.unwrap();
    assert!(lock.try_acquire("customer:ann").await.unwrap().is_none());
    handle.extend(60 * SECOND).await.unwrap();
    handle.release().await.unwrap();
    let [acquired, busy, extended, released] = &take(&log)[..] else { panic!("four events") };
    assert_eq!(acquired.key.as_deref(), Some("customer:ann"));
    assert!(busy.error.as_ref().unwrap().contains("customer:ann"), "{busy:?}");
    assert_eq!((&extended.key, &released.key), (&None, &None));
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_only_the_releasing_holder_notices_is_told_once() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let (lock, log) = watched(builder(&store, &clock));
    let handle = lock.acquire("k").ttl(10 * SECOND).auto_renew(false).await.unwrap();
    let held = handle.held();
    // The machine slept: the clock went on, timers did not.
    clock.jump(20 * SECOND);
    assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    tokio::time::sleep(SECOND).await;
    let lost: Vec<_> =
        story(&log).into_iter().filter(|(kind, ..)| matches!(kind, EventKind::Lost(_))).collect();
    assert_eq!(lost, [(EventKind::Lost(Loss::Expired), false, Some("expired"))]);
}

/// Many a lock is handed to a waiter that has just left: whoever counts held locks by events must
/// not count those.
#[tokio::test(start_paused = true)]
async fn every_lock_that_is_told_as_acquired_is_told_as_ended_too() {
    let clock = clock();
    let store = common::Scripted::new(clock.clone());
    let (lock, log) = watched(builder(&store, &clock));
    store.always(Step::Transfer, Fault::SlowReply(Duration::from_millis(3)));
    let tasks: Vec<_> = (0..20u64)
        .map(|n| {
            let lock = lock.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let limit = Duration::from_millis(1 + (7 * n + round) % 40);
                    let wait = lock.acquire("k").wait_forever().into_future();
                    if let Ok(handle) = tokio::time::timeout(limit, wait).await {
                        handle.unwrap().release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    lock.shutdown().await.unwrap();
    let told = take(&log);
    let count = |kind| told.iter().filter(|seen| seen.kind == kind).count();
    assert!(count(EventKind::Acquired) > 20, "{}", count(EventKind::Acquired));
    assert_eq!(count(EventKind::Acquired), count(EventKind::Released));
}
