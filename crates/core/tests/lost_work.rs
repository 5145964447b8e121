//! Work that lost its lock never ends as `Ok`, in whatever form it was run and however the lock was
//! lost. Virtual time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{SECOND, Scripted, builder, scripted};
use holdtight_core::{Backend as _, DistributedLock, ErrorKind, Key, LockError, ManualClock};

/// Ways to lose a lock that the work, in its one poll, does not notice.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// The machine sleeps, or the work blocks its thread, for longer than the lease.
    Sleep,
    /// The store forgets the lock, or an operator frees it.
    Freed,
    /// The same, and somebody else has taken it.
    Taken,
}

const MISHAPS: [Mishap; 3] = [Mishap::Sleep, Mishap::Freed, Mishap::Taken];

struct Scene {
    lock: DistributedLock,
    rival: DistributedLock,
    store: Arc<Scripted>,
    clock: ManualClock,
}

impl Scene {
    fn new() -> Self {
        let (lock, store, clock) = scripted();
        let rival = builder(&store, &clock).build().unwrap();
        Self { lock, rival, store, clock }
    }

    async fn happen(&self, mishap: Mishap) {
        if let Mishap::Sleep = mishap {
            self.clock.jump(60 * SECOND);
            return;
        }
        let holder = Arc::clone(&self.store.inner).lookup(Key::new("k").unwrap()).await.unwrap();
        let fence = holder.unwrap().fence.unwrap();
        self.rival.force_release("k", fence).await.unwrap();
        if let Mishap::Taken = mishap {
            std::mem::forget(self.rival.try_acquire("k").await.unwrap().unwrap());
        }
    }
}

fn must_be_lost<T: std::fmt::Debug>(form: &str, mishap: Mishap, outcome: Result<T, LockError>) {
    match outcome {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{form}, {mishap:?}: {error}"),
        Ok(out) => panic!("{form}, {mishap:?}: the lock was lost, and the work is Ok({out:?})"),
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_lost_its_lock_is_never_ok() {
    for mishap in MISHAPS {
        let scene = Scene::new();
        let work = scene.lock.with_lock("k", async |_| scene.happen(mishap).await);
        must_be_lost("with_lock", mishap, work.await);

        let scene = Scene::new();
        let work = scene.lock.acquire("k").run(async |_| scene.happen(mishap).await);
        must_be_lost("acquire().run", mishap, work.await);

        let scene = Scene::new();
        let work = scene.lock.try_acquire("k").run(async |_| scene.happen(mishap).await);
        must_be_lost("try_acquire().run", mishap, work.await);

        let scene = Scene::new();
        let work = scene.lock.acquire_all(["j", "k"]).run(async |_| scene.happen(mishap).await);
        must_be_lost("acquire_all().run", mishap, work.await);

        let scene = Scene::new();
        let work = scene.lock.once_per("k", 600 * SECOND, async |_| scene.happen(mishap).await);
        must_be_lost("once_per", mishap, work.await);

        // A leader campaigns again, and its work begins anew.
        let (scene, terms) = (Scene::new(), AtomicU32::new(0));
        let election = scene.lock.election("k");
        let (scene, terms) = (&scene, &terms);
        let work = election.lead(|_| async move {
            if terms.fetch_add(1, Ordering::SeqCst) == 0 {
                scene.happen(mishap).await;
                if let Mishap::Taken = mishap {
                    // Whoever took it dies.
                    scene.clock.jump(60 * SECOND);
                }
            }
        });
        work.await.unwrap();
        assert_eq!(terms.load(Ordering::SeqCst), 2, "lead, {mishap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_period_is_as_long_as_it_says_however_long_the_work_takes() {
    for work in [0, 10, 20, 29, 45, 59] {
        let scene = Scene::new();
        let period = 60 * SECOND;
        let start = tokio::time::Instant::now();
        let done = scene.lock.once_per("k", period, async |_| {
            tokio::time::sleep(work * SECOND).await;
        });
        done.await.unwrap().expect("the first turn");
        loop {
            let again = scene.rival.once_per("k", period, async |_| ()).await.unwrap();
            if again.is_some() {
                break;
            }
            tokio::time::sleep(SECOND / 10).await;
        }
        let lasted = start.elapsed();
        assert!(lasted >= period, "work of {work} s: again after {lasted:?}");
        assert!(lasted <= period + SECOND, "work of {work} s: again only after {lasted:?}");
    }
}
