//! Installing the locks of others that `cargo xtask bench` compares us with, in pinned versions,
//! outside the repository.
//!
//! What is installed is written down beside it, so a change of versions installs again and nothing
//! else does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Outcome, cargo, in_ci, run};
use crate::tree::read;
use crate::workspace::Workspace;

/// One language with its peers: a directory under `bench/peers`, and one in the cache.
struct Language {
    name: &'static str,
    /// The files that say what to install, in the directory of the language.
    wanted: &'static [&'static str],
    install: fn(source: &Path, place: &Path) -> Outcome,
}

const LANGUAGES: &[Language] = &[
    Language { name: "rust", wanted: &["Cargo.lock", "src/main.rs"], install: rust },
    Language { name: "node", wanted: &["package.json"], install: node },
    Language { name: "python", wanted: &["requirements.txt"], install: python },
];

/// Installs what is missing and says where everything is. Outside CI a language that cannot be
/// installed is left out.
pub(crate) fn install(workspace: &Workspace) -> Outcome<PathBuf> {
    let cache = cache(|name| std::env::var_os(name).map(PathBuf::from), &workspace.target);
    for language in LANGUAGES {
        let source = workspace.root.join("bench/peers").join(language.name);
        match one(language, &source, &cache.join(language.name)) {
            Err(problem) if in_ci() => return Err(problem),
            Err(problem) => eprintln!("{problem}\nthese peers are left out\n"),
            Ok(()) => {}
        }
    }
    Ok(cache)
}

/// Where a user's programs keep what they can fetch again.
fn cache(variable: impl Fn(&str) -> Option<PathBuf>, target: &Path) -> PathBuf {
    let user = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let user = user.or_else(|| Some(variable("HOME")?.join(".cache")));
    user.map_or_else(|| target.join("peers"), |user| user.join("holdtight/bench-peers"))
}

fn one(language: &Language, source: &Path, place: &Path) -> Outcome {
    let mut wanted = String::new();
    for file in language.wanted {
        wanted.push_str(&read(&source.join(file))?);
    }
    let mark = place.join("installed");
    if fs::read_to_string(&mark).is_ok_and(|done| done == wanted) {
        return Ok(());
    }
    // A half of an older installation would be found and used.
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", place.display()));
        }
        _ => {}
    }
    let cannot = |error| format!("cannot write to {}: {error}", place.display());
    fs::create_dir_all(place).map_err(cannot)?;
    (language.install)(source, place)?;
    fs::write(mark, wanted).map_err(cannot)
}

fn rust(source: &Path, place: &Path) -> Outcome {
    let mut install = cargo();
    install.args(["install", "--locked", "--path"]).arg(source).arg("--root").arg(place);
    run(install.env("CARGO_TARGET_DIR", place.join("target")))?;
    fs::remove_dir_all(place.join("target")).map_err(|error| format!("cannot tidy up: {error}"))
}

fn node(source: &Path, place: &Path) -> Outcome {
    fs::copy(source.join("package.json"), place.join("package.json"))
        .map_err(|error| format!("cannot copy package.json: {error}"))?;
    let install = ["install", "--no-audit", "--no-fund", "--no-package-lock"];
    run(Command::new("npm").args(install).current_dir(place))
}

fn python(source: &Path, place: &Path) -> Outcome {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"];
    let mut pip = Command::new("python3");
    pip.args(install).arg(place).arg("--requirement").arg(source.join("requirements.txt"));
    run(&mut pip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_the_user_keeps_caches() {
        let found = |xdg: Option<&str>, home: Option<&str>| {
            let of = |name: &str| if name == "HOME" { home } else { xdg }.map(PathBuf::from);
            cache(of, Path::new("/t"))
        };
        assert_eq!(found(Some("/c"), Some("/h")), Path::new("/c/holdtight/bench-peers"));
        assert_eq!(found(Some("c"), Some("/h")), Path::new("/h/.cache/holdtight/bench-peers"));
        assert_eq!(found(None, None), Path::new("/t/peers"));
    }

    #[test]
    fn every_language_has_its_files_in_pinned_versions() {
        let peers = Workspace::load().unwrap().root.join("bench/peers");
        for language in LANGUAGES {
            for file in language.wanted {
                assert!(peers.join(language.name).join(file).is_file(), "{file}");
            }
        }
        let packages = read(&peers.join("node/package.json")).unwrap();
        assert!(!packages.contains(['^', '~', '*']), "{packages}");
        let packages = read(&peers.join("python/requirements.txt")).unwrap();
        assert!(packages.lines().all(|line| line.contains("==")), "{packages}");
    }
}
