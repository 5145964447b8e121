//! The plots of `docs/performance.md`, made of the results alone.

mod charts;
mod scale;
mod svg;

use charts::{Curve, Line, Panel, bars, panels, ranges};
use serde_json::Value;

/// A picture and the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plot {
    /// As in `throughput.svg`.
    pub file: &'static str,
    /// For a reader who cannot see it.
    pub title: &'static str,
    /// The picture.
    pub svg: String,
}

const CROWD: &str = "Redis, 256 tasks, distinct keys";
const HAND_OVER: &str = "Redis, one key, 8 processes x 8: release to next grant";

/// Every plot for which `results` has numbers.
pub fn draw(results: &Value) -> Vec<Plot> {
    let all = results["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |row: &str, work: &str, unit: &str| {
        all.iter().find(|it| it["row"] == row && it["work"] == work && it["unit"] == unit)
    };
    let mut plots = Vec::new();
    if let Some(found) = find("P2", CROWD, "pairs/s") {
        let title = "Throughput: acquire and release, 256 tasks, distinct keys, Redis";
        let svg = bars(title, "pairs per second, more is better", &lines(&[found]));
        plots.push(Plot { file: "throughput.svg", title, svg });
    }
    let percentiles = ["ms, p10", "ms, p50", "ms, p90", "ms, p99"];
    let found: Option<Vec<&Value>> =
        percentiles.iter().map(|unit| find("P4", HAND_OVER, unit)).collect();
    if let Some(found) = found {
        let title = "Hand-off: 64 waiters in 8 processes, one key, Redis";
        let axis = "milliseconds from a release to the next grant: p10 to p90, dot p50, stroke p99";
        let svg = ranges(title, axis, &lines(&found));
        plots.push(Plot { file: "hand-off.svg", title, svg });
    }
    if let Some(found) = find("P4", HAND_OVER, "requests per hand-off") {
        let title = "Requests per hand-off: 64 waiters in 8 processes, one key, Redis";
        let svg = bars(title, "requests to Redis, fewer is better", &lines(&[found]));
        plots.push(Plot { file: "requests.svg", title, svg });
    }
    let growth = growth(all);
    if !growth.is_empty() {
        let title = "How cost grows with tasks, waiters and keys";
        plots.push(Plot { file: "growth.svg", title, svg: panels(title, &growth) });
    }
    plots
}

/// Each contender with its median in each of `measures`, which are of the same comparison.
fn lines(measures: &[&Value]) -> Vec<Line> {
    let series = measures[0]["series"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |place: usize, one: &Value| Line {
        name: text(&one["name"]),
        class: class(one),
        numbers: measures.iter().map(|it| median(&it["series"][place])).collect(),
    };
    series.iter().enumerate().map(|(place, one)| line(place, one)).collect()
}

/// A panel for each row and measure of which there is a curve. Percentiles besides the median are
/// left out.
fn growth(all: &[Value]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for entry in all.iter().filter(|entry| entry["growth"].is_object()) {
        let (of, unit) = (text(&entry["growth"]["of"]), text(&entry["unit"]));
        if ["ms, p10", "ms, p90", "ms, p99"].contains(&unit.as_str()) {
            continue;
        }
        let title = format!("{}: {unit}", text(&entry["row"]));
        let place = panels.iter().position(|panel| panel.title == title && panel.across == of);
        let place = place.unwrap_or_else(|| {
            let up = if unit.ends_with("/s") && !unit.starts_with("requests") {
                "more is better".to_owned()
            } else {
                "fewer is better".to_owned()
            };
            panels.push(Panel { title, across: of, up, curves: Vec::new() });
            panels.len() - 1
        });
        let at = entry["growth"]["at"].as_f64().unwrap_or(f64::NAN);
        for one in entry["series"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let (name, point) = (text(&one["name"]), (at, median(one)));
            let curves = &mut panels[place].curves;
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, class: class(one), points: vec![point] }),
            }
        }
    }
    for curve in panels.iter_mut().flat_map(|panel| &mut panel.curves) {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    panels
}

/// The same colour for the same contender in every plot.
fn class(series: &Value) -> String {
    match series["role"].as_str() {
        Some("us") => "us".to_owned(),
        // The one that stands beside another limit in the same picture.
        Some("limit") if series["name"] == "bare" => "bare".to_owned(),
        Some("limit") => "limit".to_owned(),
        _ => {
            let place = crate::peers::ALL.iter().position(|peer| series["name"] == *peer);
            format!("p{}", place.unwrap_or(0))
        }
    }
}

fn median(series: &Value) -> f64 {
    series["median"].as_f64().unwrap_or(f64::NAN)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(row: &str, work: &str, unit: &str, at: Option<u64>) -> Value {
        let growth = at.map(|at| json!({"of": "tasks", "at": at}));
        let one = |name: &str, role: &str, median: f64| json!({"name": name, "role": role, "median": median});
        let series = [one("holdtight", "us", 3.0), one("rslock", "peer", 1.0)];
        json!({"row": row, "work": work, "unit": unit, "growth": growth, "series": series})
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        assert_eq!(draw(&Value::Null), []);
        let results = json!({"results": [entry("P2", CROWD, "pairs/s", None)]});
        let files: Vec<&str> = draw(&results).iter().map(|plot| plot.file).collect();
        assert_eq!(files, ["throughput.svg"]);
    }

    #[test]
    fn a_curve_has_a_point_for_each_size_in_order() {
        let sizes = [100, 1, 10].map(|at| entry("P2", "w", "pairs/s", Some(at)));
        let panels = growth(&sizes);
        assert_eq!(panels.len(), 1);
        let across: Vec<f64> = panels[0].curves[1].points.iter().map(|point| point.0).collect();
        assert_eq!(across, [1.0, 10.0, 100.0]);
    }
}
