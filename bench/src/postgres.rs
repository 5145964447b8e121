//! What the rows about PostgreSQL share: a server with our schema, and connections without our
//! library.

use std::sync::Arc;

use holdtight_postgres::migrate;
use holdtight_testkit::Proxy;
use holdtight_testkit::servers::Postgres;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::{Failure, load};

/// A PostgreSQL of our own, and a runtime to use it from.
#[derive(Clone)]
pub(crate) struct Stage {
    runtime: Arc<Runtime>,
    server: Arc<Postgres>,
}

impl Stage {
    pub(crate) fn start() -> Result<Self, Failure> {
        let runtime = load::runtime()?;
        let server = Arc::new(runtime.block_on(Postgres::start()));
        runtime.block_on(migrate(&server.url()))?;
        Ok(Self { runtime, server })
    }

    // Methods, because a closure that names a field keeps that field alive and not the server.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub(crate) fn server(&self) -> &Arc<Postgres> {
        &self.server
    }

    /// The driver that our library uses too, and nothing above it.
    pub(crate) fn bare(&self) -> Result<Arc<Client>, Failure> {
        self.runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.server.url(), NoTls).await?;
            tokio::spawn(connection);
            Ok(Arc::new(client))
        })
    }

    /// A way to the server on which requests are counted, and its URL.
    pub(crate) fn counted(&self) -> Result<(Proxy, String), Failure> {
        let port = self.server.port();
        let proxy = self.runtime.block_on(Proxy::to(format!("127.0.0.1:{port}").parse()?))?;
        let url = self.server.url().replace(&format!(":{port}"), &format!(":{}", proxy.port()));
        Ok((proxy, url))
    }
}
