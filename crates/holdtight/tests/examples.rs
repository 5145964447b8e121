//! Every example is run, to its end, and says what it is for.
//!
//! `telemetry` is run where its output is compared.

mod built;

use std::path::Path;
use std::process::{Command, Output};

/// Runs one example and returns what it printed.
fn run(name: &str) -> String {
    let program = built::example(name);
    let Output { status, stdout, stderr } = Command::new(&program)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(status.success(), "{name}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn a_critical_section_loses_no_update() {
    assert_eq!(run("critical_section"), "200 updates, none lost\n");
}

#[test]
fn coordinated_jobs_are_done_once() {
    assert_eq!(run("job_coordination"), "20 jobs, each done once\n");
}

#[test]
fn a_rate_limit_limits_the_rate() {
    assert!(run("rate_limit").ends_with("sent 1 newsletter and made 3 calls\n"));
}

#[test]
fn a_long_export_outlives_its_lease_and_a_stuck_one_is_stopped() {
    let said = run("long_export");
    assert!(said.contains("800 rows under one lock"), "{said}");
    assert!(said.contains("extended 8 times"), "{said}");
    assert!(said.contains("stopped: lock \"export:stuck\""), "{said}");
}

#[test]
fn transfers_that_cross_neither_deadlock_nor_lose_money() {
    assert!(run("several_keys").ends_with("transfers, and the sum is still 400\n"));
}

#[test]
fn one_of_two_runs_and_the_other_skips() {
    let said = run("try_or_skip");
    assert!(said.contains("cleaning up") && said.contains("skipped"), "{said}");
}

#[test]
fn threads_take_turns_at_the_printer() {
    let said = run("without_async");
    let pages: Vec<_> = said.lines().collect();
    assert_eq!(pages.len(), 6, "{said}");
    for both in pages.chunks(2) {
        assert!(both[0].ends_with("page 1") && both[1].ends_with("page 2"), "{said}");
        assert_eq!(both[0].split(',').next(), both[1].split(',').next(), "{said}");
    }
}

#[cfg(all(feature = "file", unix))]
#[test]
fn a_token_is_handed_to_another_process() {
    let said = run("hand_over_token");
    assert!(said.contains("worker: has the lock") && said.ends_with("free again\n"), "{said}");
}

#[cfg(all(feature = "file", unix))]
#[test]
fn a_killed_leader_is_replaced_until_nobody_is_left() {
    let said = run("leader_election");
    assert_eq!(said.matches("leads; killing it").count(), 3, "{said}");
    assert!(said.ends_with("three leaders, one after the other\n"), "{said}");
}

#[test]
fn no_example_is_forgotten() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = ["tests/examples.rs", "tests/telemetry.rs"]
        .map(|name| std::fs::read_to_string(dir.join(name)).unwrap())
        .concat();
    for entry in std::fs::read_dir(dir.join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let run = tests.contains(&format!("run(\"{name}\")"))
            || tests.contains(&format!("example(\"{name}\")"));
        assert!(run, "no test runs the example {name}");
    }
}
