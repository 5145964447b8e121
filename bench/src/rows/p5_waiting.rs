//! P5: a thousand wait behind one holder. What does that cost the store while nothing happens?
//!
//! Ten processes of a hundred tasks each. Requests are counted once everybody has settled down to
//! wait. Growth: the same with 1, 10 and 100 waiters.

use std::time::{Duration, Instant};

use super::US;
use super::p4_hand_over::NO_WAITING;
use crate::crew::Crew;
use crate::load::number;
use crate::redis::{Monitor, Stage};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row, peers, postgres};

const PROCESSES: u64 = 10;
const GROWTH: [u64; 3] = [1, 10, 100];

/// The whole span of a holder's ten seconds: to settle down, then to be watched.
const SETTLE: Duration = Duration::from_secs(2);
const WATCH: Duration = Duration::from_secs(8);

/// Which way a peer waits for a key, by the name it gives the key in Redis.
const WAITING: [(&str, &str); 6] = [
    (peers::RSLOCK, ""),
    (peers::REDLOCK, ""),
    (peers::SESAMECARE, ""),
    (peers::SEMAPHORE, "mutex:"),
    (peers::REDIS_PY, ""),
    (peers::PYTHON_REDIS_LOCK, "lock:"),
];

pub(super) const ROW: Row = Row::new("P5", "requests while a thousand wait for one key", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let names: Vec<&'static str> = WAITING.iter().map(|(name, _)| *name).collect();
    let mut all = vec![
        comparison(&stage, 1_000, &names)
            .goal(Goal::count(Bound::AtMost(20.0)))
            .without(peers::DISTRIBUTED_LOCK, NO_WAITING),
    ];
    for waiters in GROWTH {
        all.push(comparison(&stage, waiters, &[peers::RSLOCK, peers::REDIS_PY]));
    }
    all.push(on_postgres()?);
    Ok(all)
}

fn comparison(stage: &Stage, waiters: u64, names: &[&'static str]) -> Comparison {
    let our_stage = stage.clone();
    let us = Contender::new(US, Role::Us, move |effort| {
        let lock = our_stage.lock()?;
        let held = our_stage.runtime().block_on(async { lock.acquire("p5").await })?;
        let mut crew = Crew::ours(PROCESSES.min(waiters), &our_stage.server().url())?;
        let requests = watch(&our_stage, effort, || crew.wait("p5", waiters));
        // Not given back before the waiters are gone, who would all take their turns.
        drop(crew);
        our_stage.runtime().block_on(held.release())?;
        requests
    });
    let work = format!("Redis, {waiters} waiting for one key");
    let comparison =
        Comparison::new(work, "requests/s", us).growing("waiters", waiters).counted_once();
    peers::join_several(comparison, names, |name| {
        let stage = stage.clone();
        move |effort| {
            let server = stage.server();
            let beginning = WAITING.iter().find(|(peer, _)| *peer == name).map_or("", |it| it.1);
            let key = format!("p5:{name}");
            stage.runtime().block_on(server.command(&format!("SET {beginning}{key} held")))?;
            let mut crew = Crew::of_peer(PROCESSES.min(waiters), name, server.port())?;
            Ok(vec![watch(&stage, effort, || crew.wait(&key, waiters))?])
        }
    })
}

/// Requests per second, after `begin` and a while in which everybody settles down.
fn watch(
    stage: &Stage,
    effort: Effort,
    begin: impl FnOnce() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    begin()?;
    let (settle, watch) = spans(effort);
    std::thread::sleep(settle);
    let (start, monitor) = (Instant::now(), Monitor::start(stage)?);
    std::thread::sleep(watch);
    Ok(number(monitor.end()?.len().try_into()?) / start.elapsed().as_secs_f64())
}

fn spans(effort: Effort) -> (Duration, Duration) {
    if effort.quick { (SETTLE / 4, WATCH / 16) } else { (SETTLE, WATCH) }
}

fn on_postgres() -> Result<Comparison, Failure> {
    let stage = postgres::Stage::start()?;
    let lock = stage.runtime().block_on(holdtight::connect(stage.server().url()))?;
    let us = Contender::new(US, Role::Us, move |effort| {
        let held = stage.runtime().block_on(async { lock.acquire("p5").await })?;
        let (proxy, url) = stage.counted()?;
        let mut crew = Crew::ours(PROCESSES, &url)?;
        crew.wait("p5", 1_000)?;
        let (settle, watch) = spans(effort);
        std::thread::sleep(settle);
        let (start, before) = (Instant::now(), proxy.traffic().requests);
        std::thread::sleep(watch);
        let requests = number(proxy.traffic().requests - before) / start.elapsed().as_secs_f64();
        drop(crew);
        stage.runtime().block_on(held.release())?;
        Ok(requests)
    });
    Ok(Comparison::new("PostgreSQL, 1000 waiting for one key", "requests/s", us)
        .goal(Goal::count(Bound::AtMost(20.0)))
        .counted_once())
}
