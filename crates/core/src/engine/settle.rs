//! What becomes of a secret that nobody uses any more: it is released until nothing can be left of
//! it in the store.
//!
//! Every request to a store ends as *yes*, *no* or *unknown*. One whose outcome is unknown may have
//! been done, or may still arrive, and would then hold a lock for nobody. So its secret is
//! [`Unsettled`], and [`settle`](Unsettled::settle) is the one place that settles it, whether a
//! call was given up, a handle dropped, a hand-over cut off, or a release left without an answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::engine::background::Chore;
use crate::engine::instance::Engine;
use crate::engine::returning::Return;
use crate::engine::timeout::within;
use crate::model::clock::Moment;
use crate::model::error::LockError;
use crate::model::key::Key;
use crate::model::retry::RetryPolicy;
use crate::model::secret::Secret;
use crate::store::{AcquireRequest, Release, Reply, Transfer, TransferRequest};

/// How long a request whose answer was lost may still arrive at the store.
const DOUBT: Duration = Duration::from_secs(60);

/// The pauses between two tries of a release.
pub(crate) const PAUSES: fn() -> RetryPolicy =
    || RetryPolicy::default().base(Duration::from_millis(10)).cap(Duration::from_secs(2));

/// A secret that nobody uses any more, while the store may hold something under it.
#[derive(Clone)]
pub(crate) struct Unsettled {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) secret: Secret,
    pub(crate) undo: Undo,
    /// When the lease would be over anyway.
    pub(crate) until: Moment,
    /// Some request may still arrive, so that "not held" is not the last word.
    pub(crate) in_flight: bool,
}

/// How a lock leaves a secret that nobody uses any more.
#[derive(Clone)]
pub(crate) enum Undo {
    /// It is released.
    Release,
    /// It goes back to the token that it was taken up by.
    HandBack {
        /// The token's secret, with a lease alone to keep it.
        to: AcquireRequest,
        /// Others who have the token wait until this is over.
        _returning: Arc<Return>,
    },
}

impl Unsettled {
    /// A secret to be released.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        key: &Key,
        secret: &Secret,
        until: Moment,
        in_flight: bool,
    ) -> Self {
        let (engine, key, secret) = (Arc::clone(engine), key.clone(), secret.clone());
        Self { engine, key, secret, undo: Undo::Release, until, in_flight }
    }

    /// Settles in the background; `shutdown` waits for it.
    pub(crate) fn spawn(self) {
        let engine = Arc::clone(&self.engine);
        engine.background.submit(Box::pin(self.settle()));
    }

    /// The same after `begun`, which the caller has begun and leaves behind. If that is cut off, or
    /// gets nowhere within `limit`, this begins without it.
    pub(crate) fn spawn_after(self, begun: Chore, limit: Duration) {
        let engine = Arc::clone(&self.engine);
        engine.background.take_over(begun, limit, Box::pin(self.settle()));
    }

    /// Looks out for a request that was given up while the lock was acquired, and may arrive now
    /// that it has been given back.
    ///
    /// `shutdown` has nothing to wait for: the lock itself is given back.
    pub(crate) fn watch(engine: &Arc<Engine>, key: &Key, secret: &Secret) {
        let until = engine.clock.now().after(DOUBT);
        let unsettled = Self::new(engine, key, secret, until, true);
        engine.runtime.spawn(async move {
            tokio::time::sleep(PAUSES().delay(0, fastrand::f64())).await;
            unsettled.settle_while(|engine| engine.check_open().is_ok()).await;
        });
    }

    /// Releases until the store confirms it, or the lease would be over anyway.
    pub(crate) async fn settle(self) {
        self.settle_while(|_| true).await;
    }

    async fn settle_while(self, wanted: impl Fn(&Engine) -> bool) {
        let pauses = PAUSES();
        let doubtful_until = self.engine.clock.now().after(DOUBT).min(self.until);
        let mut tries = 0;
        while wanted(&self.engine) {
            let now = self.engine.clock.now();
            match self.undo_once().await {
                Ok(Release::Released) => return,
                Ok(Release::NotHeld) if !self.in_flight || now >= doubtful_until => return,
                Ok(Release::NotHeld) => {}
                Err(error) if !error.kind().is_transient() && error.kind().is_definite() => return,
                Err(error) => {
                    tracing::debug!(key = %self.key, %error, "undoing a step failed; trying again");
                }
            }
            if now >= self.until {
                return;
            }
            // After a few quick looks once in a while is enough: the lease ends by itself.
            let pause = if tries < 8 {
                pauses.delay(tries, fastrand::f64())
            } else {
                Duration::from_secs(5)
            };
            let pause = pause.min(self.until.since(now)).max(Duration::from_millis(1));
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    async fn undo_once(&self) -> Result<Release, LockError> {
        let Undo::HandBack { to, .. } = &self.undo else {
            return release_once(&self.engine, &self.key, &self.secret).await;
        };
        let request = TransferRequest::new(self.secret.clone(), to.clone());
        let mut call = Arc::clone(&self.engine.backend).transfer(request);
        let answer = within(self.engine.step_timeout, &mut call).await.unwrap_or_else(|| {
            Err(LockError::ambiguous("the store did not take the lock back in time"))
        });
        match answer? {
            Transfer::Transferred(_) => Ok(Release::Released),
            Transfer::NotHeld => Ok(Release::NotHeld),
        }
    }
}

/// One release, whatever comes of it.
pub(crate) async fn release_once(
    engine: &Engine,
    key: &Key,
    secret: &Secret,
) -> Result<Release, LockError> {
    let mut call = Arc::clone(&engine.backend).release(key.clone(), secret.clone());
    let answer = within(engine.step_timeout, &mut call).await.unwrap_or_else(|| {
        Err(LockError::ambiguous("the store did not answer a release in time").with_key(key))
    });
    if let Err(error) = &answer {
        engine.events.store_error("release", Some(key), error);
    }
    answer
}

/// A request that was given up, and its answer if one comes.
pub(crate) type GivenUp<T> = JoinHandle<Option<Result<T, LockError>>>;

/// Drives a request on in a task of its own. Left alone it might keep what others need: a place in
/// a queue of the store's client, or the right to open a connection.
pub(crate) fn drive_on<T: Send + 'static>(call: Reply<T>, limit: Duration) -> GivenUp<T> {
    tokio::spawn(async move { tokio::time::timeout(limit, call).await.ok() })
}
