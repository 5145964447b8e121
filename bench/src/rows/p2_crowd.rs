//! P2: many tasks take and give back keys of their own on Redis. How many pairs per second?
//!
//! The goals are set for 256 tasks. The same is run with 1, 10, 100 and 1 000 to show how it grows.
//! Yardsticks as for P1; all of them, and we, share one connection. Peers use what their client
//! does by default.

use super::US;
use crate::load::{our_pair, pairs_per_second};
use crate::peers::{self, Peer};
use crate::redis::{Replay, Stage, bare_pair};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Pairs per round, shared among the tasks.
const PAIRS: u64 = 12_800;
const TASKS: u64 = 256;
const GROWTH: [u64; 4] = [1, 10, 100, 1_000];

pub(super) const ROW: Row =
    Row::new("P2", "acquire and release, many tasks, distinct keys, Redis", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let comparison = comparison(&stage, TASKS)?
        .goal(Goal::ratio("raw", Bound::AtLeast(0.9)))
        .goal(Goal::ratio("bare", Bound::AtLeast(0.5)))
        .goal(Goal::ratio(peers::RSLOCK, Bound::AtLeast(1.0)))
        .goal(Goal::best(peers::SCRIPTED, Bound::AtLeast(3.0)));
    let mut all = vec![peers::join(comparison, &stage, &peers::ALL, |peer: &mut Peer, effort| {
        let share = if peer.is_slow() { PAIRS / 5 } else { PAIRS };
        Ok(peer.pairs(TASKS, (effort.work(share) / TASKS).max(1))?.per_second)
    })];
    for tasks in GROWTH {
        all.push(comparison_of_growth(&stage, tasks)?);
    }
    Ok(all)
}

fn comparison_of_growth(stage: &Stage, tasks: u64) -> Result<Comparison, Failure> {
    let comparison = comparison(stage, tasks)?.growing("tasks", tasks).rounds_at_most(5);
    Ok(peers::join(comparison, stage, &[peers::RSLOCK], move |peer: &mut Peer, effort| {
        Ok(peer.pairs(tasks, each(effort, tasks))?.per_second)
    }))
}

/// A single task cannot use what many share, and does a share of the work in the same time.
fn each(effort: Effort, tasks: u64) -> u64 {
    (effort.work(if tasks == 1 { PAIRS / 4 } else { PAIRS }) / tasks).max(1)
}

fn comparison(stage: &Stage, tasks: u64) -> Result<Comparison, Failure> {
    let (lock, replay) = (stage.lock()?, Replay::record(stage)?);
    let (raw, bare) = (stage.bare()?, stage.bare()?);
    let our_stage = stage.clone();
    let us = Contender::new(US, Role::Us, move |effort| {
        let lock = lock.clone();
        pairs_per_second(our_stage.runtime(), tasks, each(effort, tasks), move |task, n| {
            our_pair(lock.clone(), format!("p2:{task}:{n}"))
        })
    });
    let raw_stage = stage.clone();
    let raw = Contender::new("raw", Role::Limit, move |effort| {
        let (raw, replay) = (raw.clone(), replay.clone());
        pairs_per_second(raw_stage.runtime(), tasks, each(effort, tasks), move |task, n| {
            let (mut raw, replay) = (raw.clone(), replay.clone());
            async move { replay.pair(&mut raw, &format!("p2:{task}:{n}")).await }
        })
    });
    let bare_stage = stage.clone();
    let bare = Contender::new("bare", Role::Limit, move |effort| {
        let bare = bare.clone();
        pairs_per_second(bare_stage.runtime(), tasks, each(effort, tasks), move |task, n| {
            bare_pair(bare.clone(), format!("p2:bare:{task}:{n}"))
        })
    });
    let work = format!("Redis, {tasks} tasks, distinct keys");
    Ok(Comparison::new(work, "pairs/s", us).against(raw).against(bare))
}
