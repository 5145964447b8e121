//! What the tests of `holdtight run` share: a store of their own, processes that end with the test,
//! and waiting for conditions instead of for time.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

pub(crate) mod terminal;

/// Nothing here takes that long, unless it hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(60);

/// A command and a grandchild that both ignore TERM; their process ids are in `child` and
/// `grandchild`.
pub(crate) const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $BASHPID > grandchild; while :; do sleep 0.05; done) & \
                        echo $$ > child; while :; do sleep 0.05; done";

/// Says for each of those two whether it can still run.
pub(crate) const INSPECT: &str = "for name in child grandchild; do \
                         state=$(sed 's/.*) //; s/ .*//' /proc/$(cat $name)/stat 2>/dev/null); \
                         case $state in ''|Z|X) echo $name gone;; *) echo $name runs;; esac; done";

/// A directory with a file store in it.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store_url(&self) -> String {
        format!("file:{}", self.path("store").display())
    }

    /// What the file `name` holds; empty if it is not there yet.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `holdtight ARGUMENTS` on this store, in this directory.
    pub(crate) fn holdtight(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdtight"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HOLDTIGHT_") {
                command.env_remove(name);
            }
        }
        command.env("HOLDTIGHT_STORE", self.store_url()).env("HOME", self.dir.path());
        command
    }

    /// Runs it to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        Started::new(&mut self.holdtight(arguments)).finish()
    }

    /// Starts it, and goes on.
    pub(crate) fn start(&self, arguments: &[&str]) -> Started {
        Started::new(&mut self.holdtight(arguments))
    }

    /// Waits until the file `name` has a whole line, and returns the first.
    pub(crate) fn line(&self, name: &str) -> String {
        let full = || self.read(name).contains('\n');
        eventually(&format!("a line in {name}"), full);
        self.read(name).lines().next().unwrap().to_owned()
    }

    pub(crate) fn pid(&self, name: &str) -> i32 {
        self.line(name).trim().parse().unwrap()
    }
}

/// A process that does not outlive its test. Its output is collected when it has ended.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    pub(crate) fn new(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for its end, for as long as nothing hangs.
    pub(crate) fn finish(mut self) -> Output {
        // Read while it runs: a full pipe would stop it.
        let read = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                pipe.read_to_end(&mut all).unwrap();
                all
            })
        };
        let stdout = read(Box::new(self.0.stdout.take().unwrap()));
        let stderr = read(Box::new(self.0.stderr.take().unwrap()));
        let mut status: Option<ExitStatus> = None;
        eventually("the end of a process", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        Output {
            status: status.unwrap(),
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a condition.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < HANGS, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process can still run: it is there, and not a zombie.
pub(crate) fn runs(pid: i32) -> bool {
    if test_kill_process(Pid::from_raw(pid).unwrap()).is_err() {
        return false;
    }
    match fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")) {
        Ok(stat) => !stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']),
        Err(_) => false,
    }
}

/// The exit code as a shell sees it.
pub(crate) fn code(output: &Output) -> i32 {
    let signal = output.status.signal().map(|signal| 128 + signal);
    output.status.code().or(signal).unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The process that guards what `wrapper` runs.
pub(crate) fn guardian_of(wrapper: &Started) -> Option<i32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<_> = line.split(|&byte| byte == 0).collect();
        let ours = words.get(1) == Some(&&b"__guardian"[..])
            && words.get(2) == Some(&wrapper.pid().to_string().as_bytes());
        let pid: i32 = process.file_name().to_str()?.parse().ok()?;
        ours.then_some(pid)
    })
}
