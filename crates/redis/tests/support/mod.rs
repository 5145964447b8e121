//! What the tests of this crate share: servers, clients, and short words for steps.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Busy, ExtendBy, ExtendRequest, Extension, Holder, Intent,
    Key, Lease, LockError, Release, Secret,
};
use holdtight_redis::RedisStore;
use holdtight_testkit::Proxy;
use holdtight_testkit::servers::{Program, Redis};

/// Longer than anything here takes on a starved machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const LONG: Duration = Duration::from_secs(60);

/// Whether Redis is not here; says so, and fails in CI.
pub fn redis_is_missing() -> bool {
    !Program::REDIS.available()
}

/// A test on a fresh server.
#[macro_export]
macro_rules! on_redis {
    ($(#[$meta:meta])* async fn $name:ident($server:ident: &Redis) $body:block) => {
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if support::redis_is_missing() {
                return;
            }
            let server = Redis::start().await;
            let $server = &server;
            $body
        }
    };
}

/// A store as the URL says, and patient unless it says otherwise: what is tested here is not the
/// speed of the machine.
pub async fn connect(url: &str) -> Arc<RedisStore> {
    let patience = match (url.contains("timeout="), url.contains('?')) {
        (true, _) => "",
        (false, true) => "&timeout=20s&connect_timeout=20s",
        (false, false) => "?timeout=20s&connect_timeout=20s",
    };
    Arc::new(RedisStore::connect(&format!("{url}{patience}")).await.unwrap())
}

pub async fn proxied(server: &Redis) -> Proxy {
    Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port()))).await.unwrap()
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn secret() -> Secret {
    Secret::generate().unwrap()
}

pub async fn attempt(
    store: &Arc<RedisStore>,
    key: &Key,
    secret: &Secret,
    intent: Intent,
) -> Result<Attempt, LockError> {
    let request = AcquireRequest::new(key.clone(), secret.clone(), LONG).intent(intent);
    Arc::clone(store).acquire(request).await
}

pub async fn granted(store: &Arc<RedisStore>, key: &Key, secret: &Secret) -> Lease {
    granted_for(store, key, secret, LONG).await
}

pub async fn granted_for(
    store: &Arc<RedisStore>,
    key: &Key,
    secret: &Secret,
    ttl: Duration,
) -> Lease {
    let request = AcquireRequest::new(key.clone(), secret.clone(), ttl);
    let started = tokio::time::Instant::now();
    loop {
        match Arc::clone(store).acquire(request.clone()).await {
            Ok(Attempt::Granted(lease)) => return lease,
            Ok(other) => panic!("{key:?} must be granted, not {other:?}"),
            Err(error) => late(started, &error).await,
        }
    }
}

/// Before a step is asked again: its error must only say that a starved machine was late.
async fn late(started: tokio::time::Instant, error: &LockError) {
    assert!(error.kind().is_transient() && started.elapsed() < PATIENCE, "{error}");
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Extends, however late the answer is: a retry of an extension does no harm.
pub async fn extended(
    store: &Arc<RedisStore>,
    key: &Key,
    secret: &Secret,
    by: Duration,
) -> Extension {
    let started = tokio::time::Instant::now();
    loop {
        match extend(store, key, secret, by).await {
            Ok(extension) => return extension,
            Err(error) => late(started, &error).await,
        }
    }
}

pub async fn busy(store: &Arc<RedisStore>, key: &Key, secret: &Secret, intent: Intent) -> Busy {
    let started = tokio::time::Instant::now();
    loop {
        match attempt(store, key, secret, intent).await {
            Ok(Attempt::Busy(busy)) => return busy,
            Ok(other) => panic!("{key:?} must be busy, not {other:?}"),
            Err(error) => late(started, &error).await,
        }
    }
}

pub async fn release(store: &Arc<RedisStore>, key: &Key, secret: &Secret) -> Release {
    let (started, mut unknown) = (tokio::time::Instant::now(), false);
    loop {
        match Arc::clone(store).release(key.clone(), secret.clone()).await {
            // Nobody else has the secret, so an earlier try did it.
            Ok(Release::NotHeld) if unknown => return Release::Released,
            Ok(release) => return release,
            Err(error) => {
                unknown |= !error.kind().is_definite();
                late(started, &error).await;
            }
        }
    }
}

pub async fn extend(
    store: &Arc<RedisStore>,
    key: &Key,
    secret: &Secret,
    by: Duration,
) -> Result<Extension, LockError> {
    let request = ExtendRequest::new(key.clone(), secret.clone(), ExtendBy::AtLeast(by));
    Arc::clone(store).extend(vec![request]).await?.remove(0)
}

pub async fn lookup(store: &Arc<RedisStore>, key: &Key) -> Option<Holder> {
    Arc::clone(store).lookup(key.clone()).await.unwrap()
}

/// Asks until the answer is yes, for as long as patience lasts.
pub async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !happened().await {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A command typed by an administrator; the raw reply.
pub async fn admin(server: &Redis, line: &str) -> String {
    server.command(line).await.unwrap()
}

/// The whole number in a reply like `:42`.
pub async fn count(server: &Redis, line: &str) -> i64 {
    let reply = admin(server, line).await;
    reply.trim().trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{line}: {reply}"))
}

/// One number of `INFO`.
pub async fn info(server: &Redis, name: &str) -> u64 {
    let info = admin(server, "INFO").await;
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("INFO has no {name}")).trim().parse().unwrap()
}
