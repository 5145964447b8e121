//! The way to the cluster: one connection to one member at a time, another when that fails.
//!
//! A request that is known not to have been done goes to the next member at once; one whose outcome
//! is unknown is the caller's to settle. Every answer is checked to come from the one cluster, and
//! never from its past.
//!
//! A stopped process still takes connections, so one counts as open when the member has answered on
//! it. Behaviour in an outage is the kit's.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use holdtight_core::{ErrorKind, LockError};
use holdtight_kit::{Connected, Connection, Reconnecting};
use tokio::task::JoinHandle;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::config::EtcdConfig;
use crate::error::{Effect, Fault};
use crate::proto;
use crate::proto::maintenance_client::MaintenanceClient;

/// Connections to the members, one of which is in use.
pub(crate) struct Link {
    config: Arc<EtcdConfig>,
    members: Vec<Endpoint>,
    connection: Reconnecting<Open>,
    /// The member to try first.
    next: AtomicUsize,
    /// The cluster that answered first; 0 before.
    cluster: AtomicU64,
    /// The highest revision that any linearizable answer carried.
    revision: AtomicI64,
    pub(crate) ending: Mutex<Option<Ending>>,
}

/// The end of a lease that was asked for last.
pub(crate) struct Ending {
    pub(crate) began: Instant,
    /// `None` if somebody has waited for it.
    pub(crate) task: Option<JoinHandle<()>>,
}

/// An open connection to one member.
pub(crate) struct Open {
    pub(crate) channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    member: usize,
}

impl Connection for Open {}

/// The connection in use.
pub(crate) type Wire = Connected<Open>;

/// What is wrong with a URL that names members of two clusters, and what to do.
pub(crate) const TWO_CLUSTERS: &str = "the members of the store URL belong to different etcd clusters, each of which would \
     grant every lock; name the members of one cluster";

/// How long a connection may keep silent before a caller that gives up takes it out of use.
const SILENCE: Duration = Duration::from_millis(250);

/// How long a member may take to answer before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// A request on its way.
struct Sent<'a> {
    link: &'a Link,
    wire: &'a Arc<Wire>,
    at: Instant,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered && self.at.elapsed() >= SILENCE {
            self.link.abandon(self.wire);
        }
    }
}

/// An answer that says where it comes from.
pub(crate) trait Headed {
    fn header(&self) -> Option<&proto::ResponseHeader>;
    /// Whether its revision is that of a linearizable read or of a write, and so never goes back.
    const ORDERED: bool;
}

macro_rules! headed {
    ($($answer:ident $ordered:literal,)*) => {$(
        impl Headed for proto::$answer {
            fn header(&self) -> Option<&proto::ResponseHeader> {
                self.header.as_ref()
            }
            const ORDERED: bool = $ordered;
        }
    )*};
}

headed! {
    RangeResponse true,
    TxnResponse true,
    LeaseGrantResponse false,
    LeaseRevokeResponse false,
    LeaseTimeToLiveResponse false,
    MemberListResponse false,
}

impl Open {
    /// `message` with what every request carries: the token, and the demand that the member has a
    /// leader.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

impl Link {
    pub(crate) fn new(config: Arc<EtcdConfig>) -> Result<Self, LockError> {
        let members = crate::endpoint::endpoints(&config)?;
        let origin: Vec<_> = members.iter().map(|member| member.uri().to_string()).collect();
        let origin = format!("etcd at {}", origin.join(","));
        // Clients that start together spread over the members.
        let next = AtomicUsize::new(fastrand::usize(..members.len()));
        Ok(Self {
            config,
            members,
            connection: Reconnecting::new(origin, Arc::default()),
            next,
            cluster: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            ending: Mutex::default(),
        })
    }

    /// Sends a request and reads its answer, in bounded time.
    ///
    /// `send` may be called several times, but never again after a request that may have been done.
    pub(crate) async fn ask<T: Headed, F>(
        self: &Arc<Self>,
        effect: Effect,
        send: impl Fn(Arc<Wire>) -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut left = self.members.len();
        loop {
            let wire = self.wire().await?;
            let before = self.revision.load(Ordering::Acquire);
            // Pinned here: a call is large, and would be copied on its way down.
            let call = pin!(send(Arc::clone(&wire)));
            let status = match self.timely_on(&wire, call).await {
                Ok(answer) => return self.admit(answer.into_inner(), before, &wire),
                Err(status) => status,
            };
            let fault = Fault::read(&status);
            self.blame(&wire, fault);
            if left == 0 || !fault.may_be_repeated(effect) {
                return Err(fault.explain(effect, &status));
            }
            left -= 1;
        }
    }

    /// The same for a call on the connection in use, which is left for the next member if the
    /// caller gives up on it after a silence: it may be dead without anybody having said so, and a
    /// renewal has no time for many such calls.
    pub(crate) async fn timely_on<T>(
        &self,
        wire: &Arc<Wire>,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let mut sent = Sent { link: self, wire, at: Instant::now(), answered: false };
        let answer = self.timely(call).await;
        sent.answered = true;
        answer
    }

    /// The answer of `call`, or a status that says that it took too long.
    pub(crate) async fn timely<T>(
        &self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let late = || Status::new(Code::DeadlineExceeded, "");
        tokio::time::timeout(self.config.timeout, pin!(call)).await.unwrap_or_else(|_| Err(late()))
    }

    /// Whether this is the cluster that answered first.
    fn is_of_cluster(&self, id: u64) -> bool {
        let first = self.cluster.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire);
        first.err().is_none_or(|first| first == id)
    }

    /// Asks every member which cluster it belongs to, if there are several; those that do not
    /// answer say nothing.
    ///
    /// Each process starts at another member. If they belonged to two clusters, each cluster would
    /// grant every lock.
    pub(crate) async fn compare_clusters(self: &Arc<Self>) -> Result<(), LockError> {
        if self.members.len() < 2 {
            return Ok(());
        }
        let asked = (0..self.members.len()).map(async |member| {
            let wire = self.open(member).await.ok()?;
            let mut client = MaintenanceClient::new(wire.channel.clone());
            let status = self.timely(client.status(wire.request(proto::StatusRequest {}))).await;
            status.ok()?.into_inner().header.map(|header| header.cluster_id)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        while let Some(id) = asked.next().await {
            if id.is_some_and(|id| !self.is_of_cluster(id)) {
                return Err(LockError::invalid_config(TWO_CLUSTERS));
            }
        }
        Ok(())
    }

    /// Takes an answer, unless it comes from another cluster or from the past of this one.
    fn admit<T: Headed>(&self, answer: T, before: i64, wire: &Arc<Wire>) -> Result<T, LockError> {
        let Some(header) = answer.header() else {
            self.abandon(wire);
            return Err(LockError::internal("etcd sent an answer without a header"));
        };
        if !self.is_of_cluster(header.cluster_id) {
            self.abandon(wire);
            return Err(LockError::internal(
                "the members of the store URL belong to different etcd clusters, or the cluster was rebuilt; \
                 name the members of one, raise `epoch` if it was rebuilt, and start again",
            ));
        }
        if T::ORDERED {
            if header.revision < before {
                self.abandon(wire);
                return Err(LockError::internal(format!(
                    "etcd's revision went back from {before} to {}: an old snapshot was restored; fences would \
                     repeat, so raise `epoch` in every client's store URL and start again",
                    header.revision
                )));
            }
            self.revision.fetch_max(header.revision, Ordering::AcqRel);
        }
        self.prove(wire);
        Ok(answer)
    }

    /// A request was served: the trouble is over.
    pub(crate) fn prove(&self, wire: &Wire) {
        self.connection.served(wire);
    }

    /// The open connection, or a new one.
    pub(crate) async fn wire(self: &Arc<Self>) -> Result<Arc<Wire>, LockError> {
        let open = || {
            let link = Arc::clone(self);
            async move { link.open_any().await }
        };
        self.connection.get(open).await
    }

    /// Connects to the first member that answers, beginning with the one that is next. Each has a
    /// head start, so that clients stay spread over the members while all of them are well.
    async fn open_any(&self) -> Result<Open, LockError> {
        let (first, members) = (self.next.load(Ordering::Relaxed), self.members.len());
        let mut ahead = (0..members).map(|step| (first + step) % members);
        let mut trying = FuturesUnordered::new();
        let mut failure = LockError::unavailable("no member of etcd is named");
        loop {
            trying.extend(ahead.next().map(|member| self.open(member)));
            let ended = match ahead.len() {
                0 => Ok(trying.next().await),
                _ => tokio::time::timeout(HEAD_START, trying.next()).await,
            };
            match ended {
                Err(_) => {}
                Ok(Some(Ok(wire))) => {
                    self.next.store(wire.member, Ordering::Relaxed);
                    return Ok(wire);
                }
                // Every member has the same users.
                Ok(Some(Err(error))) if error.kind() == ErrorKind::AuthFailed => return Err(error),
                Ok(Some(Err(error))) => failure = error,
                Ok(None) => return Err(failure),
            }
        }
    }

    /// Connects to one member that answers, and says who we are if the settings do.
    pub(crate) async fn open(&self, member: usize) -> Result<Open, LockError> {
        let endpoint = &self.members[member];
        let unreachable = |source: String| {
            LockError::unavailable(format!(
                "cannot connect to etcd at {}; check that it runs and that the store URL names it",
                endpoint.uri()
            ))
            .with_source(source)
        };
        let connecting = async {
            let channel = endpoint.connect().await.map_err(|error| unreachable(chain(&error)))?;
            let wire = Open { channel, token: None, member };
            let mut client = MaintenanceClient::new(wire.channel.clone());
            match client.status(wire.request(proto::StatusRequest {})).await {
                Ok(_) => Ok(wire),
                Err(status) => match Fault::read(&status) {
                    // Whatever it thinks of the question, it is there.
                    Fault::Final(..) | Fault::StaleToken => Ok(wire),
                    fault @ Fault::Refused => Err(fault.explain(Effect::Reads, &status)),
                    _ => Err(unreachable(chain(&status))),
                },
            }
        };
        let connecting = tokio::time::timeout(self.config.connect_timeout, connecting);
        let mut wire = connecting
            .await
            .unwrap_or_else(|_| Err(unreachable("no answer in time".to_owned())))?;
        if let (Some(user), Some(password)) = (&self.config.user, &self.config.password) {
            wire.token = self.authenticate(&wire, user, password).await?;
        }
        Ok(wire)
    }

    async fn authenticate(
        &self,
        wire: &Open,
        user: &str,
        password: &str,
    ) -> Result<Option<MetadataValue<Ascii>>, LockError> {
        let mut client = proto::auth_client::AuthClient::new(wire.channel.clone());
        let question =
            proto::AuthenticateRequest { name: user.to_owned(), password: password.to_owned() };
        match self.timely(client.authenticate(wire.request(question))).await {
            Ok(answer) => {
                let token = answer.into_inner().token.parse();
                token.map(Some).map_err(|_| {
                    LockError::internal("etcd gave a token that cannot stand in a header")
                })
            }
            Err(status) if status.message().contains("authentication is not enabled") => {
                tracing::warn!("the store URL names a user, but etcd has authentication off");
                Ok(None)
            }
            Err(status) => Err(Fault::read(&status).explain(Effect::Reads, &status)),
        }
    }

    /// Draws the conclusion from a failed request: the next one goes elsewhere, or authenticates
    /// anew.
    pub(crate) fn blame(&self, wire: &Arc<Wire>, fault: Fault) {
        if fault == Fault::StaleToken {
            self.drop_wire(wire, wire.member);
        } else if fault.is_the_members() {
            self.abandon(wire);
        }
    }

    /// Leaves this member for the next.
    fn abandon(&self, wire: &Arc<Wire>) {
        self.drop_wire(wire, wire.member + 1);
    }

    /// Requests that are under way on it go on.
    fn drop_wire(&self, wire: &Arc<Wire>, next: usize) {
        if self.connection.give_up(wire) {
            self.next.store(next % self.members.len(), Ordering::Relaxed);
        }
    }

    /// Whether no member answered the last time that all were tried.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.connection.attempts().last_error().is_some()
    }

    pub(crate) fn members(&self) -> &[Endpoint] {
        &self.members
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let member =
            self.connection.current().map(|wire| self.members[wire.member].uri().to_string());
        f.debug_struct("Link")
            .field("connected_to", &member)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// What failed, down to the reason.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.chars().take(300).collect()
}
