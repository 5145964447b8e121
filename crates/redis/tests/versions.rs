//! The suite on the oldest Redis that is served and on the newest Valkey, in every layout.

#[path = "support/wheel.rs"]
mod wheel;

use std::net::SocketAddr;
use std::sync::Arc;

use holdtight_core::Backend;
use holdtight_redis::RedisStore;
use holdtight_testkit::conformance::Suite;
use holdtight_testkit::{Fixture, Proxy};
use wheel::{REDIS_6, Server, VALKEY_9, Wheel};

struct Behind {
    _server: Server,
    proxy: Proxy,
}

impl Behind {
    async fn start(wheel: Wheel) -> Self {
        let server = tokio::task::spawn_blocking(move || Server::start(&wheel.server().unwrap()));
        let server = server.await.unwrap();
        let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port))).await.unwrap();
        Self { _server: server, proxy }
    }
}

macro_rules! fixture {
    ($fixture:ident, $wheel:ident, $name:literal, $options:literal) => {
        struct $fixture(Behind);

        impl Fixture for $fixture {
            const NAME: &'static str = $name;

            async fn start() -> Self {
                Self(Behind::start($wheel).await)
            }

            async fn open(&self) -> Arc<dyn Backend> {
                Self::join(self.address().unwrap()).await
            }

            fn missing() -> Option<String> {
                $wheel.server().err()
            }

            fn address(&self) -> Option<String> {
                Some(format!("redis://{}?timeout=3s{}", self.0.proxy.address(), $options))
            }

            async fn join(address: String) -> Arc<dyn Backend> {
                Arc::new(RedisStore::connect(&address).await.unwrap())
            }

            fn proxy(&self) -> Option<Proxy> {
                Some(self.0.proxy.clone())
            }
        }
    };
}

fixture!(OldNative, REDIS_6, "redis-6.2", "");
fixture!(OldToken, REDIS_6, "redis-6.2-token", "&layout=token");
fixture!(OldSyncguard, REDIS_6, "redis-6.2-syncguard", "&layout=syncguard");
fixture!(NewNative, VALKEY_9, "valkey-9.1", "");
fixture!(NewToken, VALKEY_9, "valkey-9.1-token", "&layout=token");
fixture!(NewSyncguard, VALKEY_9, "valkey-9.1-syncguard", "&layout=syncguard");

fn main() {
    Suite::new()
        .on::<OldNative>()
        .on::<OldToken>()
        .on::<OldSyncguard>()
        .on::<NewNative>()
        .on::<NewToken>()
        .on::<NewSyncguard>()
        .run();
}
