//! `doctor`: what the store really guarantees as it is set up now, with the reason and the fix.

use std::fmt::Write as _;

use holdtight::{Finding, Guarantees, Level, LockError};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{self, Failure};
use crate::{output, store};

#[derive(Serialize)]
struct Report<'a> {
    store: &'a str,
    url: String,
    origin: String,
    level: &'static str,
    findings: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'static str,
    subject: &'a str,
    found: &'a str,
    fix: Option<&'a str>,
}

pub(crate) async fn run(context: &Context) -> Result<u8, Failure> {
    let guarantees = match examine(context).await {
        Ok(guarantees) => guarantees,
        // Refused as unsafe: that is an answer, with its reason and fix.
        Err(error) => error.guarantees().cloned().ok_or(error)?,
    };
    let store = &context.settings.store;
    if context.json {
        output::print_json(&Report {
            store: &guarantees.store,
            url: store.value.to_string(),
            origin: store.origin.to_string(),
            level: name(guarantees.level()),
            findings: guarantees.findings.iter().map(line).collect(),
        })?;
    } else {
        let head = format!("{} ({}, from {})", guarantees.store, store.value, store.origin);
        output::print(format_args!("{head}\n{}", findings(&guarantees)))?;
    }
    Ok(if guarantees.level() >= Level::Unsafe { exit::NO } else { exit::OK })
}

async fn examine(context: &Context) -> Result<Guarantees, LockError> {
    store::builder(&context.settings).connect().await?.probe().await
}

fn findings(guarantees: &Guarantees) -> String {
    let mut text = String::new();
    for finding in &guarantees.findings {
        let Finding { subject, found, fix, .. } = finding;
        let level = name(finding.level);
        let _ = writeln!(text, "{level:<8} {subject}: {found}");
        if let Some(fix) = fix {
            let _ = writeln!(text, "{:<8} fix: {fix}", "");
        }
    }
    text
}

fn line(finding: &Finding) -> Line<'_> {
    Line {
        level: name(finding.level),
        subject: &finding.subject,
        found: &finding.found,
        fix: finding.fix.as_deref(),
    }
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Good => "ok",
        Level::Warning => "warning",
        _ => "unsafe",
    }
}
