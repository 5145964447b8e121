//! The store as the engine sees it: connecting, what it can do, and each call handed to the layout
//! in use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendRequest, Extension, Fence, Guarantees,
    Holder, Key, LockError, ManyAttempt, Release, Reply, Secret, Subscription, Transfer,
    TransferRequest, WakeUps, spawn_lasting,
};
use tokio::task::JoinHandle;

use crate::config::{Layout, PostgresConfig};
use crate::connect::Connector;
use crate::fencing;
use crate::listen::Listener;
use crate::native::Native;
use crate::pool::Pool;
use crate::probe;
use crate::sweep::Sweeper;
use crate::syncguard::Syncguard;

/// Locks in a PostgreSQL database.
pub struct PostgresStore {
    config: PostgresConfig,
    pool: Arc<Pool>,
    listener: Arc<Listener>,
    steps: Steps,
    sweeper: Arc<Sweeper>,
}

/// The layout in use.
enum Steps {
    Native(Native),
    Syncguard(Syncguard),
}

impl PostgresStore {
    /// Connects to the primary among the hosts of `url`: see [`PostgresConfig::from_url`].
    ///
    /// # Errors
    /// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a bad URL, or a database
    /// without our schema (run [`migrate`](crate::migrate));
    /// [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if no primary answers;
    /// [`AuthFailed`](holdtight_core::ErrorKind::AuthFailed) if it refuses us.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::connect_with(PostgresConfig::from_url(url)?).await
    }

    /// The same with a configuration that was already read.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`].
    ///
    /// # Cancel safety
    /// As [`PostgresStore::connect`].
    pub async fn connect_with(config: PostgresConfig) -> Result<Self, LockError> {
        let connector = Arc::new(Connector::new(config.clone())?);
        let pool = Arc::new(Pool::new(Arc::clone(&connector)));
        pool.warm_up().await?;
        let listener = Arc::new(Listener::new(connector, Arc::clone(&pool))?);
        let steps = match config.layout {
            Layout::Native => {
                Steps::Native(Native::new(&config, Arc::clone(&pool), Arc::clone(&listener)))
            }
            Layout::Syncguard => Steps::Syncguard(Syncguard::new(&config, Arc::clone(&pool))),
        };
        let sweeper = Arc::new(Sweeper::new(&config, Arc::clone(&pool)));
        Ok(Self { config, pool, listener, steps, sweeper })
    }

    /// Removes the rows of all keys that have been free for at least `idle`, now, and says how
    /// many.
    ///
    /// The store does this by itself about once a minute, for keys that have been free for five;
    /// nobody has to call it. Only one process sweeps at a time: while another does, this one
    /// leaves the rows to it and counts none.
    ///
    /// # Errors
    /// As any step; what was removed until then stays removed.
    ///
    /// # Cancel safety
    /// The rows are removed in pages, each wholly or not at all.
    pub async fn sweep(&self, idle: Duration) -> Result<u64, LockError> {
        self.sweeper.round(idle).await
    }

    /// A condition for the WHERE clause of your own statement in the same database, in SQL: true
    /// only while `fence` is the newest grant of `key` and was not released.
    ///
    /// The condition also keeps the next grant of the key waiting until your transaction is over.
    /// So a write made under it cannot land after somebody else was granted the lock, however long
    /// your program was paused before it. Keep such transactions short: after two seconds an
    /// acquire gives up with `Unavailable` and tries again.
    ///
    /// No row updated means that the lock was lost.
    ///
    /// ```no_run
    /// # use holdtight_core::{Fence, Key, LockError};
    /// # fn example(store: &holdtight_postgres::PostgresStore, fence: Fence) -> Result<(), LockError> {
    /// let held = store.fenced(&Key::new("account:7")?, fence)?;
    /// let sql = format!("UPDATE accounts SET balance = balance - 10 WHERE id = 7 AND {held}");
    /// # let _ = sql; Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](holdtight_core::ErrorKind::Unsupported) in the syncguard layout, whose
    /// tables have no such function.
    pub fn fenced(&self, key: &Key, fence: Fence) -> Result<String, LockError> {
        match self.config.layout {
            Layout::Native => Ok(fencing::condition(&self.config.name("_fenced"), key, fence)),
            Layout::Syncguard => Err(LockError::unsupported(
                "the syncguard layout cannot fence a statement; keep the fence in your own row and compare it",
            )
            .with_key(key)),
        }
    }
}

impl PostgresStore {
    /// Whether callers drive none of their steps: where a connection is one caller's alone until
    /// its answer is there, and in the layout whose answers have many parts.
    fn is_apart(&self) -> bool {
        self.config.pooled || self.config.layout != Layout::Native
    }
}

impl Backend for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        let name = Capabilities::new("postgres");
        match self.steps {
            Steps::Native(_) => name
                .wake_ups(if self.config.listen { WakeUps::Standing } else { WakeUps::None })
                .transfer(true)
                .acquire_many(true)
                .force_release(true)
                .max_batch(1000),
            Steps::Syncguard(_) => Syncguard::capabilities(name),
        }
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        brief(self.is_apart(), async move {
            match &self.steps {
                Steps::Native(steps) => steps.acquire(request).await,
                Steps::Syncguard(steps) => steps.acquire(request).await,
            }
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        brief(self.is_apart(), async move {
            let name = self.sweeper.is_due().then(|| key.as_str().to_owned());
            let release = async {
                match &self.steps {
                    Steps::Native(steps) => steps.release(key, secret).await,
                    Steps::Syncguard(steps) => steps.release(key, secret).await,
                }
            };
            match name {
                None => release.await,
                Some(name) => tokio::join!(release, self.sweeper.beside(&name)).0,
            }
        })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        apart(async move {
            match &self.steps {
                Steps::Native(steps) => steps.extend(leases).await,
                Steps::Syncguard(steps) => steps.extend(leases).await,
            }
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        brief(self.is_apart(), async move {
            match &self.steps {
                Steps::Native(steps) => steps.lookup(key).await,
                Steps::Syncguard(steps) => steps.lookup(key).await,
            }
        })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        apart(async move {
            match &self.steps {
                Steps::Native(steps) => steps.list(&prefix, limit).await,
                Steps::Syncguard(steps) => steps.list(&prefix, limit).await,
            }
        })
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        Box::pin(async move { Ok(self.listener.subscribe(&key)) })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move { probe::probe(&self.pool, &self.config).await })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        brief(self.is_apart(), async move {
            match &self.steps {
                Steps::Native(steps) => steps.transfer(request).await,
                Steps::Syncguard(steps) => steps.transfer(request).await,
            }
        })
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        apart(async move {
            match &self.steps {
                Steps::Native(steps) => steps.acquire_many(requests).await,
                Steps::Syncguard(_) => Err(not_in_syncguard("take several keys in one step")),
            }
        })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        brief(self.is_apart(), async move {
            match &self.steps {
                Steps::Native(steps) => steps.force_release(key, fence).await,
                Steps::Syncguard(steps) => steps.force_release(key, fence).await,
            }
        })
    }
}

/// A step whose answer is short, so that the client library takes in all of it, also for a caller
/// that is not polled. It is driven by its caller, unless it has to be
/// [apart](PostgresStore::is_apart): a task of its own is felt by every lock.
fn brief<T, F>(is_apart: bool, step: F) -> Reply<T>
where
    F: Future<Output = Result<T, LockError>> + Send + 'static,
    T: Send + 'static,
{
    if is_apart { apart(step) } else { Box::pin(step) }
}

/// Drives a step in a task of its own. The client library reads no further on a connection until
/// whoever asked has taken the first pieces of the answer: a caller whose future is not polled
/// would hold up everybody else there.
///
/// A caller that goes away takes the step with it: its connection is left if it was silent, which a
/// step that went on would keep to itself until its own time is over.
fn apart<T, F>(step: F) -> Reply<T>
where
    F: Future<Output = Result<T, LockError>> + Send + 'static,
    T: Send + 'static,
{
    Box::pin(async move {
        let mut driven = Driven(spawn_lasting(step));
        (&mut driven.0).await.unwrap_or_else(|error| {
            let cut_off = "the request to PostgreSQL was cut off before its answer came";
            Err(LockError::ambiguous(cut_off).with_source(error))
        })
    })
}

/// A task that ends with this.
struct Driven<T>(JoinHandle<T>);

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn not_in_syncguard(what: &str) -> LockError {
    LockError::unsupported(format!("the syncguard layout cannot {what}"))
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.config).finish()
    }
}
