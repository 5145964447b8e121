//! One connection to one server that repairs itself: opened when needed, shared by all, replaced when it breaks.
//!
//! It knows the client library's habits: no reconnect after timeouts, no word about what happened to a request whose
//! answer is lost, no limit on an answer. It never repeats a request; what an error means for a step
//! is `error.rs`'s affair.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdtight_core::LockError;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, Pipeline, PushInfo, PushKind, RedisError, Value,
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::bounded::Bounded;
use crate::config::{Credentials, RedisConfig};
use crate::error::{Stage, Verdict, code, explain, verdict};
use crate::wake::Ears;

/// After so many requests in a row without an answer the connection counts as cut.
const SILENCE: u32 = 2;

/// The longest pause before the next try to connect; the first is a fortieth of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How many requests may wait for the socket before callers wait for each other.
const BUFFER: usize = 4096;

/// Which server a link leads to.
#[derive(Clone)]
pub(crate) enum Target {
    /// Always this one.
    Fixed(ConnectionAddr),
    /// The primary of a service, as its sentinels say at the moment of connecting.
    Primary { sentinels: Vec<ConnectionAddr>, service: String },
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
    shards: Arc<Mutex<BTreeSet<String>>>,
    current: Mutex<Option<Arc<Wire>>>,
    /// Held while a connection is being opened: one at a time, whoever else comes shares the result.
    gate: tokio::sync::Mutex<Trouble>,
    tries: AtomicU32,
}

/// What failed the last time.
#[derive(Default)]
struct Trouble {
    in_a_row: u32,
    last: Option<(Instant, LockError)>,
}

/// An open connection.
struct Wire {
    connection: MultiplexedConnection,
    _driver: Driver,
    broken: Arc<AtomicBool>,
    silent: AtomicU32,
    /// Whether the server let us subscribe.
    listening: bool,
}

impl Link {
    pub(crate) fn new(
        target: Target,
        config: Arc<RedisConfig>,
        ears: Arc<Ears>,
        channel: Option<String>,
    ) -> Self {
        Self {
            target,
            config,
            ears,
            channel,
            shards: Arc::default(),
            current: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
            tries: AtomicU32::new(0),
        }
    }

    /// Sends one command and waits for its answer, at most the configured time.
    pub(crate) async fn send(self: &Arc<Self>, command: &Cmd) -> Result<Value, Fault> {
        let wire = self.wire().await.map_err(Fault::Unsent)?;
        let answer = wire.connection.clone().send_packed_command(command).await;
        self.judge(&wire, answer.and_then(Value::extract_error))
    }

    /// Sends several commands at once; an error in one of their answers stands in its place.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Fault> {
        let wire = self.wire().await.map_err(Fault::Unsent)?;
        let answer =
            wire.connection.clone().send_packed_commands(commands, 0, commands.len()).await;
        self.judge(&wire, answer)
    }

    /// Whether messages reach this store, once it is connected.
    pub(crate) async fn listens(self: &Arc<Self>) -> Result<bool, LockError> {
        Ok(self.wire().await?.listening)
    }

    /// Listens to a channel of this shard, now and after every reconnect; `false` if this user may not.
    pub(crate) async fn listen_to_shard(
        self: &Arc<Self>,
        channel: &str,
    ) -> Result<bool, LockError> {
        let wire = self.wire().await?;
        if self.shards().contains(channel) {
            return Ok(true);
        }
        let answer = wire.connection.clone().send_packed_command(&ssubscribe(channel)).await;
        match self.judge(&wire, answer.and_then(Value::extract_error)) {
            Ok(_) => {
                self.shards().insert(channel.to_owned());
                Ok(true)
            }
            // No right, or a server that has no shards: waiters poll.
            Err(Fault::Sent(error)) if matches!(code(&error), Some("NOPERM" | "ERR")) => Ok(false),
            Err(fault) => Err(fault.explain()),
        }
    }

    fn shards(&self) -> MutexGuard<'_, BTreeSet<String>> {
        lock_shards(&self.shards)
    }

    fn judge<T>(&self, wire: &Arc<Wire>, answer: Result<T, RedisError>) -> Result<T, Fault> {
        let verdict = match &answer {
            Ok(_) => Verdict::Alive,
            Err(error) => verdict(error),
        };
        match verdict {
            Verdict::Alive => wire.silent.store(0, Ordering::Relaxed),
            Verdict::Silent if wire.silent.fetch_add(1, Ordering::Relaxed) + 1 < SILENCE => {}
            // The client keeps a cut connection for ever: it must be thrown away from here.
            Verdict::Silent | Verdict::Broken => self.discard(wire),
        }
        answer.map_err(Fault::Sent)
    }

    fn discard(&self, wire: &Arc<Wire>) {
        if wire.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, wire)) {
            *current = None;
        }
        drop(current);
        self.ears.ring_all();
    }

    fn open_wire(&self) -> Option<Arc<Wire>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|wire| !wire.broken.load(Ordering::Acquire)).map(Arc::clone)
    }

    /// The connection, opened first if need be.
    async fn wire(self: &Arc<Self>) -> Result<Arc<Wire>, LockError> {
        if let Some(wire) = self.open_wire() {
            return Ok(wire);
        }
        // In a task of its own: a caller whose future is not polled must not keep the gate from all others.
        let link = Arc::clone(self);
        tokio::spawn(async move { link.reopen().await }).await.unwrap_or_else(|error| {
            Err(LockError::unavailable("the connection to Redis could not be opened")
                .with_source(error))
        })
    }

    async fn reopen(&self) -> Result<Arc<Wire>, LockError> {
        let before = self.tries.load(Ordering::Acquire);
        let mut trouble = self.gate.lock().await;
        if let Some(wire) = self.open_wire() {
            return Ok(wire);
        }
        // Whoever waited while another one tried shares its failure instead of trying once more.
        if self.tries.load(Ordering::Acquire) != before
            && let Some((_, error)) = &trouble.last
        {
            return Err(error.duplicate());
        }
        if let Some((at, _)) = trouble.last {
            sleep_until(at + pause(trouble.in_a_row)).await;
        }
        let opened = self.open().await;
        self.tries.fetch_add(1, Ordering::AcqRel);
        match opened {
            Ok(wire) => {
                let wire = Arc::new(wire);
                *trouble = Trouble::default();
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&wire));
                // Releases between the old connection and this one were announced to nobody.
                self.ears.ring_all();
                Ok(wire)
            }
            Err(error) => {
                trouble.in_a_row = trouble.in_a_row.saturating_add(1);
                trouble.last = Some((Instant::now(), error.duplicate()));
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Wire, LockError> {
        let address = match &self.target {
            Target::Fixed(address) => address.clone(),
            Target::Primary { sentinels, service } => {
                crate::sentinel::primary(sentinels, service, &self.config).await?
            }
        };
        let broken = Arc::new(AtomicBool::new(false));
        let (ears, dead) = (Arc::downgrade(&self.ears), Arc::downgrade(&broken));
        let shards = Arc::downgrade(&self.shards);
        let hear = move |push: PushInfo| {
            // The shard has moved away: if it comes back, it must be subscribed to again.
            if push.kind == PushKind::SUnsubscribe
                && let (Some(shards), Some(Value::BulkString(channel))) =
                    (shards.upgrade(), push.data.first())
            {
                lock_shards(&shards).remove(&*String::from_utf8_lossy(channel));
            }
            if push.kind == PushKind::Disconnection
                && let Some(dead) = dead.upgrade()
            {
                dead.store(true, Ordering::Release);
            }
            ears.upgrade().map(|ears| ears.hear(&push)).ok_or(())
        };
        let settings = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.config.timeout))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(hear);
        let opening = async {
            let config = &self.config;
            let (mut connection, driver) =
                connect(&address, &config.credentials, config.database, config, settings).await?;
            if let Target::Primary { .. } = self.target {
                crate::sentinel::check_role(&mut connection).await?;
            }
            let mut listening = false;
            if let Some(channel) = &self.channel {
                match connection.subscribe(channel).await {
                    Ok(()) => listening = true,
                    Err(error) if code(&error) == Some("NOPERM") => {
                        tracing::warn!("this Redis user may not subscribe; waiters will poll");
                    }
                    Err(error) => return Err(error),
                }
            }
            // A shard that has moved away since is not ours to listen to any more.
            // All at once, because there may be thousands, and a round trip for each would take too long.
            let shards: Vec<String> = self.shards().iter().cloned().collect();
            let asked = shards.into_iter().map(|channel| {
                let mut connection = connection.clone();
                async move {
                    let answer = connection.send_packed_command(&ssubscribe(&channel)).await?;
                    Ok::<_, RedisError>((channel, answer.extract_error().is_ok()))
                }
            });
            for subscribed in futures_util::future::try_join_all(asked).await? {
                if let (channel, false) = subscribed {
                    self.shards().remove(&channel);
                }
            }
            Ok::<_, RedisError>((connection, driver, listening))
        };
        let (connection, driver, listening) = match timeout(self.config.connect_timeout, opening)
            .await
        {
            Ok(opened) => opened.map_err(|error| explain(&error, Stage::Connecting))?,
            Err(_) => {
                return Err(LockError::unavailable(
                    "Redis did not answer in time while connecting; it may be frozen or cut off",
                ));
            }
        };
        Ok(Wire { connection, _driver: driver, broken, silent: AtomicU32::new(0), listening })
    }
}

fn lock_shards(shards: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    shards.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ssubscribe(channel: &str) -> Cmd {
    let mut command = redis::cmd("SSUBSCRIBE");
    command.arg(channel);
    command
}

/// Full jitter, doubling: a thousand clients of a server that comes back do not come at once.
fn pause(failures: u32) -> Duration {
    let longest = (LONGEST_PAUSE / 40).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(fastrand::f64())
}

/// A connection of the library, over a stream of ours that bounds what it reads.
///
/// It lives until the second half is dropped: the library alone would keep it while answers are due.
pub(crate) async fn connect(
    address: &ConnectionAddr,
    credentials: &Credentials,
    database: i64,
    config: &RedisConfig,
    settings: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Driver), RedisError> {
    let mut login = redis::RedisConnectionInfo::default()
        .set_protocol(redis::ProtocolVersion::RESP3)
        .set_db(database)
        .set_skip_set_lib_name();
    if let Some(user) = &credentials.user {
        login = login.set_username(user);
    }
    if let Some(password) = &credentials.password {
        login = login.set_password(password);
    }
    let stream = Bounded::new(crate::stream::open(address, config).await?);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&login, stream, settings).await?;
    Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
}

/// The task that reads and writes; it ends with this.
pub(crate) struct Driver(tokio::task::AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("connected", &self.open_wire().is_some())
            .finish_non_exhaustive()
    }
}
