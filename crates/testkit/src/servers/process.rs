//! A server as a child process: spawned, proven ready, paused, killed, restarted, and never left
//! behind.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::directory::{Account, Directory};
use super::port::free_port;

/// How long a server may take until it answers.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How often another port is tried when a server ends at once.
const STARTS: usize = 5;

/// A running server. Dropping it ends the process and removes its directory.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    running: Mutex<Running>,
    /// Sent first when the process must end; `SIGKILL` follows.
    stop: Signal,
    directory: Directory,
}

#[derive(Debug)]
struct Running {
    command: Command,
    child: Option<Child>,
    leash: Option<Child>,
}

/// How to start one kind of server.
pub(super) struct Recipe {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) account: Option<Account>,
    /// `SIGKILL` unless the server has children that only it can end.
    pub(super) stop: Signal,
}

impl Recipe {
    pub(super) fn new(name: &'static str, program: PathBuf) -> Self {
        Self { name, program, account: None, stop: Signal::KILL }
    }

    /// Starts it on a free port: `prepare` writes what the server needs and gives its arguments;
    /// `ready` asks it.
    ///
    /// A server that ends before it is ready may have lost a race for its port, so others are
    /// tried.
    pub(super) async fn start(
        self,
        prepare: impl Fn(&Directory, u16) -> io::Result<Vec<String>>,
        ready: impl AsyncFn(&Process, u16) -> bool,
    ) -> (Process, u16) {
        for left in (0..STARTS).rev() {
            let port = free_port();
            let process = self.spawn(|directory| prepare(directory, port));
            match process.wait_until_ready(&async || ready(&process, port).await).await {
                Ok(()) => return (process, port),
                Err(_) if left > 0 && !process.is_alive() => {}
                Err(why) => panic!("{why}"),
            }
        }
        unreachable!("the last start returned or panicked")
    }

    pub(super) fn spawn(&self, prepare: impl Fn(&Directory) -> io::Result<Vec<String>>) -> Process {
        let attempt = || -> io::Result<Process> {
            let directory = Directory::new();
            directory.give_to(self.account)?;
            let mut command = Command::new(&self.program);
            command.args(prepare(&directory)?).current_dir(directory.path());
            // A group of its own: Ctrl-C is for the test, which then ends the server in order.
            command.stdin(Stdio::null()).process_group(0).env("LC_ALL", "C");
            if let Some(account) = self.account {
                command.uid(account.user).gid(account.group);
            }
            let running = Running { command, child: None, leash: None };
            let running = Mutex::new(running);
            let process = Process { name: self.name, running, stop: self.stop, directory };
            process.spawn()?;
            Ok(process)
        };
        attempt().unwrap_or_else(|error| panic!("cannot start {}: {error}", self.name))
    }
}

impl Process {
    /// The process id, also after the process was killed.
    pub fn pid(&self) -> u32 {
        self.running().child.as_ref().map_or(0, Child::id)
    }

    /// Whether it runs, or is paused.
    pub fn is_alive(&self) -> bool {
        self.running().child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Its working directory, with `log` in it.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Freezes it with `SIGSTOP`: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // The signal is only on its way. Until it has arrived in all threads, there may be one more
        // answer.
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let stopped = |pid| {
            let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            matches!(waitid(WaitId::Pid(pid), look), Ok(Some(_)))
        };
        let started = Instant::now();
        while pid.is_some_and(|pid| !stopped(pid)) && started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it with `SIGKILL`, as a crash would. Its directory stays.
    pub fn kill(&self) {
        self.end(Signal::KILL);
    }

    /// Ends it with `SIGTERM`, as an administrator would. Its directory stays.
    pub fn terminate(&self) {
        self.end(Signal::TERM);
    }

    /// Starts it again after [`kill`](Self::kill): same port, same directory. `ready` says when it
    /// answers.
    pub(super) async fn restart(&self, ready: impl AsyncFn() -> bool) {
        if self.is_alive() {
            self.kill();
        }
        // What a crash left behind, such as PostgreSQL's orphaned children, may refuse the newcomer
        // for a moment.
        let started = Instant::now();
        loop {
            self.spawn().unwrap_or_else(|error| panic!("cannot restart {}: {error}", self.name));
            match self.wait_until_ready(&ready).await {
                Ok(()) => return,
                Err(_) if !self.is_alive() && started.elapsed() < Duration::from_secs(15) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(why) => panic!("{why}"),
            }
        }
    }

    async fn wait_until_ready(&self, ready: &impl AsyncFn() -> bool) -> Result<(), String> {
        let started = Instant::now();
        loop {
            // A stranger on our port may answer while our child fails: it must be alive after the
            // answer.
            let answers = tokio::time::timeout(Duration::from_secs(5), ready()).await == Ok(true);
            if !self.is_alive() {
                return Err(format!("{} ended at once; its log:\n{}", self.name, self.log_tail()));
            }
            if answers {
                return Ok(());
            }
            if started.elapsed() > READY_LIMIT {
                return Err(format!(
                    "{} does not answer after {READY_LIMIT:?}; its log:\n{}",
                    self.name,
                    self.log_tail()
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn spawn(&self) -> io::Result<()> {
        let log =
            File::options().create(true).append(true).open(self.directory.path().join("log"))?;
        let mut running = self.running();
        running.let_go();
        running.command.stdout(log.try_clone()?).stderr(log);
        let child = running.command.spawn()?;
        // When our end of the pipe closes, for whatever reason, the server ends and its directory
        // goes.
        let leash = Command::new("/bin/sh")
            .args(["-c", r#"read -r _; kill "$1" "$2"; sleep 1; kill -KILL "$2"; rm -rf -- "$3""#])
            .args(["sh", if self.stop == Signal::QUIT { "-QUIT" } else { "-KILL" }])
            .arg(child.id().to_string())
            .arg(self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        running.child = Some(child);
        running.leash = Some(leash?);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &mut self.running().child {
            send(child, signal);
        }
    }

    fn end(&self, first: Signal) {
        let mut running = self.running();
        running.let_go();
        let Some(child) = &mut running.child else { return };
        send(child, first);
        if first != Signal::KILL {
            // A stopped process sees no other signal.
            send(child, Signal::CONT);
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_secs(15) && matches!(child.try_wait(), Ok(None))
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            send(child, Signal::KILL);
        }
        let _ = child.wait();
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Ends the leash, before the child is reaped and its number may become somebody else's.
    fn let_go(&mut self) {
        if let Some(mut leash) = self.leash.take() {
            let _ = leash.kill();
            let _ = leash.wait();
        }
    }
}

/// Signals a child that was not reaped yet, so that its number is certainly still its own.
fn send(child: &mut Child, signal: Signal) {
    if matches!(child.try_wait(), Ok(None))
        && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(self.stop);
    }
}
