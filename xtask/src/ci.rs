//! `cargo xtask ci`: every check a change must pass, quick ones first, stopping at the first that
//! fails.
//!
//! `.ci/run` is this and nothing more, so that a person can run what the build server runs, step by
//! step.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::install::install;
use crate::locate::{extended_path, find};
use crate::process::{Outcome, cargo, first_line, run as run_shown};
use crate::requirements::REQUIREMENTS;
use crate::workspace::Workspace;
use crate::{TEST_COMMAND, features, imports, links};

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace) -> Outcome,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", about: "formatting", run: fmt },
    Step { name: "links", about: "local links in Markdown lead somewhere", run: links::check },
    Step { name: "imports", about: "modules import in one direction", run: imports::check },
    Step { name: "msrv", about: "the oldest Rust we promise is one we build with", run: msrv },
    Step { name: "clippy", about: "lints, all targets", run: clippy },
    Step { name: "features", about: "each package and feature alone", run: features::check },
    Step { name: "doc", about: "documentation builds without warnings", run: doc },
    Step { name: "package", about: "every published package is complete", run: package },
    Step { name: "deny", about: "licences and sources of dependencies", run: deny },
    Step { name: "schedules", about: "thread schedules, explored by shuttle", run: schedules },
    Step { name: "soak", about: "the long runs, at a twentieth", run: soak },
    Step { name: "bench", about: "every measurement, as a smoke run without peers", run: bench },
    Step { name: "test", about: "the test command of README", run: test },
];

pub(crate) fn run(args: &[String]) -> Outcome {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let steps: Vec<&Step> = match words[..] {
        [] => STEPS.iter().collect(),
        ["--list"] => {
            for step in STEPS {
                println!("{:10} {}", step.name, step.about);
            }
            return Ok(());
        }
        ["--only", name] => match STEPS.iter().find(|step| step.name == name) {
            Some(step) => vec![step],
            None => return Err(format!("no step is called `{name}`: see cargo xtask ci --list")),
        },
        _ => return Err("usage: cargo xtask ci [--only STEP] [--list]".to_owned()),
    };
    let workspace = Workspace::load()?;
    let mut times = Vec::new();
    for step in steps {
        eprintln!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        (step.run)(&workspace).map_err(|problem| {
            format!(
                "{problem}\n\nstep `{}` failed; alone: cargo xtask ci --only {}",
                step.name, step.name
            )
        })?;
        times.push(format!("{} {:.0?}", step.name, start.elapsed()));
    }
    eprintln!("\nall checks passed: {}", times.join(", "));
    Ok(())
}

fn fmt(_: &Workspace) -> Outcome {
    run_shown(cargo().args(["fmt", "--all", "--check"]))
}

/// The toolchain of all other steps is the promised one, or that one checks every package as well.
fn msrv(workspace: &Workspace) -> Outcome {
    let promised = workspace.rust_version.as_str();
    let here = first_line(Command::new("rustc").arg("--version"))
        .ok_or("rustc does not say its version")?;
    if is_version(&here, promised) {
        return Ok(());
    }
    let check = ["check", "--locked", "--workspace", "--all-features", "--target-dir"];
    let target = workspace.target.join("msrv");
    run_shown(Command::new("cargo").arg(format!("+{promised}")).args(check).arg(target))
}

/// Whether `rustc 1.95.0 (…)` is of the version `1.95`.
fn is_version(rustc: &str, promised: &str) -> bool {
    let version = rustc.split_whitespace().nth(1).unwrap_or_default();
    let rest = version.strip_prefix(promised);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn clippy(_: &Workspace) -> Outcome {
    let all = ["clippy", "--locked", "--workspace", "--all-targets"];
    run_shown(cargo().args(all).args(["--", "-D", "warnings"]))
}

fn doc(_: &Workspace) -> Outcome {
    let all = ["doc", "--locked", "--workspace", "--no-deps", "--all-features"];
    run_shown(cargo().args(all).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Packs what would be published, in the order of dependencies, and builds each from its package
/// alone: a file that lies outside of its directory is missed here, not by the first user. Needs no
/// network.
fn package(workspace: &Workspace) -> Outcome {
    let published: Vec<&str> = workspace.published().collect();
    forget_unpacked(&cargo_home(), &published)?;
    let chosen = published.iter().flat_map(|name| ["--package", name]);
    let pack = ["package", "--locked", "--offline", "--allow-dirty", "--quiet"];
    run_shown(cargo().args(pack).args(chosen))
}

/// Where cargo unpacks packages.
fn cargo_home() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).unwrap_or_default()
}

/// Removes what cargo unpacked of our packages before. It knows them by name and version alone, and
/// would build what depends on them with the sources of that time.
fn forget_unpacked(cargo_home: &Path, names: &[&str]) -> Outcome {
    let Ok(registries) = cargo_home.join("registry/src").read_dir() else { return Ok(()) };
    // A registry of packages that are only being packed has no name before its hash.
    let local = registries.flatten().filter(|dir| dir.file_name().as_encoded_bytes()[0] == b'-');
    for package in local.filter_map(|dir| dir.path().read_dir().ok()).flatten().flatten() {
        let unpacked = package.file_name();
        let unpacked = unpacked.to_string_lossy();
        let version =
            |name: &&&str| unpacked.strip_prefix(**name)?.strip_prefix('-')?.chars().next();
        if names.iter().any(|name| version(&name).is_some_and(|digit| digit.is_ascii_digit())) {
            std::fs::remove_dir_all(package.path())
                .map_err(|error| format!("{}: {error}", package.path().display()))?;
        }
    }
    Ok(())
}

/// Advisories are not asked for: their database lives on the network, and a build must not depend
/// on that.
fn deny(workspace: &Workspace) -> Outcome {
    let tools = workspace.tools();
    let row = REQUIREMENTS.iter().find(|row| row.programs == ["cargo-deny"]);
    let row = row.ok_or("cargo-deny has no row among the requirements")?;
    if find(row, &tools).is_none() {
        install(&[row], &tools)?;
    }
    let found = find(row, &tools).ok_or("cargo-deny was installed, but is not found")?;
    let checks = ["deny", "--all-features", "check", "bans", "licenses", "sources"];
    run_shown(cargo().args(checks).env("PATH", extended_path(&found)))
}

/// Its own directory, since `--cfg` builds everything anew; the flags of the caller are left out
/// for the same reason.
fn schedules(workspace: &Workspace) -> Outcome {
    let tests = ["test", "--locked", "--package", "holdtight-core", "--lib", "shuttle_tests"];
    let target = workspace.target.join("shuttle");
    run_shown(cargo().args(tests).env("RUSTFLAGS", "--cfg shuttle").env("CARGO_TARGET_DIR", target))
}

fn soak(_: &Workspace) -> Outcome {
    crate::soak::run(&["--scale".to_owned(), "0.05".to_owned()])
}

fn bench(_: &Workspace) -> Outcome {
    crate::bench::run(&["--quick".to_owned(), "--no-peers".to_owned()])
}

fn test(_: &Workspace) -> Outcome {
    run_shown(cargo().args(test_args()))
}

fn test_args() -> impl Iterator<Item = &'static str> {
    TEST_COMMAND.split(' ').skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_is_the_test_command_of_readme() {
        assert_eq!(STEPS.last().unwrap().name, "test");
        assert_eq!(test_args().collect::<Vec<_>>(), ["xtask", "test"]);
    }

    #[test]
    fn only_what_was_unpacked_of_our_own_packages_is_forgotten() {
        let home = std::env::temp_dir().join(format!("holdtight-xtask-{}", std::process::id()));
        let src = home.join("registry/src");
        let (ours, kit) = (src.join("-1f/holdtight-0.1.0"), src.join("-1f/holdtight-kit-0.1.0"));
        let (other, theirs) = (src.join("-1f/serde-1.0.0"), src.join("index-2e/holdtight-0.1.0"));
        for dir in [&ours, &kit, &other, &theirs] {
            std::fs::create_dir_all(dir).unwrap();
        }
        forget_unpacked(&home, &["holdtight"]).unwrap();
        assert!(!ours.exists() && kit.exists() && other.exists() && theirs.exists());
        forget_unpacked(&home, &["holdtight", "holdtight-kit"]).unwrap();
        assert!(!kit.exists());
        std::fs::remove_dir_all(&home).unwrap();
        assert!(forget_unpacked(&home, &["holdtight"]).is_ok(), "there may be none");
    }

    #[test]
    fn the_promised_version_is_told_from_its_neighbours() {
        for (rustc, same) in [
            ("rustc 1.95.0 (59807616e 2026-04-14)", true),
            ("rustc 1.95.2", true),
            ("rustc 1.9.5", false),
            ("rustc 1.950.0", false),
            ("", false),
        ] {
            assert_eq!(is_version(rustc, "1.95"), same, "{rustc}");
        }
    }

    #[test]
    fn step_names_are_unique() {
        let mut names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn an_unknown_step_is_refused() {
        let problem = run(&["--only".to_owned(), "tset".to_owned()]).unwrap_err();
        assert!(problem.contains("`tset`"), "{problem}");
    }
}
