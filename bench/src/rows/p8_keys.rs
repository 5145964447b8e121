//! P8: many distinct keys, each locked and released once, then one sweep. What is left in the
//! store?
//!
//! The goals are set for a million keys, which is `cargo xtask soak`; here it is a twentieth, and
//! says so. What would be left is left by every key, so it shows as well. Growth: a tenth of that,
//! on Redis.

use super::US;
use crate::keys::{Left, in_files, in_postgres, in_redis};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

const KEYS: u64 = 50_000;

pub(super) const ROW: Row = Row::new("P8", "what distinct keys leave in a store", prepare);

#[expect(clippy::unnecessary_wraps, reason = "as every row does")]
fn prepare(effort: Effort) -> Result<Vec<Comparison>, Failure> {
    let keys = effort.work(KEYS);
    let megabytes = |keys: u64| {
        let goal = Goal::count(Bound::AtMost(1.0));
        let us = move |_: Effort| in_redis(keys).map(|left| left.more / (1024.0 * 1024.0));
        comparison("Redis", keys, "MB more than before", us).goal(goal).growing("keys", keys)
    };
    let nothing = Goal::count(Bound::AtMost(0.0));
    let left =
        |run: fn(u64) -> Result<Left, Failure>| move |_: Effort| run(keys).map(|left| left.more);
    Ok(vec![
        megabytes(keys / 10),
        megabytes(keys),
        comparison("PostgreSQL", keys, "rows more", left(in_postgres)).goal(nothing),
        comparison("file store", keys, "files more", left(in_files)).goal(nothing),
    ])
}

fn comparison(
    store: &str,
    keys: u64,
    unit: &'static str,
    us: impl FnMut(Effort) -> Result<f64, Failure> + 'static,
) -> Comparison {
    let work = format!("{store}, {keys} keys locked and released once");
    Comparison::new(work, unit, Contender::new(US, Role::Us, us)).counted_once()
}
