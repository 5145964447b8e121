//! A store behind a network: every step of an inner store crosses a real TCP connection before it
//! is done.
//!
//! What crosses is only a number; the step waits under it in this process. So any store can be had
//! remotely, with the errors a careful client gives, or with those of a careless one: see
//! [`Carelessness`].

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Guarantees, Holder,
    Key, LockError, MemoryStore, Release, Reply, Secret,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;
type Waiting = Arc<Mutex<HashMap<u64, Step>>>;

/// How a client gets it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carelessness {
    /// It does not.
    None,
    /// A lost reply is reported as if nothing had been done.
    CallsTheUnknownUndone,
    /// It has no timeout.
    WaitsForEver,
    /// It asks again by itself, whatever it asked.
    AsksAgainByItself,
    /// It never connects again after a failure.
    StaysDown,
    /// It reads one chunk and takes it for the whole reply.
    TrustsOneRead,
}

/// The server: does the steps whose numbers arrive, and sends each number back.
pub(crate) struct Server {
    waiting: Waiting,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (waiting, address) = (Waiting::default(), listener.local_addr().unwrap());
        let steps = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let steps = Arc::clone(&steps);
                tokio::spawn(async move {
                    while let Ok(number) = stream.read_u64().await {
                        let step = steps.lock().unwrap().remove(&number);
                        if let Some(step) = step {
                            step.await;
                        }
                        if stream.write_u64(number).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { waiting, address }
    }
}

/// The client.
pub(crate) struct Remote {
    inner: Arc<MemoryStore>,
    waiting: Waiting,
    address: SocketAddr,
    carelessness: Carelessness,
    failed: AtomicBool,
}

impl Remote {
    pub(crate) fn new(
        inner: Arc<MemoryStore>,
        server: &Server,
        address: SocketAddr,
        carelessness: Carelessness,
    ) -> Arc<Self> {
        let waiting = Arc::clone(&server.waiting);
        Arc::new(Self { inner, waiting, address, carelessness, failed: AtomicBool::new(false) })
    }

    /// Sends a step over and waits for it, with a connection of its own.
    fn send<T: Send + 'static>(
        self: Arc<Self>,
        step: impl Fn() -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<T> {
        Box::pin(async move {
            let first = self.send_once(&step).await;
            if first.is_err() && self.carelessness == Carelessness::AsksAgainByItself {
                return self.send_once(&step).await;
            }
            first
        })
    }

    async fn send_once<T: Send + 'static>(
        &self,
        step: &(impl Fn() -> Reply<T> + Send + Sync),
    ) -> Result<T, LockError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let down = || LockError::unavailable("cannot reach the server; try again");
        if self.carelessness == Carelessness::StaysDown && self.failed.load(Ordering::SeqCst) {
            return Err(down());
        }
        let (number, answer) = (NUMBERS.fetch_add(1, Ordering::SeqCst), Arc::new(Mutex::new(None)));
        let (place, step) = (Arc::clone(&answer), step());
        let run: Step = Box::pin(async move {
            let done = step.await;
            *place.lock().unwrap() = Some(done);
        });
        self.waiting.lock().unwrap().insert(number, run);
        let talk = async {
            let mut stream = TcpStream::connect(self.address).await.map_err(|_| down())?;
            let unknown = || match self.carelessness {
                Carelessness::CallsTheUnknownUndone => down(),
                _ => LockError::ambiguous("no reply; ask again"),
            };
            stream.write_u64(number).await.map_err(|_| unknown())?;
            if self.carelessness == Carelessness::TrustsOneRead {
                let mut chunk = [0; 8];
                return match stream.read(&mut chunk).await {
                    Ok(8) => Ok(()),
                    _ => Err(LockError::internal("a short reply")),
                };
            }
            stream.read_u64().await.map(drop).map_err(|_| unknown())
        };
        let limit = match self.carelessness {
            Carelessness::WaitsForEver => Duration::from_secs(3600),
            _ => Duration::from_secs(4),
        };
        let talked =
            tokio::time::timeout(limit, talk).await.unwrap_or_else(|_| match self.carelessness {
                Carelessness::CallsTheUnknownUndone => Err(down()),
                _ => Err(LockError::ambiguous("no reply in time; ask again")),
            });
        self.failed.fetch_or(talked.is_err(), Ordering::SeqCst);
        talked?;
        let answer = answer.lock().unwrap().take();
        answer.unwrap_or_else(|| Err(LockError::internal("the server answered another question")))
    }
}

impl Backend for Remote {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("remote")
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        let inner = Arc::clone(&self.inner);
        // The inner store does its step when it is called, so it is called when the request has
        // arrived.
        self.send(move || {
            let (inner, request) = (Arc::clone(&inner), request.clone());
            Box::pin(async move { inner.acquire(request).await })
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        let inner = Arc::clone(&self.inner);
        self.send(move || {
            let (inner, key, secret) = (Arc::clone(&inner), key.clone(), secret.clone());
            Box::pin(async move { inner.release(key, secret).await })
        })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        let inner = Arc::clone(&self.inner);
        self.send(move || {
            let (inner, leases) = (Arc::clone(&inner), leases.clone());
            Box::pin(async move { inner.extend(leases).await })
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        let inner = Arc::clone(&self.inner);
        self.send(move || {
            let (inner, key) = (Arc::clone(&inner), key.clone());
            Box::pin(async move { inner.lookup(key).await })
        })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        let inner = Arc::clone(&self.inner);
        self.send(move || {
            let (inner, prefix) = (Arc::clone(&inner), prefix.clone());
            Box::pin(async move { inner.list(prefix, limit).await })
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        let inner = Arc::clone(&self.inner);
        self.send(move || {
            let inner = Arc::clone(&inner);
            Box::pin(async move { inner.probe().await })
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.carelessness).finish()
    }
}
