//! Seeing to it that every program of the requirements is here before tests or measurements start
//! their servers.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::install::{by_hand, install};
use crate::locate::{extended_path, find};
use crate::process::{Outcome, in_ci};
use crate::requirements::{Need, REQUIREMENTS, Requirement};
use crate::workspace::Workspace;

/// Installs what is missing and says where all programs are, as a `PATH`.
pub(crate) fn ready(workspace: &Workspace) -> Outcome<OsString> {
    let tools = workspace.tools();
    let missing = missing(workspace);
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|row| row.name).collect();
        eprintln!("missing: {}", names.join(", "));
        let outcome = install(&missing, &tools).and_then(|()| match self::missing(workspace) {
            still if still.is_empty() => Ok(()),
            still => Err(format!("installed, but not found; {}", by_hand(&still, &tools))),
        });
        match outcome {
            Err(problem) if in_ci() => return Err(problem),
            Err(problem) => eprintln!("{problem}\n\nwhat needs them is skipped\n"),
            Ok(()) => {}
        }
    }
    let found: Vec<PathBuf> =
        REQUIREMENTS.iter().filter_map(|row| find(row, &tools)).flatten().collect();
    Ok(extended_path(&found))
}

fn missing(workspace: &Workspace) -> Vec<&'static Requirement> {
    let tools = workspace.tools();
    let needed = REQUIREMENTS.iter().filter(|row| row.need == Need::Tests);
    needed.filter(|row| find(row, &tools).is_none()).collect()
}
