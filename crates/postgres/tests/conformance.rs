//! The conformance suite on a real PostgreSQL: native, without LISTEN, behind PgBouncer, and in the
//! syncguard layout.

use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use holdtight_core::Backend;
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::servers::{PgBouncer, Postgres, Program};
use holdtight_testkit::{Fixture, Proxy, conformance};
use tokio::sync::OnceCell;

/// One way to use the server.
trait Way: Send + Sync + 'static {
    const NAME: &'static str;
    /// Options of the URL besides the schema.
    const OPTIONS: &'static str;
    const POOLED: bool = false;
}

struct Native;
impl Way for Native {
    const NAME: &'static str = "native";
    const OPTIONS: &'static str = "timeout=6";
}

struct ListenOff;
impl Way for ListenOff {
    const NAME: &'static str = "listen-off";
    const OPTIONS: &'static str = "timeout=6&listen=off";
}

/// In transaction mode with fewer server connections than clients.
struct Pooled;
impl Way for Pooled {
    const NAME: &'static str = "pgbouncer";
    const OPTIONS: &'static str = "timeout=6&pooler=transaction";
    const POOLED: bool = true;
}

struct Syncguard;
impl Way for Syncguard {
    const NAME: &'static str = "syncguard";
    const OPTIONS: &'static str = "timeout=6&layout=syncguard";
}

/// A schema of its own on the shared server, reached through a proxy of its own.
struct Place<W> {
    url: String,
    proxy: Proxy,
    way: PhantomData<W>,
}

/// The port of the server, or of the pooler in front of it; both are shared by all trials of this
/// process.
async fn port(pooled: bool) -> u16 {
    static POOLER: OnceCell<PgBouncer> = OnceCell::const_new();
    // Starting a server is not a future that may change threads, and a fixture's must be one.
    let runtime = tokio::runtime::Handle::current();
    let start = move || {
        runtime.block_on(async {
            let server = Postgres::shared().await;
            if pooled {
                POOLER.get_or_init(async || PgBouncer::start(&server).await).await.port()
            } else {
                server.port()
            }
        })
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

impl<W: Way> Fixture for Place<W> {
    const NAME: &'static str = W::NAME;

    async fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port(W::POOLED).await));
        let proxy = Proxy::to(server).await.unwrap();
        let url = format!(
            "postgres://postgres@127.0.0.1:{}/postgres?schema=trial_{}&{}",
            proxy.port(),
            NEXT.fetch_add(1, Ordering::Relaxed),
            W::OPTIONS,
        );
        migrate(&url).await.unwrap();
        Self { url, proxy, way: PhantomData }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        Self::join(self.url.clone()).await
    }

    fn missing() -> Option<String> {
        let pooler = if W::POOLED { Program::PGBOUNCER.missing() } else { None };
        Program::POSTGRES.missing().or_else(|| Program::PSQL.missing()).or(pooler)
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        Arc::new(PostgresStore::connect(&address).await.unwrap())
    }

    fn proxy(&self) -> Option<Proxy> {
        Some(self.proxy.clone())
    }
}

fn main() {
    conformance::Suite::new()
        .on::<Place<Native>>()
        .on::<Place<ListenOff>>()
        .on::<Place<Pooled>>()
        .on::<Place<Syncguard>>()
        // The package keeps its locks unique by id: one secret cannot hold two keys there. It never
        // has to.
        .without("syncguard::ownership::a_release_frees_its_own_key_only")
        .without("syncguard::expiry::one_lease_ends_and_another_does_not")
        .without("syncguard::model::random_operations_agree_with_the_model")
        .without("syncguard::extension::a_full_batch_and_an_empty_one_are_answered")
        // PgBouncer wants the first packet of a connection in one piece.
        .without("pgbouncer::network::single_bytes_are_put_together")
        .run();
}
