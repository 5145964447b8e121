//! What a store really promises as it is set up now: the answer of a probe, printed by `doctor`.

use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// Locks can be lost while their holders believe in them; refused unless overridden.
    Unsafe,
}

/// One fact about a store, what follows from it, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was looked at, in a word or two: `eviction`, `persistence`.
    pub subject: String,
    /// What was found, and what it means for locks.
    pub found: String,
    /// What to do, if anything should be done.
    pub fix: Option<String>,
}

impl Finding {
    /// A finding without a fix.
    pub fn new(level: Level, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self { level, subject: subject.into(), found: found.into(), fix: None }
    }

    /// Adds what to do about it.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// All that a probe found out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The store and its version.
    pub store: String,
    /// What was found, in the order a reader should see it.
    pub findings: Vec<Finding>,
}

impl Guarantees {
    /// What was found about `store`.
    pub fn new(store: impl Into<String>, findings: Vec<Finding>) -> Self {
        Self { store: store.into(), findings }
    }

    /// The gravest level among the findings.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }
}

impl fmt::Display for Guarantees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)?;
        for finding in &self.findings {
            let mark = match finding.level {
                Level::Good => "ok     ",
                Level::Warning => "warning",
                Level::Unsafe => "UNSAFE ",
            };
            write!(f, "\n{mark} {}: {}", finding.subject, finding.found)?;
            if let Some(fix) = &finding.fix {
                write!(f, "\n        fix: {fix}")?;
            }
        }
        Ok(())
    }
}
