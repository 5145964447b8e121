//! The suite every store passes, on real servers: with and without wake-ups.

use std::net::SocketAddr;
use std::sync::Arc;

use holdtight_core::Backend;
use holdtight_redis::RedisStore;
use holdtight_testkit::conformance::Suite;
use holdtight_testkit::servers::{Program, Redis};
use holdtight_testkit::{Fixture, Proxy};

/// A server of its own behind a proxy.
struct Behind {
    _server: Redis,
    proxy: Proxy,
}

impl Behind {
    async fn start() -> Self {
        // A future of its own thread: what starts a server is not `Send`.
        let runtime = tokio::runtime::Handle::current();
        let server = tokio::task::spawn_blocking(move || runtime.block_on(Redis::start()));
        let server = server.await.unwrap();
        let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port()))).await.unwrap();
        Self { _server: server, proxy }
    }

    fn url(&self, options: &str) -> String {
        format!("redis://{}?timeout=1s{options}", self.proxy.address())
    }
}

async fn open(url: &str) -> Arc<dyn Backend> {
    Arc::new(RedisStore::connect(url).await.unwrap())
}

macro_rules! fixture {
    ($fixture:ident, $name:literal, $options:literal) => {
        struct $fixture(Behind);

        impl Fixture for $fixture {
            const NAME: &'static str = $name;

            async fn start() -> Self {
                Self(Behind::start().await)
            }

            async fn open(&self) -> Arc<dyn Backend> {
                open(&self.0.url($options)).await
            }

            fn missing() -> Option<String> {
                Program::REDIS.missing()
            }

            fn address(&self) -> Option<String> {
                Some(self.0.url($options))
            }

            async fn join(address: String) -> Arc<dyn Backend> {
                open(&address).await
            }

            fn proxy(&self) -> Option<Proxy> {
                Some(self.0.proxy.clone())
            }
        }
    };
}

fixture!(Pushed, "redis", "");
fixture!(Polled, "redis-without-pubsub", "&pubsub=off");

fixture!(Token, "redis-token", "&layout=token");
fixture!(Syncguard, "redis-syncguard", "&layout=syncguard");

fn main() {
    Suite::new().on::<Pushed>().on::<Polled>().on::<Token>().on::<Syncguard>().run();
}
