//! Locks that are held for seconds: long enough for a store to fail, and to come back, under them.

use std::time::Duration;

use holdtight_core::{BootClock, Clock as _, Moment};

use super::event::{Form, Patience};
use super::player::{Player, release, taken};

/// How often a holder asks whether it still holds: whoever is granted the lock meanwhile meets it
/// there.
const LOOK: Duration = Duration::from_millis(5);

impl Player {
    /// Holds one key again and again: for less or for more than its lease, which is renewed; some
    /// leases outlive what a failover takes, others do not.
    pub(super) async fn hold_long(mut self, until: Moment) {
        let key = self.slow("long");
        while !self.load.is_over(&self.recorder, until) {
            let lock = self.any();
            let ttl = if self.random.bool() { self.load.ttl } else { self.load.ttl * 4 };
            // Limited: it stands in a line of seconds.
            let claim = self.recorder.ask(&key, Form::Acquire, Patience::Limited);
            let acquire = lock.acquire(&key).ttl(ttl).wait(ttl);
            if let Some((handle, holding)) = taken(claim, acquire.await) {
                let end = BootClock.now().after(self.millis(50..=4000));
                while BootClock.now() < end && holding.look() {
                    tokio::time::sleep(LOOK).await;
                }
                release(handle, holding).await;
            }
            self.rest().await;
        }
    }
}
