//! Where a lock object gets its store from.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::model::error::LockError;
use crate::model::retry::RetryPolicy;
use crate::store::backend::{Backend, Reply};

/// A store that is there, or one that has to be connected to first: what
/// [`Builder::connect`](crate::Builder::connect) opens.
///
/// The crate `holdtight` implements it for URLs.
pub trait OpenStore: Send + Sync {
    /// Opens the store.
    ///
    /// # Errors
    /// What the store reports.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    fn open(&self) -> Reply<Arc<dyn Backend>>;

    /// The same, and asks again for at most `limit` while the store cannot be reached: it may be
    /// restarting, or failing over.
    ///
    /// # Errors
    /// As [`open`](Self::open); what will not pass by itself is told at once.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing was locked yet.
    fn open_within(
        &self,
        limit: Duration,
    ) -> impl Future<Output = Result<Arc<dyn Backend>, LockError>> + Send
    where
        Self: Sized,
    {
        async move {
            let (started, pauses) = (tokio::time::Instant::now(), RetryPolicy::default());
            // Programs that were started together do not ask together.
            let own_pace = f64::from(std::process::id() % 97) / 97.0;
            let mut tries = 0;
            loop {
                let error = match self.open().await {
                    Err(error) if error.kind().is_transient() => error,
                    opened => return opened,
                };
                let pause = pauses.delay(tries, own_pace);
                if started.elapsed().saturating_add(pause) >= limit {
                    return Err(error);
                }
                tokio::time::sleep(pause).await;
                tries += 1;
            }
        }
    }
}

/// A store that is there.
impl OpenStore for Arc<dyn Backend> {
    fn open(&self) -> Reply<Arc<dyn Backend>> {
        let store = Arc::clone(self);
        Box::pin(async move { Ok(store) })
    }
}
