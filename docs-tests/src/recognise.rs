//! Commands of cargo in our documents. Run from within the tests they would build the workspace
//! anew, or run the tests for ever, so each is checked instead: does what it names exist? `cargo
//! run -- …` becomes the command.

use xtask::{Workspace, is_chore};

/// What is done with a command of cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// Not run: everything it names exists.
    Checked,
    /// Run in this form.
    Instead(String),
}

/// `script` with each command of cargo replaced by what is done with it, and whether anything is
/// left to run.
///
/// # Errors
/// A command of cargo names something that does not exist, or is of a kind that we can't check.
pub fn prepare(script: &str, workspace: &Workspace) -> Result<(String, bool), String> {
    let mut lines = Vec::new();
    let mut left = false;
    // A command that goes on after a backslash is one command.
    for line in script.replace("\\\n", "").lines() {
        let command = line.trim();
        if ["&& cargo ", "; cargo ", "| cargo ", "$(cargo "].iter().any(|end| command.contains(end))
        {
            return Err(format!("`{command}`: give cargo a line of its own, or it would be run"));
        }
        if command.starts_with("cargo ") {
            match recognise(command, workspace)? {
                Recognised::Checked => lines.push(":".to_owned()),
                Recognised::Instead(other) => {
                    left = true;
                    lines.push(other);
                }
            }
        } else {
            left |= !command.is_empty() && !command.starts_with('#');
            lines.push(line.to_owned());
        }
    }
    Ok((lines.join("\n"), left))
}

/// What is done with `command`, which begins with `cargo`.
///
/// # Errors
/// As [`prepare`].
pub fn recognise(command: &str, workspace: &Workspace) -> Result<Recognised, String> {
    let (before, after) = match command.split_once(" -- ") {
        Some((before, after)) => (before, Some(after)),
        None => (command, None),
    };
    let words: Vec<&str> =
        before.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let fail = |why: String| Err(format!("`{command}`: {why}"));
    match words[1..] {
        ["xtask", name, ..] if is_chore(name) => Ok(Recognised::Checked),
        ["xtask", ..] => fail("no such chore".to_owned()),
        ["run", ..] => match (unknown_package(&words, workspace), after) {
            (Some(name), _) => fail(format!("no package `{name}`")),
            (None, Some(args)) => Ok(Recognised::Instead(format!("holdtight {args}"))),
            (None, None) => fail("says nothing to run after `--`".to_owned()),
        },
        ["install", "--path", path, ..]
            if workspace.root.join(path).join("Cargo.toml").is_file() =>
        {
            Ok(Recognised::Checked)
        }
        ["install", "--path", path, ..] => fail(format!("no package in {path}")),
        // Tools of others: nothing of ours to check.
        ["install", ..] => Ok(Recognised::Checked),
        ["add", name, ..] => added(name, &words, workspace).map_or_else(fail, Ok),
        ["build" | "check" | "clippy" | "doc" | "fmt" | "nextest" | "test", ..] => {
            match unknown_package(&words, workspace) {
                Some(name) => fail(format!("no package `{name}`")),
                None => Ok(Recognised::Checked),
            }
        }
        _ => fail("the tests of our documents can't check this".to_owned()),
    }
}

fn unknown_package<'a>(words: &[&'a str], workspace: &Workspace) -> Option<&'a str> {
    let pairs = words.windows(2).filter(|pair| matches!(pair[0], "-p" | "--package"));
    pairs.map(|pair| pair[1]).find(|name| workspace.package(name).is_none())
}

/// `cargo add NAME --features a,b`: a package of ours must have those features; others are not our
/// concern.
fn added(name: &str, words: &[&str], workspace: &Workspace) -> Result<Recognised, String> {
    let Some(package) = workspace.package(name) else {
        return if name.starts_with("holdtight") {
            Err(format!("no package `{name}`"))
        } else {
            Ok(Recognised::Checked)
        };
    };
    let lists = words.windows(2).filter(|pair| matches!(pair[0], "-F" | "--features"));
    for feature in lists.flat_map(|pair| pair[1].split(',')) {
        if !package.features.iter().any(|known| known == feature) {
            return Err(format!("{name} has no feature `{feature}`"));
        }
    }
    Ok(Recognised::Checked)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use xtask::Package;

    use super::*;

    fn workspace() -> Workspace {
        let package = |name: &str, features: &[&str]| Package {
            name: name.to_owned(),
            features: features.iter().map(ToString::to_string).collect(),
            doctests: true,
            published: true,
            roots: Vec::new(),
        };
        Workspace {
            rust_version: String::new(),
            root: Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
            target: Path::new("target").to_owned(),
            packages: vec![package("holdtight", &["redis", "file"]), package("holdtight-cli", &[])],
        }
    }

    #[test]
    fn the_two_commands_of_readme_are_recognised() {
        let first = r#"cargo run --release -- run demo -- echo "I hold the lock""#;
        assert_eq!(
            recognise(first, &workspace()).unwrap(),
            Recognised::Instead(r#"holdtight run demo -- echo "I hold the lock""#.to_owned())
        );
        assert_eq!(recognise(xtask::TEST_COMMAND, &workspace()).unwrap(), Recognised::Checked);
    }

    #[test]
    fn what_exists_passes() {
        for command in [
            "cargo xtask bench --quick --only P6",
            "cargo add holdtight --features redis,file",
            "cargo add tokio --features full",
            "cargo test -p holdtight-cli",
            "cargo install --path docs-tests",
        ] {
            assert_eq!(recognise(command, &workspace()).unwrap(), Recognised::Checked, "{command}");
        }
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        for command in [
            "cargo xtask tset",
            "cargo add holdtight --features zookeeper",
            "cargo add holdtight-zookeeper",
            "cargo test -p holdtight-zookeeper",
            "cargo install --path crates/zookeeper",
            "cargo run --release",
            "cargo publish",
        ] {
            let problem = recognise(command, &workspace()).unwrap_err();
            assert!(problem.starts_with(&format!("`{command}`: ")), "{problem}");
        }
    }

    #[test]
    fn other_commands_of_a_script_stay_and_only_they_are_left_to_run() {
        let (script, left) = prepare("cargo xtask test  # all\n", &workspace()).unwrap();
        assert_eq!((script.as_str(), left), (":", false));
        let (script, left) = prepare("cd /tmp\ncargo run -- \\\n  ls\n", &workspace()).unwrap();
        assert_eq!((script.as_str(), left), ("cd /tmp\nholdtight   ls", true));
        assert!(prepare("cd /tmp && cargo xtask test\n", &workspace()).is_err());
    }
}
