//! P12: etcd, Memcached and Firestore, distinct keys. How many pairs per second, beside the same
//! requests without us?
//!
//! Firestore is an emulator, so its numbers say nothing about Google's; the ratio says what our
//! library adds.

use std::sync::Arc;

use holdtight_testkit::servers::{Etcd, Firestore, Memcached, Program};

use super::US;
use crate::load::{our_pair, pairs_per_second, runtime};
use crate::raw::{etcd, firestore, memcached};
use crate::{Bound, Comparison, Contender, Effort, Failure, Goal, Role, Row};

const TASKS: u64 = 64;
/// Pairs per round, shared among the tasks, as many as each store does in about a second.
const ON_ETCD: u64 = 640;
const ON_MEMCACHED: u64 = 12_800;
const ON_FIRESTORE: u64 = 640;

pub(super) const ROW: Row =
    Row::new("P12", "acquire and release, distinct keys, etcd, Memcached and Firestore", prepare);

fn prepare(_: Effort) -> Result<Vec<Comparison>, Failure> {
    let mut all = vec![on_etcd()?, on_memcached()?];
    // The one server that no distribution has. `available` fails in CI, and says what to do
    // elsewhere.
    if Program::HIDANE.available() {
        all.push(on_firestore()?);
    }
    Ok(all)
}

fn on_etcd() -> Result<Comparison, Failure> {
    let runtime = runtime()?;
    let server = runtime.block_on(Etcd::start());
    let raw = runtime.block_on(etcd::Raw::connect(server.port()))?;
    let url = server.url();
    comparison("etcd, one member", &runtime, server, url, ON_ETCD, move |key| raw.clone().pair(key))
}

fn on_memcached() -> Result<Comparison, Failure> {
    let runtime = runtime()?;
    let server = runtime.block_on(Memcached::start());
    let raw = runtime.block_on(memcached::Raw::connect(server.port()))?;
    let url = server.url();
    comparison("Memcached", &runtime, server, url, ON_MEMCACHED, move |key| raw.clone().pair(key))
}

fn on_firestore() -> Result<Comparison, Failure> {
    let runtime = runtime()?;
    let server = runtime.block_on(Firestore::start());
    let raw = firestore::Raw::new(&server.host());
    let url = format!("firestore://bench?emulator={}", server.host());
    let name = "Firestore's emulator";
    comparison(name, &runtime, server, url, ON_FIRESTORE, move |key| raw.clone().pair(key))
}

/// Us at `url` and `raw`; the server lives as long as either.
fn comparison<S: 'static, W>(
    name: &str,
    runtime: &Arc<tokio::runtime::Runtime>,
    server: S,
    url: String,
    pairs: u64,
    raw: impl Fn(String) -> W + Clone + Send + 'static,
) -> Result<Comparison, Failure>
where
    W: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let lock = runtime.block_on(holdtight::connect(url))?;
    let each = move |effort: Effort| (effort.work(pairs) / TASKS).max(1);
    let our_runtime = Arc::clone(runtime);
    let us = Contender::new(US, Role::Us, move |effort| {
        let _kept = &server;
        let lock = lock.clone();
        pairs_per_second(&our_runtime, TASKS, each(effort), move |task, n| {
            our_pair(lock.clone(), format!("p12-{task}-{n}"))
        })
    });
    let runtime = Arc::clone(runtime);
    let raw = Contender::new("raw", Role::Limit, move |effort| {
        let raw = raw.clone();
        pairs_per_second(&runtime, TASKS, each(effort), move |task, n| {
            raw(format!("p12-raw-{task}-{n}"))
        })
    });
    Ok(Comparison::new(format!("{name}, 64 tasks, distinct keys"), "pairs/s", us)
        .against(raw)
        .goal(Goal::ratio("raw", Bound::AtLeast(0.8))))
}
