//! Installing what is missing: Debian packages as root or by sudo without a password, crates into
//! `target/tools`.
//!
//! Where that is not possible it says the one command that a person can run.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, quoted, run};
use crate::requirements::{Requirement, Source};

/// How far we may go on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Privilege {
    Root,
    Sudo,
    None,
}

/// Installs `missing`, or says in the error which one command would.
pub(crate) fn install(missing: &[&Requirement], tools: &Path) -> Outcome {
    let packages = debian_packages(missing);
    if !packages.is_empty() {
        let privilege = privilege();
        if !answers(Command::new("apt-get").arg("--version")) || privilege == Privilege::None {
            return Err(format!("cannot install here; {}", by_hand(missing, tools)));
        }
        let update = ["apt-get", "update", "--quiet"];
        // An index that is partly out of reach may still know our packages: only the install
        // decides.
        if let Err(problem) = run(&mut elevated(privilege, &update)) {
            eprintln!("{problem}; going on with the package index as it is");
        }
        let mut install = vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install"];
        install.extend(["--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]);
        install.extend(packages);
        run(&mut elevated(privilege, &install))?;
    }
    for requirement in missing {
        if let Source::Crate { name, version, quickly } = requirement.source {
            run(cargo().args(crate_install(name, version, quickly)).arg(tools))?;
        }
    }
    Ok(())
}

/// The one command that installs `missing`, with an introduction.
pub(crate) fn by_hand(missing: &[&Requirement], tools: &Path) -> String {
    let mut steps = Vec::new();
    let packages = debian_packages(missing);
    if !packages.is_empty() {
        steps.push("sudo apt-get update".to_owned());
        let names = packages.join(" ");
        steps.push(format!("sudo apt-get install --yes --no-install-recommends {names}"));
    }
    for requirement in missing {
        if let Source::Crate { name, version, quickly } = requirement.source {
            let args = crate_install(name, version, quickly).collect::<Vec<_>>().join(" ");
            steps.push(format!("cargo {args} {}", quoted(&tools.to_string_lossy())));
        }
    }
    format!(
        "on Debian or Ubuntu run\n\n    {}\n\nelsewhere install what gives {}",
        steps.join(" && "),
        programs(missing)
    )
}

fn programs(missing: &[&Requirement]) -> String {
    missing.iter().flat_map(|row| row.programs).copied().collect::<Vec<_>>().join(", ")
}

fn debian_packages(missing: &[&Requirement]) -> Vec<&'static str> {
    let package = |row: &&Requirement| match row.source {
        Source::Debian(package) => Some(package),
        Source::Crate { .. } => None,
    };
    missing.iter().filter_map(package).collect()
}

fn crate_install(
    name: &'static str,
    version: &'static str,
    quickly: bool,
) -> impl Iterator<Item = &'static str> {
    let profile = if quickly { Some("--debug") } else { None };
    let words = ["install", name, "--version", version, "--locked"];
    words.into_iter().chain(profile).chain(["--root"])
}

fn privilege() -> Privilege {
    let id = crate::process::first_line(Command::new("id").arg("-u"));
    if id.as_deref() == Some("0") {
        Privilege::Root
    } else if answers(Command::new("sudo").args(["-n", "true"])) {
        Privilege::Sudo
    } else {
        Privilege::None
    }
}

fn elevated(privilege: Privilege, words: &[&str]) -> Command {
    let mut command = match privilege {
        Privilege::Sudo => Command::new("sudo"),
        Privilege::Root | Privilege::None => Command::new(words[0]),
    };
    match privilege {
        Privilege::Sudo => command.arg("-n").args(words),
        Privilege::Root | Privilege::None => command.args(&words[1..]),
    };
    command
}

fn answers(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirements::{Need, Place};

    const fn row(programs: &'static [&'static str], source: Source) -> Requirement {
        let (place, need) = (Place::Usual, Need::Tests);
        Requirement { name: "a row", programs, version: &[], place, source, need }
    }

    #[test]
    fn what_to_do_by_hand_is_one_command() {
        let redis = row(&["redis-server"], Source::Debian("redis-server"));
        let etcd = row(&["etcd"], Source::Debian("etcd-server"));
        let tool = row(&["tool"], Source::Crate { name: "tool", version: "1.2.3", quickly: false });
        let said = by_hand(&[&redis, &etcd, &tool], Path::new("target/tools"));
        let command: Vec<&str> = said.lines().filter(|line| line.starts_with("    ")).collect();
        assert_eq!(
            command,
            ["    sudo apt-get update && sudo apt-get install --yes --no-install-recommends \
              redis-server etcd-server && cargo install tool --version 1.2.3 --locked --root \
              target/tools"]
        );
        assert!(said.ends_with("redis-server, etcd, tool"));
    }

    #[test]
    fn sudo_never_asks_for_a_password() {
        let command = elevated(Privilege::Sudo, &["apt-get", "update"]);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "sudo");
        assert_eq!(args, ["-n", "apt-get", "update"]);
    }
}
