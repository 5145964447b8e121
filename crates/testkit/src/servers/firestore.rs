//! A Firestore emulator.

use super::process::{Process, Recipe};
use super::program::Program;
use super::wire;

/// An emulator of the test's own. Use a project id of your own per test.
#[derive(Debug)]
pub struct Firestore {
    process: Process,
    port: u16,
}

impl Firestore {
    /// Starts one with nothing in it.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start() -> Self {
        let (process, port) = Recipe::new("hidane", Program::HIDANE.path())
            .start(
                |_, port| {
                    let port = port.to_string();
                    Ok(["--host", "127.0.0.1", "--port", &port].map(String::from).to_vec())
                },
                async |_, port| answers(port).await,
            )
            .await;
        Self { process, port }
    }

    shared!(Firestore);

    /// The port on 127.0.0.1, for REST and gRPC.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`, as `FIRESTORE_EMULATOR_HOST` has it.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
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
        self.process.restart(async || answers(self.port).await).await;
    }
}

/// The emulator does not say who it is; that our child lives after the answer shows that it has the
/// port.
async fn answers(port: u16) -> bool {
    wire::http(port, "GET", "/", "").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1"))
}
