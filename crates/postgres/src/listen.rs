//! The one LISTEN connection: opened when somebody first waits, and a hint that it may be worth
//! asking again.
//!
//! Each store value listens on a channel of its own, whose name it leaves in the queue of the keys
//! it waits for; a release notifies the first name in the queue and nobody else. Whether the hints
//! really arrive is tried out, since a transaction pooler accepts LISTEN and forgets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use holdtight_core::{Key, LockError, Secret, Subscription, spawn_lasting};
use holdtight_kit::{WaiterRegistry, lock, pause};
use tokio::task::AbortHandle;
use tokio_postgres::types::Type;

use crate::connect::{Connector, Link, News};
use crate::error::{Phase, from_driver};
use crate::pool::{Pool, echoed_row, hash};

/// How long our own echo may take before we say that notifications do not arrive.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it stays at that before it is tried again: it may have been a server or a program that
/// stood still.
const DEAF_FOR: Duration = Duration::from_secs(300);

pub(crate) struct Listener {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    channel: String,
    waiters: Arc<WaiterRegistry<String>>,
    /// A release of nothing: withdraws all waiters of ours, and wakes the next one if the key is
    /// free.
    pass_on: String,
    /// Listening is off, or was last found not to work.
    deaf: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    pub(crate) fn new(connector: Arc<Connector>, pool: Arc<Pool>) -> Result<Self, LockError> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(|error| {
            LockError::internal("the operating system gave no random bytes").with_source(error)
        })?;
        let name = u128::from_be_bytes(name);
        let deaf = AtomicBool::new(!connector.config.listen);
        let pass_on = echoed_row(&connector.config.name("_release"), 4);
        Ok(Self {
            pass_on,
            connector,
            pool,
            channel: format!("holdtight_{name:032x}"),
            waiters: Arc::default(),
            deaf,
            task: Mutex::default(),
        })
    }

    /// The name under which to queue; empty if no hint would be heard.
    pub(crate) fn waiter(&self, secret: &Secret) -> String {
        if self.deaf.load(Ordering::Relaxed) { String::new() } else { self.name(secret) }
    }

    /// How the queue of a key names the caller with this secret, if it does.
    pub(crate) fn name(&self, secret: &Secret) -> String {
        if !self.connector.config.listen {
            return String::new();
        }
        // The secret itself must not stand where it is not needed; the ticket only tells callers
        // apart.
        format!("{}/{:016x}", self.channel, hash(secret.expose().as_bytes()))
    }

    pub(crate) fn subscribe(&self, key: &Key) -> Subscription {
        self.waiters.subscribe(key.as_str().to_owned())
    }

    /// Somebody waits: make sure that the connection is there. Hints from before it was are made up
    /// by one ring for all.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.deaf.load(Ordering::Relaxed) {
            return;
        }
        let mut task = lock(&self.task);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let listener = Arc::downgrade(self);
            *task = Some(spawn_lasting(keep_listening(listener)).abort_handle());
        }
    }

    async fn open(&self) -> Result<(Link, News), LockError> {
        let (link, news) = self.connector.connect_listening().await?;
        let listen = format!("LISTEN \"{}\"", self.channel);
        tokio::time::timeout(
            self.connector.config.timeout,
            link.client.execute_typed(&listen, &[]),
        )
        .await
        .map_err(|_| LockError::unavailable("PostgreSQL did not answer LISTEN in time"))?
        .map_err(|error| from_driver(&error, Phase::Connect))?;
        Ok((link, news))
    }

    /// Rings for `key`. If its waiter has left meanwhile, the wake-up goes on to the next one in
    /// the store's queue.
    async fn wake(&self, key: &str) {
        if self.waiters.notify_one(key) {
            return;
        }
        let everybody_here = format!("{}/", self.channel);
        let params = [
            (&key as _, Type::TEXT),
            (&"" as _, Type::TEXT),
            (&everybody_here as _, Type::TEXT),
            (&false as _, Type::BOOL),
        ];
        if let Err(error) = self.pool.step(key, Phase::Write, &self.pass_on, &params).await {
            tracing::debug!(%error, "could not pass a wake-up on");
        }
    }

    /// Sends ourselves a note by another connection: behind a transaction pooler it does not come
    /// back.
    async fn hears_itself(&self, news: &mut News) -> Result<bool, LockError> {
        let note = format!("SELECT pg_catalog.pg_notify('{}', ''), $1::bigint", self.channel);
        self.pool.step("", Phase::Read, &note, &[]).await?;
        let echo = async {
            while let Some(note) = news.recv().await {
                if note.is_empty() {
                    return true;
                }
                self.wake(&note).await;
            }
            false
        };
        Ok(tokio::time::timeout(ECHO_TIMEOUT, echo).await.unwrap_or(false))
    }
}

/// Listens for as long as the store lives.
async fn keep_listening(store: Weak<Listener>) {
    let mut failures = 0;
    let mut silences = 0;
    while let Some(listener) = store.upgrade() {
        let opened = listener.open().await;
        let (link, mut news) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "cannot listen for wake-ups; waiters ask by the timer");
                drop(listener);
                tokio::time::sleep(pause(failures)).await;
                failures += 1;
                continue;
            }
        };
        match listener.hears_itself(&mut news).await {
            Ok(true) => {
                (failures, silences) = (0, 0);
                listener.deaf.store(false, Ordering::Relaxed);
            }
            // Twice in a row is hardly an accident.
            Ok(false) if !link.client.is_closed() && silences > 0 => {
                if !listener.deaf.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "PostgreSQL wake-ups do not arrive, probably because of a transaction pooler; waiters ask by \
                         the timer. Say listen=off in the URL, or give a URL without the pooler"
                    );
                }
                drop((listener, link));
                tokio::time::sleep(DEAF_FOR).await;
                continue;
            }
            Ok(false) => silences += 1,
            Err(_) => failures += 1,
        }
        // Whatever was released while nobody listened is found by asking once.
        listener.waiters.notify_all();
        let pool = Arc::clone(&listener.pool);
        drop(listener);
        if silences == 0 {
            follow(&store, &pool, &link, &mut news).await;
        }
        drop((link, pool));
        tokio::time::sleep(pause(failures)).await;
    }
}

/// Passes on what is heard, until the connection ends. Nothing is ever asked on it, so it is others
/// who find out that it leads nowhere.
async fn follow(store: &Weak<Listener>, pool: &Pool, link: &Link, news: &mut News) {
    loop {
        let note = tokio::select! {
            note = news.recv() => note,
            () = pool.suspected(link) => None,
        };
        let (Some(note), Some(listener)) = (note, store.upgrade()) else { return };
        listener.wake(&note).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}
