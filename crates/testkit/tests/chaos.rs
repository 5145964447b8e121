//! The chaos wrapper: every fault does what its name says to the store and to the caller.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, BootClock, Clock as _, ErrorKind, Fence, Key, LockError,
    ManualClock, MemoryStore, Release, Secret,
};
use holdtight_testkit::{CallOutcome, Chaos, Fault, Method};

const TTL: Duration = Duration::from_secs(60);

struct Scene {
    inner: Arc<MemoryStore>,
    chaos: Arc<Chaos>,
    key: Key,
    me: Secret,
}

impl Scene {
    fn new() -> Self {
        let inner = Arc::new(MemoryStore::new());
        let chaos = Chaos::around(Arc::clone(&inner) as Arc<dyn Backend>);
        Self { inner, chaos, key: Key::new("k").unwrap(), me: Secret::generate().unwrap() }
    }

    async fn acquire(&self) -> Result<Fence, LockError> {
        let request = AcquireRequest::new(self.key.clone(), self.me.clone(), TTL);
        match Arc::clone(&self.chaos).acquire(request).await? {
            Attempt::Granted(lease) => Ok(lease.fence),
            other => panic!("nobody else is here: {other:?}"),
        }
    }

    async fn release(&self) -> Result<Release, LockError> {
        Arc::clone(&self.chaos).release(self.key.clone(), self.me.clone()).await
    }

    /// The truth, past the wrapper.
    async fn held(&self) -> bool {
        Arc::clone(&self.inner).lookup(self.key.clone()).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn a_lost_request_does_nothing_and_a_lost_reply_hides_what_was_done() {
    let scene = Scene::new();
    scene.chaos.next(Method::Acquire, 1, Fault::LostRequest);
    scene.chaos.next(Method::Acquire, 1, Fault::LostReply);
    assert_eq!(scene.acquire().await.unwrap_err().kind(), ErrorKind::Ambiguous);
    assert!(!scene.held().await);
    assert_eq!(scene.acquire().await.unwrap_err().kind(), ErrorKind::Ambiguous);
    assert!(scene.held().await);
    let again = scene.acquire().await.unwrap();
    assert_eq!(scene.acquire().await.unwrap(), again, "the script is used up");
}

#[tokio::test]
async fn a_duplicate_is_done_twice_and_the_second_answer_counts() {
    let scene = Scene::new();
    scene.acquire().await.unwrap();
    scene.chaos.next(Method::Release, 1, Fault::Duplicate);
    assert_eq!(scene.release().await.unwrap(), Release::NotHeld);
    assert!(!scene.held().await);
}

#[tokio::test]
async fn an_error_is_of_the_kind_asked_for_and_nothing_is_done() {
    let scene = Scene::new();
    for kind in [ErrorKind::Unavailable, ErrorKind::RateLimited, ErrorKind::Internal] {
        scene.chaos.next(Method::Acquire, 1, Fault::Error(kind));
        assert_eq!(scene.acquire().await.unwrap_err().kind(), kind);
        assert!(!scene.held().await);
    }
}

#[tokio::test(start_paused = true)]
async fn slowness_comes_before_or_after_the_step() {
    let scene = Scene::new();
    scene.chaos.next(Method::Acquire, 1, Fault::SlowRequest(Duration::from_secs(5)));
    tokio::select! {
        _ = scene.acquire() => panic!("too early"),
        () = tokio::time::sleep(Duration::from_secs(4)) => assert!(!scene.held().await),
    }
    scene.chaos.next(Method::Acquire, 1, Fault::SlowReply(Duration::from_secs(5)));
    tokio::select! {
        _ = scene.acquire() => panic!("too early"),
        () = tokio::time::sleep(Duration::from_secs(4)) => assert!(scene.held().await),
    }
}

#[tokio::test(start_paused = true)]
async fn held_calls_wait_until_they_are_let_go() {
    let scene = Scene::new();
    for (fault, done) in [(Fault::HeldRequest, false), (Fault::HeldReply, true)] {
        scene.chaos.next(Method::Acquire, 1, fault);
        let mut call = std::pin::pin!(scene.acquire());
        let waited = tokio::time::timeout(Duration::from_secs(3600), &mut call).await;
        assert!(waited.is_err(), "{fault:?} must wait");
        assert_eq!(scene.held().await, done, "{fault:?}");
        scene.chaos.let_go();
        call.await.unwrap();
        assert!(scene.held().await);
        scene.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_clock_jumps_between_the_step_and_its_answer() {
    let (scene, clock) = (Scene::new(), ManualClock::over(BootClock));
    scene.chaos.clock(clock.clone());
    scene.chaos.next(Method::Acquire, 1, Fault::ClockJump(Duration::from_secs(3600)));
    let before = clock.now();
    scene.acquire().await.unwrap();
    assert!(clock.now().since(before) >= Duration::from_secs(3600));
}

#[tokio::test]
async fn a_release_without_waiting_falls_back_when_it_is_hurt() {
    let scene = Scene::new();
    scene.acquire().await.unwrap();
    scene.chaos.next(Method::ReleaseNow, 1, Fault::LostReply);
    assert!(scene.chaos.release_now(&scene.key, &scene.me).is_none());
    assert!(scene.held().await, "the long way is the caller's");
    let released = scene.chaos.release_now(&scene.key, &scene.me).unwrap();
    assert_eq!(released.unwrap(), Release::Released);
}

#[tokio::test]
async fn the_same_seed_draws_the_same_faults_and_the_history_tells() {
    let faults = [Fault::LostReply, Fault::LostRequest, Fault::Error(ErrorKind::Unavailable)];
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let scene = Scene::new();
        scene.chaos.random(seed, 400, &faults);
        for _ in 0..200 {
            let _ = scene.acquire().await;
        }
        assert_eq!(scene.chaos.count(Method::Acquire), 200);
        let history = scene.chaos.history();
        for call in &history {
            let wanted = match call.fault {
                Fault::None => CallOutcome::Answered,
                Fault::Error(kind) => CallOutcome::Failed(kind),
                _ => CallOutcome::Failed(ErrorKind::Ambiguous),
            };
            assert_eq!(call.outcome, Some(wanted));
            assert_eq!(call.key.as_ref(), Some(&scene.key));
        }
        let hurt = history.iter().filter(|call| call.fault != Fault::None).count();
        assert!((40..120).contains(&hurt), "{hurt} of 200 is not about 40 %");
        runs.push(history.iter().map(|call| call.fault).collect::<Vec<_>>());
        scene.chaos.heal();
        scene.acquire().await.unwrap();
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}
