//! The store itself: opens the link, knows how fences are made, and answers the contract of
//! [`Backend`].
//!
//! What each step sends and how the answer is read stands in `acquire.rs`, `extend.rs` and
//! `inspect.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ErrorKind, ExtendRequest, Extension, Fence,
    Guarantees, Holder, Key, Level, LockError, ManyAttempt, Release, Reply, Secret, Subscription,
    Transfer, TransferRequest, WakeUps,
};

use crate::config::EtcdConfig;
use crate::error::Effect;
use crate::lease::span;
use crate::line::Line;
use crate::link::Link;
use crate::names::Names;
use crate::proto::TxnRequest;
use crate::txn::{oldest, put, read, was_created};

/// How many locks one batch takes or extends: etcd takes at most 128 steps in a transaction.
pub(crate) const MAX_BATCH: usize = 100;

/// How much longer than asked a lease may last: up to a second to the next whole one, half a second
/// until etcd looks, and the time to agree that it is over.
const TTL_SLACK: Duration = Duration::from_secs(2);

/// The shortest lease with etcd's default settings, for when it cannot be asked for.
const USUAL_MIN_TTL: Duration = Duration::from_secs(2);

/// How long a store that is ready waits for members that have not yet said which cluster they
/// belong to.
const COMPARING: Duration = Duration::from_millis(200);

/// Bits of a fence that hold the revision; the rest hold the epoch.
const REVISION_BITS: u32 = 48;

/// Locks in etcd.
///
/// One connection to one member serves all requests and wake-ups; when it fails, another member is
/// asked.
///
/// ```no_run
/// # async fn example() -> Result<(), holdtight_core::LockError> {
/// use holdtight_etcd::EtcdStore;
/// let store = EtcdStore::connect("etcd://10.0.0.1,10.0.0.2,10.0.0.3").await?;
/// # Ok(()) }
/// ```
pub struct EtcdStore {
    pub(crate) config: Arc<EtcdConfig>,
    pub(crate) link: Arc<Link>,
    pub(crate) line: Arc<Line>,
    pub(crate) names: Names,
    /// The shortest lease that this cluster grants.
    pub(crate) min_ttl: Duration,
}

impl EtcdStore {
    /// Connects to the cluster that `url` names, and checks that it can keep locks.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a wrong URL, or a cluster
    /// that cannot keep locks; [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if no member
    /// can be reached or none has a leader; [`AuthFailed`](holdtight_core::ErrorKind::AuthFailed)
    /// if the user is refused.
    ///
    /// # Cancel safety
    /// Cancel-safe: at most a lease without a lock stays behind, for a few seconds.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::open(EtcdConfig::from_url(url)?).await
    }

    /// Connects with settings made by hand.
    ///
    /// # Errors
    /// As [`EtcdStore::connect`].
    ///
    /// # Cancel safety
    /// As [`EtcdStore::connect`].
    pub async fn open(config: EtcdConfig) -> Result<Self, LockError> {
        let config = Arc::new(config);
        let link = Arc::new(Link::new(Arc::clone(&config))?);
        let names = Names::new(&config.prefix);
        let mut store = Self { config, link, line: Arc::default(), names, min_ttl: USUAL_MIN_TTL };
        // Beside all else, so that it costs no time.
        let link = Arc::clone(&store.link);
        let mut comparing = std::pin::pin!(link.compare_clusters());
        let mut compared = false;
        let prepared = {
            let mut preparing = std::pin::pin!(store.prepare());
            loop {
                tokio::select! {
                    prepared = &mut preparing => break prepared,
                    answer = &mut comparing, if !compared => {
                        answer?;
                        compared = true;
                    }
                }
            }
        };
        if !compared {
            // Members that do not answer must not keep anybody from the others. Two clusters may be
            // why the rest failed.
            tokio::time::timeout(COMPARING, comparing).await.unwrap_or(Ok(()))?;
        }
        prepared?;
        Ok(store)
    }

    /// Finds out how short a lease may be, and whether this cluster and this user will do.
    async fn prepare(&mut self) -> Result<(), LockError> {
        // The minimum depends on the server's election timeout, which no request tells; a grant
        // does.
        let mut granted = self.link.grant(1).await;
        // It binds nothing, so a member that fell silent over it need not be the last that is
        // asked.
        if matches!(&granted, Err(error) if error.kind() == ErrorKind::Unavailable)
            && self.link.members().len() > 1
            && !self.link.is_unreachable()
        {
            granted = self.link.grant(1).await;
        }
        match granted {
            Ok(shortest) => {
                self.link.let_go(shortest.id);
                self.min_ttl = span(shortest.seconds);
            }
            // A database that is full takes no grants, but can be read, and locks in it can be
            // renewed and given back.
            Err(error) if error.kind() == ErrorKind::RateLimited => {
                tracing::warn!(%error, "etcd takes no new locks now");
            }
            Err(error) => return Err(error),
        }
        match self.rehearse().await {
            Err(error) if error.kind() == ErrorKind::RateLimited => {}
            rehearsed => rehearsed?,
        }
        self.admit().await
    }

    /// Whether this user may read and write under the prefix: better said now than at the first
    /// lock.
    ///
    /// etcd checks the rights to all steps of a transaction, also of the branch that it does not
    /// take.
    async fn rehearse(&self) -> Result<(), LockError> {
        let range = self.names.all("");
        let never = TxnRequest {
            compare: vec![was_created(&range.start, i64::MAX)],
            success: vec![read(oldest(&range)), put(&range.start, Vec::new(), 0)],
            failure: Vec::new(),
        };
        self.link.txn(Effect::Harmless, never).await.map(drop)
    }

    /// Refuses a cluster that cannot keep locks, and warns of one that keeps them badly.
    async fn admit(&self) -> Result<(), LockError> {
        let guarantees = self.first_look().await?;
        for finding in &guarantees.findings {
            match finding.level {
                Level::Good => {}
                Level::Unsafe => {
                    let fix = finding.fix.as_deref().unwrap_or("use another cluster");
                    let refusal = format!("etcd: {}; {fix}", finding.found);
                    return Err(LockError::invalid_config(refusal).with_guarantees(guarantees));
                }
                _ => tracing::warn!(subject = finding.subject, "{}", finding.found),
            }
        }
        Ok(())
    }

    /// The fence that `revision` stands for.
    pub(crate) fn mint(&self, revision: i64) -> Result<Fence, LockError> {
        mint(self.config.epoch, revision).ok_or_else(|| {
            LockError::internal("no fence is left: etcd's revision is beyond 2^48; use a new cluster and a new epoch")
        })
    }

    /// The revision that this fence stands for; `None` if no entry of this epoch can have it.
    pub(crate) fn revision_of(&self, fence: Fence) -> Option<i64> {
        let revision = i64::try_from(fence.get() & ((1 << REVISION_BITS) - 1)).ok()?;
        (mint(self.config.epoch, revision) == Some(fence)).then_some(revision)
    }
}

fn mint(epoch: u16, revision: i64) -> Option<Fence> {
    let revision = u64::try_from(revision)
        .ok()
        .filter(|revision| (1..1 << REVISION_BITS).contains(revision))?;
    Some(Fence::new((u64::from(epoch) << REVISION_BITS) + revision))
}

impl Backend for EtcdStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("etcd")
            .min_ttl(self.min_ttl)
            .ttl_slack(TTL_SLACK)
            .wake_ups(WakeUps::PerKey)
            .fifo(true)
            .transfer(true)
            .acquire_many(true)
            .force_release(true)
            .max_batch(MAX_BATCH)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        Box::pin(async move {
            self.attempt(&request).await.map_err(|error| error.with_key(&request.key))
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Box::pin(async move {
            self.give_back(&key, &secret).await.map_err(|error| error.with_key(&key))
        })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        Box::pin(async move { self.prolong_all(&leases).await })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        Box::pin(async move {
            self.take_up(&request).await.map_err(|error| error.with_key(&request.to.key))
        })
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        Box::pin(async move { self.attempt_all(&requests).await })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Box::pin(async move { self.find(&key).await.map_err(|error| error.with_key(&key)) })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Box::pin(async move { self.find_all(&prefix, limit).await })
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        // The watch itself begins when a busy answer shows whom to watch.
        Box::pin(async move { Ok(self.line.listen(self.names.lock(&key))) })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move { self.examine().await })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        Box::pin(
            async move { self.force_free(&key, fence).await.map_err(|error| error.with_key(&key)) },
        )
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("config", &self.config)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fence_of_a_later_epoch_is_greater() {
        let last = mint(0, (1 << 48) - 1).unwrap();
        assert!(mint(1, 1).unwrap() > last);
        assert_eq!(mint(0, 7), Some(Fence::new(7)));
        assert_eq!(mint(1, 7).unwrap().get(), (1 << 48) + 7);
        assert!(mint(u16::MAX, (1 << 48) - 1).is_some());
    }

    #[test]
    fn a_revision_that_fits_no_fence_mints_none() {
        for revision in [i64::MIN, -1, 0, 1 << 48, i64::MAX] {
            assert_eq!(mint(0, revision), None, "{revision}");
        }
    }
}
