//! The store itself: opens connections, runs scripts, and answers the contract of [`Backend`].
//!
//! Each method of the contract is one script. What is sent and how the answer is read stands in
//! `steps.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Fence, Guarantees,
    Holder, Key, KeyForm, Level, LockError, ManyAttempt, Owner, OwnerText, Release, Reply, Secret,
    Subscription, Transfer, TransferRequest, WakeUps,
};
use holdtight_kit::Batcher;
use redis::{Cmd, Value};

use crate::cluster::Cluster;
use crate::config::{Layout, RedisConfig, Topology};
use crate::connection::{Fault, Link, Target};
use crate::fabric::Fabric;
use crate::names::{Names, Place};
use crate::reply::{Answer, Id, millis};
use crate::scripts::{Announce, EachScripts, Script, ScriptSet};
use crate::wake::Ears;

/// How many leases one script extends: long enough to save requests, short enough not to hold up
/// the server.
pub(crate) const MAX_BATCH: usize = 128;

/// The longest `WAIT`: the engine has no more patience than 5 s for a step.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

/// Locks in Redis or Valkey.
///
/// One connection (one per node of a cluster) serves all requests and wake-ups; it is opened again
/// when it breaks.
///
/// ```no_run
/// # async fn example() -> Result<(), holdtight_core::LockError> {
/// use holdtight_redis::RedisStore;
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// # Ok(()) }
/// ```
pub struct RedisStore {
    pub(crate) config: Arc<RedisConfig>,
    pub(crate) fabric: Fabric,
    pub(crate) ears: Arc<Ears>,
    pub(crate) names: Names,
    pub(crate) scripts: &'static ScriptSet,
    /// Where callers may share a script.
    pub(crate) batches: Option<Batches>,
    requests: AtomicU64,
    owner: OwnerText,
    wake_ups: WakeUps,
}

/// What gathers on its way to one store.
pub(crate) struct Batches {
    pub(crate) scripts: &'static EachScripts,
    pub(crate) acquires: Arc<Batcher<Acquires>>,
    pub(crate) releases: Arc<Batcher<Releases>>,
}

/// Asking for a lock.
pub(crate) struct Acquires;

/// What a caller wants.
pub(crate) struct Wanted {
    pub(crate) store: Arc<RedisStore>,
    pub(crate) scripts: &'static EachScripts,
    pub(crate) place: Place,
    pub(crate) request: AcquireRequest,
}

/// Giving a lock back.
pub(crate) struct Releases;

/// What a caller gives back.
pub(crate) struct Given {
    pub(crate) store: Arc<RedisStore>,
    pub(crate) scripts: &'static EachScripts,
    pub(crate) place: Place,
    pub(crate) secret: Secret,
}

impl RedisStore {
    /// Connects to the store that `url` names, and checks that it can keep locks.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a wrong URL, or a server
    /// that may throw locks away; [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if it
    /// cannot be reached or is a replica; [`AuthFailed`](holdtight_core::ErrorKind::AuthFailed) if
    /// a right is missing.
    ///
    /// # Cancel safety
    /// Cancel-safe: at most a lock of 5 s on a name of its own stays behind.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::open(RedisConfig::from_url(url)?).await
    }

    /// Connects with settings made by hand.
    ///
    /// # Errors
    /// As [`RedisStore::connect`].
    ///
    /// # Cancel safety
    /// As [`RedisStore::connect`].
    pub async fn open(config: RedisConfig) -> Result<Self, LockError> {
        let config = Arc::new(config);
        let ears = Ears::new()?;
        let cluster = matches!(config.topology, Topology::Cluster(_));
        let names = Names::new(config.effective_prefix(), config.layout, cluster);
        let single = |target: Target| {
            let channel = config.pubsub.then(|| names.channel(ears.client()));
            let link = Link::new(target, Arc::clone(&config), Arc::clone(&ears), channel);
            let link = Arc::new(link);
            let steps =
                if config.waits() { Arc::new(Link::beside(&link)) } else { Arc::clone(&link) };
            Fabric::Single { link, steps }
        };
        let fabric = match &config.topology {
            Topology::Server(address) => single(Target::Fixed(address.clone())),
            Topology::Sentinel { sentinels, service } => {
                single(Target::Primary { sentinels: sentinels.clone(), service: service.clone() })
            }
            Topology::Cluster(nodes) => {
                let cluster = Cluster::new(nodes.clone(), Arc::clone(&config), Arc::clone(&ears));
                Fabric::Cluster(Arc::new(cluster))
            }
        };
        let announce = if cluster { Announce::Shard } else { Announce::Server };
        let scripts = crate::scripts::set(config.layout, announce);
        let (requests, owner) = (AtomicU64::new(0), OwnerText::default());
        let wake_ups = WakeUps::None;
        // A step that waits for replicas is answered with all that travels with it, or not at all.
        let alone = config.waits() || !names.together();
        let batches = scripts.each.as_ref().filter(|_| !alone);
        let batches = batches.map(|scripts| Batches::new(scripts, config.timeout));
        let mut store =
            Self { config, fabric, ears, names, scripts, batches, requests, owner, wake_ups };
        let own = store.names.rehearsal(store.ears.client())?;
        if store.config.pubsub && store.listens(&own.lock).await? {
            store.wake_ups = if cluster { WakeUps::PerKey } else { WakeUps::Standing };
        }
        store.admit().await?;
        Ok(store)
    }

    /// Refuses a server that cannot keep locks, and warns of one that keeps them badly.
    async fn admit(&self) -> Result<(), LockError> {
        let guarantees = self.examine().await?;
        for finding in &guarantees.findings {
            match finding.level {
                Level::Good => {}
                Level::Unsafe if finding.subject != "eviction" || !self.config.allow_eviction => {
                    let fix = finding.fix.as_deref().unwrap_or("use another server");
                    let message = format!("{}; {fix}", finding.found);
                    let refusal = match finding.subject.as_str() {
                        // Both pass: a failover may be under way.
                        "role" | "failover" => LockError::unavailable(message),
                        _ => LockError::invalid_config(message),
                    };
                    return Err(refusal.with_guarantees(guarantees));
                }
                _ => tracing::info!(subject = finding.subject, "{}", finding.found),
            }
        }
        self.rehearse().await
    }

    /// Whether releases of `lock` are heard here.
    async fn listens(&self, lock: &str) -> Result<bool, LockError> {
        self.fabric.listens(lock, &self.names.shard_channel(lock, self.ears.client())).await
    }

    pub(crate) fn wake_up_kind(&self) -> WakeUps {
        self.wake_ups
    }

    /// An id for the next request.
    pub(crate) fn id(&self) -> Id<'_> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Id { client: self.ears.client(), number }
    }

    /// What stands in the store for `owner`.
    pub(crate) fn owner_text(&self, owner: &Arc<Owner>) -> Arc<str> {
        self.owner.of(owner)
    }

    /// Runs a script on the server of `lock` by its hash, or whole if the server does not know it
    /// yet.
    ///
    /// Nothing was done when the server does not know a script, so sending it again is safe.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        lock: &str,
        keys: usize,
        id: Id<'_>,
        fill: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<Answer, LockError> {
        let answer = match self.fabric.send(lock, &call("EVALSHA", &script.sha, keys, &fill)).await
        {
            Err(fault) if fault.is_noscript() => {
                tracing::debug!(script = script.name, "the server did not know the script");
                self.fabric.send(lock, &call("EVAL", &script.source, keys, &fill)).await
            }
            answer => answer,
        };
        self.read(lock, id, answer.map_err(Fault::explain)?)
    }

    /// Opens the answer to the request `id`. One that is not, or not even an answer, puts an end to
    /// its connection.
    fn read(&self, lock: &str, id: Id<'_>, answer: Value) -> Result<Answer, LockError> {
        Answer::open(answer, id).inspect_err(|error| {
            tracing::warn!(%error, "an answer that was not expected; the connection is closed");
            self.fabric.distrust(lock);
        })
    }

    /// The same for a step that must reach replicas or a disk, if the configuration asks for that;
    /// with the reason why it does not count if it did not.
    ///
    /// `WAIT` and `WAITAOF` wait for all writes of their own connection, so they travel with the
    /// script. It makes no sense to wait for longer than a part of the `lease`.
    pub(crate) async fn run_durably(
        &self,
        script: &'static Script,
        lock: &str,
        keys: usize,
        id: Id<'_>,
        lease: Duration,
        fill: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Answer, Option<LockError>), LockError> {
        let (wanted, aof) = (self.config.wait_replicas, self.config.wait_aof);
        if !self.config.waits() {
            return Ok((self.run(script, lock, keys, id, fill).await?, None));
        }
        // Short enough that "too few" is heard before whoever asked stops listening: at the end of
        // the lease, or after the last second of a wait.
        let patience = (self.config.timeout * 2 / 5).min(lease / 2).min(LONGEST_WAIT);
        let patience = millis(patience).max(1);
        let all = |verb, code| {
            let mut all = redis::Pipeline::new();
            all.add_command(call(verb, code, keys, &fill));
            // One waits after the other, so both share the time.
            let patience = if aof && wanted > 0 { patience.div_ceil(2) } else { patience };
            if aof {
                all.cmd("WAITAOF").arg(1).arg(0).arg(patience);
            }
            if wanted > 0 {
                all.cmd("WAIT").arg(wanted).arg(patience);
            }
            all
        };
        let answers = match self.fabric.send_all(lock, &all("EVALSHA", &script.sha)).await {
            Err(fault) if fault.is_noscript() => {
                self.fabric.send_all(lock, &all("EVAL", &script.source)).await
            }
            answers => answers,
        };
        let mut answers = answers.map_err(Fault::explain)?.into_iter();
        let Some(answer) = answers.next() else {
            return Err(LockError::internal("the server answered several commands with nothing"));
        };
        let answer = self.read(lock, id, answer)?;
        let mut doubt = None;
        if aof {
            doubt = not_on_disk(answers.next().unwrap_or(Value::Nil));
        }
        if wanted > 0 {
            doubt = doubt.or(too_few(answers.next().unwrap_or(Value::Nil), wanted));
        }
        Ok((answer, doubt))
    }
}

/// Why a step does not count, if `reached` is not the answer of `WAIT` for `wanted` replicas. It
/// was done all the same, and undoing it is not for here: whoever asked may have asked again under
/// the same secret meanwhile, and what that attempt got would be undone with it.
fn too_few(reached: Value, wanted: u32) -> Option<LockError> {
    let error = || {
        LockError::ambiguous(
            "fewer replicas than wait_replicas asks for have acknowledged it, so it does not count; check that they are \
             connected and keep up, or lower wait_replicas",
        )
    };
    match reached {
        Value::Int(reached) if reached >= i64::from(wanted) => None,
        Value::ServerError(refusal) => {
            Some(error().with_source(Fault::Sent(refusal.into()).explain()))
        }
        _ => Some(error()),
    }
}

/// The same for the answer of `WAITAOF`.
fn not_on_disk(synced: Value) -> Option<LockError> {
    let error = || {
        LockError::ambiguous(
            "the server has it not on disk, so it does not count; wait_aof needs Redis 7.2 or newer, appendonly yes \
             and appendfsync always (with everysec, a timeout of 5s)",
        )
    };
    match synced {
        Value::Array(both) if matches!(both.first(), Some(Value::Int(1..))) => None,
        Value::ServerError(refusal) => {
            Some(error().with_source(Fault::Sent(refusal.into()).explain()))
        }
        _ => Some(error()),
    }
}

fn call(verb: &str, code: &str, keys: usize, fill: &impl Fn(&mut Cmd)) -> Cmd {
    // Room for what nearly every step sends: growing costs more than the rest of making a command.
    let mut command = Cmd::with_capacity(8 + 2 * keys, 512.max(code.len() + 256) + 64 * keys);
    command.arg(verb).arg(code).arg(keys);
    fill(&mut command);
    command
}

impl Backend for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let key_form = match self.config.layout {
            Layout::Native | Layout::Syncguard => KeyForm::Nfc,
            Layout::Token => KeyForm::Verbatim,
        };
        // In syncguard contenders wait out its tolerance after the end of a lease.
        let ttl_slack = match self.config.layout {
            Layout::Native | Layout::Token => Duration::from_millis(1),
            Layout::Syncguard => Duration::from_millis(1001),
        };
        Capabilities::new("redis")
            .key_form(key_form)
            .ttl_slack(ttl_slack)
            .wake_ups(self.wake_ups)
            .transfer(true)
            .acquire_many(self.scripts.acquire_many.is_some() && self.names.together())
            .force_release(true)
            .max_batch(MAX_BATCH)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        Box::pin(async move {
            let key = request.key.clone();
            self.attempt(request).await.map_err(|error| error.with_key(&key))
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Box::pin(
            async move { self.give_back(&key, secret).await.map_err(|error| error.with_key(&key)) },
        )
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        Box::pin(async move { self.prolong(leases).await })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Box::pin(async move {
            let found = self.holders(std::slice::from_ref(&key)).await;
            Ok(found.map_err(|error| error.with_key(&key))?.pop())
        })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Box::pin(async move { self.find(&prefix, limit).await })
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        Box::pin(async move {
            let lock = self.names.lock(&key)?;
            // On a single server the connection listens anyway.
            if self.wake_ups == WakeUps::PerKey {
                self.listens(&lock).await.map_err(|error| error.with_key(&key))?;
            }
            let subscription = self.ears.listen(&lock);
            self.fabric.mend();
            Ok(subscription)
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move { self.examine().await })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        Box::pin(async move {
            self.hand_over(&request).await.map_err(|error| error.with_key(&request.to.key))
        })
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        Box::pin(async move { self.attempt_all(&requests).await })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        Box::pin(
            async move { self.force_free(&key, fence).await.map_err(|error| error.with_key(&key)) },
        )
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("config", &self.config).finish_non_exhaustive()
    }
}
