//! The ears of a store: which keys somebody here waits for, and whose bell rings when a message
//! comes.
//!
//! Every store listens on one channel of its own, so subscribing to a key costs no request. A
//! release pops the first entry of the key's waiter list and sends the lock's name to that entry's
//! channel; a broken connection may have swallowed messages, so the next one rings for everybody.

use std::sync::Arc;

use holdtight_core::{LockError, Secret, Subscription};
use holdtight_kit::WaiterRegistry;
use redis::{PushInfo, PushKind, Value};

/// Everybody in this store who waits.
pub(crate) struct Ears {
    /// 22 characters, random: the store's name in waiter entries and channels.
    client: String,
    /// With each lock, whether a busy answer left an entry in its waiter list.
    waiters: Arc<WaiterRegistry<Arc<str>, bool>>,
}

impl Ears {
    pub(crate) fn new() -> Result<Arc<Self>, LockError> {
        let client = Secret::generate()?.expose().to_owned();
        Ok(Arc::new(Self { client, waiters: Arc::default() }))
    }

    /// The name by which waiter entries call this store.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// A waiter for `lock`, until the subscription is dropped.
    pub(crate) fn listen(&self, lock: &str) -> Subscription {
        self.waiters.subscribe(lock.into())
    }

    /// Whether somebody here waits for `lock`.
    pub(crate) fn awaits(&self, lock: &str) -> bool {
        self.waiters.count(lock) > 0
    }

    /// Whether an entry for `lock` may be in its waiter list.
    pub(crate) fn may_be_queued(&self, lock: &str) -> bool {
        self.waiters.with(lock, |queued| *queued).unwrap_or(false)
    }

    /// Remembers that a busy answer left an entry.
    pub(crate) fn queued(&self, lock: &str) {
        self.waiters.with(lock, |queued| *queued = true);
    }

    /// Whether nobody waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Wakes everybody: messages may have been lost.
    pub(crate) fn ring_all(&self) {
        self.waiters.notify_all();
    }

    /// Takes in what the server sent unasked. Anything unexpected is nobody's message.
    pub(crate) fn hear(&self, push: &PushInfo) {
        if let (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(lock)]) =
            (&push.kind, push.data.as_slice())
            && let Ok(lock) = std::str::from_utf8(lock)
        {
            self.waiters.notify_one(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn message(lock: &str) -> PushInfo {
        let data = vec![Value::BulkString(b"channel".to_vec()), Value::BulkString(lock.into())];
        PushInfo { kind: PushKind::Message, data }
    }

    async fn hears(subscription: &mut Subscription) -> bool {
        tokio::time::timeout(Duration::from_millis(20), subscription.heard()).await.is_ok()
    }

    #[tokio::test]
    async fn a_message_wakes_the_first_waiter_of_that_lock_only() {
        let ears = Ears::new().unwrap();
        let mut first = ears.listen("a");
        let mut second = ears.listen("a");
        let mut other = ears.listen("b");
        ears.hear(&message("a"));
        assert!(hears(&mut first).await && !hears(&mut second).await && !hears(&mut other).await);
        ears.hear(&message("a"));
        assert!(
            hears(&mut second).await && !hears(&mut first).await,
            "two messages wake two waiters"
        );
        drop(first);
        ears.hear(&message("a"));
        assert!(hears(&mut second).await);
        ears.ring_all();
        assert!(hears(&mut second).await && hears(&mut other).await);
    }

    #[tokio::test]
    async fn nothing_stays_behind_when_waiters_leave() {
        let ears = Ears::new().unwrap();
        let waiters: Vec<_> = (0..100).map(|n| ears.listen(&format!("k{}", n % 10))).collect();
        ears.queued("k1");
        assert!(ears.may_be_queued("k1") && !ears.may_be_queued("k2"));
        drop(waiters);
        assert!(ears.is_quiet() && !ears.may_be_queued("k1"));
        ears.queued("gone");
        ears.hear(&message("gone"));
        assert!(ears.is_quiet());
    }

    #[test]
    fn strange_messages_are_nobodys() {
        let ears = Ears::new().unwrap();
        for data in [
            vec![],
            vec![Value::Nil, Value::Nil],
            vec![Value::Int(1), Value::BulkString(vec![0xff])],
        ] {
            ears.hear(&PushInfo { kind: PushKind::Message, data });
        }
    }
}
