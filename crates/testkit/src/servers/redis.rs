//! One Redis server. Nothing is persisted unless its arguments say so.

use std::io;

use super::process::{Process, Recipe};
use super::program::Program;
use super::wire;

/// A Redis server of the test's own.
///
/// ```no_run
/// # async fn example() {
/// use holdtight_testkit::servers::{Program, Redis};
/// if !Program::REDIS.available() {
///     return;
/// }
/// let server = Redis::start().await;
/// println!("{}", server.url());
/// # }
/// ```
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    password: Option<String>,
}

impl Redis {
    /// Starts one with nothing in it.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with more arguments, which win over ours: `&["--appendonly", "yes"]`.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start_with(arguments: &[&str]) -> Self {
        let password = arguments
            .iter()
            .position(|&argument| argument == "--requirepass")
            .and_then(|at| arguments.get(at + 1))
            .map(|&password| password.to_owned());
        let (process, port) = Recipe::new("redis-server", Program::REDIS.path())
            .start(
                |directory, port| {
                    let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
                    let directory = directory.path().to_string_lossy().into_owned();
                    let place =
                        ["--port", &port.to_string(), "--dir", &directory].map(String::from);
                    let usual = usual.iter().chain(arguments).map(|&argument| argument.to_owned());
                    Ok(place.into_iter().chain(usual).collect())
                },
                async |process, port| is_ours(process, port, password.as_deref()).await,
            )
            .await;
        Self { process, port, password }
    }

    shared!(Redis);

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`, with the password if it has one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The process, to pause or kill.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Starts it again after it was killed: same port and directory, data as far as it was
    /// persisted.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn restart(&self) {
        let ours = async || is_ours(&self.process, self.port, self.password.as_deref()).await;
        self.process.restart(ours).await;
    }

    /// Sends one command as an administrator would type it; the raw reply.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn command(&self, line: &str) -> io::Result<String> {
        command(self.port, self.password.as_deref(), line).await
    }
}

/// One command on a connection of its own.
pub(super) async fn command(port: u16, password: Option<&str>, line: &str) -> io::Result<String> {
    let login = password.map(|password| format!("AUTH {password}\r\n")).unwrap_or_default();
    let before = usize::from(!login.is_empty());
    let request = format!("{login}{line}\r\n");
    let answer = wire::ask(port, request.as_bytes(), |answer| {
        (0..=before).try_fold(answer, |rest, _| wire::after_resp(rest)).is_some()
    });
    let answer = String::from_utf8_lossy(&answer.await?).into_owned();
    Ok(if before == 0 {
        answer
    } else {
        answer.split_once("\r\n").unwrap_or_default().1.to_owned()
    })
}

/// Whether the server on `port` is the child of ours that was started for it, and has loaded its
/// data.
pub(super) async fn is_ours(process: &Process, port: u16, password: Option<&str>) -> bool {
    let Ok(info) = command(port, password, "INFO").await else { return false };
    let says = |line: &str| info.lines().any(|said| said == line);
    says(&format!("process_id:{}", process.pid())) && says("loading:0")
}
