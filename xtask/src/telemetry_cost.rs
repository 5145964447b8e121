//! `cargo xtask telemetry-cost`: what telemetry costs that nobody uses, in instructions of an
//! acquire and release on the memory store. The same program is built twice, once without any
//! telemetry, and counted by callgrind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, first_line, run as run_shown};
use crate::workspace::Workspace;

/// The most that it may cost, in percent.
const LIMIT: f64 = 1.0;

/// Two sizes: what does not depend on the number of pairs cancels out.
const FEW: u32 = 1_000;
const MANY: u32 = 11_000;

pub(crate) fn run(args: &[String]) -> Outcome {
    if !args.is_empty() {
        return Err("usage: cargo xtask telemetry-cost".to_owned());
    }
    if first_line(Command::new("valgrind").arg("--version")).is_none() {
        return Err("valgrind is not installed (Debian: apt install valgrind)".to_owned());
    }
    let workspace = Workspace::load()?;
    let example =
        ["build", "--profile", "dist", "--locked", "-p", "holdtight-core", "--example", "pairs"];
    run_shown(cargo().args(example).env("CARGO_TARGET_DIR", &workspace.target))?;
    // No log can be switched on in this one, and no callback is looked for.
    let silent = workspace.target.join("silent");
    run_shown(
        cargo()
            .args(example)
            .args(["--features", "tracing/max_level_off"])
            .env("RUSTFLAGS", "--cfg holdtight_silent")
            .env("CARGO_TARGET_DIR", &silent),
    )?;
    let program = Path::new("dist/examples/pairs");
    let with = per_pair(&workspace.target.join(program))?;
    let without = per_pair(&silent.join(program))?;
    let cost = (with - without) / without * 100.0;
    println!(
        "an acquire and release takes {with:.1} instructions, {without:.1} without telemetry: it costs {cost:.2} %"
    );
    if cost <= LIMIT { Ok(()) } else { Err(format!("more than {LIMIT} %")) }
}

/// Instructions of one acquire and release.
fn per_pair(program: &Path) -> Outcome<f64> {
    let (few, many) = (count(program, FEW)?, count(program, MANY)?);
    Ok((many - few) / f64::from(MANY - FEW))
}

/// All instructions of `program` with so many pairs.
fn count(program: &Path, pairs: u32) -> Outcome<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg(pairs.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind could not start: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} failed under valgrind:\n{said}", program.display()));
    }
    collected(&said).ok_or_else(|| format!("no count in what callgrind says:\n{said}"))
}

/// The number behind `Collected :`.
fn collected(said: &str) -> Option<f64> {
    let (_, rest) = said.split_once("Collected :")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_among_what_callgrind_says() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(collected(said), Some(123_456.0));
        assert_eq!(collected("==7== Aborted\n"), None);
    }
}
