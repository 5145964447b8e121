//! The help of every command, as people see it, and what is generated from the same definition.
//!
//! After a change on purpose: `UPDATE_HELP=1 cargo test -p holdtight-cli --test manual`, then read
//! the difference.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Home, read};

const COMMANDS: [&str; 18] = [
    "run",
    "acquire",
    "extend",
    "hold",
    "check",
    "release",
    "status",
    "ls",
    "wait",
    "force-release",
    "fenced-write",
    "fenced-check",
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

/// The text of a section of a page.
fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let start =
        page.find(&format!("\n.SH {title}\n")).unwrap_or_else(|| panic!("no {title} in {page}"));
    let rest = &page[start + 1..];
    rest.split_once('\n').unwrap().1.split("\n.SH ").next().unwrap()
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let home = Home::new();
    let page = home.call("man").succeeded().out;
    assert!(page.contains(".TH holdtight 1") && page.contains("HOLDTIGHT_STORE"));
    home.call("man --dir pages/man1").succeeded();
    assert_eq!(read(&home.path("pages/man1/holdtight.1")), page);
    for command in COMMANDS {
        let page = read(&home.path(&format!("pages/man1/holdtight-{command}.1")));
        for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(!section(&page, title).trim().is_empty(), "{command}: {title}");
        }
        for title in ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"] {
            assert!(!section(&page, title).trim().is_empty(), "{command}: {title}");
        }
        assert!(section(&page, "EXAMPLES").contains(&command.replace('-', "\\-")), "{command}");
        assert!(section(&page, "SYNOPSIS").contains("holdtight"), "{command}");
    }
    assert_eq!(std::fs::read_dir(home.path("pages/man1")).unwrap().count(), COMMANDS.len() + 1);
}

#[test]
fn pages_tell_what_belongs_to_their_command() {
    let home = Home::new();
    home.call("man --dir man1").succeeded();
    let page = |command: &str| read(&home.path(&format!("man1/holdtight-{command}.1")));
    let run = page("run");
    for code in ["64", "69", "74", "75", "126, 127", "128+n"] {
        assert!(section(&run, "EXIT STATUS").contains(&format!("\\fB{code}\\fR")), "{code}");
    }
    assert!(!section(&run, "EXIT STATUS").contains("\\fB73\\fR"));
    assert!(section(&run, "SYNOPSIS").contains("<KEY>"), "{run}");
    assert!(section(&run, "ENVIRONMENT").contains("HOLDTIGHT_DEADLINE"));
    assert!(section(&run, "FILES").contains(".local/state/holdtight"));
    assert!(section(&page("fenced-write"), "EXIT STATUS").contains("\\fB73\\fR"));
    assert!(section(&page("fenced-write"), "FILES").contains("FILE.fence"));
    assert!(!section(&page("man"), "ENVIRONMENT").contains("HOLDTIGHT"));
    assert!(section(&page("hold"), "EXAMPLES").contains("eval"));
}

#[test]
fn pages_are_read_by_man_without_a_complaint() {
    if Command::new("groff").arg("--version").output().is_err() {
        eprintln!("skipped: there is no groff here");
        return;
    }
    let home = Home::new();
    home.call("man --dir man1").succeeded();
    for entry in std::fs::read_dir(home.path("man1")).unwrap() {
        let path = entry.unwrap().path();
        let output =
            Command::new("groff").args(["-man", "-ww", "-Tutf8"]).arg(&path).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaint.is_empty(), "{path:?}: {complaint}");
    }
}

#[test]
fn help_names_every_store() {
    let home = Home::new();
    let help = home.call("--help").succeeded().out;
    for store in
        ["file:", "redis://", "postgres://", "etcd://", "memcached://", "firestore://", "memory:"]
    {
        assert!(help.contains(store), "{store}");
    }
}
