//! `bench`: how fast the chosen store is from here, in cycles of acquire and release.
//!
//! A first look for users, on their own store and network. How we compare with others is measured
//! elsewhere.

use std::time::Duration;

use holdtight::{DistributedLock, LockError};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args::BenchArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::{interrupt, output};

/// Cycles that are not counted: connections warm up, files come into being.
const WARM_UP: u32 = 10;

/// How long a cycle may wait for a contended key.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Report {
    store: String,
    tasks: u32,
    shared_key: bool,
    seconds: f64,
    cycles: usize,
    cycles_per_second: f64,
    acquire_ms: Percentiles,
    release_ms: Percentiles,
}

/// Latencies in milliseconds.
#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

/// What the cycles took.
#[derive(Default)]
struct Samples {
    acquire: Vec<Duration>,
    release: Vec<Duration>,
}

pub(crate) async fn run(args: BenchArgs, context: &Context) -> Result<u8, Failure> {
    let (mut samples, took) =
        interrupt::or_stopped(&context.settings, Duration::ZERO, async |lock| {
            Ok(measure(lock, &args).await?)
        })
        .await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = samples.acquire.len() as f64 / took.as_secs_f64();
    let report = Report {
        store: context.settings.store.value.to_string(),
        tasks: args.tasks,
        shared_key: args.shared_key,
        seconds: took.as_secs_f64(),
        cycles: samples.acquire.len(),
        cycles_per_second: rate,
        acquire_ms: Percentiles::of(&mut samples.acquire),
        release_ms: Percentiles::of(&mut samples.release),
    };
    if context.json {
        output::print_json(&report)?;
    } else {
        output::print(report.text())?;
    }
    Ok(exit::OK)
}

/// Lets the tasks go round and round until the time is over.
async fn measure(
    lock: &DistributedLock,
    args: &BenchArgs,
) -> Result<(Samples, Duration), LockError> {
    // Keys of our own, so that nobody's work waits for a measurement.
    let prefix = format!("holdtight-bench:{}:{}", std::process::id(), fresh()?);
    let key = |task| if args.shared_key { prefix.clone() } else { format!("{prefix}:{task}") };
    cycles(lock, &key(0), Instant::now(), WARM_UP).await?;
    let start = Instant::now();
    let end = start + args.duration;
    let mut tasks = JoinSet::new();
    for task in 0..args.tasks {
        let (lock, key) = (lock.clone(), key(task));
        tasks.spawn(async move { cycles(&lock, &key, end, 1).await });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        let one = done.map_err(|error| LockError::internal(error.to_string()))??;
        all.acquire.extend(one.acquire);
        all.release.extend(one.release);
    }
    Ok((all, start.elapsed()))
}

/// Cycles until `end`, and at least `least` of them.
async fn cycles(
    lock: &DistributedLock,
    key: &str,
    end: Instant,
    least: u32,
) -> Result<Samples, LockError> {
    let mut samples = Samples::default();
    let mut done = 0;
    while done < least || Instant::now() < end {
        let start = Instant::now();
        let handle = lock.acquire(key).wait(PATIENCE).await?;
        let held = Instant::now();
        handle.release().await?;
        samples.acquire.push(held - start);
        samples.release.push(held.elapsed());
        done += 1;
        // Stores that answer without waiting would otherwise never let the other tasks have their
        // turn.
        tokio::task::yield_now().await;
    }
    Ok(samples)
}

/// A word that no other measurement has.
fn fresh() -> Result<String, LockError> {
    Ok(holdtight::store::Secret::generate()?.expose()[..8].to_owned())
}

impl Percentiles {
    fn of(spans: &mut [Duration]) -> Self {
        spans.sort_unstable();
        let at = |percent: usize| {
            let place = (spans.len() * percent).div_ceil(100).saturating_sub(1);
            spans.get(place).map_or(0.0, |span| span.as_secs_f64() * 1000.0)
        };
        Self { p50: at(50), p99: at(99), max: at(100) }
    }

    fn line(&self, name: &str) -> String {
        let Self { p50, p99, max } = self;
        format!("{name:<8} p50 {p50:.3} ms, p99 {p99:.3} ms, max {max:.3} ms\n")
    }
}

impl Report {
    fn text(&self) -> String {
        let Self { store, tasks, cycles, seconds, cycles_per_second, .. } = self;
        let workers = match (*tasks, self.shared_key) {
            (1, _) => "1 task".to_owned(),
            (tasks, true) => format!("{tasks} tasks on one key"),
            (tasks, false) => format!("{tasks} tasks with a key each"),
        };
        format!(
            "{store}, {workers}\n\
             {cycles} cycles of acquire and release in {seconds:.1} s: {cycles_per_second:.0} per second\n{}{}",
            self.acquire_ms.line("acquire"),
            self.release_ms.line("release"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_what_was_measured() {
        let mut spans: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let near = |a: f64, b: f64| (a - b).abs() < 0.001;
        let Percentiles { p50, p99, max } = Percentiles::of(&mut spans);
        assert!(near(p50, 100.0) && near(p99, 198.0) && near(max, 200.0), "{p50} {p99} {max}");
        let one = Percentiles::of(&mut [Duration::from_millis(7)]);
        assert!(near(one.p50, 7.0) && near(one.p99, 7.0) && near(one.max, 7.0));
    }
}
