//! The suite every store passes, on a real etcd of one member behind a proxy.

use std::net::SocketAddr;
use std::sync::Arc;

use holdtight_core::Backend;
use holdtight_etcd::EtcdStore;
use holdtight_testkit::servers::{Etcd, Program};
use holdtight_testkit::{Fixture, Proxy};

/// A member of its own behind a proxy.
struct Single {
    _server: Etcd,
    proxy: Proxy,
}

async fn open(url: &str) -> Arc<dyn Backend> {
    Arc::new(EtcdStore::connect(url).await.unwrap())
}

impl Fixture for Single {
    const NAME: &'static str = "etcd";

    async fn start() -> Self {
        // A future of its own thread: what starts a server is not `Send`.
        let runtime = tokio::runtime::Handle::current();
        let server = tokio::task::spawn_blocking(move || runtime.block_on(Etcd::start()));
        let server = server.await.unwrap();
        let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port()))).await.unwrap();
        Self { _server: server, proxy }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        open(&format!("etcd://{}", self.proxy.address())).await
    }

    fn missing() -> Option<String> {
        Program::ETCD.missing()
    }

    fn address(&self) -> Option<String> {
        Some(format!("etcd://{}", self.proxy.address()))
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        open(&address).await
    }

    fn proxy(&self) -> Option<Proxy> {
        Some(self.proxy.clone())
    }
}

fn main() {
    holdtight_testkit::conformance::run::<Single>();
}
