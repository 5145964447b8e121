//! The same test program once more as another process: started by a test, told by its environment
//! what to be.
//!
//! A worker talks to its test by lines on standard output that begin with `::`.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use holdtight_core::DistributedLock;
use holdtight_file::{Config, FileStore};

/// How long a test waits for something that takes milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Names the crash point at which a worker kills itself.
const CRASH_AT: &str = "HOLDTIGHT_FILE_CRASH_AT";

const ROLE: &str = "HOLDTIGHT_FILE_TEST_ROLE";
const DIRECTORY: &str = "HOLDTIGHT_FILE_TEST_DIRECTORY";

/// What this process was started as, and in which directory. `None` in the test itself.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIRECTORY)?.into()))
}

/// A worker says something to its test.
pub(crate) fn say(what: impl std::fmt::Display) {
    println!(":: {what}");
    std::io::stdout().flush().unwrap();
}

/// A worker waits for the next line from its test; `None` when the test is gone.
pub(crate) fn hear() -> Option<String> {
    std::io::stdin().lines().next()?.ok()
}

/// Another process; killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Worker {
    /// Starts the test `worker` of this program in another process.
    pub(crate) fn start(role: &str, directory: &Path) -> Self {
        Self::start_under(&[], role, directory, &[])
    }

    /// The same under another program, such as `unshare`, and with more environment.
    pub(crate) fn start_under(
        wrapper: &[&str],
        role: &str,
        directory: &Path,
        environment: &[(&str, &str)],
    ) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut words = wrapper.iter().map(|word| (*word).into()).collect::<Vec<_>>();
        words.push(program.into_os_string());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--ignored", "--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", words[0].display()));
        let said = listen(child.stdout.take().unwrap());
        Self { stdin: child.stdin.take(), child, said }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that the worker says; `None` when it says no more.
    pub(crate) fn next(&mut self) -> Option<String> {
        match self.said.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the worker says nothing"),
        }
    }

    /// Waits until the worker says `what`.
    pub(crate) fn expect(&mut self, what: &str) {
        let said =
            self.next().unwrap_or_else(|| panic!("the worker ended before it said {what:?}"));
        assert_eq!(said, what);
    }

    /// Says something to the worker.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Kills it with SIGKILL: no code of it runs any more.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until it ends.
    pub(crate) fn done(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE * 3, "the worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a worker said before it came to its end.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) said: Vec<String>,
    pub(crate) status: ExitStatus,
}

/// Starts a worker, and waits until it has ended.
pub(crate) fn run(role: &str, directory: &Path, environment: &[(&str, &str)]) -> Ended {
    let mut worker = Worker::start_under(&[], role, directory, environment);
    let said = std::iter::from_fn(|| worker.next()).collect();
    Ended { said, status: worker.done() }
}

/// The same for a worker that kills itself when it passes crash point `crash_at`.
pub(crate) fn run_until(
    crash_at: u64,
    role: &str,
    directory: &Path,
    environment: &[(&str, &str)],
) -> Ended {
    let crash_at = crash_at.to_string();
    run(role, directory, &[&[(CRASH_AT, &*crash_at)], environment].concat())
}

/// Has `round` kill a worker at its first crash point, then at its second, until one comes through:
/// not before it has passed `least` of them.
pub(crate) fn at_every_crash_point(least: u64, mut round: impl FnMut(u64) -> ExitStatus) {
    for crash_at in 1..2000 {
        let status = round(crash_at);
        if status.success() {
            assert!(crash_at > least, "only {crash_at} crash points were passed");
            return;
        }
        assert_eq!(status.signal(), Some(9), "crash point {crash_at}: the worker failed by itself");
    }
    panic!("the worker never ends");
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stdout: ChildStdout) -> Receiver<String> {
    let (sender, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // libtest begins a line of its own before the worker speaks.
            if let Some((_, words)) = line.split_once(":: ")
                && sender.send(words.to_owned()).is_err()
            {
                return;
            }
        }
    });
    said
}

/// A runtime for one test or worker.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// The store in `directory`.
pub(crate) fn store(directory: &Path) -> FileStore {
    FileStore::open_blocking(Config::new(directory)).unwrap()
}

/// Locks in `directory`, through the whole library.
pub(crate) fn lock(directory: &Path) -> DistributedLock {
    DistributedLock::builder(store(directory)).build().unwrap()
}

/// How many processes have a pipe in the store, apart from the first one that holds the lock.
pub(crate) fn waiting(place: &Path) -> usize {
    let live = std::fs::read_dir(place.join("live")).unwrap();
    let pipe = |path: PathBuf| path.extension().is_some_and(|extension| extension == "wake");
    live.filter(|entry| pipe(entry.as_ref().unwrap().path())).count() - 1
}

/// A copy of this program that other users may run: theirs is no way into the directory that it was
/// built in.
#[derive(Debug)]
pub(crate) struct ForOthers {
    pub(crate) program: PathBuf,
}

impl ForOthers {
    /// Puts the copy into `place`, and opens that to everybody.
    pub(crate) fn in_place(place: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = place.join("program");
        // By another process: a child that a test beside this one forks meanwhile would keep our
        // copy open for writing.
        let copied =
            Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
        assert!(copied.unwrap().success());
        Self { program }
    }

    /// Starts a worker as the user `user`, a member of `group` if there is one.
    pub(crate) fn start(
        &self,
        user: u32,
        group: Option<u32>,
        role: &str,
        directory: &Path,
        environment: &[(&str, &str)],
    ) -> Worker {
        let (user, group) = (user.to_string(), group.map(|group| group.to_string()));
        let mut wrapper = vec!["setpriv", "--reuid", &user, "--regid", &user];
        match &group {
            Some(group) => wrapper.extend(["--groups", group]),
            None => wrapper.push("--clear-groups"),
        }
        wrapper.extend(["sh", "-c", "umask 077; exec \"$PROGRAM\" \"$@\""]);
        let mut environment = environment.to_vec();
        environment.push(("PROGRAM", self.program.to_str().unwrap()));
        Worker::start_under(&wrapper, role, directory, &environment)
    }
}

/// Whether this machine lets us do what `why` needs; says so if not.
pub(crate) fn is_root(why: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {why} needs root");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI runs as root: {why}");
    }
    root
}
