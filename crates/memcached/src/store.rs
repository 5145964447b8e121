//! The store itself: answers the contract of [`Backend`] with the steps of `steps.rs` over one
//! connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Fence, Guarantees,
    Holder, Key, Level, LockError, Release, Reply, Secret, Transfer, TransferRequest,
};

use crate::config::MemcachedConfig;
use crate::connection::Link;
use crate::steps::Step;
use crate::ticks;

/// How many leases one call extends: two pipelined requests each.
const MAX_BATCH: usize = 128;

/// Locks in one memcached server.
///
/// One connection serves all requests; it is opened again when it breaks. There are no wake-ups:
/// waiters ask again by their timer. There is no list of keys either: memcached has none that could
/// be trusted.
///
/// ```no_run
/// # async fn example() -> Result<(), holdtight_core::LockError> {
/// use holdtight_memcached::MemcachedStore;
/// let store = MemcachedStore::connect("memcached://127.0.0.1:11211").await?;
/// # Ok(()) }
/// ```
pub struct MemcachedStore {
    config: Arc<MemcachedConfig>,
    pub(crate) link: Arc<Link>,
}

impl MemcachedStore {
    /// Connects to the server that `url` names, and looks at how it is set up.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a wrong URL, or a server
    /// that cannot keep locks; [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if it cannot
    /// be reached; [`Unsupported`](holdtight_core::ErrorKind::Unsupported) if it is older than 1.6.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing is written.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::open(MemcachedConfig::from_url(url)?).await
    }

    /// Connects with settings made by hand.
    ///
    /// # Errors
    /// As [`MemcachedStore::connect`].
    ///
    /// # Cancel safety
    /// As [`MemcachedStore::connect`].
    pub async fn open(config: MemcachedConfig) -> Result<Self, LockError> {
        let config = Arc::new(config);
        let store = Self { link: Arc::new(Link::new(Arc::clone(&config))), config };
        for finding in store.examine().await?.findings {
            let eviction = finding.subject == "eviction";
            match finding.level {
                Level::Good => {}
                Level::Unsafe if !eviction || store.config.refuse_eviction => {
                    let fix = finding.fix.as_deref().unwrap_or("use another server");
                    return Err(LockError::invalid_config(format!("{}; {fix}", finding.found)));
                }
                _ => tracing::warn!(subject = finding.subject, "{}", finding.found),
            }
        }
        // A server that was just started grants nothing for a second. Spent here, it is not missing
        // from the first try.
        store.link.session().await?.settled().await;
        Ok(store)
    }

    async fn step(&self, key: Key) -> Result<Step, LockError> {
        match self.link.session().await {
            Ok(session) => Ok(Step::new(session, &self.config.names, key)),
            Err(error) => Err(error.with_key(&key)),
        }
    }
}

impl fmt::Debug for MemcachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemcachedStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Backend for MemcachedStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memcached")
            .min_ttl(Duration::from_secs(1))
            .ttl_slack(ticks::SLACK)
            .transfer(true)
            .force_release(true)
            .list(false)
            .max_batch(MAX_BATCH)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        Box::pin(async move { self.step(request.key.clone()).await?.acquire(request).await })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Box::pin(async move { self.step(key).await?.release(secret).await })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        Box::pin(async move {
            if leases.is_empty() {
                return Ok(Vec::new());
            }
            let session = self.link.session().await?;
            // Side by side, so that all first requests leave in one write, and all second ones.
            let steps = leases.into_iter().map(|lease| {
                Step::new(Arc::clone(&session), &self.config.names, lease.key.clone()).extend(lease)
            });
            Ok(join_all(steps).await)
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Box::pin(async move { self.step(key).await?.lookup().await })
    }

    fn list(self: Arc<Self>, _prefix: String, _limit: usize) -> Reply<Vec<Holder>> {
        Box::pin(async {
            Err(LockError::unsupported(
                "memcached cannot list its keys; ask for one lock by its key, or keep locks in a store that can",
            ))
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move { self.examine().await })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        Box::pin(async move { self.step(request.to.key.clone()).await?.transfer(request).await })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        Box::pin(async move { self.step(key).await?.force_release(fence).await })
    }
}
