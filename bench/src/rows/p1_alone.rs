//! P1: one task takes and gives back keys on Redis. How long does it wait for a pair?
//!
//! `raw` are the two requests that our library sends, sent without it; `bare` is `SET NX PX` and
//! `DEL`. Peers run in their own language, one task each. None of them mints a fence; the
//! difference between `raw` and `bare` is what ours costs, with the check on release whose lock it
//! is.

use super::US;
use crate::load::{median_micros, our_pair};
use crate::peers::{self, Peer};
use crate::redis::{Replay, Stage, bare_pair};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Pairs per round.
const PAIRS: u64 = 2_000;

pub(super) const ROW: Row = Row::new("P1", "acquire and release, one task, Redis", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let stage = Stage::start()?;
    let (lock, replay) = (stage.lock()?, Replay::record(&stage)?);
    let (raw, bare) = (stage.bare()?, stage.bare()?);
    let our_stage = stage.clone();
    let us = Contender::new(US, Role::Us, move |effort| {
        let lock = lock.clone();
        median_micros(our_stage.runtime(), effort.work(PAIRS), move |_, n| {
            our_pair(lock.clone(), format!("p1:{n}"))
        })
    });
    let raw_stage = stage.clone();
    let raw = Contender::new("raw", Role::Limit, move |effort| {
        let (raw, replay) = (raw.clone(), replay.clone());
        median_micros(raw_stage.runtime(), effort.work(PAIRS), move |_, n| {
            let (mut raw, replay) = (raw.clone(), replay.clone());
            async move { replay.pair(&mut raw, &format!("p1:{n}")).await }
        })
    });
    let bare_stage = stage.clone();
    let bare = Contender::new("bare", Role::Limit, move |effort| {
        let bare = bare.clone();
        median_micros(bare_stage.runtime(), effort.work(PAIRS), move |_, n| {
            bare_pair(bare.clone(), format!("p1:bare:{n}"))
        })
    });
    let comparison =
        Comparison::new("Redis, one task, distinct keys: time of a pair, p50", "µs", us)
            .against(raw)
            .against(bare)
            .goal(Goal::ratio("raw", Bound::AtMost(1.1)));
    Ok(vec![peers::join(comparison, &stage, &peers::ALL, |peer: &mut Peer, effort| {
        Ok(peer.pairs(1, effort.work(PAIRS))?.p50_micros)
    })])
}
