//! What Ctrl-C does while a command waits: the wait is given up and nothing is left behind in the store.

use std::future::Future;

use holdtight::DistributedLock;

use crate::exit::{self, Failure};

/// Runs `work` until it ends or a signal asks us to stop. Then what it left in the store is withdrawn, in bounded time.
pub(crate) async fn or_stopped<T>(
    lock: &DistributedLock,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let signal = {
        tokio::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            signal = asked_to_stop() => signal,
        }
    };
    // The work is dropped by now; a store that does not answer ends by its leases.
    let _ = lock.shutdown_within(std::time::Duration::from_secs(2)).await;
    Err(Failure::silent(exit::signalled(signal)))
}

#[cfg(unix)]
async fn asked_to_stop() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        // Without handlers the signals end this process themselves.
        return std::future::pending().await;
    };
    let [int, term, hup] = kinds.map(|kind| kind.as_raw_value());
    tokio::select! {
        _ = interrupt.recv() => int,
        _ = terminate.recv() => term,
        _ = hangup.recv() => hup,
    }
}

#[cfg(not(unix))]
async fn asked_to_stop() -> i32 {
    match tokio::signal::ctrl_c().await {
        Ok(()) => 2,
        Err(_) => std::future::pending().await,
    }
}
