//! Measures the rows of the table of goals, prints them, and writes `bench/results.json` after a full run.

use std::path::Path;
use std::process::ExitCode;

use holdtight_bench::{BenchArgs, Failure, merge, rows, table, worker};
use serde_json::Value;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    if let (Some("worker"), Some(url)) = (words.next().as_deref(), words.next()) {
        return worker::run(&url);
    }
    let args = BenchArgs::parse(std::env::args().skip(1))?;
    let mut rows = rows::all();
    if args.list {
        for row in rows {
            println!("{:4} {}", row.id, row.about);
        }
        return Ok(());
    }
    if let Some(id) = &args.only {
        let known: Vec<&str> = rows.iter().map(|row| row.id).collect();
        let known = format!("no row {id}: there are {}", known.join(", "));
        rows.retain(|row| row.id.eq_ignore_ascii_case(id));
        if rows.is_empty() {
            return Err(known.into());
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results.json");
    for row in rows {
        let mut results = Vec::new();
        for comparison in (row.prepare)(args.effort)? {
            for measured in comparison.run(args.effort)? {
                println!("{}", table(row.id, &measured));
                results.push(measured);
            }
        }
        // A smoke run proves that it works, not how fast it is. Written row by row: a later failure loses nothing.
        if !args.effort.quick {
            let before = match std::fs::read_to_string(&path) {
                Ok(text) => serde_json::from_str(&text)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
                Err(error) => return Err(error.into()),
            };
            let merged = merge(&before, row.id, &results);
            std::fs::write(&path, format!("{merged:#}\n"))?;
        }
    }
    Ok(())
}
