//! `cargo xtask test`: the test command of README. Sees to the servers, then runs every test and
//! every documentation example. It starts no server itself: tests start their own and stop them.

use crate::process::{Outcome, cargo, in_ci, run as run_shown};
use crate::ready::ready;
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    let workspace = Workspace::load()?;
    let path = ready(&workspace)?;

    let mut tests = cargo();
    tests.arg("test");
    if in_ci() {
        // One run shows every failure.
        tests.arg("--no-fail-fast");
    }
    let chosen = Chosen::from(args);
    if chosen.packages.is_empty() {
        tests.arg("--workspace");
    }
    if args.is_empty() {
        // The examples in the documentation have their own run below.
        tests.args(["--lib", "--bins", "--tests", "--examples"]);
    }
    run_shown(tests.args(args).env("PATH", &path))?;

    match chosen.doctests(&workspace) {
        Some(scope) => run_shown(cargo().args(["test", "--doc"]).args(scope).env("PATH", &path)),
        None => Ok(()),
    }
}

/// What the arguments for the test runner say about the run of documentation examples.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    packages: Vec<String>,
    /// Arguments that choose by name or kind of test: then examples were not asked for.
    narrowed: bool,
}

impl Chosen {
    fn from(args: &[String]) -> Self {
        let mut chosen = Self { packages: Vec::new(), narrowed: false };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.split_once('=') {
                Some(("-p" | "--package", name)) => chosen.packages.push(name.to_owned()),
                _ if matches!(word.as_str(), "-p" | "--package") => {
                    chosen.packages.extend(words.next().cloned());
                }
                _ => chosen.narrowed = true,
            }
        }
        chosen
    }

    /// The scope of the run of examples; `None` if there is nothing to run.
    fn doctests(&self, workspace: &Workspace) -> Option<Vec<String>> {
        if self.narrowed {
            return None;
        }
        if self.packages.is_empty() {
            return Some(vec!["--workspace".to_owned()]);
        }
        // cargo refuses to look for examples in a package without a library.
        let has_examples = |name: &&String| workspace.package(name).is_some_and(|p| p.doctests);
        let scope: Vec<String> = self
            .packages
            .iter()
            .filter(has_examples)
            .flat_map(|name| ["--package".to_owned(), name.clone()])
            .collect();
        (!scope.is_empty()).then_some(scope)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::workspace::Package;

    fn chosen(args: &[&str]) -> Chosen {
        Chosen::from(&args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn workspace() -> Workspace {
        let package = |name: &str, doctests| Package {
            name: name.to_owned(),
            features: Vec::new(),
            doctests,
            published: true,
            roots: Vec::new(),
        };
        let packages = vec![package("cli", false), package("core", true)];
        let (root, target) = (PathBuf::new(), PathBuf::new());
        Workspace { root, target, packages, rust_version: String::new() }
    }

    #[test]
    fn without_arguments_all_examples_run() {
        assert_eq!(chosen(&[]).doctests(&workspace()).unwrap(), ["--workspace"]);
    }

    #[test]
    fn examples_run_for_the_packages_chosen_that_can_have_some() {
        let chosen = chosen(&["-p", "core", "--package=cli"]);
        assert_eq!(chosen.packages, ["core", "cli"]);
        assert_eq!(chosen.doctests(&workspace()).unwrap(), ["--package", "core"]);
    }

    #[test]
    fn examples_do_not_run_when_tests_are_chosen_by_name() {
        assert_eq!(chosen(&["-p", "core", "fence"]).doctests(&workspace()), None);
        assert_eq!(chosen(&["-p", "cli"]).doctests(&workspace()), None);
    }
}
