//! What the tests of this crate share: short words for steps, and a server that can be hurt in ways
//! of its own.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod certificates;
pub(crate) mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ErrorKind, ExtendBy, ExtendRequest, Extension, Holder,
    Intent, Key, Lease, LockError, Release, Secret,
};
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::servers::{Postgres, Program};

/// A lease that does not end while a test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the servers that the tests need are there; see `Program::available`.
pub(crate) fn available() -> bool {
    Program::POSTGRES.available() && Program::PSQL.available()
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn secret() -> Secret {
    Secret::generate().unwrap()
}

pub(crate) async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::connect(url).await.unwrap())
}

/// The shared server with a schema of its own, ready to use.
pub(crate) async fn fresh(schema: &str) -> (Arc<Postgres>, String) {
    let server = Postgres::shared().await;
    let url = format!("{}?schema={schema}", server.url());
    migrate(&url).await.unwrap();
    (server, url)
}

pub(crate) async fn attempt(
    store: &Arc<PostgresStore>,
    key: &Key,
    owner: &Secret,
    ttl: Duration,
) -> Result<Attempt, LockError> {
    Arc::clone(store).acquire(AcquireRequest::new(key.clone(), owner.clone(), ttl)).await
}

pub(crate) async fn queue(store: &Arc<PostgresStore>, key: &Key, owner: &Secret) -> Attempt {
    let request = AcquireRequest::new(key.clone(), owner.clone(), LONG).intent(Intent::Queue);
    Arc::clone(store).acquire(request).await.unwrap()
}

/// Takes a key that must be free.
pub(crate) async fn take(store: &Arc<PostgresStore>, key: &Key, ttl: Duration) -> (Secret, Lease) {
    let owner = secret();
    match attempt(store, key, &owner, ttl).await {
        Ok(Attempt::Granted(lease)) => (owner, lease),
        other => panic!("{key:?} must be free, but: {other:?}"),
    }
}

pub(crate) async fn release(
    store: &Arc<PostgresStore>,
    key: &Key,
    owner: &Secret,
) -> Result<Release, LockError> {
    Arc::clone(store).release(key.clone(), owner.clone()).await
}

pub(crate) async fn extend(
    store: &Arc<PostgresStore>,
    key: &Key,
    owner: &Secret,
    ttl: Duration,
) -> Result<Extension, LockError> {
    let request = ExtendRequest::new(key.clone(), owner.clone(), ExtendBy::AtLeast(ttl));
    Arc::clone(store).extend(vec![request]).await?.pop().unwrap()
}

pub(crate) async fn lookup(
    store: &Arc<PostgresStore>,
    key: &Key,
) -> Result<Option<Holder>, LockError> {
    Arc::clone(store).lookup(key.clone()).await
}

/// What the store says about a key, asked until it answers.
pub(crate) async fn holder(store: &Arc<PostgresStore>, key: &Key) -> Option<Holder> {
    eventually("the store answers", async || lookup(store, key).await.ok()).await
}

/// Asks until there is an answer, for as long as patience lasts.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The error of a call that must fail, of a kind that must be this one.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, LockError>, kind: ErrorKind) -> String {
    let error = answer.expect_err("this must fail");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}
