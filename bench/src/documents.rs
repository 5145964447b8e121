//! The tables and plots in README.md and docs/performance.md, made of `bench/results.json` and put
//! between their markers.
//!
//! Ratios are what counts: absolute numbers stand in the long table only, for whoever compares two
//! runs on one machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::report::number;
use crate::{Failure, plot};

/// The documents, each with what makes its part.
const DOCUMENTS: [(&str, Part); 2] = [("README.md", summary), ("docs/performance.md", everything)];

/// Makes the part of a document of the results.
type Part = fn(&Value) -> String;

const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- /bench -->\n";

const NOTHING: &str = "Not measured yet: `cargo xtask bench` does, and fills this in.\n";

/// Where the results are kept.
pub fn results_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results.json")
}

/// What was measured so far; nothing if there is no file.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub fn results() -> Result<Value, Failure> {
    match std::fs::read_to_string(results_file()) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(error.into()),
    }
}

/// Draws the plots and writes the tables, both from the results as they are.
///
/// # Errors
/// A file cannot be read or written, or a document has lost its markers.
pub fn publish() -> Result<(), Failure> {
    let results = results()?;
    for plot in plot::draw(&results) {
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(plot.file), plot.svg)?;
    }
    for (path, before, after) in refreshed(&results)? {
        if before != after {
            std::fs::write(path, after)?;
        }
    }
    Ok(())
}

/// Each document's path, its text as it is, and as it should be.
///
/// # Errors
/// A document cannot be read, or has lost its markers.
pub fn refreshed(results: &Value) -> Result<Vec<(PathBuf, String, String)>, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no directory above")?;
    let one = |(name, part): &(&str, Part)| {
        let path = root.join(name);
        let before = std::fs::read_to_string(&path)?;
        let after = replaced(&before, &part(results))
            .ok_or_else(|| format!("{name} has lost its markers {BEGIN} and {END}"))?;
        Ok::<_, Failure>((path, before, after))
    };
    DOCUMENTS.iter().map(one).collect()
}

fn replaced(text: &str, part: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{part}{END}{after}"))
}

fn entries(results: &Value) -> &[Value] {
    results["results"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What a reader of README wants: what it is about, as the results call it (work and unit), and in
/// plain words.
const HEADLINES: [(&str, &str, &str); 5] = [
    (
        "Redis, one task, distinct keys: time of a pair, p50",
        "µs",
        "acquire and release, one task, µs",
    ),
    ("Redis, 256 tasks, distinct keys", "pairs/s", "the same, 256 tasks, pairs per second"),
    (
        "Redis, one key, 8 processes x 8: release to next grant",
        "ms, p99",
        "64 waiters for one key: release to next grant, p99, ms",
    ),
    (
        "Redis, 1000 waiting for one key",
        "requests/s",
        "1000 waiters for one key: requests per second",
    ),
    (
        "file store, `holdtight run k -- true`",
        "ms per call, p50",
        "`holdtight run k -- true`, no server, ms",
    ),
];

/// With whom README compares: the best known of each language. The long table has them all.
const SHOWN: [&str; 5] = ["rslock", "redlock", "redis-semaphore", "redis-py", "flock"];

fn summary(results: &Value) -> String {
    let mut text = "| | holdtight | others |\n|---|---|---|\n".to_owned();
    let mut any = false;
    for (work, unit, plain) in HEADLINES {
        let named = |entry: &&Value| word(&entry["work"]) == work && word(&entry["unit"]) == unit;
        let Some(entry) = entries(results).iter().find(named) else { continue };
        let series = list(&entry["series"]);
        let median = |series: &Value| number(series["median"].as_f64().unwrap_or(f64::NAN));
        let ours = series.first().map_or_else(String::new, median);
        let others: Vec<String> = series
            .iter()
            .filter(|series| SHOWN.contains(&word(&series["name"])))
            .map(|series| format!("{} {}", word(&series["name"]), median(series)))
            .collect();
        any = true;
        writeln!(text, "| {plain} | {ours} | {} |", others.join(", "))
            .expect("writing to a string");
    }
    if any { text } else { NOTHING.to_owned() }
}

/// Everything but points of curves and percentiles that only plots show.
fn everything(results: &Value) -> String {
    if entries(results).is_empty() {
        return NOTHING.to_owned();
    }
    let machine = &results["machine"];
    let mut text = format!(
        "Measured on {} cores of {}, {} GiB of memory, {}; servers, contenders and the bench share them.\n\n",
        machine["cores"],
        word(&machine["processor"]),
        machine["memory_gib"],
        word(&machine["system"]),
    );
    for plot in plot::draw(results) {
        writeln!(text, "![{}](../bench/{})\n", plot.title, plot.file).expect("writing to a string");
    }
    text.push_str(
        "| | work | ours | limits and peers: theirs (ours is … x that) | goal: measured | |\n\
         |---|---|---|---|---|---|\n",
    );
    let hidden = |entry: &&Value| {
        let point = entry["growth"].is_object() && list(&entry["goals"]).is_empty();
        !point && !["ms, p10", "ms, p90"].contains(&word(&entry["unit"]))
    };
    for entry in entries(results).iter().filter(hidden) {
        let series = list(&entry["series"]);
        let ours = series.first().map_or_else(String::new, measured);
        let mut others: Vec<String> = series.iter().skip(1).map(other).collect();
        others.extend(
            list(&entry["absent"])
                .iter()
                .map(|absent| format!("{}: {}", word(&absent["name"]), word(&absent["why"]))),
        );
        let goals = list(&entry["goals"]);
        let aims: Vec<String> = goals
            .iter()
            .map(|goal| {
                let value = number(goal["value"].as_f64().unwrap_or(f64::NAN));
                format!("{}: {value}", word(&goal["goal"]))
            })
            .collect();
        let met: Vec<&str> = goals
            .iter()
            .map(|goal| if goal["met"] == true { "met" } else { "**not met**" })
            .collect();
        writeln!(
            text,
            "| {} | {}, {} | {ours} | {} | {} | {} |",
            word(&entry["row"]),
            word(&entry["work"]),
            word(&entry["unit"]),
            others.join("<br>"),
            aims.join("<br>"),
            met.join("<br>"),
        )
        .expect("writing to a string");
    }
    text
}

fn measured(series: &Value) -> String {
    let at = |name: &str| series[name].as_f64().unwrap_or(f64::NAN);
    let half = (at("high") - at("low")) / 2.0;
    if half > 0.0 {
        format!("{} ± {}", number(at("median")), number(half))
    } else {
        number(at("median"))
    }
}

fn other(series: &Value) -> String {
    let name = word(&series["name"]);
    match series["ratio"].as_f64() {
        Some(ratio) => format!("{name} {} ({})", measured(series), number(ratio)),
        None => format!("{name} {}", measured(series)),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "machine": {"cores": 2, "processor": "a processor", "memory_gib": 8, "system": "Linux 6"},
            "results": [{
                "row": "P1", "work": "pairs", "unit": "µs", "growth": null,
                "series": [
                    {"name": "holdtight", "role": "us", "median": 11.0, "low": 10.0, "high": 12.0},
                    {"name": "raw", "role": "limit", "median": 10.0, "low": 10.0, "high": 10.0, "ratio": 1.1},
                ],
                "absent": [{"name": "flock", "why": "one machine only"}],
                "goals": [{"goal": "<= 1.1 x raw", "value": 1.1, "met": true}],
            }],
        })
    }

    #[test]
    fn a_part_is_put_between_the_markers_and_nowhere_else() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert_eq!(replaced("a\n", "new\n"), None);
    }

    #[test]
    fn readers_see_goals_and_what_became_of_them() {
        let long = everything(&sample());
        assert!(
            long.ends_with(
                "| P1 | pairs, µs | 11 ± 1 | raw 10 (1.1)<br>flock: one machine only | <= 1.1 x raw: 1.1 | met |\n"
            ),
            "{long}"
        );
    }

    #[test]
    fn readme_names_the_work_in_plain_words_and_the_best_known_others() {
        let mut results = sample();
        let (work, unit, plain) = HEADLINES[0];
        results["results"][0]["work"] = work.into();
        results["results"][0]["unit"] = unit.into();
        results["results"][0]["series"][1]["name"] = "rslock".into();
        assert!(summary(&results).ends_with(&format!("| {plain} | 11 | rslock 10 |\n")));
    }

    /// A row that was renamed would silently fall out of README.
    #[test]
    fn every_headline_was_measured() {
        let results = results().unwrap();
        assert_eq!(summary(&results).lines().count(), 2 + HEADLINES.len());
    }

    #[test]
    fn without_results_the_documents_say_so() {
        assert_eq!(
            (summary(&Value::Null), everything(&Value::Null)),
            (NOTHING.into(), NOTHING.into())
        );
    }
}
