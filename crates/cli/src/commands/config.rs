//! `config`: every setting, its value without secrets, and where it comes from.

use std::time::Duration;

use holdtight_kit::duration;
use serde::Serialize;

use crate::config::Setting;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::output;

#[derive(Serialize)]
struct Report {
    store: Line,
    ttl: Line,
    wait: Line,
    kill_after: Line,
    files: Vec<File>,
}

/// A setting; the value is null if nobody set it and the command's own default counts.
#[derive(Serialize)]
struct Line {
    value: Option<String>,
    origin: String,
}

#[derive(Serialize)]
struct File {
    path: String,
    exists: bool,
}

pub(crate) fn run(context: &Context) -> Result<u8, Failure> {
    let settings = &context.settings;
    let report = Report {
        store: Line {
            value: Some(settings.store.value.to_string()),
            origin: settings.store.origin.to_string(),
        },
        ttl: span(settings.ttl.as_ref()),
        wait: span(settings.wait.as_ref()),
        kill_after: span(settings.kill_after.as_ref()),
        files: settings
            .files
            .iter()
            .map(|(path, exists)| File { path: path.display().to_string(), exists: *exists })
            .collect(),
    };
    if context.json {
        output::print_json(&report)?;
    } else {
        output::print(text(&report))?;
    }
    Ok(exit::OK)
}

fn span(setting: Option<&Setting<Duration>>) -> Line {
    Line {
        value: setting.map(|set| duration::text(set.value)),
        origin: setting.map_or_else(|| "default".to_owned(), |set| set.origin.to_string()),
    }
}

fn text(report: &Report) -> String {
    let rows = [
        ("store", &report.store, ""),
        ("ttl", &report.ttl, "30s"),
        ("wait", &report.wait, "for ever"),
        ("kill_after", &report.kill_after, "by the TTL"),
    ];
    let rows = rows.map(|(name, Line { value, origin }, fallback)| {
        format!("{name:<11} {:<24} {origin}\n", value.as_deref().unwrap_or(fallback))
    });
    let files = report.files.iter().map(|File { path, exists }| {
        let state = if *exists { "read" } else { "not there" };
        format!("{:<11} {path} ({state})\n", "file")
    });
    rows.into_iter().chain(files).collect()
}
