//! P7: many locks held at once and renewed in the background, on Redis. Is one lost, and what does
//! holding cost?
//!
//! In a process of its own. The goals are set for five minutes, which is `cargo xtask soak --only
//! redis-held`; here it is as long as every lock is renewed twice, and says so.

use super::US;
use crate::soaks::held::hold;
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

const LOCKS: u64 = 100_000;
/// Leases are 30 s and renewed when a third is over.
const SECONDS: u64 = 25;

pub(super) const ROW: Row = Row::new("P7", "100 000 locks held and renewed, Redis", prepare);

#[expect(clippy::unnecessary_wraps, reason = "as every row does")]
fn prepare(effort: Effort) -> Result<Vec<Comparison>, Failure> {
    let (locks, seconds) = (effort.work(LOCKS), if effort.quick { 3 } else { SECONDS });
    let us = Contender::of_several(US, Role::Us, move |_| {
        let held = hold(locks, seconds)?;
        Ok(vec![held.lost, held.cpu * 100.0, held.bytes])
    });
    let work = format!("Redis, {locks} locks held for {seconds} s");
    Ok(vec![
        Comparison::new(work, "locks lost", us)
            .goal(Goal::count(Bound::AtMost(0.0)))
            .also("% of a core")
            .goal(Goal::count(Bound::AtMost(25.0)))
            .also("bytes per lock")
            .goal(Goal::count(Bound::AtMost(600.0)))
            .counted_once(),
    ])
}
