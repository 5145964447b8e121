//! Runs the long runs, or a share of them, and says what each found.

use std::process::ExitCode;
use std::time::Instant;

use holdtight_bench::{Failure, SoakArgs, soaks};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("soak: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let args = SoakArgs::parse(std::env::args().skip(1))?;
    let mut runs = soaks::all();
    if args.list {
        for soak in runs {
            println!("{:16} {}", soak.name, soak.about);
        }
        return Ok(());
    }
    if let Some(name) = &args.only {
        let known: Vec<&str> = runs.iter().map(|soak| soak.name).collect();
        let known = format!("no run `{name}`: there are {}", known.join(", "));
        runs.retain(|soak| soak.name == name);
        if runs.is_empty() {
            return Err(known.into());
        }
    }
    let mut failed = Vec::new();
    for soak in runs {
        let start = Instant::now();
        match (soak.run)(args.scale) {
            Ok(found) => println!("{}: {found} ({:.1?})", soak.name, start.elapsed()),
            Err(problem) => {
                println!("{}: FAILED: {problem} ({:.1?})", soak.name, start.elapsed());
                failed.push(soak.name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}
