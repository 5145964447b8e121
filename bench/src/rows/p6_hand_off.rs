//! P6: many tasks of one process on one key. How fast does the lock pass from task to task?
//!
//! The yardstick is `tokio::sync::Mutex`, which is fair as our queue is, but mints no fence, keeps
//! no lease and tells nobody of a loss. All tasks queue up before the first of them gets the lock,
//! they do nothing while they hold it, and only a change of holder counts: a task that takes a free
//! lock again is no hand-off.
//!
//! On Redis the limit is one round trip per hand-off: a `PING` at a time.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use holdtight_core::{DistributedLock, MemoryStore};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::{JoinSet, yield_now};

use super::US;
use crate::load::{pairs_per_second, runtime};
use crate::redis::Stage;
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Holds per round, shared among the tasks.
const HOLDS: u64 = 200_000;

/// The same on Redis, where each takes a round trip.
const HOLDS_ON_REDIS: u64 = 10_000;

/// The goal is set for the last; the others show how the cost grows. Fewer than ten pass it on too
/// seldom to count.
const TASKS: [u64; 3] = [10, 100, 1_000];

/// The holder that lets the others queue up.
const OPENER: u64 = 0;

const MUTEX: &str = "tokio::sync::Mutex";
const ROUND_TRIP: &str = "one round trip each";

pub(super) const ROW: Row = Row::new("P6", "tasks of one process on one key", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let mut comparisons = Vec::new();
    for tasks in TASKS {
        let comparison = Comparison::new(
            format!("memory store, one key, {tasks} tasks"),
            "hand-offs/s",
            Contender::new(US, Role::Us, ours(tasks)?),
        )
        .against(Contender::new(MUTEX, Role::Limit, mutex(tasks)?))
        .growing("tasks, memory store", tasks);
        comparisons.push(if Some(&tasks) == TASKS.last() {
            comparison.goal(Goal::ratio(MUTEX, Bound::AtLeast(0.3)))
        } else {
            comparison
        });
    }
    let stage = Stage::start()?;
    for tasks in TASKS {
        let comparison = Comparison::new(
            format!("Redis, one key, {tasks} tasks"),
            "hand-offs/s",
            Contender::new(US, Role::Us, on_redis(&stage, tasks)?),
        )
        .against(Contender::new(ROUND_TRIP, Role::Limit, round_trips(&stage)?))
        .growing("tasks, Redis", tasks);
        comparisons.push(if Some(&tasks) == TASKS.last() {
            comparison.goal(Goal::ratio(ROUND_TRIP, Bound::AtLeast(0.8)))
        } else {
            comparison.rounds_at_most(5)
        });
    }
    Ok(comparisons)
}

fn on_redis(
    stage: &Stage,
    tasks: u64,
) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let stage = stage.clone();
    let connect = holdtight::builder(stage.server().url()).wait_forever();
    let lock = stage.runtime().block_on(connect.connect())?;
    Ok(move |effort: Effort| {
        let holds = effort.work(HOLDS_ON_REDIS);
        hand_offs(stage.runtime(), holds, tasks, &lock, async |lock, place, times| {
            for _ in 0..times {
                let handle = lock.acquire("p6").await?;
                place.hold().await;
                handle.release().await?;
            }
            Ok(())
        })
    })
}

fn round_trips(
    stage: &Stage,
) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let (stage, connection) = (stage.clone(), stage.bare()?);
    Ok(move |effort: Effort| {
        let (connection, pings) = (connection.clone(), effort.work(HOLDS_ON_REDIS));
        pairs_per_second(stage.runtime(), 1, pings, move |_, _| {
            let mut connection = connection.clone();
            async move { Ok(redis::cmd("PING").exec_async(&mut connection).await?) }
        })
    })
}

fn ours(tasks: u64) -> Result<impl FnMut(Effort) -> Result<f64, Failure>, Failure> {
    let runtime = runtime()?;
    let lock = DistributedLock::builder(MemoryStore::new()).wait_forever().build()?;
    Ok(move |effort: Effort| {
        hand_offs(&runtime, effort.work(HOLDS), tasks, &lock, async |lock, place, times| {
            for _ in 0..times {
                let handle = lock.acquire("key").await?;
                place.hold().await;
                handle.release().await?;
            }
            Ok(())
        })
    })
}

fn mutex(tasks: u64) -> Result<impl FnMut(Effort) -> Result<f64, Failure>, Failure> {
    let runtime = runtime()?;
    let mutex = Arc::new(Mutex::new(()));
    Ok(move |effort: Effort| {
        hand_offs(&runtime, effort.work(HOLDS), tasks, &mutex, async |mutex, place, times| {
            for _ in 0..times {
                let held = mutex.lock().await;
                place.hold().await;
                drop(held);
            }
            Ok(())
        })
    })
}

/// One task's view of the round.
struct Place {
    me: u64,
    round: Arc<Round>,
}

#[derive(Default)]
struct Round {
    tasks: u64,
    arrived: AtomicU64,
    opened: AtomicBool,
    start: OnceLock<Instant>,
    // Only the holder changes these, by a read and a write that a second holder could come between.
    holds: AtomicU64,
    hand_offs: AtomicU64,
    last: AtomicU64,
}

impl Place {
    /// What a task does while it holds the lock.
    async fn hold(&self) {
        let round = &*self.round;
        if self.me == OPENER {
            round.opened.store(true, Ordering::Release);
            while round.arrived.load(Ordering::Acquire) < round.tasks {
                yield_now().await;
            }
            round.start.get_or_init(Instant::now);
            return;
        }
        add_one(&round.holds);
        if round.last.load(Ordering::Relaxed) != self.me {
            round.last.store(self.me, Ordering::Relaxed);
            add_one(&round.hand_offs);
        }
    }
}

fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Hand-offs per second when each of `tasks` holds the lock its share of times.
fn hand_offs<L, W>(
    runtime: &Runtime,
    holds: u64,
    tasks: u64,
    lock: &L,
    work: impl Fn(L, Place, u64) -> W,
) -> Result<f64, Failure>
where
    L: Clone,
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let each = (holds / tasks).max(1);
    let round = Arc::new(Round { tasks, ..Round::default() });
    let place = |me| Place { me, round: Arc::clone(&round) };
    let end = runtime.block_on(async {
        let mut running = JoinSet::new();
        running.spawn(work(lock.clone(), place(OPENER), 1));
        while !round.opened.load(Ordering::Acquire) {
            yield_now().await;
        }
        for me in 1..=tasks {
            let (round, working) = (Arc::clone(&round), work(lock.clone(), place(me), each));
            running.spawn(async move {
                round.arrived.fetch_add(1, Ordering::AcqRel);
                working.await
            });
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok::<_, Failure>(Instant::now())
    })?;
    let (expected, holds) = (tasks * each, round.holds.load(Ordering::Relaxed));
    if holds != expected {
        return Err(format!("{expected} holds were counted as {holds}: two at once").into());
    }
    let start = round.start.get().ok_or("nobody let the tasks begin")?;
    let hand_offs = round.hand_offs.load(Ordering::Relaxed);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(hand_offs as f64 / end.duration_since(*start).as_secs_f64())
}
