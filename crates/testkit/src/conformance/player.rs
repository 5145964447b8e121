//! What each of several processes does that play on one store.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Backend, Builder, DistributedLock};

use crate::history::{Load, Recorder};

/// After this long a load ends, however little was done: the tour of all moves is done before, in
/// any case.
pub(super) const LIMIT: Duration = Duration::from_secs(4);

pub(super) fn lock(store: Arc<dyn Backend>) -> DistributedLock {
    Builder::shared(store).build().unwrap()
}

/// What each of several processes does.
pub(super) async fn play(store: Arc<dyn Backend>, key: &str, seed: u64, note: std::fs::File) {
    let recorder = Recorder::of_process(std::process::id(), note);
    let able = store.capabilities();
    let ttl = |millis| Duration::from_millis(millis).clamp(able.min_ttl, able.max_ttl);
    let load = Load::mixed(seed).prefix(key).grants(150).limit(LIMIT);
    let load = load.brief(ttl(1000)).ttl(ttl(5000));
    let locks = [lock(Arc::clone(&store)), lock(store)];
    load.run(&locks, &recorder).await;
    recorder.over();
    for lock in locks {
        // What is not confirmed in time ends with its lease; the parent looks for it.
        let _ = lock.shutdown().await;
    }
}
