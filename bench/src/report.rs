//! Results as lines for the terminal and as JSON, which tables in documents and plots are made of.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::measure::{Measured, Role};

/// The result of row `id` as lines of text.
pub fn table(id: &str, measured: &Measured) -> String {
    let mut text = format!("{id}  {} ({})\n", measured.work, measured.unit);
    let names = measured.series.iter().map(|series| series.name);
    let names = names.chain(measured.absent.iter().map(|absent| absent.name));
    let width = names.map(str::len).max().unwrap_or(0);
    for series in &measured.series {
        let (median, spread) = (series.summary.median, series.summary.spread() * 100.0);
        let name = series.name;
        write!(text, "    {name:width$}  {:>12}  ± {spread:.0} %", number(median))
            .expect("writing to a string");
        if series.role != Role::Us && series.ratio.is_finite() {
            write!(text, "   (ours is {} x that)", number(series.ratio))
                .expect("writing to a string");
        }
        text.push('\n');
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

/// `before` with the results of row `id` replaced by `measured`, ordered by row. Other rows stay,
/// so that rows may be measured on different days; the machine is the one that measured last.
pub fn merge(before: &Value, machine: &Value, id: &str, measured: &[Measured]) -> Value {
    let old = before["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all: Vec<Value> = old.iter().filter(|entry| entry["row"] != id).cloned().collect();
    all.extend(measured.iter().map(|measured| entry(id, measured)));
    all.sort_by_key(|entry| row_number(entry["row"].as_str().unwrap_or_default()));
    json!({"machine": machine, "results": all})
}

fn entry(id: &str, measured: &Measured) -> Value {
    let series: Vec<Value> = measured
        .series
        .iter()
        .map(|series| {
            let (summary, ratio) = (series.summary, series.ratio);
            json!({
                "name": series.name, "role": role(series.role), "median": summary.median,
                "low": summary.low, "high": summary.high,
                "ratio": ratio.is_finite().then_some(ratio),
            })
        })
        .collect();
    let absent: Vec<Value> = measured
        .absent
        .iter()
        .map(|absent| json!({"name": absent.name, "why": absent.why}))
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
    let growth = measured.growth.map(|growth| json!({"of": growth.of, "at": growth.at}));
    json!({
        "row": id, "work": measured.work, "unit": measured.unit, "growth": growth,
        "series": series, "absent": absent, "goals": goals,
    })
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Us => "us",
        Role::Limit => "limit",
        Role::Peer => "peer",
    }
}

/// `P10` comes after `P9`.
fn row_number(id: &str) -> u32 {
    id.trim_start_matches('P').parse().unwrap_or(u32::MAX)
}

/// Four digits that matter, thousands apart.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 999.5 {
        let digits = match value.abs() {
            small if small < 10.0 => 3,
            large if large < 100.0 => 1,
            _ => 0,
        };
        let text = format!("{value:.digits$}");
        // 2 and not 2.000: most counts are whole.
        if text.contains('.') {
            return text.trim_end_matches('0').trim_end_matches('.').to_owned();
        }
        return text;
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
    use crate::{Bound, Comparison, Contender, Effort, Goal};

    fn measured(ours: f64) -> Measured {
        Comparison::new(
            "1 000 tasks, one key",
            "hand-offs/s",
            Contender::new("us", Role::Us, move |_| Ok(ours)),
        )
        .against(Contender::new("mutex", Role::Limit, |_| Ok(2_000_000.0)))
        .without("flock", "one process only")
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
             \x20   mutex     2 000 000  ± 0 %   (ours is 0.5 x that)\n\
             \x20   flock  one process only\n\
             \x20   goal >= 0.3 x mutex: 0.5 met\n"
        );
        assert!(table("P6", &measured(1.0)).ends_with("0 NOT MET\n"));
    }

    #[test]
    fn measuring_a_row_again_replaces_it_and_keeps_the_others_in_order() {
        let machine = json!({"cores": 2});
        let first = merge(&Value::Null, &machine, "P10", &[measured(1.0)]);
        let second = merge(&first, &machine, "P6", &[measured(2.0), measured(3.0)]);
        let third = merge(&second, &machine, "P10", &[measured(4.0)]);
        let seen: Vec<(&str, f64)> = third["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                (entry["row"].as_str().unwrap(), entry["series"][0]["median"].as_f64().unwrap())
            })
            .collect();
        assert_eq!(seen, [("P6", 2.0), ("P6", 3.0), ("P10", 4.0)]);
        assert_eq!(third["machine"], machine);
    }

    #[test]
    fn numbers_are_grouped_by_thousands_and_have_no_idle_zeros() {
        let texts = [0.5, 2.0, 2.125, 42.0, 999.94, 1_000.0, -1_234_567.0].map(number);
        assert_eq!(texts, ["0.5", "2", "2.125", "42", "1 000", "1 000", "-1 234 567"]);
    }
}
