//! P11: the file store with 1 and 4 processes, keys of their own. How many pairs per second?
//!
//! The limit is the least that any lock in a file needs, on the same disk: lock, write, unlock,
//! once to take it and once to give it back, on a file that stays open. Beside it the same with
//! every step on the disk before it is answered (`?sync=1`), which the disk decides.

use std::sync::Arc;

use holdtight_testkit::servers::Directory;

use super::US;
use crate::crew::Crew;
use crate::worker::{BARE, BARE_SYNC};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

/// Pairs per process and round; far fewer where the disk has to answer.
const PAIRS: u64 = 10_000;
const SYNCED: u64 = 200;
const LIMIT: &str = "bare";

pub(super) const ROW: Row =
    Row::new("P11", "acquire and release, file store, 1 and 4 processes", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let mut all = Vec::new();
    for processes in [1, 4] {
        let goal = Goal::ratio(LIMIT, Bound::AtLeast(0.5));
        all.push(comparison(processes, false)?.goal(goal));
        all.push(comparison(processes, true)?.rounds_at_most(3));
    }
    Ok(all)
}

fn comparison(processes: u64, sync: bool) -> Result<Comparison, Failure> {
    let place = Arc::new(Directory::new());
    let path = place.path().display().to_string();
    let (ours, bare, work) = if sync {
        let work = format!("file store with sync=1, {processes} process(es)");
        (format!("file:{path}/store?sync=1"), format!("{BARE_SYNC}{path}"), work)
    } else {
        let work = format!("file store, {processes} process(es), distinct keys");
        (format!("file:{path}/store"), format!("{BARE}{path}"), work)
    };
    let pairs = if sync { SYNCED } else { PAIRS };
    let us = Contender::new(US, Role::Us, crew(&place, processes, &ours, pairs)?);
    let limit = Contender::new(LIMIT, Role::Limit, crew(&place, processes, &bare, pairs)?);
    Ok(Comparison::new(work, "pairs/s", us).against(limit))
}

/// Processes that live as long as the comparison, so that their start is not measured.
fn crew(
    place: &Arc<Directory>,
    processes: u64,
    url: &str,
    pairs: u64,
) -> Result<impl FnMut(Effort) -> Result<f64, Failure> + use<>, Failure> {
    let (place, mut crew) = (Arc::clone(place), Crew::ours(processes, url)?);
    Ok(move |effort: Effort| {
        let _kept = &place;
        crew.pairs(effort.work(pairs))
    })
}
