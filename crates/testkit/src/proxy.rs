//! A TCP proxy between a store and its server that fails on demand: the network nemesis of the
//! tests.
//!
//! It looks at bytes, never at protocols. Faults are switched while connections live and act on
//! each direction alone, because "the request was lost" and "the reply was lost" are the two cases
//! a lock must tell apart.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They pass after a delay, in order.
    Delay(Duration),
    /// They pass one byte at a time, so that every reader sees every partial message.
    Trickle,
    /// They stay in the proxy until the flow is changed: a network that is slow, or a stopped peer.
    Hold,
    /// They are swallowed: a network that loses everything while both ends believe in the
    /// connection.
    Drop,
}

/// How much went through since the proxy started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused.
    pub refused: u64,
    /// Chunks read from clients: about one per request that was not pipelined.
    pub requests: u64,
    /// Bytes read from clients.
    pub sent: u64,
    /// Bytes read from the server.
    pub received: u64,
}

/// A TCP proxy on a free loopback port. Clones are handles on the same one; it ends with the last
/// of them.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use holdtight_testkit::{Flow, Proxy};
/// let proxy = Proxy::to("127.0.0.1:6379".parse().unwrap()).await?;
/// // … connect a store to proxy.address() …
/// proxy.replies(Flow::Drop); // the server does what it is asked; nobody hears of it
/// proxy.heal();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    server: Mutex<SocketAddr>,
    faults: watch::Sender<Faults>,
    counters: Arc<Counters>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    requests: Flow,
    replies: Flow,
    refuse: bool,
    /// Raised by one for each cut: connections made before it end.
    cuts: u64,
    /// Raised when the proxy ends.
    over: bool,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Proxy {
    /// A proxy in front of `server`. Must be called inside a tokio runtime, which then carries it.
    ///
    /// # Errors
    /// When no loopback port can be bound.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (faults, _) = watch::channel(Faults::default());
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            server: Mutex::new(server),
            faults,
            counters: Arc::default(),
            acceptor: Mutex::default(),
        });
        let acceptor = tokio::spawn(accept(listener, Arc::downgrade(&shared)));
        *shared.acceptor.lock().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
        Ok(Self { shared })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The port where clients connect, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.shared.address.port()
    }

    /// Leads later connections to another server: a failover behind one name.
    pub fn redirect(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Sets what happens to bytes from clients to the server.
    pub fn requests(&self, flow: Flow) {
        self.shared.faults.send_modify(|faults| faults.requests = flow);
    }

    /// Sets what happens to bytes from the server to clients.
    pub fn replies(&self, flow: Flow) {
        self.shared.faults.send_modify(|faults| faults.replies = flow);
    }

    /// Loses everything in both directions while connections stay open: a black hole.
    pub fn black_hole(&self) {
        self.shared.faults.send_modify(|faults| {
            faults.requests = Flow::Drop;
            faults.replies = Flow::Drop;
        });
    }

    /// Closes every connection there is; new ones are accepted.
    pub fn cut(&self) {
        self.shared.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Whether new connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// Closes every connection and refuses new ones: the server is gone.
    pub fn down(&self) {
        self.shared.faults.send_modify(|faults| {
            faults.cuts += 1;
            faults.refuse = true;
        });
    }

    /// Lets everything pass again. Connections that lost bytes are cut, because their streams have
    /// holes.
    pub fn heal(&self) {
        self.shared.faults.send_modify(|faults| {
            let holes = faults.requests == Flow::Drop || faults.replies == Flow::Drop;
            *faults = Faults { cuts: faults.cuts + u64::from(holes), ..Faults::default() };
        });
    }

    /// How much went through so far.
    pub fn traffic(&self) -> Traffic {
        let counters = &self.shared.counters;
        Traffic {
            connections: counters.connections.load(Ordering::SeqCst),
            refused: counters.refused.load(Ordering::SeqCst),
            requests: counters.requests.load(Ordering::SeqCst),
            sent: counters.sent.load(Ordering::SeqCst),
            received: counters.received.load(Ordering::SeqCst),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.shared.address)
            .field("faults", &*self.shared.faults.borrow())
            .field("traffic", &self.traffic())
            .finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.faults.send_modify(|faults| faults.over = true);
        let acceptor = self.acceptor.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(acceptor) = acceptor.take() {
            acceptor.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: std::sync::Weak<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let Some(shared) = shared.upgrade() else { return };
        let faults = shared.faults.subscribe();
        if faults.borrow().refuse {
            shared.counters.refused.fetch_add(1, Ordering::SeqCst);
            drop(client);
            continue;
        }
        shared.counters.connections.fetch_add(1, Ordering::SeqCst);
        let server = *shared.server.lock().unwrap_or_else(PoisonError::into_inner);
        let born = faults.borrow().cuts;
        tokio::spawn(carry(client, server, faults, born, Arc::clone(&shared.counters)));
    }
}

async fn carry(
    client: TcpStream,
    server: SocketAddr,
    faults: watch::Receiver<Faults>,
    born: u64,
    counters: Arc<Counters>,
) {
    // Nagle's delay would blur what the faults do.
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut end = faults.clone();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = Direction { from: from_client, to: to_server, faults: faults.clone(), born };
    let replies = Direction { from: from_server, to: to_client, faults, born };
    tokio::select! {
        // Half-closed connections stay half open, as in life; both directions done is the end.
        _ = async {
            tokio::join!(
                requests.pump(|faults| faults.requests, |read| {
                    counters.requests.fetch_add(1, Ordering::SeqCst);
                    counters.sent.fetch_add(read, Ordering::SeqCst);
                }),
                replies.pump(|faults| faults.replies, |read| {
                    counters.received.fetch_add(read, Ordering::SeqCst);
                }),
            )
        } => {}
        _ = end.wait_for(|faults| faults.over || faults.cuts != born) => {}
    }
}

struct Direction {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    faults: watch::Receiver<Faults>,
    /// The number of cuts when the connection was accepted.
    born: u64,
}

impl Direction {
    async fn pump(mut self, flow: impl Fn(&Faults) -> Flow, count: impl Fn(u64)) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = self.from.read(&mut buffer).await {
            count(read as u64);
            if self.forward(&buffer[..read], &flow).await.is_err() {
                break;
            }
        }
        let _ = self.to.shutdown().await;
    }

    async fn forward(&mut self, bytes: &[u8], flow: &impl Fn(&Faults) -> Flow) -> io::Result<()> {
        // A cut is looked for together with the flow: bytes held back must not slip out when a cut
        // is followed by a healing before this connection was polled again.
        let faults = {
            let born = self.born;
            let moving = |faults: &Faults| faults.cuts != born || flow(faults) != Flow::Hold;
            match self.faults.wait_for(moving).await {
                Ok(faults) => *faults,
                Err(_) => return Err(io::ErrorKind::NotConnected.into()),
            }
        };
        if faults.cuts != self.born {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match flow(&faults) {
            Flow::Drop => return Ok(()),
            Flow::Delay(delay) => tokio::time::sleep(delay).await,
            Flow::Trickle => {
                for byte in bytes {
                    self.to.write_all(&[*byte]).await?;
                    tokio::task::yield_now().await;
                }
                return Ok(());
            }
            Flow::Pass | Flow::Hold => {}
        }
        self.to.write_all(bytes).await
    }
}
