//! One memcached server.

use super::process::{Process, Recipe};
use super::program::Program;
use super::wire;

/// A memcached server of the test's own.
#[derive(Debug)]
pub struct Memcached {
    process: Process,
    port: u16,
}

impl Memcached {
    /// Starts one with nothing in it.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with more arguments: `&["-M"]` for one that never evicts.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start_with(arguments: &[&str]) -> Self {
        let (process, port) = Recipe::new("memcached", Program::MEMCACHED.path())
            .start(
                |_, port| {
                    // The user matters only to root, whom memcached refuses.
                    let port = port.to_string();
                    let usual = ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port];
                    Ok(usual.iter().chain(arguments).map(|&argument| argument.to_owned()).collect())
                },
                async |process, port| is_ours(process, port).await,
            )
            .await;
        Self { process, port }
    }

    shared!(Memcached);

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `memcached://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("memcached://127.0.0.1:{}", self.port)
    }

    /// The process, to pause or kill.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Starts it again, empty, on the same port.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn restart(&self) {
        self.process.restart(async || is_ours(&self.process, self.port).await).await;
    }
}

async fn is_ours(process: &Process, port: u16) -> bool {
    let stats = wire::ask(port, b"stats\r\nquit\r\n", |_| false).await.unwrap_or_default();
    let pid = format!("STAT pid {}", process.pid());
    String::from_utf8_lossy(&stats).lines().any(|line| line.trim_end() == pid)
}
