//! P3: what a pair of P2 costs the server: requests, and time of its processor.
//!
//! Requests are counted by watching the server, which slows it, so both are measured apart. The
//! ratio to `bare` is the price of a fence, of an owner that others can read, and of giving back
//! only what is ours.
//!
//! A task alone sends two requests for a pair, no more and no fewer. Where many share a store they
//! share requests too.

use super::US;
use crate::load::{number, our_pair, pairs_per_second};
use crate::peers::{self, Peer};
use crate::redis::{Monitor, Replay, Stage, bare_pair};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

const TASKS: u64 = 256;
/// Pairs per round, shared among the tasks: fewer where requests are counted, since that gives the
/// same each time.
const PAIRS: u64 = 12_800;
const COUNTED: u64 = 2_560;

pub(super) const ROW: Row = Row::new("P3", "what a pair costs Redis", prepare);

/// What is measured of a round.
#[derive(Clone, Copy)]
enum Cost {
    Requests,
    Processor,
}

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let alone = comparison(&stage, Cost::Requests, 1)?
        .goal(Goal::count(Bound::Exactly(2.0)))
        .rounds_at_most(3);
    let requests =
        with_peers(&stage, Cost::Requests)?.goal(Goal::count(Bound::AtMost(2.0))).rounds_at_most(3);
    let processor =
        with_peers(&stage, Cost::Processor)?.goal(Goal::ratio("raw", Bound::AtMost(1.1)));
    Ok(vec![alone, requests, processor])
}

fn with_peers(stage: &Stage, cost: Cost) -> Result<Comparison, Failure> {
    let (comparison, peer_stage) = (comparison(stage, cost, TASKS)?, stage.clone());
    Ok(peers::join(comparison, stage, &peers::ALL, move |peer: &mut Peer, effort| {
        // The first work of a peer is also its start, with requests of its own.
        peer.pairs(1, 1)?;
        cost.of(&peer_stage, effort, TASKS, |each| Ok(peer.pairs(TASKS, each)?.per_second))
    }))
}

fn comparison(stage: &Stage, cost: Cost, tasks: u64) -> Result<Comparison, Failure> {
    let (lock, replay) = (stage.lock()?, Replay::record(stage)?);
    let (raw, bare) = (stage.bare()?, stage.bare()?);
    let our_stage = stage.clone();
    let us = Contender::new(US, Role::Us, move |effort| {
        let (runtime, lock) = (our_stage.runtime(), lock.clone());
        cost.of(&our_stage, effort, tasks, |each| {
            pairs_per_second(runtime, tasks, each, move |task, n| {
                our_pair(lock.clone(), format!("p3:{task}:{n}"))
            })
        })
    });
    let raw_stage = stage.clone();
    let raw = Contender::new("raw", Role::Limit, move |effort| {
        let (runtime, raw, replay) = (raw_stage.runtime(), raw.clone(), replay.clone());
        cost.of(&raw_stage, effort, tasks, |each| {
            pairs_per_second(runtime, tasks, each, move |task, n| {
                let (mut raw, replay) = (raw.clone(), replay.clone());
                async move { replay.pair(&mut raw, &format!("p3:{task}:{n}")).await }
            })
        })
    });
    let bare_stage = stage.clone();
    let bare = Contender::new("bare", Role::Limit, move |effort| {
        let (runtime, bare) = (bare_stage.runtime(), bare.clone());
        cost.of(&bare_stage, effort, tasks, |each| {
            pairs_per_second(runtime, tasks, each, move |task, n| {
                bare_pair(bare.clone(), format!("p3:bare:{task}:{n}"))
            })
        })
    });
    let (what, unit) = match cost {
        Cost::Requests => ("requests", "per pair"),
        Cost::Processor => ("server's CPU", "µs per pair"),
    };
    let work = match tasks {
        1 => format!("Redis, one task, distinct keys: {what}"),
        _ => format!("Redis, {tasks} tasks, distinct keys: {what}"),
    };
    Ok(Comparison::new(work, unit, us).against(raw).against(bare))
}

impl Cost {
    /// What one pair of `work` costs, which is told how many pairs each task does.
    fn of(
        self,
        stage: &Stage,
        effort: Effort,
        tasks: u64,
        work: impl FnOnce(u64) -> Result<f64, Failure>,
    ) -> Result<f64, Failure> {
        let pairs = match self {
            Self::Requests => COUNTED,
            Self::Processor => PAIRS,
        };
        // A task alone does a hundred: enough to count.
        let each = (effort.work(pairs) / TASKS).max(1) * if tasks == 1 { 10 } else { 1 };
        let spent = match self {
            Self::Requests => {
                let monitor = Monitor::start(stage)?;
                work(each)?;
                number(monitor.end()?.len().try_into()?)
            }
            Self::Processor => {
                let before = stage.cpu_micros()?;
                work(each)?;
                stage.cpu_micros()? - before
            }
        };
        Ok(spent / number(tasks * each))
    }
}
