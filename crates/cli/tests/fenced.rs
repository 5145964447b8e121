//! `fenced-write` and `fenced-check`: a script's late writes are refused, whatever its file is
//! called.

#![cfg(target_os = "linux")]

mod run_harness;
mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use run_harness::{Bench, code, stderr};
use support::{Home, names};

#[test]
fn a_write_under_an_older_fence_is_refused_and_has_a_code_of_its_own() {
    let home = Home::new();
    home.call_on("fenced-write report --fence 8", "by eight\n").succeeded();
    home.call_on("fenced-write report --fence 7", "by seven\n").refused(73, &["report", "7", "8"]);
    assert_eq!(fs::read_to_string(home.path("report")).unwrap(), "by eight\n");
    home.call_on("fenced-write report --fence 8", "again\n").succeeded();
    let json = home.call_on("fenced-write report --fence 9 --json", "by nine\n").succeeded().json();
    assert_eq!(json, serde_json::json!({ "file": "report", "fence": "9", "written": true }));
    assert_eq!(fs::read_to_string(home.path("report")).unwrap(), "by nine\n");
    let refused = home.call_on("fenced-write report --fence 8 --json", "late");
    assert_eq!((refused.code, &refused.error_json()["exit"]), (73, &73.into()));

    home.call("fenced-check report --fence 9").succeeded();
    home.call("fenced-check report --fence 10").succeeded();
    home.call("fenced-check report --fence 8").refused(73, &["report", "9"]);
    home.call("fenced-check nothing --fence 1").succeeded();
    let json = home.call("fenced-check report --fence 8 --json");
    assert_eq!(names(&json.json()), ["fence", "file", "late", "recorded"]);
    assert_eq!((json.code, &json.json()["late"]), (73, &true.into()));
    assert_eq!(home.call("fenced-check report --fence 9").code, 0, "looking changes nothing");
}

#[test]
fn the_fence_comes_from_the_run_around_it_and_needs_no_store() {
    let bench = Bench::new();
    let holdtight = env!("CARGO_BIN_EXE_holdtight");
    let script = format!("echo new | HOLDTIGHT_STORE=withheld: {holdtight} fenced-write out");
    assert_eq!(code(&bench.output(&["run", "k", "--", "sh", "-c", &script])), 0);
    assert_eq!(bench.read("out"), "new\n");
    // The holder before that comes back late.
    let late = bench.output(&[
        "run",
        "-k",
        "k",
        "--",
        "sh",
        "-c",
        &format!("echo late | {holdtight} fenced-write out --fence 5"),
    ]);
    assert_eq!(code(&late), 73, "{}", stderr(&late));
    // Two keys have two fences, and only one of them protects the file.
    let both = bench.output(&[
        "run",
        "-k",
        "a",
        "-k",
        "b",
        "--",
        "sh",
        "-c",
        &format!("echo x | {holdtight} fenced-write out"),
    ]);
    assert_eq!(code(&both), 64);
    assert!(stderr(&both).contains("--fence"), "{}", stderr(&both));
    let none = bench.output(&["fenced-write", "out"]);
    assert_eq!(code(&none), 64);
    assert!(stderr(&none).contains("holdtight run"), "{}", stderr(&none));
    assert_eq!(bench.read("out"), "new\n");
}

#[test]
fn of_many_writers_at_once_the_newest_one_stays_and_every_reader_sees_a_whole_file() {
    const WRITERS: u64 = 24;
    let home = Home::new();
    let contents = |fence: u64| format!("{fence} ").repeat(20_000);
    home.call_on("fenced-write report --fence 1", &contents(1)).succeeded();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (2..WRITERS)
            .map(|fence| {
                let home = &home;
                scope.spawn(move || {
                    let answer = home
                        .call_on(&format!("fenced-write report --fence {fence}"), &contents(fence));
                    assert!([0, 73].contains(&answer.code), "{}", answer.err);
                    (fence, answer.code)
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            let seen = fs::read_to_string(home.path("report")).unwrap();
            let fence: u64 = seen.split(' ').next().unwrap().parse().unwrap();
            assert!(seen == contents(fence), "a reader saw a part");
        }
        let answers: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let newest = answers.iter().filter(|(_, code)| *code == 0).map(|(fence, _)| *fence).max();
        assert_eq!(newest, Some(WRITERS - 1), "the newest one is never refused: {answers:?}");
    });
    assert_eq!(fs::read_to_string(home.path("report")).unwrap(), contents(WRITERS - 1));
    let left: Vec<_> =
        fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the file and its fence: {left:?}");
}

#[test]
fn a_writer_that_is_killed_while_it_reads_changes_nothing() {
    let home = Home::new();
    home.call_on("fenced-write report --fence 1", "whole").succeeded();
    let mut command = home.command(["fenced-write", "report", "--fence", "2"]);
    let mut writer = support::Ending(command.stdin(Stdio::piped()).spawn().unwrap());
    writer.0.stdin.as_mut().unwrap().write_all(b"half").unwrap();
    writer.0.kill().unwrap();
    writer.0.wait().unwrap();
    assert_eq!(fs::read_to_string(home.path("report")).unwrap(), "whole");
    home.call_on("fenced-write report --fence 1", "still the newest").succeeded();
}

#[test]
fn hostile_names_and_links_are_refused_or_taken_literally() {
    let home = Home::new();
    home.write("secret", "secret");
    symlink(home.path("secret"), home.path("link")).unwrap();
    symlink(home.path("nowhere"), home.path("dangling")).unwrap();
    symlink(home.path("secret"), home.path("side.fence")).unwrap();
    fs::create_dir(home.path("directory")).unwrap();
    for (file, code) in [
        ("link", 64),
        ("dangling", 64),
        ("side", 64),
        ("directory", 64),
        ("report.fence", 64),
        (".fence-new-0", 64),
        ("..", 64),
        ("/", 64),
        ("", 64),
        ("secret/below", 64),
        ("missing/below", 69),
    ] {
        let answer = home.call_with(["fenced-write", "--fence", "9", file]);
        assert_eq!(answer.code, code, "{file:?}: {}", answer.err);
        assert!(answer.err.starts_with("holdtight: "), "{}", answer.err);
    }
    assert_eq!(fs::read_to_string(home.path("secret")).unwrap(), "secret");
    assert!(!home.path("nowhere").exists());
    for name in ["two\nlines", "it's $HOME; rm -rf *", "-n", "--fence", "ü"] {
        let mut command = home.command(["fenced-write", "--fence", "9", "--", name]);
        let status = command.stdin(Stdio::null()).status().unwrap();
        assert!(status.success(), "{name:?}");
        assert_eq!(fs::read_to_string(home.path(name)).unwrap(), "", "{name:?}");
    }
}
