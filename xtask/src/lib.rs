//! The chores of this workspace, one file each, behind `cargo xtask NAME`.
//!
//! A library, so that the tests of our documents can ask which chores exist and what they run. It
//! leaves the measuring to the package `holdtight-bench` and the starting of servers to the tests
//! themselves.

mod bench;
mod ci;
mod codegen;
mod features;
mod imports;
mod install;
mod links;
mod locate;
mod peers;
mod process;
mod ready;
mod requirements;
mod servers;
mod soak;
mod telemetry_cost;
mod test;
mod tree;
mod workspace;

pub use process::Outcome;
pub use workspace::{Package, Workspace};

/// The test command of README.md. The last step of [`CI_COMMAND`] runs exactly this.
pub const TEST_COMMAND: &str = "cargo xtask test";

/// What `.ci/run` runs.
pub const CI_COMMAND: &str = "cargo xtask ci";

/// Tells the bench where the locks of others are installed.
const PEERS_VARIABLE: &str = "HOLDTIGHT_PEERS";

struct Chore {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

const CHORES: &[Chore] = &[
    Chore {
        name: "test",
        usage: "test [ARGS]",
        about: "install what tests need if it is missing, then run all tests; ARGS go to cargo test",
        run: test::run,
    },
    Chore {
        name: "ci",
        usage: "ci [--only STEP] [--list]",
        about: "every check a change must pass, ending with the tests",
        run: ci::run,
    },
    Chore {
        name: "bench",
        usage: "bench [--quick] [--only P6] [--rounds N] [--no-peers] [--publish]",
        about: "measure us and our peers side by side, write bench/results.json",
        run: bench::run,
    },
    Chore {
        name: "soak",
        usage: "soak [--scale 0.05] [--only NAME]",
        about: "the long runs",
        run: soak::run,
    },
    Chore {
        name: "telemetry-cost",
        usage: "telemetry-cost",
        about: "what telemetry costs that nobody uses, in instructions; needs valgrind",
        run: telemetry_cost::run,
    },
    Chore {
        name: "codegen",
        usage: "codegen [--check]",
        about: "make the stubs for etcd from its .proto file, which are committed",
        run: codegen::run,
    },
    Chore {
        name: "servers",
        usage: "servers",
        about: "which servers and tools are found, their versions, how to install the rest",
        run: servers::run,
    },
];

/// Whether `cargo xtask name` exists.
pub fn is_chore(name: &str) -> bool {
    CHORES.iter().any(|chore| chore.name == name)
}

/// Runs the chore that the first argument names with the rest of the arguments.
///
/// # Errors
/// One message for the user: no such chore, or why it failed.
pub fn dispatch(args: &[String]) -> Outcome {
    let Some((name, rest)) = args.split_first() else {
        return Err(format!("which chore?\n\n{}", help()));
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        println!("{}", help());
        return Ok(());
    }
    match CHORES.iter().find(|chore| chore.name == name) {
        Some(chore) => (chore.run)(rest),
        None => Err(format!("no chore is called `{name}`\n\n{}", help())),
    }
}

fn help() -> String {
    let width = CHORES.iter().map(|chore| chore.usage.len()).max().unwrap_or(0);
    let lines: Vec<String> = CHORES
        .iter()
        .map(|chore| format!("  cargo xtask {:width$}  {}", chore.usage, chore.about))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_we_publish_name_chores_that_exist() {
        for command in [TEST_COMMAND, CI_COMMAND] {
            let name = command.strip_prefix("cargo xtask ").unwrap();
            assert!(is_chore(name), "{command}");
        }
    }

    #[test]
    fn an_unknown_chore_is_refused_with_the_list_of_those_that_exist() {
        let problem = dispatch(&["tset".to_owned()]).unwrap_err();
        assert!(problem.contains("`tset`") && problem.contains("cargo xtask test"), "{problem}");
    }
}
