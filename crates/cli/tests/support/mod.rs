//! A home of its own for one test, and the real command run in it: nothing of the user's
//! environment is seen.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for anything that should happen at all on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An empty home.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    variables: Vec<(String, Option<OsString>)>,
}

/// What a call came to.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// The same home with another variable in the environment of every call.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// The same home without a variable.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.variables.push((name.to_owned(), None));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file, and the directories it stands in.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        // As whoever keeps a token or a password in it should have it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A call, ready to be started.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdtight"));
        command.args(args).env_clear().current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.dir.path()).env("USER", "ann").env("TZ", "UTC");
        command.env("XDG_CONFIG_DIRS", self.path("etc"));
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Calls `holdtight` with the words of `line`.
    pub(crate) fn call(&self, line: &str) -> Answer {
        self.call_with(line.split_whitespace())
    }

    pub(crate) fn call_with<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Answer {
        Answer::of(self.command(args).output().unwrap())
    }

    /// Calls with a text on standard input.
    pub(crate) fn call_on(&self, line: &str, input: &str) -> Answer {
        let mut command = self.command(line.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that refuses before it reads closes the pipe; that is not what is tested here.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Answer::of(child.wait_with_output().unwrap())
    }

    /// Takes `key`, and returns what `acquire --json` printed.
    pub(crate) fn acquire(&self, key: &str) -> Value {
        self.call(&format!("acquire --json --ttl 1h {key}")).succeeded().json()
    }
}

impl Answer {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The same answer, if the call ended well and complained about nothing.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self
    }

    /// Checks that the call was refused with `code` in one or two lines that hold all of `parts`.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(self.err.starts_with("holdtight: "), "{}", self.err);
        assert!(self.err.lines().count() <= 2, "more than two lines:\n{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is missing in: {}", self.err);
        }
        assert_eq!(self.out, "");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one line of JSON: {}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }

    #[track_caller]
    pub(crate) fn error_json(&self) -> Value {
        assert_eq!(self.err.lines().count(), 1, "one line of JSON: {}", self.err);
        serde_json::from_str(&self.err).unwrap()
    }
}

/// The names of a JSON object, sorted.
pub(crate) fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Waits until `done`, which is asked often.
#[track_caller]
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a process that a test started, by its own handle.
pub(crate) struct Ending(pub(crate) std::process::Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
