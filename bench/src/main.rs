//! Measures the rows of the table of goals and prints them. A full run also writes
//! `bench/results.json`, the plots, and the tables in our documents.

use std::process::ExitCode;

use holdtight_bench::{
    BenchArgs, Failure, describe, merge, publish, results, results_file, rows, table, worker,
};

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
    if args.publish {
        return publish();
    }
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
    let mut missed = Vec::new();
    for row in rows {
        let mut measured = Vec::new();
        for comparison in (row.prepare)(args.effort)? {
            for result in comparison.run(args.effort)? {
                println!("{}", table(row.id, &result));
                missed.extend(result.verdicts.iter().filter(|verdict| !verdict.met).map(
                    |verdict| {
                        format!("{}  {} ({}): {}", row.id, result.work, result.unit, verdict.goal)
                    },
                ));
                measured.push(result);
            }
        }
        // A smoke run proves that it works, not how fast it is. Written row by row: a later failure
        // loses nothing.
        if !args.effort.quick {
            let merged = merge(&results()?, &describe(), row.id, &measured);
            std::fs::write(results_file(), format!("{merged:#}\n"))?;
        }
    }
    if args.effort.quick {
        println!("A smoke run: nothing is written, and its numbers mean little.");
        return Ok(());
    }
    for missed in missed {
        println!("not met: {missed}");
    }
    publish()
}
