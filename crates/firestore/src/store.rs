//! The store itself: answers the contract of [`Backend`] with the steps of `steps.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Fence, Guarantees,
    Holder, Key, LockError, Release, Reply, Secret, Transfer, TransferRequest,
};

use crate::client::Client;
use crate::config::{FirestoreConfig, Layout};
use crate::document::GRACE;
use crate::memory::Memory;
use crate::place::Place;
use crate::steps::Step;
use crate::syncguard::TOLERANCE;

/// The variable by which Google's own tools are led to an emulator.
const EMULATOR: &str = "FIRESTORE_EMULATOR_HOST";

/// How many leases one call extends, and how many of them at the same time.
const MAX_BATCH: usize = 64;
const AT_ONCE: usize = 16;

/// Locks in a Firestore database.
///
/// There are no wake-ups: waiters ask again by their timer.
///
/// ```no_run
/// # async fn example() -> Result<(), holdtight_core::LockError> {
/// use holdtight_firestore::FirestoreStore;
/// let store = FirestoreStore::connect("firestore://my-project").await?;
/// # Ok(()) }
/// ```
pub struct FirestoreStore {
    config: FirestoreConfig,
    pub(crate) place: Arc<Place>,
}

impl FirestoreStore {
    /// Connects to the database that `url` names, with the credentials that Google's tools would
    /// use.
    ///
    /// `FIRESTORE_EMULATOR_HOST`, if set, leads to an emulator, with a warning in the log and in
    /// the probe.
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a wrong URL or a database
    /// that does not exist; [`AuthFailed`](holdtight_core::ErrorKind::AuthFailed) for missing or
    /// refused credentials; [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if it cannot be
    /// reached.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing is written.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::open(FirestoreConfig::from_url(url)?).await
    }

    /// Connects with settings made by hand.
    ///
    /// # Errors
    /// As [`FirestoreStore::connect`].
    ///
    /// # Cancel safety
    /// As [`FirestoreStore::connect`].
    pub async fn open(config: FirestoreConfig) -> Result<Self, LockError> {
        Self::start(config, None).await
    }

    /// Connects with the user's own source of tokens.
    ///
    /// # Errors
    /// As [`FirestoreStore::connect`].
    ///
    /// # Cancel safety
    /// As [`FirestoreStore::connect`].
    #[cfg(feature = "tls")]
    pub async fn with_tokens(
        config: FirestoreConfig,
        tokens: Arc<dyn gcp_auth::TokenProvider>,
    ) -> Result<Self, LockError> {
        Self::start(config, Some(tokens)).await
    }

    async fn start(
        mut config: FirestoreConfig,
        tokens: Option<crate::google::Tokens>,
    ) -> Result<Self, LockError> {
        if config.emulator.is_none()
            && let Some(address) =
                std::env::var(EMULATOR).ok().filter(|address| !address.is_empty())
        {
            config = config.emulator(&address)?;
            tracing::warn!(
                emulator = address,
                "{EMULATOR} is set: locks are kept in an emulator, not in Firestore"
            );
        }
        let collection_id = config.collection_id().to_owned();
        let place = Arc::new(Place {
            client: Client::new(&config, tokens).await?,
            memory: Memory::default(),
            collection: format!("{}/{collection_id}", config.documents()),
            collection_id,
            counters: format!("{}/{}", config.documents(), config.fence_collection_id()),
            layout: config.layout_used(),
            emulator: config.emulator.clone(),
        });
        let store = Self { config, place };
        store.examine().await?;
        Ok(store)
    }

    fn step(&self, key: Key) -> Result<Step, LockError> {
        Step::new(Arc::clone(&self.place), key)
    }
}

impl fmt::Debug for FirestoreStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Backend for FirestoreStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("firestore")
            .min_ttl(Duration::from_millis(100))
            .ttl_slack(match self.place.layout {
                Layout::Native => GRACE,
                // The tolerance, and a millisecond that is rounded up.
                Layout::Syncguard => TOLERANCE + Duration::from_millis(1),
            })
            .transfer(true)
            .force_release(true)
            .max_batch(MAX_BATCH)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        Box::pin(async move { self.step(request.key.clone())?.acquire(request).await })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Box::pin(async move { self.step(key)?.release(secret).await })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        Box::pin(async move {
            let steps = leases.into_iter().map(|lease| {
                let step = self.step(lease.key.clone());
                async move { step?.extend(lease).await }
            });
            Ok(stream::iter(steps).buffered(AT_ONCE).collect().await)
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Box::pin(async move { self.step(key)?.lookup().await })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Box::pin(async move { self.place.list(&prefix, limit).await })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move { self.examine().await })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        Box::pin(async move { self.step(request.to.key.clone())?.transfer(request).await })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        Box::pin(async move { self.step(key)?.force_release(fence).await })
    }
}
