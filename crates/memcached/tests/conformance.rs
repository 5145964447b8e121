//! The suite every store passes, on a real server that never evicts, behind a proxy that fails on
//! demand.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use holdtight_core::Backend;
use holdtight_memcached::MemcachedStore;
use holdtight_testkit::servers::{Memcached, Program};
use holdtight_testkit::{Fixture, Proxy};

/// One server for all trials, because a young one grants nothing for a second. Each trial has its
/// own prefix.
struct Shared {
    proxy: Proxy,
    prefix: u64,
}

impl Shared {
    fn url(&self) -> String {
        format!("memcached://{}?timeout=1s&prefix=t{:x}:", self.proxy.address(), self.prefix)
    }
}

impl Fixture for Shared {
    const NAME: &'static str = "memcached";

    async fn start() -> Self {
        static SERVER: OnceLock<Memcached> = OnceLock::new();
        let runtime = tokio::runtime::Handle::current();
        let port = tokio::task::spawn_blocking(move || {
            let start = || runtime.block_on(Memcached::start_with(&["-M"]));
            SERVER.get_or_init(start).port()
        });
        let server = SocketAddr::from(([127, 0, 0, 1], port.await.unwrap()));
        Self { proxy: Proxy::to(server).await.unwrap(), prefix: fastrand::u64(..) }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        Self::join(self.url()).await
    }

    fn missing() -> Option<String> {
        Program::MEMCACHED.missing()
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        Arc::new(MemcachedStore::connect(&address).await.unwrap())
    }

    fn proxy(&self) -> Option<Proxy> {
        Some(self.proxy.clone())
    }
}

fn main() {
    holdtight_testkit::conformance::run::<Shared>();
}
