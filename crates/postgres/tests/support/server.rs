//! A PostgreSQL server that a test can kill whole, move in time, copy as a standby, and promote.
//!
//! The launchers of the testkit serve all tests that need none of this.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdtight_testkit::servers::{Directory, Program, free_port};

pub(crate) struct Server {
    directory: Directory,
    settings: Vec<String>,
    clock: Option<PathBuf>,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// A new server with these settings.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let mut server = Self::empty(settings);
        server.initialise();
        server.launch();
        server
    }

    /// A new server whose wall clock the test can move.
    pub(crate) fn start_with_clock(settings: &[&str]) -> Self {
        let mut server = Self::empty(settings);
        let clock = server.directory.path().join("clock");
        fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim/clock.c");
        let library = server.directory.path().join("clock.so");
        let mut compile = Command::new("cc");
        compile
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(source);
        assert!(compile.status().expect("a C compiler (apt-get install gcc)").success());
        server.initialise();
        server.clock = Some(clock);
        server.launch();
        server
    }

    fn initialise(&self) {
        let data = self.data();
        let usual = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"];
        self.run("initdb", &[&["-D", data.as_str()], usual.as_slice()].concat());
    }

    /// A standby of the server that answers on `port`, streaming from there.
    pub(crate) fn standby_of(port: u16, copy_from: u16, settings: &[&str]) -> Self {
        let mut server = Self::empty(settings);
        let (data, copy_from) = (server.data(), copy_from.to_string());
        server.run(
            "pg_basebackup",
            &[
                "-D",
                &data,
                "-h",
                "127.0.0.1",
                "-p",
                &copy_from,
                "-U",
                "postgres",
                "--checkpoint=fast",
                "--no-sync",
            ],
        );
        fs::write(Path::new(&data).join("standby.signal"), "").unwrap();
        Self::own(&Path::new(&data).join("standby.signal"));
        server.settings.push(format!("primary_conninfo=host=127.0.0.1 port={port} user=postgres"));
        server.launch();
        server
    }

    fn empty(settings: &[&str]) -> Self {
        let directory = Directory::new();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let server = Self { directory, settings, clock: None, port: free_port(), child: None };
        Self::own(server.directory.path());
        server
    }

    fn data(&self) -> String {
        self.directory.path().join("data").display().to_string()
    }

    fn program(name: &str) -> PathBuf {
        let server = Program::POSTGRES.find().expect("PostgreSQL");
        // Behind a link, the others need not be next to it.
        server.canonicalize().unwrap_or(server).with_file_name(name)
    }

    /// The server refuses to run as root, so root lends it the account that the package made.
    fn account() -> Option<(u32, u32)> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return None;
        }
        let id = |flag| {
            let out = Command::new("id").args([flag, "postgres"]).output().unwrap().stdout;
            String::from_utf8(out).unwrap().trim().parse().expect("an account called postgres")
        };
        Some((id("-u"), id("-g")))
    }

    pub(crate) fn own(path: &Path) {
        if let Some((user, group)) = Self::account() {
            std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
        }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(Self::program(name));
        command.current_dir(self.directory.path()).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some((user, group)) = Self::account() {
            command.uid(user).gid(group);
        }
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) {
        let ran = self.command(name).args(arguments).output().unwrap();
        assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Starts it, or starts it again: same port, same data.
    pub(crate) fn launch(&mut self) {
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.directory.path().join("log"))
            .unwrap();
        let mut command = self.command("postgres");
        command.args(["-D", &self.data(), "-k", "", "-p", &self.port.to_string()]);
        let usual = ["listen_addresses=127.0.0.1", "shared_buffers=16MB"];
        for setting in usual.into_iter().map(str::to_owned).chain(self.settings.clone()) {
            command.args(["-c", &setting]);
        }
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", clock.with_file_name("clock.so")).env("CLOCK_SHIM", clock);
        }
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let started = Instant::now();
        while let Err(error) = self.sql("SELECT 1") {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(60), "no server: {error}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Moves the server's wall clock to so many seconds from the real one.
    pub(crate) fn set_clock(&self, seconds: i64) {
        let file = self.clock.as_ref().expect("a server that was started with a clock");
        // In place: a file that is cut to nothing for a moment would take the server down with it.
        let file = fs::File::options().write(true).open(file).unwrap();
        file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0).unwrap();
    }

    /// Runs SQL as an administrator would with `psql`.
    pub(crate) fn sql(&self, sql: &str) -> Result<String, String> {
        let ran = Command::new(Program::PSQL.find().expect("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-c", sql])
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if ran.status.success() {
            Ok(String::from_utf8_lossy(&ran.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&ran.stderr).trim_end().to_owned())
        }
    }

    /// `SIGKILL` to the server and all its children at once: the power is out, except that the
    /// kernel lives.
    pub(crate) fn kill_whole(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let parent = child.id();
        let mut pids = vec![parent.to_string()];
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The name, in parentheses, may hold anything; the parent's pid is the second field
            // after it.
            let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
                pids.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        assert!(pids.len() > 3, "a server has children: {pids:?}");
        // Some of them may have ended by themselves meanwhile.
        Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status().unwrap();
        child.wait().unwrap();
        // One that has not died yet keeps the memory that the next server wants.
        let lives = |pid: &String| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let started = Instant::now();
        while pids.iter().any(lives) {
            assert!(started.elapsed() < Duration::from_secs(60), "killed processes live on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // At SIGQUIT the server ends its children as well.
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}
