//! The suite every store passes, on an emulator behind a proxy: one of our own, or the one that is named in
//! `HOLDTIGHT_TEST_FIRESTORE` as `host:port`.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use holdtight_core::Backend;
use holdtight_firestore::FirestoreStore;
use holdtight_testkit::servers::{Firestore, Program};
use holdtight_testkit::{Fixture, Proxy};

const GIVEN: &str = "HOLDTIGHT_TEST_FIRESTORE";

/// One emulator for all trials. Each has its own project, which is its own database.
struct Emulator {
    proxy: Proxy,
    project: u64,
}

impl Emulator {
    fn url(&self) -> String {
        format!("firestore://t{:x}?timeout=3s&emulator={}", self.project, self.proxy.address())
    }
}

impl Fixture for Emulator {
    const NAME: &'static str = "firestore";

    async fn start() -> Self {
        static SERVER: OnceLock<Firestore> = OnceLock::new();
        let server: SocketAddr = if let Ok(given) = std::env::var(GIVEN) {
            let mut found = tokio::net::lookup_host(&given).await.unwrap();
            found.next().expect("HOLDTIGHT_TEST_FIRESTORE names a host")
        } else {
            let runtime = tokio::runtime::Handle::current();
            let port = tokio::task::spawn_blocking(move || {
                SERVER.get_or_init(|| runtime.block_on(Firestore::start())).port()
            });
            SocketAddr::from(([127, 0, 0, 1], port.await.unwrap()))
        };
        Self { proxy: Proxy::to(server).await.unwrap(), project: fastrand::u64(..) }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        Self::join(self.url()).await
    }

    fn missing() -> Option<String> {
        if std::env::var(GIVEN).is_ok() { None } else { Program::HIDANE.missing() }
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn join(address: String) -> Arc<dyn Backend> {
        Arc::new(FirestoreStore::connect(&address).await.unwrap())
    }

    fn proxy(&self) -> Option<Proxy> {
        Some(self.proxy.clone())
    }
}

fn main() {
    holdtight_testkit::conformance::run::<Emulator>();
}
