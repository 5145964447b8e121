//! Running other programs: shown before they start, named when they fail. Output goes straight to
//! the terminal.

use std::process::{Command, Stdio};

/// What a chore comes to: nothing, or one message for the user.
pub type Outcome<T = ()> = Result<T, String>;

/// The cargo that runs us, so that a chosen toolchain stays chosen.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Shows `command`, runs it with our own stdout and stderr, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = shown(command);
    eprintln!("$ {line}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` failed: {status}")),
        Err(error) => Err(format!("`{line}` could not start: {error}")),
    }
}

/// Shows `command`, runs it, and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let line = shown(command);
    eprintln!("$ {line}");
    match command.stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
        Ok(done) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Ok(done) => Err(format!("`{line}` failed: {}", done.status)),
        Err(error) => Err(format!("`{line}` could not start: {error}")),
    }
}

/// The first line that `command` prints, on either stream, if it can be run and succeeds.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Whether we run for a build server, where a missing server is a failure and not a skipped test.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// The command as a person would type it: environment set for it, program name without directory,
/// arguments.
fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let set = command.get_envs().filter(|(name, _)| *name != "PATH").filter_map(|(name, value)| {
        Some(format!("{}={}", name.display(), quoted(&value?.to_string_lossy())))
    });
    let args = command.get_args().map(|arg| quoted(&arg.to_string_lossy()));
    set.chain([program.display().to_string()]).chain(args).collect::<Vec<_>>().join(" ")
}

/// `word`, in single quotes if a shell would not take it as one plain word.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_could_be_typed() {
        let mut command = Command::new("/opt/bin/cargo");
        command.args(["doc", "--no-deps", "it's"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(shown(&command), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s'");
    }

    #[test]
    fn a_failing_command_is_named_in_the_message() {
        let mut command = cargo();
        let problem = run(command.arg("no-such-command-of-cargo").stderr(Stdio::null()));
        assert!(problem.unwrap_err().contains("no-such-command-of-cargo"));
    }
}
