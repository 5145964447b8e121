//! PgBouncer in front of a PostgreSQL server, in transaction mode: no session lives longer than a
//! transaction.

use super::directory::Account;
use super::postgres::Postgres;
use super::process::{Process, Recipe};
use super::program::Program;
use super::wire;

/// A pooler of the test's own.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
}

impl PgBouncer {
    /// Starts one in front of `server`, in transaction mode with few server connections.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start(server: &Postgres) -> Self {
        let mut recipe = Recipe::new("pgbouncer", Program::PGBOUNCER.path());
        recipe.account = Account::for_postgres();
        let behind = server.port();
        let (process, port) = recipe
            .start(
                |directory, port| {
                    let (file, pid) = (directory.path().join("ini"), directory.path().join("pid"));
                    let lines = format!(
                        "[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n\
                         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                         auth_type = any\npool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 1000\n\
                         ignore_startup_parameters = extra_float_digits\npidfile = {}\n",
                        pid.display()
                    );
                    std::fs::write(&file, lines)?;
                    Ok(vec![file.to_string_lossy().into_owned()])
                },
                async |process, port| {
                    let said = std::fs::read_to_string(process.directory().path().join("pid"));
                    said.is_ok_and(|said| said.trim() == process.pid().to_string())
                        && wire::postgres_lets_in(port).await
                },
            )
            .await;
        Self { process, port }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The process, to pause or kill.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
