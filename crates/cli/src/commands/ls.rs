//! `ls [PREFIX]`: the keys that are held, as a table or as JSON.

use std::fmt::Write as _;

use std::sync::Arc;

use holdtight::{Builder, LIST_LIMIT};
use serde::Serialize;

use crate::args::LsArgs;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::facts::{Facts, Record, Unreadable};
use crate::{output, store};

const HEADER: [&str; 6] = ["KEY", "FENCE", "HELD FOR", "ENDS IN", "HOLDER", "REASON"];

/// One element of the list for programs.
#[derive(Serialize)]
#[serde(untagged)]
enum Element<'a> {
    Held(Record<'a>),
    Unreadable(Unreadable),
}

pub(crate) async fn run(args: LsArgs, context: &Context) -> Result<u8, Failure> {
    let files = store::files(&context.settings.store.value)?;
    let lock = match &files {
        Some(files) => Builder::shared(Arc::clone(files) as _).build()?,
        None => store::connect(&context.settings).await?,
    };
    let held: Vec<_> = lock.list(&args.prefix).await?.iter().map(Facts::from).collect();
    if held.len() >= LIST_LIMIT {
        let told =
            format!("at most {LIST_LIMIT} locks are shown, there may be more; name a prefix");
        output::warn(context.json, told);
    }
    // Whatever the prefix: the key stands in what cannot be read.
    let damaged = files.map_or(Ok(Vec::new()), |files| files.damaged())?;
    if context.json {
        let known = held.iter().map(|facts| Element::Held(facts.record()));
        let unknown = damaged.iter().map(|error| Element::Unreadable(Unreadable::new(error)));
        output::print_json(&known.chain(unknown).collect::<Vec<_>>())?;
    } else {
        if !held.is_empty() {
            output::print(table(held.iter().map(row).collect()))?;
        }
        for error in &damaged {
            output::complain(format_args!("the list is not complete: {error}"));
        }
    }
    Ok(if damaged.is_empty() { exit::OK } else { exit::SOFTWARE })
}

fn row(facts: &Facts) -> [String; 6] {
    let mut who = facts.owner.clone();
    let reason = who.reason.take().unwrap_or_default();
    [
        facts.key.clone(),
        facts.fence.map(|fence| fence.to_string()).unwrap_or_default(),
        facts.age(),
        facts.left(),
        who.to_string(),
        reason,
    ]
    .map(|cell| output::clean(&cell))
}

/// Columns as wide as their widest cell; the last one is not padded, so that no line ends in
/// spaces.
fn table(rows: Vec<[String; 6]>) -> String {
    let rows: Vec<_> = std::iter::once(HEADER.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_do_not_end_in_spaces() {
        let row = |key: &str, reason: &str| {
            [key, "7", "1.0 s", "9.0 s", "pid 1", reason].map(str::to_owned)
        };
        let text = table(vec![row("a", ""), row("über:long", "why")]);
        let lines: Vec<_> = text.lines().collect();
        let at = |line: &str| line.chars().position(|c| c == '7').unwrap();
        assert_eq!(at(lines[1]), at(lines[2]));
        assert!(lines.iter().all(|line| !line.ends_with(' ')), "{text}");
    }
}
