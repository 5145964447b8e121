//! [`DistributedLock`]: one store, and everything that can be done with its locks.

use std::sync::Arc;
use std::time::Duration;

use crate::api::acquire::{Acquire, TryAcquire};
use crate::api::handle::LockHandle;
use crate::api::multi::AcquireAll;
use crate::engine::event::EventKind;
use crate::engine::held::Held;
use crate::engine::instance::Engine;
use crate::engine::options::AcquireOptions;
use crate::engine::timeout::within;
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::health::Guarantees;
use crate::model::holder::LockInfo;
use crate::model::key::Key;
use crate::model::token::LockToken;
use crate::store::{Backend, ExtendBy, ExtendRequest, Extension, Lease, Release, Reply};

/// How long `shutdown` waits for releases.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The most locks that `list` returns.
pub const LIST_LIMIT: usize = 10_000;

/// Locks in one store. Cheap to clone; all clones share one queue, one keeper and one connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// use std::time::Duration;
/// use holdtight_core::{DistributedLock, MemoryStore};
///
/// let lock = DistributedLock::builder(MemoryStore::new()).ttl(Duration::from_secs(10)).build()?;
///
/// let handle = lock.acquire("user:123").wait(Duration::from_secs(5)).await?;
/// assert!(lock.try_acquire("user:123").await?.is_none(), "busy is not an error");
/// handle.release().await?;
///
/// let total = lock.with_lock("sum", async |held| held.fence().get() + 1).await?;
/// # assert!(total > 1);
/// lock.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DistributedLock {
    engine: Arc<Engine>,
}

impl DistributedLock {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Takes the lock, waiting for it as the policy says. Add options, then `.await`, or
    /// [`run`](Acquire::run) work.
    ///
    /// # Errors
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder if it stayed busy;
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) before any I/O; what the store reports
    /// otherwise.
    ///
    /// # Cancel safety
    /// Cancel-safe at every await point: whatever the store may have granted is given back in the
    /// background.
    pub fn acquire(&self, key: impl AsRef<str>) -> Acquire {
        Acquire::new(&self.engine, key.as_ref())
    }

    /// Asks for the lock once: `Ok(None)` if it is busy.
    ///
    /// **Keep what it returns.** `if lock.try_acquire(key).await?.is_some() { … }` holds the lock
    /// while it looks and not while it works, and the compiler does not warn of it; write `let
    /// Some(handle) = … else { … }`, or [`run`](TryAcquire::run) the work.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Timeout`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self, key: impl AsRef<str>) -> TryAcquire {
        TryAcquire::new(&self.engine, key.as_ref())
    }

    /// Takes several locks, all or none, without deadlock whatever others ask for and in whatever
    /// order.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); a `Timeout` names the lock that was busy last.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let both = lock.acquire_all(["account:7", "account:3"]).await?;
    /// assert_eq!(both.fences().len(), 2);
    /// both.release().await
    /// # }
    /// ```
    pub fn acquire_all<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> AcquireAll {
        AcquireAll::new(&self.engine, keys.into_iter().map(Into::into).collect())
    }

    /// Takes the lock, waiting at most `wait`: the same as `acquire(key).wait(wait)`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn wait_for_lock(
        &self,
        key: impl AsRef<str>,
        wait: Duration,
    ) -> Result<LockHandle, LockError> {
        self.acquire(key).wait(wait).await
    }

    /// Runs `work` under the lock: the same as `acquire(key).run(work)`.
    ///
    /// # Errors
    /// As [`Acquire::run`].
    ///
    /// # Cancel safety
    /// As [`Acquire::run`].
    pub async fn with_lock<W: Future>(
        &self,
        key: impl AsRef<str>,
        work: impl FnOnce(Held) -> W,
    ) -> Result<W::Output, LockError> {
        self.acquire(key).run(work).await
    }

    /// Whether anybody holds the lock now. By the time it is read the answer may be old: to *get*
    /// the lock, try.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn is_locked(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.engine.key(key.as_ref())?;
        let look = |store: Arc<dyn Backend>| store.lookup(key.clone());
        let holder = self.step("is_locked", Some(&key), look).await;
        let found = holder.as_ref().is_ok_and(Option::is_some);
        self.engine.events.emit(
            EventKind::Checked { held: found },
            &key,
            None,
            holder.as_ref().err(),
        );
        Ok(holder?.is_some())
    }

    /// Who holds the lock now.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn lookup(&self, key: impl AsRef<str>) -> Result<Option<LockInfo>, LockError> {
        let key = self.engine.key(key.as_ref())?;
        let look = |store: Arc<dyn Backend>| store.lookup(key.clone());
        let holder = self.step("lookup", Some(&key), look).await;
        let (found, fence) = match &holder {
            Ok(Some(holder)) => (true, holder.fence),
            _ => (false, None),
        };
        self.engine.events.emit(
            EventKind::LookedUp { held: found },
            &key,
            fence,
            holder.as_ref().err(),
        );
        Ok(holder?.map(|holder| self.engine.info(holder)))
    }

    /// The locks that are held now and begin with `prefix`, sorted by key, at most [`LIST_LIMIT`].
    /// The prefix of the builder comes before that one, and is not shown.
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if no key can begin so,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot list; what it reports
    /// otherwise.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>, LockError> {
        let prefix = match prefix.as_ref() {
            "" => self.engine.prefix.clone(),
            // In the form in which the store has its keys: two spellings of one text find the same
            // locks.
            text => self.engine.key(text)?.as_str().to_owned(),
        };
        let held = self.step("list", None, |store| store.list(prefix, LIST_LIMIT)).await?;
        let mut infos: Vec<_> = held.into_iter().map(|holder| self.engine.info(holder)).collect();
        infos.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(infos)
    }

    /// Whether the lock of `token` is still held under it.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn owns(&self, token: &LockToken) -> Result<bool, LockError> {
        let key = token.key();
        let ask = ExtendBy::AtLeast(Duration::ZERO);
        let ask = ExtendRequest::new(key.clone(), token.secret().clone(), ask);
        let answers = self.step("owns", Some(key), |store| store.extend(vec![ask])).await;
        let answer = answers.and_then(|mut answers| match (answers.pop(), answers.is_empty()) {
            (Some(answer), true) => answer.map_err(|error| self.about(key, error)),
            _ => Err(self.about(
                key,
                LockError::internal("the store answered one question with several answers"),
            )),
        });
        let fence = match &answer {
            Ok(Extension::Extended(lease)) => Some(lease.fence),
            _ => None,
        };
        let kind = EventKind::LookedUp { held: fence.is_some() };
        self.engine.events.emit(kind, key, fence, answer.as_ref().err());
        answer.map(|_| fence.is_some())
    }

    /// Takes up the lock of `token`, which was [detached](LockHandle::detach) here or in another
    /// process, and keeps it as if it had been acquired here.
    ///
    /// **This uses the token up.** The lock moves to a new secret, with a new and larger
    /// [fence](LockHandle::fence): a second `resume` of the same token is
    /// [`NotHeld`](crate::ErrorKind::NotHeld), wherever it comes from, and what was done under the
    /// old fence is refused from now on by whatever checks fences. A handle whose
    /// [`token`](LockHandle::token) is resumed has lost its lock: at once if that happens through
    /// the same `DistributedLock`, otherwise it is told at its next renewal.
    ///
    /// TTL, renewal and `max_hold` are those of this `DistributedLock`, whatever the first holder
    /// had.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if its lease is over, or the token was used up, or a
    /// call elsewhere that was given up has not handed the lock back yet;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot move a lock to another
    /// owner; what the store reports otherwise, after an outage was tolerated for as long as the
    /// retry policy says. Then the lock goes back to its token, and the call can be repeated.
    ///
    /// # Cancel safety
    /// Cancel-safe: if the future is dropped, the lock goes back to its token in the background,
    /// with a lease as long as asked for here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # use holdtight_core::{ErrorKind, LockToken};
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let first = lock.acquire("job:7").await?;
    /// let old = first.fence();
    /// let message = first.detach().await?.expose(); // for whoever goes on with the job
    ///
    /// let handle = lock.resume(message.parse()?).await?;
    /// assert!(handle.fence() > old);
    ///
    /// // The same message, delivered twice:
    /// let again = lock.resume(message.parse()?).await.unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::NotHeld);
    /// handle.release().await
    /// # }
    /// ```
    pub async fn resume(&self, token: LockToken) -> Result<LockHandle, LockError> {
        let options = Arc::clone(&self.engine.defaults);
        self.resume_as(token, options).await
    }

    /// As [`resume`](Self::resume), with a TTL of its own.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a
    /// TTL outside the limits.
    ///
    /// # Cancel safety
    /// As [`resume`](Self::resume).
    pub async fn resume_for(
        &self,
        token: LockToken,
        ttl: Duration,
    ) -> Result<LockHandle, LockError> {
        let options = AcquireOptions { ttl, ..AcquireOptions::clone(&self.engine.defaults) };
        self.resume_as(token, Arc::new(options)).await
    }

    async fn resume_as(
        &self,
        token: LockToken,
        options: Arc<AcquireOptions>,
    ) -> Result<LockHandle, LockError> {
        let hold = crate::engine::resume::resume(Arc::clone(&self.engine), token, options).await?;
        Ok(LockHandle::new(hold))
    }

    /// Extends a detached lock without taking it up: at least `ttl` from now.
    ///
    /// # Errors
    /// As [`resume_for`](Self::resume_for).
    pub async fn extend_token(&self, token: &LockToken, ttl: Duration) -> Result<Lease, LockError> {
        let (engine, key) = (&self.engine, token.key());
        let options = AcquireOptions { ttl, ..AcquireOptions::clone(&engine.defaults) };
        options.check(&engine.store).map_err(|error| self.about(key, error))?;
        let extend =
            |store: Arc<dyn Backend>| store.detach(key.clone(), token.secret().clone(), ttl);
        let answer = self.step("extend", Some(key), extend).await;
        let answer = answer.and_then(|answer| extended(engine, key, answer));
        match &answer {
            Ok(lease) => engine.events.emit(EventKind::Extended, key, Some(lease.fence), None),
            Err(error) => engine.events.emit(EventKind::ExtendFailed, key, None, Some(error)),
        }
        answer
    }

    /// Gives back the lock of `token`. A handle of this `DistributedLock` that still held it has
    /// lost it at once, one elsewhere is told at its next renewal.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it was not held under this token any more; what
    /// the store reports otherwise.
    pub async fn release_token(&self, token: &LockToken) -> Result<(), LockError> {
        let key = token.key();
        let release = |store: Arc<dyn Backend>| {
            self.engine.keeper.revoke(key, |grant| grant.secret == *token.secret());
            store.release(key.clone(), token.secret().clone())
        };
        let answer = match self.step("release", Some(key), release).await {
            Ok(Release::Released) => Ok(()),
            Ok(Release::NotHeld) => Err(not_held(&self.engine, key)),
            Err(error) => Err(error),
        };
        let kind = if answer.is_ok() { EventKind::Released } else { EventKind::ReleaseFailed };
        self.engine.events.emit(kind, key, None, answer.as_ref().err());
        answer
    }

    /// Frees a lock, whoever holds it, if its fence is still `fence`, as [`lookup`](Self::lookup)
    /// showed it.
    ///
    /// A handle of this `DistributedLock` has lost it at once. A holder elsewhere learns of it at
    /// the next renewal and may be at work until then: the fence is what protects.
    ///
    /// # Errors
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it is not held with that fence; what the store
    /// reports otherwise.
    pub async fn force_release(&self, key: impl AsRef<str>, fence: Fence) -> Result<(), LockError> {
        let key = self.engine.key(key.as_ref())?;
        let release = |store: Arc<dyn Backend>| {
            if self.engine.store.force_release {
                self.engine.keeper.revoke(&key, |grant| grant.fence == fence);
            }
            store.force_release(key.clone(), fence)
        };
        match self.step("force_release", Some(&key), release).await? {
            Release::Released => {
                tracing::warn!(%key, store = self.engine.store.name, %fence, "a lock was released by force");
                Ok(())
            }
            Release::NotHeld => Err(LockError::not_held(format!(
                "it is not held under fence {fence}; look again who holds it now"
            ))
            .with_key(&self.engine.user_key(&key))),
        }
    }

    /// What this store promises, as it is set up now.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn probe(&self) -> Result<Guarantees, LockError> {
        self.step("probe", None, |store| store.probe()).await
    }

    /// Refuses new locks, and waits for the releases that are still under way: at most five
    /// seconds.
    ///
    /// Locks that are held stay held until their handles are dropped.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if some releases could not be confirmed;
    /// their leases end by themselves.
    ///
    /// # Cancel safety
    /// Cancel-safe: the releases go on.
    pub async fn shutdown(&self) -> Result<(), LockError> {
        self.shutdown_within(SHUTDOWN_TIMEOUT).await
    }

    /// As [`shutdown`](Self::shutdown), with a limit of its own.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub async fn shutdown_within(&self, limit: Duration) -> Result<(), LockError> {
        self.engine.close();
        match self.engine.background.drain(limit).await {
            0 => Ok(()),
            left => Err(LockError::unavailable(format!(
                "{left} release(s) were not confirmed within {limit:?}; these locks end with their leases"
            ))),
        }
    }

    /// One step that is bounded in time and repeated by nobody. Its errors name the key.
    async fn step<T>(
        &self,
        step: &'static str,
        key: Option<&Key>,
        ask: impl FnOnce(Arc<dyn Backend>) -> Reply<T>,
    ) -> Result<T, LockError> {
        tokio::task::coop::consume_budget().await;
        Engine::check_runtime()?;
        self.engine.check_process()?;
        let mut call = ask(Arc::clone(&self.engine.backend));
        let answer = within(self.engine.step_timeout, &mut call).await.unwrap_or_else(|| {
            Err(LockError::ambiguous("the store did not answer in time; check that it is up"))
        });
        match answer {
            Ok(answer) => {
                let key = key.map(tracing::field::display);
                tracing::debug!(key, store = self.engine.store.name, outcome = "ok", "{step}");
                Ok(answer)
            }
            Err(error) => {
                self.engine.events.store_error(step, key, &error);
                Err(match key {
                    Some(key) => self.about(key, error),
                    None => error,
                })
            }
        }
    }

    fn about(&self, key: &Key, error: LockError) -> LockError {
        error.with_key(&self.engine.user_key(key))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

fn extended(engine: &Engine, key: &Key, answer: Extension) -> Result<Lease, LockError> {
    match answer {
        Extension::Extended(lease) => Ok(lease),
        Extension::NotHeld => Err(not_held(engine, key)),
    }
}

fn not_held(engine: &Engine, key: &Key) -> LockError {
    crate::engine::resume::not_held().with_key(&engine.user_key(key))
}
