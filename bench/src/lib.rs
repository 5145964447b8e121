//! Measuring holdtight: short comparisons with yardsticks and peers (`rows`), and long runs
//! (`soaks`).
//!
//! Only ratios within one run are quoted: contenders take turns round by round, so that a busy
//! machine slows them alike. Nothing here is a test; no test asserts a time.

mod args;
mod crew;
mod documents;
mod driven;
mod goal;
mod keys;
mod load;
mod machine;
mod measure;
mod peers;
mod plot;
mod postgres;
mod raw;
mod redis;
mod report;
pub mod rows;
pub mod soaks;
mod stats;
pub mod worker;

pub use args::{BenchArgs, SoakArgs};
pub use documents::{publish, refreshed, results, results_file};
pub use goal::{Bound, Goal, Verdict, Yardstick};
pub use machine::describe;
pub use measure::{Absent, Comparison, Contender, Effort, Growth, Measured, Role, Row, Series};
pub use plot::{Plot, draw};
pub use report::{merge, table};
pub use stats::Summary;

/// Why a measurement could not be made: one message for the reader.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
