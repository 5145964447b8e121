//! What is counted, under faults: each number moves when it should and only then. Virtual time.

mod common;

use std::future::IntoFuture as _;
use std::time::Duration;

use common::{Fault, SECOND, Scripted, Step, builder, clock};
use holdtight_core::{DistributedLock, ErrorKind, Loss, MemoryStore, TokioClock};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Runs `test` with a recorder of its own.
fn measured(test: impl AsyncFnOnce(Numbers)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let numbers = Numbers(recorder.handle());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(test(numbers)));
}

struct Numbers(PrometheusHandle);

impl Numbers {
    /// The number of one series; zero if nobody has mentioned it yet.
    fn of(&self, series: &str) -> f64 {
        let text = self.0.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |number| number.parse().unwrap())
    }

    #[track_caller]
    fn expect(&self, series: &str, number: u32) {
        let is = self.of(series);
        assert!((is - f64::from(number)).abs() < 0.01, "{series} is {is}, not {number}");
    }
}

#[test]
fn acquire_calls_are_timed_by_outcome_and_waiters_are_counted_while_they_wait() {
    measured(async |numbers| {
        let clock = clock();
        let store = Scripted::new(clock.clone());
        let lock = builder(&store, &clock).build().unwrap();
        let handle = lock.acquire("k").await.unwrap();
        assert!(lock.try_acquire("k").await.unwrap().is_none());
        numbers.expect("holdtight_waiters{store=\"scripted\"}", 0);

        let other = lock.clone();
        let waiting = tokio::spawn(async move { other.acquire("k").wait_forever().await });
        tokio::time::sleep(SECOND).await;
        numbers.expect("holdtight_waiters{store=\"scripted\"}", 1);
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        numbers.expect("holdtight_waiters{store=\"scripted\"}", 0);

        store.next(Step::Acquire, &[Fault::Refuse(ErrorKind::AuthFailed)]);
        lock.acquire("other").await.unwrap_err();
        handle.release().await.unwrap();
        for outcome in ["acquired", "busy", "cancelled", "failed"] {
            let series = "holdtight_acquire_seconds_count{store=\"scripted\",outcome=";
            numbers.expect(&format!("{series}\"{outcome}\"}}"), 1);
        }
        numbers.expect("holdtight_store_errors_total{store=\"scripted\",kind=\"auth_failed\"}", 1);
        numbers.expect("holdtight_held_seconds_count{store=\"scripted\"}", 1);
        numbers.expect("holdtight_held_seconds_sum{store=\"scripted\"}", 1);
    });
}

#[test]
fn a_set_taken_in_one_step_is_timed_as_one_call_and_one_that_waits_key_by_key() {
    measured(async |numbers| {
        let clock = TokioClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let lock = DistributedLock::builder(store).clock(clock).build().unwrap();
        let set = lock.acquire_all(["a", "b"]).await.unwrap();
        lock.acquire_all(["b", "c"]).wait(Duration::ZERO).await.unwrap_err();
        numbers.expect("holdtight_waiters{store=\"memory\"}", 0);

        let other = lock.clone();
        let waiting =
            tokio::spawn(async move { other.acquire_all(["b", "c"]).wait_forever().await });
        tokio::time::sleep(SECOND).await;
        numbers.expect("holdtight_waiters{store=\"memory\"}", 1);
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        numbers.expect("holdtight_waiters{store=\"memory\"}", 0);

        let (next, released) = tokio::join!(lock.acquire_all(["b", "c"]).into_future(), async {
            tokio::time::sleep(SECOND).await;
            set.release().await
        },);
        released.unwrap();
        next.unwrap().release().await.unwrap();
        for (outcome, number) in [("acquired", 1 + 2), ("busy", 1), ("cancelled", 1)] {
            let series = "holdtight_acquire_seconds_count{store=\"memory\",outcome=";
            numbers.expect(&format!("{series}\"{outcome}\"}}"), number);
        }
        let waited =
            numbers.of("holdtight_acquire_seconds_sum{store=\"memory\",outcome=\"acquired\"}");
        assert!((1.0..2.0).contains(&waited), "{waited} s for one wait of a second");
        numbers.expect("holdtight_held_seconds_count{store=\"memory\"}", 4);
    });
}

#[test]
fn renewals_are_counted_by_outcome_and_losses_by_reason() {
    measured(async |numbers| {
        let clock = clock();
        let store = Scripted::new(clock.clone());
        let lock = builder(&store, &clock).ttl(30 * SECOND).build().unwrap();
        let renewed = "holdtight_renewals_total{store=\"scripted\",outcome=\"renewed\"}";
        let failed = "holdtight_renewals_total{store=\"scripted\",outcome=\"failed\"}";

        let handle = lock.acquire("k").await.unwrap();
        tokio::time::sleep(15 * SECOND).await;
        numbers.expect(renewed, 1);
        store.always(Step::Extend, Fault::Refuse(ErrorKind::Unavailable));
        assert_eq!(handle.lost().await, Loss::Expired);
        tokio::time::sleep(SECOND).await;
        let errors = "holdtight_store_errors_total{store=\"scripted\",kind=\"unavailable\"}";
        assert!(numbers.of(failed) >= 2.0 && numbers.of(failed) <= numbers.of(errors));
        numbers.expect("holdtight_lost_total{store=\"scripted\",reason=\"expired\"}", 1);
        drop(handle);
        store.always(Step::Extend, Fault::None);

        let handle = lock.acquire("k").await.unwrap();
        // Through another object: only the next renewal finds out.
        let operator = builder(&store, &clock).build().unwrap();
        operator.force_release("k", handle.fence()).await.unwrap();
        assert_eq!(handle.lost().await, Loss::TakenAway);
        numbers.expect("holdtight_renewals_total{store=\"scripted\",outcome=\"lost\"}", 1);
        numbers.expect("holdtight_lost_total{store=\"scripted\",reason=\"taken_away\"}", 1);
        drop(handle);

        let handle = lock.acquire("k").max_hold(SECOND).await.unwrap();
        assert_eq!(handle.lost().await, Loss::MaxHold);
        drop(handle);
        tokio::time::sleep(SECOND).await;
        numbers.expect("holdtight_lost_total{store=\"scripted\",reason=\"max_hold\"}", 1);
        numbers.expect("holdtight_held_seconds_count{store=\"scripted\"}", 3);
    });
}
