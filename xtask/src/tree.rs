//! The files of the source tree, without what is built or fetched. Works in a clone and in an
//! unpacked archive.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Outcome;
use crate::workspace::Workspace;

/// Directories that hold no source of ours, wherever they stand.
const SKIPPED: &[&str] = &[".git", "target", "node_modules", "__pycache__"];

/// Every file whose name ends in one of `extensions`, sorted, with the workspace's root before it.
pub(crate) fn files(workspace: &Workspace, extensions: &[&str]) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    walk(&workspace.root, &workspace.target, &mut found)
        .map_err(|error| format!("cannot read the source tree: {error}"))?;
    found.retain(|path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    });
    found.sort();
    Ok(found)
}

/// `path` as a reader of the repository knows it.
pub(crate) fn relative<'a>(workspace: &Workspace, path: &'a Path) -> std::path::Display<'a> {
    path.strip_prefix(&workspace.root).unwrap_or(path).display()
}

/// The text of `path`.
pub(crate) fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn walk(dir: &Path, target: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name) || path == target;
        if kind.is_dir() && !skipped {
            walk(&path, target, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}
