//! One PostgreSQL server, with the durability a production server has unless its settings say
//! otherwise.
//!
//! Making a data directory takes a second, so one is kept per machine, version and user, and
//! copied.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::directory::{Account, Directory};
use super::process::{Process, Recipe};
use super::program::Program;

/// A PostgreSQL server of the test's own. The user `postgres` needs no password.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    port: u16,
}

impl Postgres {
    /// Starts one with the database `postgres` and nothing in it.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with more settings: `&["max_connections=20"]`.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start_with(settings: &[&str]) -> Self {
        let account = Account::for_postgres();
        let template = template(account);
        Self::launch(settings, |data| copy(template.path(), data, account)).await
    }

    /// Starts one that follows `primary` and serves readers.
    pub(super) async fn start_standby(primary: &Self, settings: &[&str]) -> Self {
        Self::launch(settings, |data| primary.back_up(data)).await
    }

    /// Starts one whose data directory `fill` makes.
    async fn launch(settings: &[&str], fill: impl Fn(&Path) -> io::Result<()>) -> Self {
        let account = Account::for_postgres();
        let mut recipe = Recipe::new("postgres", Program::POSTGRES.path());
        recipe.account = account;
        // At SIGQUIT the server ends its children as well; at SIGKILL they linger.
        recipe.stop = Signal::QUIT;
        let (process, port) = recipe
            .start(
                |directory, port| {
                    fill(&directory.path().join("data"))?;
                    let place = directory.path().to_string_lossy().into_owned();
                    let mut arguments =
                        vec!["-D".to_owned(), format!("{place}/data"), "-k".to_owned(), place];
                    arguments.extend(["-p".to_owned(), port.to_string()]);
                    let usual = [
                        "listen_addresses=127.0.0.1",
                        "max_connections=200",
                        "shared_buffers=16MB",
                    ];
                    for setting in usual.iter().chain(settings) {
                        arguments.extend(["-c".to_owned(), (*setting).to_owned()]);
                    }
                    Ok(arguments)
                },
                async |process, port| is_ready(process, port).await,
            )
            .await;
        Self { process, port }
    }

    shared!(Postgres);

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The process, to pause or kill. A paused one freezes the postmaster: connections that exist
    /// are still served.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Starts it again after it was killed: same port, all that was committed.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn restart(&self) {
        self.process.restart(async || is_ready(&self.process, self.port).await).await;
    }

    /// Starts it again, alive or not, on a fresh copy of the data of `primary`, which it follows
    /// from here on.
    pub(super) async fn restart_as_standby(&self, primary: &Self) {
        self.process.kill();
        let data = self.process.directory().path().join("data");
        // Its orphans may still be writing.
        while data.exists() && fs::remove_dir_all(&data).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        primary.back_up(&data).unwrap_or_else(|error| panic!("no copy of the primary: {error}"));
        self.restart().await;
    }

    /// Copies the data of this running server for a standby of it.
    fn back_up(&self, data: &Path) -> io::Result<()> {
        let mut copy = Command::new(Program::PG_BASEBACKUP.path());
        copy.arg("-D").arg(data).args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
        copy.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port.to_string()]);
        finished(copy, Account::for_postgres())
    }

    /// Runs SQL as an administrator would with `psql`; rows as text, one per line, columns parted
    /// by `|`.
    ///
    /// # Errors
    /// What `psql` wrote to stderr.
    pub fn sql(&self, sql: &str) -> Result<String, String> {
        let ran = Command::new(Program::PSQL.path())
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-c", sql])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run psql: {error}"))?;
        if ran.status.success() {
            Ok(String::from_utf8_lossy(&ran.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&ran.stderr).trim_end().to_owned())
        }
    }
}

/// The server writes its pid, its port and its state to a file of the data directory, which is ours
/// alone.
async fn is_ready(process: &Process, port: u16) -> bool {
    let file = process.directory().path().join("data/postmaster.pid");
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let says = |line: usize, what: &str| lines.get(line).is_some_and(|said| *said == what);
    says(0, &process.pid().to_string())
        && says(3, &port.to_string())
        && says(7, "ready")
        && super::wire::postgres_lets_in(port).await
}

/// An initialised data directory, to be copied and never started.
enum Template {
    Kept(PathBuf),
    /// Where none could be kept: in the directory `data` of this one.
    Own(PathBuf, #[expect(dead_code, reason = "removed on drop")] Directory),
}

impl Template {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) | Self::Own(path, _) => path,
        }
    }
}

/// The kept template, made if there is none.
///
/// It appears under its name by one rename, complete, and is never written again, so any number of
/// processes may look for it, make it, and copy it at once. One that belongs to another user is not
/// trusted.
fn template(account: Option<Account>) -> Template {
    let user = account.map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.user);
    let version = Command::new(Program::POSTGRES.path()).arg("--version").output();
    let version =
        version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let version: String = version.chars().filter(char::is_ascii_alphanumeric).collect();
    let kept = std::env::temp_dir().join(format!("holdtight-template-{version}-{user}"));
    let is_ours =
        || fs::symlink_metadata(&kept).is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
    if is_ours() {
        return Template::Kept(kept);
    }
    let directory = Directory::new();
    let made = directory.path().join("data");
    initialise(&directory, &made, account).unwrap_or_else(|error| panic!("initdb failed: {error}"));
    // Somebody else may have been quicker: then the rename fails on a directory that is not empty.
    if fs::rename(&made, &kept).is_ok() || is_ours() {
        Template::Kept(kept)
    } else {
        Template::Own(made, directory)
    }
}

fn initialise(directory: &Directory, data: &Path, account: Option<Account>) -> io::Result<()> {
    directory.give_to(account)?;
    let mut initdb = Command::new(Program::INITDB.path());
    initdb.arg("-D").arg(data).args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]);
    initdb.arg("--locale=C").current_dir(directory.path());
    finished(initdb, account)
}

fn copy(from: &Path, to: &Path, account: Option<Account>) -> io::Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["-R", "-p", "--"]).arg(from).arg(to);
    finished(copy, account)
}

/// Runs a program as the user whose files it makes.
fn finished(mut program: Command, account: Option<Account>) -> io::Result<()> {
    program.stdin(Stdio::null());
    if let Some(account) = account {
        program.uid(account.user).gid(account.group);
    }
    let ran = program.output()?;
    if ran.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).into_owned()))
}
