//! The random load while the servers behind it fail over, are killed, frozen and rebuilt, or move
//! their data around.
//!
//! First without faults, to know how long one waits then; after that through faults, one after the
//! other, each of which is over before the next one begins. What is played and what is checked is
//! the testkit's, see [`holdtight_testkit::history`].

mod etcd;
mod postgres;
mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use holdtight_core::DistributedLock;
use holdtight_testkit::history::{Broken, Load, Recorder, Report, Rules, check};

pub(super) use self::etcd::leaders as etcd;
pub(super) use self::postgres::standby as postgres;
pub(super) use self::redis::{moves as redis_cluster, sentinel as redis_sentinel};
use super::load::{FAULTS, LIMIT, connect, row};
use super::share;
use crate::Failure;

/// Whoever gets no lock for so long after a fault is over has been forgotten.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The pace of a load that comes to a stop with each fault.
const PACE: Duration = Duration::from_millis(40);

/// Servers that can be hurt.
trait Servers: Send + Sync + 'static {
    /// What can be done to them, in words for a report.
    fn kinds(&self) -> Vec<&'static str>;

    /// Hurts them, and returns when they are whole again. They are `Sync` and their futures need
    /// not be `Send`.
    async fn strike(&self, kind: &'static str, random: &mut Rng) -> Result<(), Failure>;
}

/// One run.
struct Run {
    /// What stands before the numbers.
    label: &'static str,
    url: String,
    /// Faults of a full run, at least.
    faults: u64,
    /// The shortest lease that is worth waiting for.
    brief: Duration,
    promised: Promised,
    /// How long each rests at most between two locks.
    pace: Duration,
    scale: f64,
}

/// What the servers, set up as they are, promise through these faults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promised {
    /// All.
    All,
    /// That fences rise, and nothing else: two may hold one lock.
    Fences,
}

impl Run {
    /// A load of everything that there is, and of locks that are held for seconds.
    fn load(&self, seed: u64) -> Load {
        let load = Load::mixed(seed).long_holders(4).pace(self.pace);
        load.grants(self.grants()).limit(LIMIT).brief(self.brief)
    }

    fn grants(&self) -> u64 {
        share(FAULTS, self.scale)
    }

    /// Plays without faults and with them.
    fn play<S: Servers>(&self, servers: &Arc<S>) -> Result<String, Failure> {
        let runtime = crate::load::runtime()?;
        let locks = runtime.block_on(connect(&self.url, 3))?;
        let quiet = runtime.block_on(self.quiet(&locks))?;
        let hurt = runtime.block_on(self.hurt(&locks, servers))?;
        // What was on its way through the last fault is looked for until its lease is over.
        for lock in locks {
            runtime.block_on(lock.shutdown_within(STANDSTILL))?;
        }
        Ok(format!("{quiet}; {hurt}"))
    }

    async fn quiet(&self, locks: &[DistributedLock]) -> Result<String, Failure> {
        let seed = fastrand::u64(..);
        let recorder = Recorder::new(format!("{}, no faults, seed {seed}", self.label));
        let load = self.load(seed);
        load.run(locks, &recorder).await;
        load.settle(&locks[0], &recorder).await;
        told(&check(&recorder.history(), Rules::CALM))
    }

    async fn hurt<S: Servers>(
        &self,
        locks: &[DistributedLock],
        servers: &Arc<S>,
    ) -> Result<String, Failure> {
        let seed = fastrand::u64(..);
        let recorder = Recorder::new(String::new());
        let more = Arc::new(AtomicBool::new(true));
        let driver = Driver {
            servers: Arc::clone(servers),
            recorder: recorder.clone(),
            more: Arc::clone(&more),
            faults: share(self.faults, self.scale).max(servers.kinds().len() as u64),
            grants: self.grants(),
        };
        // In a thread of its own: it waits for programs, and must not hold up the load.
        let driver = thread::spawn(move || driver.strike(seed));
        let load = self.load(seed).while_set(&more);
        load.run(locks, &recorder).await;
        let struck = driver.join().map_err(|_| "what hurts the servers panicked")??;
        load.settle(&locks[0], &recorder).await;
        let mut history = recorder.history();
        history.label = format!("{}, {struck}, seed {seed}", self.label);
        let mut report = check(&history, Rules::FAULTS);
        let mut besides = String::new();
        if self.promised == Promised::Fences {
            let all = report.violations.len();
            let promised = [Broken::SameFence, Broken::FenceFell, Broken::Unexpected];
            report.violations.retain(|violation| promised.contains(&violation.kind));
            let not = all - report.violations.len();
            besides = format!("; {not} times something that is not promised there");
        }
        Ok(format!("{}{besides}", told(&report)?))
    }
}

/// What is said of a run that broke no promise.
fn told(report: &Report) -> Result<String, Failure> {
    // Where leases are meant to run out, everybody waits for that.
    let meant = |key: &str| key.ends_with(":expire");
    let waits = report.longest_waits.iter().filter(|(key, _)| !meant(key)).map(|(_, wait)| wait);
    Ok(format!("{}; longest wait {:.1?}", row(report)?, waits.max().unwrap_or(&Duration::ZERO)))
}

/// Hurts the servers, while others play.
struct Driver<S> {
    servers: Arc<S>,
    recorder: Recorder,
    more: Arc<AtomicBool>,
    faults: u64,
    grants: u64,
}

impl<S> Drop for Driver<S> {
    /// Whatever became of it, nobody is to play on for its sake.
    fn drop(&mut self) {
        self.more.store(false, Ordering::SeqCst);
    }
}

impl<S: Servers> Driver<S> {
    /// Strikes until there were enough faults and grants; says what it did.
    fn strike(self, seed: u64) -> Result<String, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut random, kinds) = (Rng::with_seed(seed), self.servers.kinds());
        let mut struck = vec![0_u64; kinds.len()];
        let begun = Instant::now();
        let mut number = 0;
        while number < self.faults || self.recorder.grants() < self.grants {
            if begun.elapsed() > LIMIT {
                return Err(format!("not done after {LIMIT:?}").into());
            }
            // By chance, but all kinds equally often.
            let least = struck.iter().min().copied().unwrap_or_default();
            let kind = loop {
                let drawn = random.usize(..kinds.len());
                if struck[drawn] == least {
                    break drawn;
                }
            };
            runtime.block_on(self.servers.strike(kinds[kind], &mut random))?;
            struck[kind] += 1;
            number += 1;
            self.wait_for_grants(kinds[kind])?;
        }
        let struck = kinds.iter().zip(&struck).map(|(kind, count)| format!("{count} {kind}"));
        Ok(struck.collect::<Vec<_>>().join(", "))
    }

    /// After a fault everybody gets back to work, before the next one.
    fn wait_for_grants(&self, after: &str) -> Result<(), Failure> {
        let due = self.recorder.grants() + self.grants / self.faults.max(1) / 2 + 1;
        let healed = Instant::now();
        while self.recorder.grants() < due {
            if healed.elapsed() > STANDSTILL {
                let missing = due - self.recorder.grants();
                return Err(format!(
                    "{missing} locks too few were granted in {STANDSTILL:?} after {after}"
                )
                .into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Asks until the answer is yes.
async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) -> Result<(), Failure> {
    let started = Instant::now();
    while !happened().await {
        if started.elapsed() > STANDSTILL {
            return Err(format!("waited {STANDSTILL:?} in vain until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Rests for a random time.
async fn pause(random: &mut Rng, longest: u64) {
    tokio::time::sleep(Duration::from_millis(random.u64(0..=longest))).await;
}
