//! The suite every store passes: what the contract of [`Backend`](holdtight_core::Backend) says, as
//! trials.
//!
//! One file per theme. Trials are chosen by what the store says it can do; one that does not apply
//! is reported as ignored, with the reason. Each runs on a fresh [`Fixture`], in its own runtime,
//! and is ended when its time is over.

mod case;
mod crowd;
mod detach;
mod engine_hold;
mod engine_wait;
mod exclusion;
mod expiry;
mod extension;
mod fences;
mod force_release;
mod keys;
mod list;
mod load;
mod lookup;
mod many_keys;
mod model;
mod network;
mod outage;
mod ownership;
mod place;
mod player;
mod processes;
mod retries;
mod runner;
mod stage;
mod tokens;
mod transfer;
mod wake_up;
mod worker;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use self::case::Case;
use crate::Fixture;

/// Every theme, in the order a reader of a failing run should look at them.
const THEMES: &[(&str, &[Case])] = &[
    ("exclusion", exclusion::CASES),
    ("ownership", ownership::CASES),
    ("expiry", expiry::CASES),
    ("extension", extension::CASES),
    ("fences", fences::CASES),
    ("retries", retries::CASES),
    ("keys", keys::CASES),
    ("lookup", lookup::CASES),
    ("list", list::CASES),
    ("detach", detach::CASES),
    ("transfer", transfer::CASES),
    ("many_keys", many_keys::CASES),
    ("force_release", force_release::CASES),
    ("wake_up", wake_up::CASES),
    ("model", model::CASES),
    ("crowd", crowd::CASES),
    ("processes", processes::CASES),
    ("processes", processes::LIVENESS_CASES),
    ("network", network::CASES),
    ("outage", outage::CASES),
    ("outage", outage::WAITING_CASES),
    ("engine_wait", engine_wait::CASES),
    ("engine_hold", engine_hold::CASES),
    ("load", load::CASES),
    ("load", load::TOKEN_CASES),
    ("load", load::PROXY_CASES),
    ("load", load::PROCESS_CASES),
    ("tokens", tokens::CASES),
];

/// Runs the whole suite on one store and exits the process: the `main` of a test file with `harness
/// = false`.
///
/// Understands the arguments of `cargo test` and of nextest: filters, `--list`, `--exact`,
/// `--test-threads`.
///
/// # Panics
/// Never; failing trials end the process with exit code 101.
pub fn run<F: Fixture>() -> ! {
    Suite::new().on::<F>().run()
}

/// The suite on one or several stores.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use holdtight_core::{Backend, MemoryStore};
/// # use holdtight_testkit::Fixture;
/// # struct Single(Arc<MemoryStore>);
/// # impl Fixture for Single {
/// #     const NAME: &'static str = "single";
/// #     async fn start() -> Self { Self(Arc::default()) }
/// #     async fn open(&self) -> Arc<dyn Backend> { Arc::clone(&self.0) as _ }
/// # }
/// # type Cluster = Single;
/// fn main() {
///     holdtight_testkit::conformance::Suite::new().on::<Single>().on::<Cluster>().run();
/// }
/// ```
#[derive(Debug)]
pub struct Suite {
    limit: Duration,
    only: Vec<String>,
    without: Vec<String>,
    trials: Vec<Plan>,
}

/// One trial on one store, not yet started.
struct Plan {
    name: String,
    run: Box<dyn FnOnce(Duration) -> Outcome + Send>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

/// How one trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The store does what the trial asks.
    Passed,
    /// The trial does not apply here, for this reason.
    Ignored(String),
    /// The store does not do what the trial asks, or did not answer in time.
    Failed(String),
}

impl Suite {
    /// An empty suite: add stores with [`on`](Self::on).
    pub fn new() -> Self {
        let (only, without, trials) = (Vec::new(), Vec::new(), Vec::new());
        Self { limit: Duration::from_secs(120), only, without, trials }
    }

    /// Adds all trials for one store.
    ///
    /// In a process that a trial started as a second one of the same store, this does what it was
    /// started for and exits.
    pub fn on<F: Fixture>(mut self) -> Self {
        worker::serve::<F>();
        for (theme, cases) in THEMES {
            for case in *cases {
                let name = format!("{}::{theme}::{}", F::NAME, case.name);
                let run = Box::new(|limit| runner::conduct::<F>(case, limit));
                self.trials.push(Plan { name, run });
            }
        }
        self
    }

    /// How long one trial may take, its store's start not counted; two minutes unless said
    /// otherwise.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Keeps only trials whose name contains `part`, or that of another call of this.
    pub fn only(mut self, part: impl Into<String>) -> Self {
        self.only.push(part.into());
        self
    }

    /// Leaves out trials whose name contains `part`: for a store that is known not to keep a
    /// promise, and says so.
    pub fn without(mut self, part: impl Into<String>) -> Self {
        self.without.push(part.into());
        self
    }

    /// Runs what the command line asks for, prints it as `cargo test` does, and exits the process.
    pub fn run(self) -> ! {
        let limit = self.limit;
        let trials = self.chosen().map(|plan| {
            Trial::ignorable_test(plan.name, move || match (plan.run)(limit) {
                Outcome::Passed => Ok(libtest_mimic::Completion::Completed),
                Outcome::Ignored(why) => Ok(libtest_mimic::Completion::ignored_with(why)),
                Outcome::Failed(why) => Err(why.into()),
            })
        });
        let mut arguments = Arguments::from_args();
        // Trials wait for leases to end far more than they compute: more of them than cores run
        // well side by side.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        arguments.test_threads.get_or_insert(3 * cores);
        libtest_mimic::run(&arguments, trials.collect()).exit()
    }

    /// Runs every trial, one after the other, and says how each ended: for programs that test a
    /// test suite.
    pub fn outcomes(self) -> Vec<(String, Outcome)> {
        let limit = self.limit;
        self.chosen().map(|plan| (plan.name, (plan.run)(limit))).collect()
    }

    fn chosen(self) -> impl Iterator<Item = Plan> {
        let Self { only, without, trials, .. } = self;
        let named = |parts: &[String], plan: &Plan| {
            parts.iter().any(|part| plan.name.contains(part.as_str()))
        };
        trials
            .into_iter()
            .filter(move |plan| (only.is_empty() || named(&only, plan)) && !named(&without, plan))
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}
