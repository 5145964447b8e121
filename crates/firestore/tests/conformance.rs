//! The suite every store passes, on an emulator behind a proxy: one of our own, or the one that is
//! named in `HOLDTIGHT_TEST_FIRESTORE` as `host:port`.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use holdtight_core::Backend;
use holdtight_firestore::FirestoreStore;
use holdtight_testkit::conformance::Suite;
use holdtight_testkit::servers::{Firestore, Program};
use holdtight_testkit::{Fixture, Proxy};

const GIVEN: &str = "HOLDTIGHT_TEST_FIRESTORE";

/// One emulator for all trials; where it is.
async fn emulator() -> SocketAddr {
    static SERVER: OnceLock<Firestore> = OnceLock::new();
    if let Ok(given) = std::env::var(GIVEN) {
        let mut found = tokio::net::lookup_host(&given).await.unwrap();
        return found.next().expect("HOLDTIGHT_TEST_FIRESTORE names a host");
    }
    let runtime = tokio::runtime::Handle::current();
    let port = tokio::task::spawn_blocking(move || {
        SERVER.get_or_init(|| runtime.block_on(Firestore::start())).port()
    });
    SocketAddr::from(([127, 0, 0, 1], port.await.unwrap()))
}

/// Each trial has its own project, which is its own database.
macro_rules! fixture {
    ($fixture:ident, $name:literal, $options:literal) => {
        struct $fixture {
            proxy: Proxy,
            project: u64,
        }

        impl Fixture for $fixture {
            const NAME: &'static str = $name;

            async fn start() -> Self {
                let proxy = Proxy::to(emulator().await).await.unwrap();
                Self { proxy, project: fastrand::u64(..) }
            }

            async fn open(&self) -> Arc<dyn Backend> {
                Self::join(self.address().unwrap()).await
            }

            fn missing() -> Option<String> {
                if std::env::var(GIVEN).is_ok() { None } else { Program::HIDANE.missing() }
            }

            fn address(&self) -> Option<String> {
                let (project, emulator) = (self.project, self.proxy.address());
                let options = concat!("timeout=3s", $options);
                Some(format!("firestore://t{project:x}?{options}&emulator={emulator}"))
            }

            async fn join(address: String) -> Arc<dyn Backend> {
                Arc::new(FirestoreStore::connect(&address).await.unwrap())
            }

            fn proxy(&self) -> Option<Proxy> {
                Some(self.proxy.clone())
            }
        }
    };
}

fixture!(Native, "firestore", "");
fixture!(Syncguard, "firestore-syncguard", "&layout=syncguard");

fn main() {
    Suite::new()
        .on::<Native>()
        .on::<Syncguard>()
        // It cannot represent every key, and refuses the rest: `tests/syncguard.rs`.
        .without("firestore-syncguard::keys::every_legal_key_is_a_lock_of_its_own")
        .run();
}
