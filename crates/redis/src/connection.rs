//! One connection to one server that repairs itself: opened when needed, shared by all, replaced
//! when it breaks.
//!
//! It knows the client library's habits: no reconnect after timeouts, no word about what happened
//! to a request whose answer is lost, no limit on an answer. It never repeats a request; what an
//! error means for a step is `error.rs`'s affair. Behaviour in an outage is the kit's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use holdtight_core::{LockError, spawn_lasting};
use holdtight_kit::{Connected, Connection, Reconnecting, lock};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, Pipeline, PushInfo, PushKind, RedisError, Value,
};
use tokio::time::{Instant, timeout};

use crate::config::RedisConfig;
use crate::dial::{Driver, connect};
use crate::error::{Stage, UNKNOWN, Verdict, code, explain, verdict};
use crate::wake::Ears;

/// After so many requests in a row without an answer the connection counts as cut.
const SILENCE: u32 = 2;

/// A connection that keeps so long silent that a caller gives up is compared with a new one: its
/// renewal may have no time for many such callers.
const QUIET: Duration = Duration::from_millis(250);

/// How many requests may wait for the socket before callers wait for each other.
const BUFFER: usize = 4096;

/// Which server a link leads to.
#[derive(Clone)]
pub(crate) enum Target {
    /// Always this one.
    Fixed(ConnectionAddr),
    /// A node of a cluster, of whatever role.
    Node(ConnectionAddr),
    /// The primary of a service, as its sentinels say at the moment of connecting.
    Primary { sentinels: Vec<ConnectionAddr>, service: String },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) | Self::Node(address) => write!(f, "Redis at {address}"),
            Self::Primary { service, .. } => write!(f, "the Redis primary of {service}"),
        }
    }
}

/// Why a request has no answer.
pub(crate) enum Fault {
    /// It never left.
    Unsent(LockError),
    /// It left; this is what the client says.
    Sent(RedisError),
}

impl Fault {
    /// The server does not know a script: nothing was done.
    pub(crate) fn is_noscript(&self) -> bool {
        matches!(self, Self::Sent(error) if code(error) == Some("NOSCRIPT"))
    }

    /// Another node of the cluster has to be asked: this one refused, or is not there.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match self {
            Self::Unsent(_) => true,
            Self::Sent(error) => code(error) == Some("MOVED"),
        }
    }

    pub(crate) fn explain(self) -> LockError {
        match self {
            Self::Unsent(error) => error,
            Self::Sent(error) => explain(&error, Stage::Sent),
        }
    }
}

/// A connection that repairs itself.
pub(crate) struct Link {
    target: Target,
    config: Arc<RedisConfig>,
    ears: Arc<Ears>,
    /// Where this store listens; `None` with pub/sub off.
    channel: Option<String>,
    /// Where it also listens, on a node of a cluster.
    shards: Mutex<BTreeSet<String>>,
    connection: Reconnecting<Open>,
    /// It has been open before.
    opened: AtomicBool,
    /// Somebody is at it to open the connection again for those who listen.
    mending: AtomicBool,
    /// The link that listens for this one, and has to come along to another server.
    listener: Option<Arc<Link>>,
}

/// An open connection.
struct Open {
    connection: MultiplexedConnection,
    driver: Driver,
    health: Arc<Health>,
    address: ConnectionAddr,
    /// Whether the server let us subscribe.
    listening: bool,
    /// The channels of shards that it is subscribed to.
    shards: Mutex<BTreeSet<String>>,
}

impl Connection for Open {
    fn is_open(&self) -> bool {
        !self.health.broken.load(Ordering::Acquire)
    }
}

/// The connection in use.
type Wire = Connected<Open>;

/// What is known of an open connection.
#[derive(Default)]
struct Health {
    broken: AtomicBool,
    /// Those who wait were told that messages may have been lost before it was opened.
    told: AtomicBool,
    /// Requests since the last answer that had none.
    silent: AtomicU32,
    /// Somebody is at it to find out whether it is dead.
    suspected: AtomicBool,
}

/// A request on its way. If it is dropped before its answer came, after a silence, nobody else may
/// ever notice that the connection is dead.
struct Sent<'a> {
    link: &'a Arc<Link>,
    wire: &'a Arc<Wire>,
    at: Instant,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered && self.at.elapsed() >= self.link.quiet() {
            self.link.suspect(self.wire);
        }
    }
}

/// Whoever compares a silent connection with a new one; whatever becomes of its task, another may
/// do it after it.
struct Suspicion(Arc<Wire>);

impl Drop for Suspicion {
    fn drop(&mut self) {
        self.0.health.suspected.store(false, Ordering::Release);
    }
}

impl Link {
    pub(crate) fn new(
        target: Target,
        config: Arc<RedisConfig>,
        ears: Arc<Ears>,
        channel: Option<String>,
    ) -> Self {
        Self {
            connection: Reconnecting::new(target.to_string(), Arc::default()),
            target,
            config,
            ears,
            channel,
            shards: Mutex::default(),
            opened: AtomicBool::new(false),
            mending: AtomicBool::new(false),
            listener: None,
        }
    }

    /// Another link to the same server, that hears nothing itself.
    pub(crate) fn beside(listener: &Arc<Self>) -> Self {
        let (config, ears) = (Arc::clone(&listener.config), Arc::clone(&listener.ears));
        let target = listener.target.clone();
        // One attempt at a time for both.
        let attempts = Arc::clone(listener.connection.attempts());
        Self {
            connection: Reconnecting::new(target.to_string(), attempts),
            listener: Some(Arc::clone(listener)),
            ..Self::new(target, config, ears, None)
        }
    }

    /// The host that it leads to, if that is a node of a cluster.
    pub(crate) fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Node(ConnectionAddr::Tcp(host, _)) => Some(host),
            _ => None,
        }
    }

    /// Sends one command and waits for its answer, at most the configured time.
    pub(crate) async fn send(self: &Arc<Self>, command: &Cmd) -> Result<Value, Fault> {
        let wire = self.wire().await.map_err(Fault::Unsent)?;
        let mut sent = Sent { link: self, wire: &wire, at: Instant::now(), answered: false };
        let answer = wire.connection.clone().send_packed_command(command).await;
        sent.answered = true;
        self.judge(&wire, answer.and_then(Value::extract_error))
    }

    /// Sends several commands at once; an error in one of their answers stands in its place.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Fault> {
        let wire = self.wire().await.map_err(Fault::Unsent)?;
        let mut sent = Sent { link: self, wire: &wire, at: Instant::now(), answered: false };
        let answer =
            wire.connection.clone().send_packed_commands(commands, 0, commands.len()).await;
        sent.answered = true;
        self.judge(&wire, answer)
    }

    /// Whether messages reach this store, once it is connected.
    pub(crate) async fn listens(self: &Arc<Self>) -> Result<bool, LockError> {
        Ok(self.wire().await?.listening)
    }

    /// Listens to a channel of this shard, now and after every reconnect; `false` if this user may
    /// not.
    pub(crate) async fn listen_to_shard(self: &Arc<Self>, channel: &str) -> Result<bool, Fault> {
        let wire = self.wire().await.map_err(Fault::Unsent)?;
        if wire.hears(channel) {
            return Ok(true);
        }
        let answer = wire.connection.clone().send_packed_command(&ssubscribe(channel)).await;
        match self.judge(&wire, answer.and_then(Value::extract_error)) {
            Ok(_) => {
                lock(&wire.shards).insert(channel.to_owned());
                lock(&self.shards).insert(channel.to_owned());
                Ok(true)
            }
            // No right, or a server that has no shards: waiters poll.
            Err(Fault::Sent(error)) if matches!(code(&error), Some("NOPERM" | "ERR" | UNKNOWN)) => {
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Whether messages on the channel of a shard arrive now.
    pub(crate) fn hears_shard(&self, channel: &str) -> bool {
        self.connection.current().is_some_and(|wire| wire.hears(channel))
    }

    fn judge<T>(
        self: &Arc<Self>,
        wire: &Arc<Wire>,
        answer: Result<T, RedisError>,
    ) -> Result<T, Fault> {
        let verdict = match &answer {
            Ok(_) => Verdict::Alive,
            Err(error) => verdict(error),
        };
        let health = &wire.health;
        match verdict {
            Verdict::Alive => {
                health.silent.store(0, Ordering::Relaxed);
                if self.connection.served(wire) {
                    self.tell(health);
                }
            }
            Verdict::Silent if health.silent.fetch_add(1, Ordering::Relaxed) + 1 < SILENCE => {
                self.suspect(wire);
            }
            // The client keeps a cut connection for ever: it must be thrown away from here.
            Verdict::Silent => self.cut(wire),
            Verdict::Broken => self.discard(health),
        }
        answer.map_err(Fault::Sent)
    }

    /// Releases between the last connection and this one were announced to nobody.
    fn tell(&self, health: &Health) {
        if self.is_listener() && !health.told.swap(true, Ordering::Relaxed) {
            self.ears.ring_all();
        }
    }

    fn is_listener(&self) -> bool {
        self.channel.is_some() || !lock(&self.shards).is_empty()
    }

    /// A connection that is out of step: what comes on it next may be anybody's answer.
    pub(crate) fn distrust(self: &Arc<Self>) {
        if let Some(wire) = self.connection.current() {
            self.cut(&wire);
        }
    }

    /// Closes a connection at once: whoever still waits for an answer on it would wait in vain.
    fn cut(self: &Arc<Self>, wire: &Wire) {
        self.discard(&wire.health);
        wire.driver.stop();
    }

    fn discard(self: &Arc<Self>, health: &Health) {
        if !health.broken.swap(true, Ordering::AcqRel) {
            self.connection.drop_closed();
            self.mend();
        }
    }

    /// The steps go to a server of which nobody knows whether it is the same: this link has to
    /// follow.
    fn follow(self: &Arc<Self>) {
        if let Some(wire) = self.connection.forget() {
            wire.health.broken.store(true, Ordering::Release);
            self.mend();
        }
    }

    /// Opens the connection again, if it is closed, without being asked: as long as somebody waits
    /// for messages.
    pub(crate) fn mend(self: &Arc<Self>) {
        if !self.is_listener() || self.ears.is_quiet() || self.connection.current().is_some() {
            return;
        }
        if self.mending.swap(true, Ordering::AcqRel) {
            return;
        }
        let mending = Mending(Arc::downgrade(self));
        spawn_lasting(async move {
            while let Some(link) = mending.0.upgrade().filter(|link| !link.ears.is_quiet()) {
                if let Ok(wire) = link.wire().await {
                    link.tell(&wire.health);
                    break;
                }
            }
            let link = mending.0.upgrade();
            drop(mending);
            // It may have broken again before the flag fell, and whoever saw that relied on this
            // task.
            if let Some(link) = link {
                link.mend();
            }
        });
    }

    /// How long an answer may take before it is missed. Steps that wait for replicas or a disk take
    /// their time.
    fn quiet(&self) -> Duration {
        if self.config.waits() { QUIET + self.config.timeout * 2 / 5 } else { QUIET }
    }

    /// Finds out what keeps a connection silent, and leaves it if that is not the server: the
    /// sentinels name another primary, or a new connection to the same server works at once. One
    /// that stands still answers on neither.
    fn suspect(self: &Arc<Self>, wire: &Arc<Wire>) {
        wire.health.silent.fetch_max(1, Ordering::Relaxed);
        if wire.health.suspected.swap(true, Ordering::AcqRel) {
            return;
        }
        let (link, suspicion) = (Arc::clone(self), Suspicion(Arc::clone(wire)));
        spawn_lasting(async move {
            let wire = &suspicion.0;
            if let Target::Primary { sentinels, service } = &link.target {
                let named = crate::sentinel::named(sentinels, service, &link.config).await;
                if named.is_ok_and(|named| named.first().is_some_and(|now| *now != wire.address)) {
                    tracing::info!(
                        "the sentinels name another primary than the one that is silent"
                    );
                    return link.cut(wire);
                }
            }
            let _one = link.connection.attempts().exclusive().await;
            if !link.is_silent(wire) {
                return;
            }
            // Once it is left otherwise, or has answered, nobody else need wait for this.
            let settled = async {
                while link.is_silent(wire) {
                    tokio::time::sleep(QUIET / 10).await;
                }
            };
            let new = tokio::select! {
                new = link.dial(&wire.address) => new,
                () = settled => return,
            };
            if let Ok(new) = new
                && link.is_silent(wire)
            {
                tracing::info!("a connection to Redis is dead, though nobody closed it");
                link.cut(wire);
                let new = link.connection.replace(new);
                link.opened();
                link.tell(&new.health);
            }
        });
    }

    /// Whether this connection is the one in use, and was not heard of since it was suspected.
    fn is_silent(&self, wire: &Arc<Wire>) -> bool {
        wire.health.silent.load(Ordering::Relaxed) > 0
            && self.connection.current().is_some_and(|now| Arc::ptr_eq(&now, wire))
    }

    /// A new connection was opened: the listener has to follow, unless it was the first.
    fn opened(&self) {
        if self.opened.swap(true, Ordering::AcqRel)
            && let Some(listener) = &self.listener
        {
            listener.follow();
        }
    }

    /// The connection, opened first if need be.
    async fn wire(self: &Arc<Self>) -> Result<Arc<Wire>, LockError> {
        let open = || {
            let link = Arc::clone(self);
            async move {
                let open = link.open().await?;
                link.opened();
                Ok(open)
            }
        };
        self.connection.get(open).await
    }

    async fn open(self: &Arc<Self>) -> Result<Open, LockError> {
        let (sentinels, service) = match &self.target {
            Target::Fixed(address) | Target::Node(address) => return self.dial(address).await,
            Target::Primary { sentinels, service } => (sentinels, service),
        };
        // A sentinel may be behind the others: what it names must answer, and as a primary.
        let mut last = None;
        for address in crate::sentinel::named(sentinels, service, &self.config).await? {
            match self.dial(&address).await {
                Ok(wire) => return Ok(wire),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| LockError::unavailable("no sentinel names a primary")))
    }

    async fn dial(self: &Arc<Self>, address: &ConnectionAddr) -> Result<Open, LockError> {
        let health = Arc::<Health>::default();
        let (link, known) = (Arc::downgrade(self), Arc::downgrade(&health));
        let hear = move |push: PushInfo| {
            let link = link.upgrade().ok_or(())?;
            match known.upgrade() {
                Some(health) if push.kind == PushKind::Disconnection => link.discard(&health),
                _ => link.ears.hear(&push),
            }
            Ok::<(), ()>(())
        };
        let settings = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.config.timeout))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(hear);
        let opening = async {
            let config = &self.config;
            let (mut connection, driver) =
                connect(address, &config.credentials, config.database, config, settings).await?;
            match self.target {
                Target::Primary { .. } => crate::sentinel::check_role(&mut connection).await?,
                // The first time whoever connects looks at more than the role, and says so.
                Target::Fixed(_) if self.opened.load(Ordering::Acquire) => {
                    refuse_replica(&mut connection).await?;
                }
                Target::Fixed(_) | Target::Node(_) => {}
            }
            let mut listening = false;
            if let Some(channel) = &self.channel {
                match connection.subscribe(channel).await {
                    Ok(()) => listening = true,
                    Err(error) if matches!(code(&error), Some("NOPERM" | UNKNOWN)) => {
                        tracing::warn!("this Redis user may not subscribe; waiters will poll");
                    }
                    Err(error) => return Err(error),
                }
            }
            // A shard that has moved away since is not ours to listen to any more. All at once,
            // because there may be thousands, and a round trip for each would take too long.
            let mut shards = lock(&self.shards).clone();
            let asked = shards.clone().into_iter().map(|channel| {
                let mut connection = connection.clone();
                async move {
                    let answer = connection.send_packed_command(&ssubscribe(&channel)).await?;
                    Ok::<_, RedisError>((channel, answer.extract_error().is_ok()))
                }
            });
            for subscribed in futures_util::future::try_join_all(asked).await? {
                if let (channel, false) = subscribed {
                    shards.remove(&channel);
                    lock(&self.shards).remove(&channel);
                }
            }
            Ok::<_, RedisError>((connection, driver, listening, shards))
        };
        let opened = timeout(self.config.connect_timeout, opening).await;
        let (connection, driver, listening, shards) = match opened {
            Ok(opened) => opened.map_err(|error| explain(&error, Stage::Connecting))?,
            Err(_) => {
                return Err(LockError::unavailable(
                    "Redis did not answer in time while connecting; it may be frozen or cut off, or speak TLS where \
                     the store URL does not say so, or the other way round",
                ));
            }
        };
        let (address, shards) = (address.clone(), Mutex::new(shards));
        Ok(Open { connection, driver, health, address, listening, shards })
    }
}

/// The one who opens a connection again; whatever becomes of its task, another may do it after it.
struct Mending(Weak<Link>);

impl Drop for Mending {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.mending.store(false, Ordering::Release);
        }
    }
}

impl Open {
    fn hears(&self, channel: &str) -> bool {
        lock(&self.shards).contains(channel)
    }
}

/// Refuses a server that says it is a replica; one that does not say what it is will show it.
async fn refuse_replica(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let asked = redis::cmd("INFO").arg("replication").query_async::<String>(connection).await;
    match asked {
        Ok(facts) if facts.lines().any(|line| line.trim_end() == "role:slave") => {
            Err(redis::make_extension_error("READONLY".to_owned(), None))
        }
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(()),
    }
}

fn ssubscribe(channel: &str) -> Cmd {
    let mut command = redis::cmd("SSUBSCRIBE");
    command.arg(channel);
    command
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("connected", &self.connection.current().is_some())
            .finish_non_exhaustive()
    }
}
