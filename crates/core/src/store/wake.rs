//! Wake-ups: a store rings a bell, a waiter listens. Hints only, so rings may merge and none is
//! counted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// The waiter's end: resolves when the key it was made for may have become free.
///
/// Dropping it unsubscribes.
pub struct Subscription {
    wire: Arc<Wire>,
    on_drop: Option<Box<dyn FnOnce() + Send>>,
}

/// The store's end.
#[derive(Clone)]
pub struct Bell {
    wire: Arc<Wire>,
}

#[derive(Default)]
struct Wire {
    rung: Notify,
    dropped: AtomicBool,
}

impl Subscription {
    /// A bell and the subscription that hears it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use holdtight_core::Subscription;
    /// let (bell, mut subscription) = Subscription::channel();
    /// bell.ring();
    /// subscription.heard().await;
    /// drop(subscription);
    /// assert!(bell.is_abandoned());
    /// # }
    /// ```
    pub fn channel() -> (Bell, Self) {
        let wire = Arc::new(Wire::default());
        (Bell { wire: Arc::clone(&wire) }, Self { wire, on_drop: None })
    }

    /// A subscription that never hears anything.
    pub fn silent() -> Self {
        Self::channel().1
    }

    /// Runs `unsubscribe` when the subscription is dropped. It must not block.
    pub fn on_drop(mut self, unsubscribe: impl FnOnce() + Send + 'static) -> Self {
        self.on_drop = Some(Box::new(unsubscribe));
        self
    }

    /// Waits for the next ring; several rings since the last call count as one.
    ///
    /// # Cancel safety
    /// Cancel-safe: a ring that was not returned is heard by the next call.
    pub async fn heard(&mut self) {
        self.wire.rung.notified().await;
    }
}

impl Bell {
    /// Wakes the subscriber. Never blocks; needs no runtime.
    pub fn ring(&self) {
        self.wire.rung.notify_one();
    }

    /// Whether the subscriber has gone, so that a store can forget this bell.
    pub fn is_abandoned(&self) -> bool {
        self.wire.dropped.load(Ordering::Acquire)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.wire.dropped.store(true, Ordering::Release);
        if let Some(unsubscribe) = self.on_drop.take() {
            unsubscribe();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("abandoned", &self.is_abandoned()).finish()
    }
}
