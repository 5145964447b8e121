//! The behaviour of a reconnecting connection in an outage, once for all stores that use it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdtight_core::{ErrorKind, LockError};
use holdtight_kit::{Attempts, Connection, DuringPause, Reconnecting};
use holdtight_testkit::Proxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const ORIGIN: &str = "the echo server";

/// As many as wait in a busy program.
const CALLERS: usize = 60;

/// Only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers with what it is sent.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = client.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// How to reach the server, and how often that was tried at once.
#[derive(Default)]
struct Client {
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    opened: AtomicUsize,
}

struct Wire {
    stream: tokio::sync::Mutex<TcpStream>,
    broken: AtomicBool,
}

impl Connection for Wire {
    fn is_open(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }
}

impl Wire {
    async fn ask(&self) -> std::io::Result<()> {
        let mut stream = self.stream.lock().await;
        stream.write_all(b"?").await?;
        stream.read_u8().await.map(drop)
    }
}

impl Client {
    async fn open(self: Arc<Self>, server: SocketAddr) -> Result<Wire, LockError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        let opening = async {
            let stream = tokio::sync::Mutex::new(TcpStream::connect(server).await?);
            let wire = Wire { stream, broken: AtomicBool::new(false) };
            wire.ask().await.map(|()| wire)
        };
        let opened = opening.await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        opened.map_err(|error| LockError::unavailable(format!("no greeting: {error}")))
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The shortest that the pauses between so many attempts can be.
fn least(attempts: u32) -> Duration {
    (1..attempts).map(|n| Duration::from_millis(25 << n).min(Duration::from_secs(1)) / 2).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_not_stormed_and_its_end_is_noticed() {
    const ATTEMPTS: u32 = 8;
    let proxy = Proxy::to(echo().await).await.unwrap();
    let (client, address) = (Arc::new(Client::default()), proxy.address());
    let connection = Reconnecting::new(ORIGIN, Arc::default());
    let wire = connection.get(|| Arc::clone(&client).open(address)).await.unwrap();
    assert!(connection.served(&wire) && !connection.served(&wire));
    proxy.down();
    connection.give_up(&wire);
    let (start, failed) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (connection, client, failed) = (connection.clone(), client.clone(), failed.clone());
        callers.spawn(async move {
            // They ask again at once, which no engine does.
            while let Err(error) = connection.get(|| Arc::clone(&client).open(address)).await {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                let text = error.to_string();
                assert!(text.contains(ORIGIN) && text.contains("no greeting"), "{text}");
                failed.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    until("it is tried again and again", || proxy.traffic().refused >= ATTEMPTS.into()).await;
    assert!(start.elapsed() >= least(ATTEMPTS), "{ATTEMPTS} in {:?}", start.elapsed());
    assert!(failed.load(Ordering::SeqCst) >= CALLERS, "everybody was told");
    let late = connection.late(Duration::from_secs(5)).to_string();
    assert!(late.contains(ORIGIN) && late.contains("no greeting"), "{late}");
    proxy.heal();
    let before = proxy.traffic().connections;
    let all = async { while callers.join_next().await.transpose().unwrap().is_some() {} };
    tokio::time::timeout(PATIENCE, all).await.expect("all are served once it is back");
    assert_eq!(proxy.traffic().connections - before, 1, "one connection for all");
    assert_eq!(client.most_at_once.load(Ordering::SeqCst), 1, "one attempt at a time");
    connection.current().unwrap().ask().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lets_everybody_in_and_serves_nobody_is_not_stormed_either() {
    const ATTEMPTS: u32 = 7;
    let (client, address) = (Arc::new(Client::default()), echo().await);
    let connection = Reconnecting::new(ORIGIN, Arc::default());
    let start = Instant::now();
    for n in 0..ATTEMPTS {
        let wire = connection.get(|| Arc::clone(&client).open(address)).await.unwrap();
        // Noticed by whoever asks, or by whoever comes next.
        if n % 2 == 0 {
            assert!(connection.give_up(&wire) && !connection.give_up(&wire));
        } else {
            wire.broken.store(true, Ordering::Relaxed);
            assert!(connection.current().is_none());
        }
    }
    assert!(start.elapsed() >= least(ATTEMPTS), "{ATTEMPTS} in {:?}", start.elapsed());
    assert_eq!(client.opened.load(Ordering::SeqCst), ATTEMPTS as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_would_rather_go_without_are_told_at_once() {
    let proxy = Proxy::to(echo().await).await.unwrap();
    let (client, address) = (Arc::new(Client::default()), proxy.address());
    let attempts = Arc::new(Attempts::new(DuringPause::Fail));
    let connection = Reconnecting::new(ORIGIN, attempts);
    proxy.down();
    let get = || connection.get(|| Arc::clone(&client).open(address));
    let mut told = 0;
    while client.opened.load(Ordering::SeqCst) < 4 {
        told += usize::from(get().await.is_err());
    }
    assert!(told > 4, "{told} were told of 4 attempts");
    proxy.heal();
    let start = Instant::now();
    while get().await.is_err() {
        assert!(start.elapsed() < PATIENCE, "it is back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_keeps_nobody_from_a_connection() {
    let proxy = Proxy::to(echo().await).await.unwrap();
    let (client, address) = (Arc::new(Client::default()), proxy.address());
    let connection = Reconnecting::new(ORIGIN, Arc::default());
    proxy.replies(holdtight_testkit::Flow::Hold);
    // Begun, and never polled again.
    let mut stuck = Box::pin(connection.get(|| Arc::clone(&client).open(address)));
    assert!(futures_poll(stuck.as_mut()).is_pending());
    until("it has begun", || client.opened.load(Ordering::SeqCst) == 1).await;
    proxy.heal();
    let other = tokio::time::timeout(PATIENCE, connection.get(|| client.clone().open(address)));
    other.await.expect("not kept waiting").unwrap();
    assert_eq!(client.opened.load(Ordering::SeqCst), 1, "one connection for both");
    drop(stuck);
}

fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
