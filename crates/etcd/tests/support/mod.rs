//! What the tests of this crate share: short words for steps, and an administrator's way into a
//! member.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Busy, ExtendBy, ExtendRequest, Extension, Holder, Intent,
    Key, Lease, LockError, Release, Secret, Subscription,
};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::Proxy;
use holdtight_testkit::servers::{Etcd, Program};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A lease that does not end while a test runs.
pub const LONG: Duration = Duration::from_secs(60);

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A test on a fresh member.
#[macro_export]
macro_rules! on_etcd {
    ($(#[$meta:meta])* async fn $name:ident($server:ident: &Etcd) $body:block) => {
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !holdtight_testkit::servers::Program::ETCD.available() {
                return;
            }
            let server = Etcd::start().await;
            let $server = &server;
            $body
        }
    };
}

/// Whether the tests can run at all.
pub fn etcd_is_here() -> bool {
    Program::ETCD.available()
}

/// The answer to a question that may be asked again, for as long as patience lasts: a member that
/// stood still for a moment is not what is tested. A macro, because tasks that are spawned use it
/// too.
macro_rules! answered {
    ($asked:expr) => {{
        let started = tokio::time::Instant::now();
        loop {
            match $asked {
                Ok(answer) => break answer,
                Err(error) => {
                    let again = error.kind().is_transient() && started.elapsed() < PATIENCE;
                    assert!(again, "{error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }};
}

pub async fn connect(url: &str) -> Arc<EtcdStore> {
    Arc::new(answered!(EtcdStore::connect(url).await))
}

pub async fn proxied(server: &Etcd) -> Proxy {
    Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port()))).await.unwrap()
}

/// A store that reaches its member through `proxy`, and does not wait long.
pub async fn behind(proxy: &Proxy) -> Arc<EtcdStore> {
    connect(&format!("etcd://{}?timeout=2s&connect_timeout=2s", proxy.address())).await
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn secret() -> Secret {
    Secret::generate().unwrap()
}

pub async fn attempt_for(
    store: &Arc<EtcdStore>,
    key: &Key,
    secret: &Secret,
    intent: Intent,
    ttl: Duration,
) -> Result<Attempt, LockError> {
    let request = AcquireRequest::new(key.clone(), secret.clone(), ttl).intent(intent);
    Arc::clone(store).acquire(request).await
}

pub async fn attempt(
    store: &Arc<EtcdStore>,
    key: &Key,
    secret: &Secret,
    intent: Intent,
) -> Result<Attempt, LockError> {
    attempt_for(store, key, secret, intent, LONG).await
}

pub async fn granted_for(
    store: &Arc<EtcdStore>,
    key: &Key,
    secret: &Secret,
    ttl: Duration,
) -> Lease {
    match answered!(attempt_for(store, key, secret, Intent::Try, ttl).await) {
        Attempt::Granted(lease) => lease,
        other => panic!("{key:?} must be granted, not {other:?}"),
    }
}

pub async fn granted(store: &Arc<EtcdStore>, key: &Key, secret: &Secret) -> Lease {
    granted_for(store, key, secret, LONG).await
}

pub async fn busy(store: &Arc<EtcdStore>, key: &Key, secret: &Secret, intent: Intent) -> Busy {
    match answered!(attempt(store, key, secret, intent).await) {
        Attempt::Busy(busy) => busy,
        other => panic!("{key:?} must be busy, not {other:?}"),
    }
}

/// Asks until it is granted, as a waiter does.
pub async fn taken_in_turn(store: &Arc<EtcdStore>, key: &Key, secret: &Secret) -> Lease {
    let mut lease = None;
    until("the waiter gets the lock", async || {
        if let Ok(Attempt::Granted(now)) = attempt(store, key, secret, Intent::Queue).await {
            lease = Some(now);
        }
        lease.is_some()
    })
    .await;
    lease.unwrap()
}

pub async fn release(store: &Arc<EtcdStore>, key: &Key, secret: &Secret) -> Release {
    let mut unknown = false;
    let release = answered!({
        let answer = Arc::clone(store).release(key.clone(), secret.clone()).await;
        unknown |= answer.as_ref().is_err_and(|error| !error.kind().is_definite());
        answer
    });
    // Nobody else has the secret.
    if unknown { Release::Released } else { release }
}

pub async fn extend(
    store: &Arc<EtcdStore>,
    key: &Key,
    secret: &Secret,
    by: ExtendBy,
) -> Result<Extension, LockError> {
    let request = ExtendRequest::new(key.clone(), secret.clone(), by);
    Arc::clone(store).extend(vec![request]).await?.remove(0)
}

/// What is left of a lease that must be held.
pub async fn left(store: &Arc<EtcdStore>, key: &Key, secret: &Secret) -> Lease {
    match answered!(extend(store, key, secret, ExtendBy::AtLeast(Duration::ZERO)).await) {
        Extension::Extended(lease) => lease,
        other => panic!("{key:?} must be held, not {other:?}"),
    }
}

pub async fn lookup(store: &Arc<EtcdStore>, key: &Key) -> Option<Holder> {
    answered!(Arc::clone(store).lookup(key.clone()).await)
}

pub async fn subscribe(store: &Arc<EtcdStore>, key: &Key) -> Subscription {
    Arc::clone(store).subscribe(key.clone()).await.unwrap()
}

pub async fn must_hear(subscription: &mut Subscription, what: &str) {
    let heard = tokio::time::timeout(PATIENCE, subscription.heard()).await;
    assert!(heard.is_ok(), "nothing heard of {what} for {PATIENCE:?}");
}

/// Asks until the answer is yes, for as long as patience lasts.
pub async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !happened().await {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whatever happened to the cluster: the store takes and gives back a lock again.
pub async fn recovers(store: &Arc<EtcdStore>) {
    let (key, me) = (key("after"), secret());
    until("the store works again", async || match attempt(store, &key, &me, Intent::Try).await {
        Ok(Attempt::Granted(_)) => true,
        Ok(other) => panic!("nobody else wants this lock: {other:?}"),
        Err(error) => {
            assert!(error.kind().is_transient(), "{error}");
            false
        }
    })
    .await;
    until("it gives back again", async || {
        Arc::clone(store).release(key.clone(), me.clone()).await.is_ok()
    })
    .await;
}

/// An administrator's request, as JSON; the body of the answer.
pub async fn admin(server: &Etcd, path: &str, body: &str) -> String {
    admin_as(server, "", path, body).await
}

/// The same with the token of a user.
pub async fn admin_as(server: &Etcd, token: &str, path: &str, body: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    // A member takes an empty token for a wrong one.
    let user = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
    let request = format!(
        "POST /v3/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{user}Connection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK"), "{path}: {answer}");
    body.to_owned()
}

/// The first value of a field in an answer.
pub fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// How many keys the store's prefix has.
pub async fn entries(server: &Etcd) -> usize {
    let range = format!(
        r#"{{"key":"{}","range_end":"{}","keys_only":true}}"#,
        base64(b"holdtight/"),
        base64(b"holdtight0")
    );
    admin(server, "kv/range", &range).await.matches("create_revision").count()
}

/// How many leases there are.
pub async fn leases(server: &Etcd) -> usize {
    admin(server, "lease/leases", "{}").await.matches("\"ID\"").count()
}

/// Drops the history of all keys.
pub async fn compact(server: &Etcd) {
    let now = admin(server, "kv/range", r#"{"key":"AA=="}"#).await;
    let revision = field(&now, "revision").unwrap();
    admin(server, "kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#))
        .await;
}

pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                text.push(char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
