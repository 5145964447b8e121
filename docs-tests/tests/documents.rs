//! Runs README.md and every page of docs/, one test each, and checks what CONTRIBUTING.md tells
//! people to type.

#[cfg(unix)]
use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
};

#[cfg(unix)]
use holdtight_docs_tests::{Language, Session, blocks, exchanges, prepare};
#[cfg(unix)]
use libtest_mimic::{Arguments, Failed, Trial};
#[cfg(unix)]
use xtask::{CI_COMMAND, TEST_COMMAND, Workspace};

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
fn main() -> ExitCode {
    let args = Arguments::from_args();
    let workspace = Arc::new(Workspace::load().unwrap());
    let mut trials = vec![Trial::test("the_build_server_runs_what_contributors_run", {
        let root = workspace.root.clone();
        move || build_server(&root)
    })];
    for page in pages(&workspace.root) {
        let workspace = Arc::clone(&workspace);
        trials.push(Trial::test(name(&workspace.root, &page), move || run(&page, &workspace)));
    }
    for page in ["README.md", "CONTRIBUTING.md"].map(|name| workspace.root.join(name)) {
        // README.md may not be written yet; once it is, it must show the command.
        if page.is_file() {
            let workspace = Arc::clone(&workspace);
            let title = format!("{}: commands", name(&workspace.root, &page));
            trials.push(Trial::test(title, move || commands(&page, &workspace)));
        }
    }
    libtest_mimic::run(&args, trials).exit_code()
}

#[cfg(unix)]
fn name(root: &Path, page: &Path) -> String {
    page.strip_prefix(root).unwrap_or(page).display().to_string()
}

/// README.md and docs/, as far as they exist.
#[cfg(unix)]
fn pages(root: &Path) -> Vec<PathBuf> {
    fn find(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                find(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    find(&root.join("docs"), &mut found);
    found.extend(Some(root.join("README.md")).filter(|readme| readme.is_file()));
    found.sort();
    found
}

#[cfg(unix)]
fn build_server(root: &Path) -> Result<(), Failed> {
    let script = std::fs::read_to_string(root.join(".ci/run"))?;
    let runs = |line: &str| line.trim_start_matches("exec ").starts_with(CI_COMMAND);
    if script.lines().any(runs) {
        return Ok(());
    }
    Err(format!(".ci/run does not run `{CI_COMMAND}`").into())
}

/// Every command of cargo in the page names what exists, and the command for the tests is among
/// them.
#[cfg(unix)]
fn commands(page: &Path, workspace: &Workspace) -> Result<(), Failed> {
    let text = std::fs::read_to_string(page)?;
    let mut tests = false;
    for block in blocks(&text)? {
        let script = match block.language {
            Language::Shell => block.text,
            Language::Console => {
                exchanges(&block.text)?.into_iter().map(|one| one.command + "\n").collect()
            }
            _ => continue,
        };
        prepare(&script, workspace).map_err(|why| format!("line {}: {why}", block.line))?;
        let uncommented =
            |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
        tests |= script.lines().any(|line| uncommented(line) == TEST_COMMAND);
    }
    if tests { Ok(()) } else { Err(format!("no block shows `{TEST_COMMAND}`").into()) }
}

/// Runs the shell blocks of one page in order. Rust blocks are rustdoc's.
#[cfg(unix)]
fn run(page: &Path, workspace: &Workspace) -> Result<(), Failed> {
    let text = std::fs::read_to_string(page)?;
    let mut session = None;
    for block in blocks(&text)? {
        let at = |why: String| format!("{}:{}: {why}", name(&workspace.root, page), block.line);
        match block.language {
            Language::Shell => {
                let (script, left) = prepare(&block.text, workspace).map_err(at)?;
                if left {
                    ready(&mut session, workspace)?.script(&script).map_err(at)?;
                }
            }
            Language::Console => {
                let mut exchanges = exchanges(&block.text).map_err(at)?;
                for exchange in &mut exchanges {
                    exchange.command = prepare(&exchange.command, workspace).map_err(at)?.0;
                }
                ready(&mut session, workspace)?.transcript(&exchanges).map_err(at)?;
            }
            Language::Json => {
                serde_json::from_str::<serde_json::Value>(&block.text)
                    .map_err(|error| at(error.to_string()))?;
            }
            Language::Rust | Language::Data => {}
        }
    }
    Ok(())
}

/// The page's session, begun with its first block that runs: pages without any need no binary.
#[cfg(unix)]
fn ready<'a>(
    session: &'a mut Option<Session>,
    workspace: &Workspace,
) -> Result<&'a Session, Failed> {
    let session = match session {
        Some(session) => session,
        None => session.insert(Session::new(program(workspace)?.as_deref())?),
    };
    Ok(session)
}

/// The command, built from this tree. Without it, what a page does with it fails: no such command.
#[cfg(unix)]
fn program(workspace: &Workspace) -> Result<Option<PathBuf>, Failed> {
    if workspace.package("holdtight-cli").is_none() {
        return Ok(None);
    }
    // The whole workspace, so that features are those of the tests around and nothing is built
    // twice.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--quiet", "--workspace", "--bin", "holdtight"];
    let output = Command::new(cargo).args(build).current_dir(&workspace.root).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(Some(workspace.target.join("debug/holdtight")))
}
