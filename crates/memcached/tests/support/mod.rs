//! What the tests of this crate share: servers, a line to type commands on, and short words for
//! steps.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Busy, ExtendBy, ExtendRequest, Extension, Holder, Key, Lease,
    LockError, Release, Secret,
};
use holdtight_memcached::MemcachedStore;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Longer than anything here takes on a starved machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const LONG: Duration = Duration::from_secs(600);

/// A test on a fresh server started with more arguments.
#[macro_export]
macro_rules! on_memcached {
    ($(#[$meta:meta])* async fn $name:ident($server:ident: $arguments:expr) $body:block) => {
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !holdtight_testkit::servers::Program::MEMCACHED.available() {
                return;
            }
            let server = holdtight_testkit::servers::Memcached::start_with(&$arguments).await;
            let $server = &server;
            $body
        }
    };
}

pub type Store = Arc<MemcachedStore>;

pub async fn connect(url: &str) -> Store {
    Arc::new(MemcachedStore::connect(url).await.unwrap())
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn secret() -> Secret {
    Secret::generate().unwrap()
}

pub async fn attempt(
    store: &Store,
    key: &Key,
    secret: &Secret,
    ttl: Duration,
) -> Result<Attempt, LockError> {
    Arc::clone(store).acquire(AcquireRequest::new(key.clone(), secret.clone(), ttl)).await
}

pub async fn granted(store: &Store, key: &Key, secret: &Secret) -> Lease {
    match attempt(store, key, secret, LONG).await.unwrap() {
        Attempt::Granted(lease) => lease,
        other => panic!("{key:?} must be granted, not {other:?}"),
    }
}

pub async fn busy(store: &Store, key: &Key) -> Busy {
    match attempt(store, key, &secret(), LONG).await.unwrap() {
        Attempt::Busy(busy) => busy,
        other => panic!("{key:?} must be busy, not {other:?}"),
    }
}

pub async fn release(store: &Store, key: &Key, secret: &Secret) -> Release {
    Arc::clone(store).release(key.clone(), secret.clone()).await.unwrap()
}

pub async fn extend(
    store: &Store,
    key: &Key,
    secret: &Secret,
    by: Duration,
) -> Result<Extension, LockError> {
    let request = ExtendRequest::new(key.clone(), secret.clone(), ExtendBy::AtLeast(by));
    Arc::clone(store).extend(vec![request]).await?.remove(0)
}

pub async fn lookup(store: &Store, key: &Key) -> Option<Holder> {
    Arc::clone(store).lookup(key.clone()).await.unwrap()
}

/// Whatever the server does meanwhile: asks until there is an answer.
pub async fn until_answered<T>(mut call: impl AsyncFnMut() -> Result<T, LockError>) -> T {
    let started = tokio::time::Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(started.elapsed() < PATIENCE, "no answer: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A line to the server, as an administrator has one with telnet.
pub struct Admin(BufReader<TcpStream>);

impl Admin {
    pub async fn on(port: u16) -> Self {
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap()))
    }

    /// Sends `request` and gives the first line of the answer.
    pub async fn ask(&mut self, request: &str) -> String {
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    pub async fn set(&mut self, name: &str, value: &str, flags: &str) -> String {
        self.ask(&format!("ms {name} {} {flags}\r\n{value}\r\n", value.len())).await
    }

    pub async fn get(&mut self, name: &str) -> Option<Vec<u8>> {
        let line = self.ask(&format!("mg {name} v\r\n")).await;
        let length: usize = line.strip_prefix("VA ")?.split(' ').next()?.parse().unwrap();
        let mut value = vec![0; length + 2];
        self.0.read_exact(&mut value).await.unwrap();
        value.truncate(length);
        Some(value)
    }

    /// How long the server has run, by its own clock.
    pub async fn uptime(&mut self) -> u64 {
        let mut line = self.ask("stats\r\n").await;
        let mut uptime = None;
        while line != "END" {
            uptime =
                uptime.or(line.strip_prefix("STAT uptime ").map(|found| found.parse().unwrap()));
            line = self.ask("").await;
        }
        uptime.expect("every server says its uptime")
    }

    /// Writes items about as long as `length`: of each size until there is no room for more of
    /// them, or `most`.
    pub async fn fill(&mut self, length: usize, most: usize) {
        const AT_ONCE: usize = 50;
        for size in (length.saturating_sub(160)..length + 160).rev().step_by(8) {
            let value = "x".repeat(size);
            for round in 0..most.div_ceil(AT_ONCE) {
                let mut requests = String::new();
                for n in 0..AT_ONCE {
                    let line = format!("ms filler:{size}:{round}:{n} {size} T10000\r\n{value}\r\n");
                    requests.push_str(&line);
                }
                self.0.write_all(requests.as_bytes()).await.unwrap();
                let mut full = true;
                for _ in 0..AT_ONCE {
                    let mut line = String::new();
                    self.0.read_line(&mut line).await.unwrap();
                    full &= line.starts_with("SERVER_ERROR");
                }
                if full {
                    break;
                }
            }
        }
    }
}
