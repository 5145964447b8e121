//! Results as a table for people and as JSON for whatever plots them.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::measure::Measured;

/// The result of row `id` as lines of text.
pub fn table(id: &str, measured: &Measured) -> String {
    let mut text = format!("{id}  {} ({})\n", measured.work, measured.unit);
    let width = measured.series.iter().map(|series| series.name.len()).max().unwrap_or(0);
    for series in &measured.series {
        let (median, spread) = (series.summary.median, series.summary.spread() * 100.0);
        let name = series.name;
        writeln!(text, "    {name:width$}  {:>12}  ± {spread:.0} %", number(median))
            .expect("writing to a string");
    }
    for absent in &measured.absent {
        writeln!(text, "    {:width$}  {}", absent.name, absent.why).expect("writing to a string");
    }
    for verdict in &measured.verdicts {
        let outcome = if verdict.met { "met" } else { "NOT MET" };
        writeln!(text, "    goal {}: {} {outcome}", verdict.goal, number(verdict.value))
            .expect("writing to a string");
    }
    text
}

/// `before` with the results of row `id` replaced by `measured`, ordered by row. Other rows stay, so that rows
/// may be measured on different days.
pub fn merge(before: &Value, id: &str, measured: &[Measured]) -> Value {
    let old = before.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all: Vec<Value> = old.iter().filter(|entry| entry["row"] != id).cloned().collect();
    all.extend(measured.iter().map(|measured| entry(id, measured)));
    all.sort_by_key(|entry| row_number(entry["row"].as_str().unwrap_or_default()));
    Value::Array(all)
}

fn entry(id: &str, measured: &Measured) -> Value {
    let series: Vec<Value> = measured
        .series
        .iter()
        .map(|series| {
            let summary = series.summary;
            json!({
                "name": series.name, "median": summary.median,
                "low": summary.low, "high": summary.high,
            })
        })
        .collect();
    let goals: Vec<Value> = measured
        .verdicts
        .iter()
        .map(|verdict| {
            json!({
                "goal": verdict.goal.to_string(), "value": verdict.value, "met": verdict.met,
            })
        })
        .collect();
    json!({
        "row": id, "work": measured.work, "unit": measured.unit, "series": series, "goals": goals,
    })
}

/// `P10` comes after `P9`.
fn row_number(id: &str) -> u32 {
    id.trim_start_matches('P').parse().unwrap_or(u32::MAX)
}

/// Four digits that matter, thousands apart.
fn number(value: f64) -> String {
    if value.abs() < 1_000.0 {
        let digits = if value.abs() < 10.0 { 3 } else { 1 };
        return format!("{value:.digits$}");
    }
    let whole = format!("{value:.0}");
    let start = usize::from(whole.starts_with('-'));
    let mut text = String::new();
    for (place, digit) in whole.char_indices() {
        if place > start && (whole.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bound, Comparison, Contender, Effort, Goal, Role};

    fn measured(ours: f64) -> Measured {
        Comparison::new(
            "1 000 tasks, one key",
            "hand-offs/s",
            Contender::new("us", Role::Us, move |_| Ok(ours)),
        )
        .against(Contender::new("mutex", Role::Limit, |_| Ok(2_000_000.0)))
        .goal(Goal::ratio("mutex", Bound::AtLeast(0.3)))
        .run(Effort::QUICK)
        .unwrap()
        .remove(0)
    }

    #[test]
    fn a_table_shows_medians_spread_and_whether_the_goal_is_met() {
        assert_eq!(
            table("P6", &measured(1_000_000.0)),
            "P6  1 000 tasks, one key (hand-offs/s)\n\
             \x20   us        1 000 000  ± 0 %\n\
             \x20   mutex     2 000 000  ± 0 %\n\
             \x20   goal >= 0.3 x mutex: 0.500 met\n"
        );
        assert!(table("P6", &measured(1.0)).ends_with("0.000 NOT MET\n"));
    }

    #[test]
    fn measuring_a_row_again_replaces_it_and_keeps_the_others_in_order() {
        let first = merge(&Value::Null, "P10", &[measured(1.0)]);
        let second = merge(&first, "P6", &[measured(2.0), measured(3.0)]);
        let third = merge(&second, "P10", &[measured(4.0)]);
        let seen: Vec<(&str, f64)> = third
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                (entry["row"].as_str().unwrap(), entry["series"][0]["median"].as_f64().unwrap())
            })
            .collect();
        assert_eq!(seen, [("P6", 2.0), ("P6", 3.0), ("P10", 4.0)]);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let texts = [0.5, 42.0, 999.94, 1_000.0, -1_234_567.0].map(number);
        assert_eq!(texts, ["0.500", "42.0", "999.9", "1 000", "-1 234 567"]);
    }
}
