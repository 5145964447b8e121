//! P4: many processes want one key and hold it for a millisecond. How long is it idle between two
//! of them?
//!
//! Measured from the moment a holder begins to give it back to the moment the next one has it,
//! across processes, by the clock they share. A task that takes the lock again at once, as pollers
//! do, has not handed it over. The limit is two round trips: the release, and the wake-up with the
//! attempt that follows it. Requests are counted in a run of their own. Peers are run with 8
//! processes of 8 tasks only, since 64 interpreters say more about the machine; with few waiters it
//! shows that most of them poll, with many that some poller is always near.

use std::sync::Arc;

use super::US;
use crate::crew::Crew;
use crate::load::{median_micros, number};
use crate::peers;
use crate::postgres;
use crate::redis::{Monitor, Stage};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Holds per round, shared among the waiters; each waiter does two at least.
const HOLDS: u64 = 960;
/// The same where requests are counted.
const COUNTED: u64 = 320;
const PROCESSES: u64 = 8;
const GROWTH: [u64; 4] = [1, 10, 100, 1_000];
const ROUNDS: usize = 3;

/// What is said of a round, in the order of [`measures`].
const PERCENTILES: [f64; 4] = [50.0, 99.0, 10.0, 90.0];

const LIMIT: &str = "two round trips";

/// Those that wait for a lock.
const WAITING: [&str; 6] = [
    peers::RSLOCK,
    peers::REDLOCK,
    peers::SESAMECARE,
    peers::SEMAPHORE,
    peers::REDIS_PY,
    peers::PYTHON_REDIS_LOCK,
];

pub(super) const ROW: Row =
    Row::new("P4", "from a release to the next grant, many processes on one key", prepare);

fn prepare(effort: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let lonely = "64 processes are run of ours alone; with 8 x 8 all are compared";
    let mut all = Vec::new();
    if !effort.quick {
        let alone = redis(&stage, 64, 64, &[]);
        all.push(WAITING.iter().fold(alone, |row, name| row.without(name, lonely)));
    }
    all.push(redis(&stage, PROCESSES, 64, &WAITING).without(peers::DISTRIBUTED_LOCK, NO_WAITING));
    for waiters in GROWTH {
        all.push(growth(&stage, waiters, effort));
    }
    all.push(on_postgres()?);
    // Starting so many processes is most of a smoke run's time.
    let most = if effort.quick { 1 } else { ROUNDS };
    Ok(all.into_iter().map(|comparison| comparison.rounds_at_most(most)).collect())
}

/// `acquire` of that crate makes one attempt, whatever time it is given.
pub(super) const NO_WAITING: &str = "does not wait: one attempt, whatever the timeout";

/// With goals.
fn redis(stage: &Stage, processes: u64, waiters: u64, names: &[&'static str]) -> Comparison {
    let each = waiters / processes;
    let work = format!("Redis, one key, {processes} processes x {each}: release to next grant");
    let comparison = measures(Comparison::new(work, "ms, p50", ours(stage, processes, waiters)))
        .against(round_trips(stage));
    join(comparison, stage, names, processes, waiters)
}

/// How it grows with the waiters. One waiter is one beside the holder: two that take turns.
fn growth(stage: &Stage, waiters: u64, effort: Effort) -> Comparison {
    let processes = PROCESSES.min(waiters + 1);
    let work = format!("Redis, one key, {waiters} waiting: release to next grant");
    let some = [peers::RSLOCK, peers::REDLOCK, peers::REDIS_PY, peers::PYTHON_REDIS_LOCK];
    let some = match waiters {
        _ if effort.quick => &some[..0],
        0..=100 => &some[..],
        _ => &some[..1],
    };
    let comparison = Comparison::new(work, "ms, p50", ours(stage, processes, waiters + 1))
        .also("ms, p99")
        .also("ms, p10")
        .also("ms, p90")
        .also("requests per hand-off")
        .growing("waiters", waiters)
        .rounds_at_most(1);
    join(comparison, stage, some, processes, waiters + 1)
}

fn measures(comparison: Comparison) -> Comparison {
    comparison
        .goal(Goal::difference(LIMIT, Bound::AtMost(0.3)))
        .also("ms, p99")
        .goal(Goal::count(Bound::AtMost(20.0)))
        .also("ms, p10")
        .also("ms, p90")
        .also("requests per hand-off")
        .goal(Goal::count(Bound::AtMost(4.0)))
}

/// Adds the peers. A crew starts when it is first needed, and is idle while others have their turn.
fn join(
    comparison: Comparison,
    stage: &Stage,
    names: &[&'static str],
    processes: u64,
    waiters: u64,
) -> Comparison {
    peers::join_several(comparison, names, |name| {
        let (stage, mut crew) = (stage.clone(), None);
        move |effort| {
            let crew = match &mut crew {
                Some(crew) => crew,
                none => none.insert(Crew::of_peer(processes, name, stage.server().port())?),
            };
            round(&stage, crew, effort, waiters)
        }
    })
}

fn ours(stage: &Stage, processes: u64, waiters: u64) -> Contender {
    let (stage, mut crew) = (stage.clone(), None);
    Contender::of_several(US, Role::Us, move |effort| {
        let crew = match &mut crew {
            Some(crew) => crew,
            none => none.insert(Crew::ours(processes, &stage.server().url())?),
        };
        round(&stage, crew, effort, waiters)
    })
}

/// One run for the times, one for the requests.
fn round(
    stage: &Stage,
    crew: &mut Crew,
    effort: Effort,
    waiters: u64,
) -> Result<Vec<f64>, Failure> {
    let each = |holds: u64| (effort.work(holds) / waiters).max(2);
    let times = crew.contend("p4", waiters, each(HOLDS))?;
    let monitor = Monitor::start(stage)?;
    let counted = crew.contend("p4", waiters, each(COUNTED))?;
    let requests = number(monitor.end()?.len().try_into()?) / number(counted.count.max(1));
    let times = PERCENTILES.map(|percent| times.percentile(percent));
    Ok(times.into_iter().chain([requests]).collect())
}

/// Twice the time of a `PING`, on the machine as it is.
fn round_trips(stage: &Stage) -> Contender {
    let stage = stage.clone();
    Contender::of_several(LIMIT, Role::Limit, move |effort| {
        let connection = stage.bare()?;
        let micros = median_micros(stage.runtime(), effort.work(2_000), move |_, _| {
            let mut connection = connection.clone();
            async move { Ok(redis::cmd("PING").exec_async(&mut connection).await?) }
        })?;
        // Only the first number is a limit; the others are the same, and two requests are two
        // requests.
        let millis = 2.0 * micros / 1e3;
        Ok(vec![millis, millis, millis, millis, 2.0])
    })
}

/// The same on PostgreSQL. Statements are counted on the wire, by a proxy.
fn on_postgres() -> Result<Comparison, Failure> {
    let stage = postgres::Stage::start()?;
    let limit = stage.clone();
    let us = Contender::of_several(US, Role::Us, move |effort| {
        let each = |holds: u64| (effort.work(holds) / 64).max(2);
        let times = Crew::ours(PROCESSES, &stage.server().url())?.contend("p4", 64, each(HOLDS))?;
        let (proxy, url) = stage.counted()?;
        let mut crew = Crew::ours(PROCESSES, &url)?;
        let before = proxy.traffic().requests;
        let counted = crew.contend("p4", 64, each(COUNTED))?;
        let requests = number(proxy.traffic().requests - before) / number(counted.count.max(1));
        let times = PERCENTILES.map(|percent| times.percentile(percent));
        Ok(times.into_iter().chain([requests]).collect())
    });
    let limit = Contender::of_several(LIMIT, Role::Limit, move |effort| {
        let client = limit.bare()?;
        let micros = median_micros(limit.runtime(), effort.work(2_000), move |_, _| {
            let client = Arc::clone(&client);
            async move { Ok(client.batch_execute("").await?) }
        })?;
        let millis = 2.0 * micros / 1e3;
        Ok(vec![millis, millis, millis, millis, 2.0])
    });
    let work = "PostgreSQL, one key, 8 processes x 8: release to next grant";
    Ok(Comparison::new(work, "ms, p50", us)
        .also("ms, p99")
        .also("ms, p10")
        .also("ms, p90")
        .also("requests per hand-off")
        .against(limit))
}
