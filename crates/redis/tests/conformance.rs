//! The suite every store passes, on real servers: with and without wake-ups.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use holdtight_core::Backend;
use holdtight_redis::RedisStore;
use holdtight_testkit::conformance::Suite;
use holdtight_testkit::servers::{Program, Redis, RedisCluster, RedisSentinel};
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
        format!("redis://{}?timeout=3s{options}", self.proxy.address())
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

/// Servers that take seconds to start are shared by all trials; each has a prefix of its own.
macro_rules! shared {
    ($fixture:ident, $group:ty, $name:literal, $options:literal) => {
        struct $fixture(String);

        impl Fixture for $fixture {
            const NAME: &'static str = $name;

            async fn start() -> Self {
                static GROUP: OnceLock<$group> = OnceLock::new();
                let runtime = tokio::runtime::Handle::current();
                let url = tokio::task::spawn_blocking(move || {
                    GROUP.get_or_init(|| runtime.block_on(<$group>::start())).url()
                });
                let prefix = fastrand::u32(..);
                Self(format!("{}?prefix=t{prefix:x}:{}", url.await.unwrap(), $options))
            }

            async fn open(&self) -> Arc<dyn Backend> {
                open(&self.0).await
            }

            fn missing() -> Option<String> {
                Program::REDIS.missing().or(Program::REDIS_CLI.missing())
            }

            fn address(&self) -> Option<String> {
                Some(self.0.clone())
            }

            async fn join(address: String) -> Arc<dyn Backend> {
                open(&address).await
            }
        }
    };
}

shared!(
    Sentinel,
    RedisSentinel,
    "redis-sentinel",
    "&wait_replicas=1&timeout=8s&connect_timeout=8s"
);
shared!(Cluster, RedisCluster, "redis-cluster", "&timeout=8s&connect_timeout=8s");

fn main() {
    Suite::new()
        .on::<Pushed>()
        .on::<Polled>()
        .on::<Token>()
        .on::<Syncguard>()
        .on::<Sentinel>()
        .on::<Cluster>()
        .run();
}
