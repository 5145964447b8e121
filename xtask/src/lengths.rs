//! A check that no source file has grown beyond what one reader keeps in mind.

use crate::process::Outcome;
use crate::tree::{files, read, relative};
use crate::workspace::Workspace;

/// Beyond this a file holds two purposes.
const LIMIT: usize = 700;

const SOURCES: &[&str] = &["rs", "lua", "sql", "sh", "py", "js", "ts"];

pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let mut long = Vec::new();
    for path in files(workspace, SOURCES)? {
        if let Some(lines) = excess(&read(&path)?) {
            long.push(format!("  {lines} lines: {}", relative(workspace, &path)));
        }
    }
    if long.is_empty() {
        return Ok(());
    }
    Err(format!("files of more than {LIMIT} lines, to be split by purpose:\n{}", long.join("\n")))
}

/// The number of lines, if there are too many. What a program wrote is no reading matter and has no limit.
fn excess(text: &str) -> Option<usize> {
    let generated = text.lines().take(5).any(|line| line.contains("@generated"));
    let lines = text.lines().count();
    (lines > LIMIT && !generated).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_limit_passes_and_one_beyond_does_not() {
        assert_eq!(excess(&"line\n".repeat(LIMIT)), None);
        assert_eq!(excess(&"line\n".repeat(LIMIT + 1)), Some(LIMIT + 1));
    }

    #[test]
    fn a_generated_file_may_be_long() {
        assert_eq!(excess(&format!("// @generated\n{}", "line\n".repeat(LIMIT))), None);
    }
}
