//! A member that passes everything on to a real one, and lies where it is told to: what a healthy
//! server cannot be made to say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(crate) const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub(crate) const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";

type Body = BoxBody<Bytes, hyper::Error>;

/// From the messages of a request, and of the true answer if there is one, to the answer.
type Tell = dyn Fn(&[Bytes], &[Bytes]) -> Vec<Vec<u8>> + Send + Sync;

#[derive(Clone)]
struct Lie {
    /// Whether the real member hears of the request.
    passes_on: bool,
    tell: Arc<Tell>,
}

#[derive(Clone, Default)]
struct Lies(Arc<Mutex<HashMap<String, Lie>>>);

/// A member that lies.
pub(crate) struct Liar {
    address: SocketAddr,
    lies: Lies,
    serving: JoinHandle<()>,
}

impl Liar {
    /// Stands before the member at `port`.
    pub(crate) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, lies) = (listener.local_addr().unwrap(), Lies::default());
        let serving = tokio::spawn(serve(listener, port, lies.clone()));
        Self { address, lies, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://{}?timeout=3s&connect_timeout=3s", self.address)
    }

    /// Answers `path` in the real member's place, which never hears of it.
    pub(crate) fn invent(
        &self,
        path: &str,
        tell: impl Fn(&[Bytes]) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.lie(path, Lie { passes_on: false, tell: Arc::new(move |asked, _| tell(asked)) });
    }

    /// Changes what the real member answers to `path`.
    pub(crate) fn distort(
        &self,
        path: &str,
        tell: impl Fn(&[Bytes]) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.lie(path, Lie { passes_on: true, tell: Arc::new(move |_, answer| tell(answer)) });
    }

    fn lie(&self, path: &str, lie: Lie) {
        self.lies.0.lock().unwrap().insert(path.to_owned(), lie);
    }

    /// Tells the truth again.
    pub(crate) fn repent(&self) {
        self.lies.0.lock().unwrap().clear();
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, port: u16, lies: Lies) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let lies = lies.clone();
        connections.spawn(async move {
            let to = TokioIo::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
            let (truth, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), to).await.unwrap();
            let answer = service_fn(|request| answer(request, truth.clone(), lies.clone()));
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), answer);
            // Either side may go: then the other does too.
            tokio::select! {
                _ = connection => {}
                _ = serving => {}
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    mut truth: SendRequest<Body>,
    lies: Lies,
) -> Result<Response<Body>, hyper::Error> {
    let lie = lies.0.lock().unwrap().get(request.uri().path()).cloned();
    let Some(lie) = lie else {
        let answer = truth.send_request(request.map(BodyExt::boxed)).await?;
        return Ok(answer.map(BodyExt::boxed));
    };
    let (head, body) = request.into_parts();
    let asked = body.collect().await?.to_bytes();
    let mut answered = Bytes::new();
    if lie.passes_on {
        let same = Full::new(asked.clone()).map_err(|never| match never {}).boxed();
        let answer = truth.send_request(Request::from_parts(head, same)).await?;
        answered = answer.into_body().collect().await?.to_bytes();
    }
    let told: Vec<u8> = (lie.tell)(&messages(asked), &messages(answered))
        .into_iter()
        .flat_map(|message| {
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            [&[0], &length[..], &message].concat()
        })
        .collect();
    let fine = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(0))]);
    let body = Full::new(Bytes::from(told)).map_err(|never| match never {});
    let body = body.with_trailers(async move { Some(Ok(fine)) }).boxed();
    let answer = Response::builder().header("content-type", "application/grpc").body(body);
    Ok(answer.unwrap())
}

/// Takes gRPC's frames apart.
fn messages(mut frames: Bytes) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while frames.len() >= 5 {
        let head = frames.split_to(5);
        let length = u32::from_be_bytes(head[1..].try_into().unwrap());
        messages.push(frames.split_to(usize::try_from(length).unwrap()));
    }
    messages
}
