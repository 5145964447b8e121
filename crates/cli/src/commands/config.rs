//! `config`: every setting, its value without secrets, and where it comes from.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Context;
use crate::config::Setting;
use crate::duration;
use crate::exit::{self, Failure};
use crate::output;

pub(crate) fn run(context: &Context) -> Result<u8, Failure> {
    let settings = &context.settings;
    let store = Some((settings.store.value.to_string(), settings.store.origin.to_string()));
    let span = |setting: &Option<Setting<Duration>>| {
        setting.as_ref().map(|set| (duration::text(set.value), set.origin.to_string()))
    };
    let rows = [
        ("store", store, ""),
        ("ttl", span(&settings.ttl), "30s"),
        ("wait", span(&settings.wait), "for ever"),
        ("kill_after", span(&settings.kill_after), "by the TTL"),
    ];
    if context.json {
        let mut object: Map<String, Value> = rows
            .iter()
            .map(|(name, set, _)| {
                let (value, origin) = set.clone().unzip();
                let origin = origin.unwrap_or_else(|| "default".to_owned());
                ((*name).to_owned(), json!({ "value": value, "origin": origin }))
            })
            .collect();
        let files = settings
            .files
            .iter()
            .map(|(path, there)| json!({ "path": path.display().to_string(), "exists": there }));
        object.insert("files".to_owned(), files.collect());
        output::print_json(&object)?;
        return Ok(exit::OK);
    }
    for (name, set, fallback) in rows {
        let (value, origin) = set.unwrap_or_else(|| (fallback.to_owned(), "default".to_owned()));
        output::print(format_args!("{name:<11} {value:<24} {origin}\n"))?;
    }
    for (path, there) in &settings.files {
        let state = if *there { "read" } else { "not there" };
        output::print(format_args!("{:<11} {} ({state})\n", "file", path.display()))?;
    }
    Ok(exit::OK)
}
