//! Finding the programs that a row of the requirements asks for, and asking them for their version.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::first_line;
use crate::requirements::{Place, Requirement};

/// Debian keeps some servers here, and a plain user's `PATH` lacks them.
const SYSTEM: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// One directory per major version of PostgreSQL, each with a `bin`.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// Where each program of `requirement` is, in its order, or `None` if one is missing.
pub(crate) fn find(requirement: &Requirement, tools: &Path) -> Option<Vec<PathBuf>> {
    let candidates = match requirement.place {
        Place::Usual => usual(tools),
        Place::PostgresBindir => postgres().into_iter().chain(usual(tools)).collect(),
    };
    match requirement.place {
        Place::Usual => {
            requirement.programs.iter().map(|name| first_with(&candidates, name)).collect()
        }
        // All from one directory: a server and an initdb of different versions refuse each other.
        Place::PostgresBindir => candidates.iter().find_map(|dir| {
            let one = std::slice::from_ref(dir);
            requirement.programs.iter().map(|name| first_with(one, name)).collect()
        }),
    }
}

/// What the first program says of its version.
pub(crate) fn version(requirement: &Requirement, programs: &[PathBuf]) -> Option<String> {
    first_line(Command::new(programs.first()?).args(requirement.version))
}

/// `PATH` as it is, and after it the directories in which programs were found that it lacks.
pub(crate) fn extended_path(found: &[PathBuf]) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
    let wanted: BTreeSet<&Path> = found.iter().filter_map(|program| program.parent()).collect();
    for dir in wanted {
        if !dirs.iter().any(|known| known == dir) {
            dirs.push(dir.to_owned());
        }
    }
    // A directory with a colon in its name cannot stand in PATH: then PATH stays as it was.
    env::join_paths(dirs).unwrap_or(path)
}

fn usual(tools: &Path) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = [tools.join("bin")];
    env::split_paths(&path).chain(SYSTEM.iter().map(PathBuf::from)).chain(own).collect()
}

/// What `pg_config` says, then Debian's directories, newest version first.
fn postgres() -> Vec<PathBuf> {
    let told = first_line(Command::new("pg_config").arg("--bindir")).map(PathBuf::from);
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(DEBIAN_POSTGRES)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    told.into_iter().chain(versions.into_iter().map(|(_, bin)| bin)).collect()
}

fn first_with(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    dirs.iter().map(|dir| dir.join(&name)).find(|path| is_program(path))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::requirements::{Need, Source};

    const SHELL: Requirement = Requirement {
        name: "shell",
        programs: &["sh"],
        version: &["-c", "echo version one; echo more"],
        place: Place::Usual,
        source: Source::Debian("dash"),
        need: Need::Tests,
    };

    #[test]
    fn a_program_on_the_path_is_found_and_tells_the_first_line_of_its_version() {
        let found = find(&SHELL, Path::new("/nowhere")).unwrap();
        assert!(found[0].ends_with("sh"));
        assert_eq!(version(&SHELL, &found).as_deref(), Some("version one"));
    }

    #[test]
    fn one_missing_program_means_the_row_is_missing() {
        let half = Requirement { programs: &["sh", "no-such-program"], ..SHELL };
        assert_eq!(find(&half, Path::new("/nowhere")), None);
    }

    #[test]
    fn a_file_that_cannot_be_executed_is_not_a_program() {
        assert!(!is_program(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")));
    }

    #[test]
    fn directories_beyond_the_path_are_added_behind_it_once() {
        let dir = Path::new("/somewhere/else");
        let path = extended_path(&[dir.join("a"), dir.join("b")]);
        let dirs: Vec<PathBuf> = env::split_paths(&path).collect();
        assert_eq!(dirs.last().unwrap(), dir);
        assert_eq!(dirs.iter().filter(|known| *known == dir).count(), 1);
    }
}
