//! The help of every command, as people see it, and what is generated from the same definition.
//!
//! After a change on purpose: `UPDATE_HELP=1 cargo test -p holdtight-cli --test manual`, then read the difference.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Home, read};

const COMMANDS: [&str; 14] = [
    "run",
    "acquire",
    "extend",
    "release",
    "status",
    "ls",
    "wait",
    "force-release",
    "doctor",
    "migrate",
    "config",
    "bench",
    "completions",
    "man",
];

#[test]
fn the_help_of_every_command_is_as_reviewed() {
    let home = Home::new();
    let main = home.call("--help").succeeded().out;
    check("holdtight", &main);
    let listed: Vec<_> = main
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(listed, COMMANDS, "every command is listed, and has a test here");
    for command in COMMANDS {
        let help = home.call(&format!("{command} --help")).succeeded().out;
        assert!(help.contains("Examples:\n  "), "{command} has no example");
        check(command, &help);
        assert_eq!(home.call(&format!("help {command}")).succeeded().out, help);
    }
    assert_eq!(home.call("help").succeeded().out, main);
    home.call("help nonsense").refused(64, &["nonsense"]);
}

fn check(name: &str, actual: &str) {
    assert!(actual.lines().all(|line| line.chars().count() <= 100), "{name} has a long line");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/help/{name}.txt"));
    if std::env::var_os("UPDATE_HELP").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "the help of {name} changed; see the head of this file");
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = Home::new().call("--version").succeeded().out;
    assert_eq!(version, format!("holdtight {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = home.call(&format!("completions {shell}")).succeeded().out;
        for command in COMMANDS {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    let script = home.write("holdtight.bash", &home.call("completions bash").succeeded().out);
    let checked = Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(checked.success(), "bash cannot read its completions");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let home = Home::new();
    let page = home.call("man").succeeded().out;
    assert!(page.contains(".TH holdtight 1") && page.contains("HOLDTIGHT_STORE"));
    home.call("man --dir pages/man1").succeeded();
    assert!(read(&home.path("pages/man1/holdtight.1")).contains(".TH holdtight"));
    for command in COMMANDS {
        let page = read(&home.path(&format!("pages/man1/holdtight-{command}.1")));
        assert!(page.contains("Examples:"), "{command}");
    }
}
