//! What Ctrl-C does while a command waits: the wait is given up, nothing is left behind in the
//! store, and then this process dies of the signal, so that a shell that runs us in a loop ends the
//! loop too. A command that fails leaves nothing behind either.

use std::future::Future;
use std::time::Duration;

use holdtight::DistributedLock;

use crate::config::Settings;
use crate::exit::Failure;
use crate::{store, threads};

/// How long a store may take to hear that nobody waits any more; after that its leases end by
/// themselves.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// Connects to the store, within `patience` if it cannot be reached, and runs `work` on it, until
/// it ends or a signal asks us to stop.
///
/// To be called before anything else, because threads that are started later inherit what is
/// blocked here.
pub(crate) async fn or_stopped<T, W>(
    settings: &Settings,
    patience: Duration,
    work: W,
) -> Result<T, Failure>
where
    W: AsyncFnOnce(&DistributedLock) -> Result<T, Failure>,
{
    threads::must_start(threads::FOR_A_LOCK)?;
    let mut signals = platform::Signals::block()?;
    let connecting = store::builder(settings).connect_within(patience);
    let lock = match signals.or_else(connecting).await {
        Ok(connected) => connected?,
        Err(signal) => return Err(signal.die()),
    };
    let ended = signals.or_else(work(&lock)).await;
    match ended {
        Ok(done) => {
            if done.is_err() {
                // What was wanted in the store is still being withdrawn: a waiter in line there
                // would be served.
                let _ = lock.shutdown_within(WITHDRAWAL).await;
            }
            done
        }
        Err(signal) => {
            // The work was dropped: what it had or wanted in the store is on its way back.
            let _ = lock.shutdown_within(WITHDRAWAL).await;
            Err(signal.die())
        }
    }
}

impl platform::Signals {
    /// The end of `work`, or the signal that came first.
    async fn or_else<T>(&mut self, work: impl Future<Output = T>) -> Result<T, platform::Fatal> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            signal = self.next() => Err(signal),
        }
    }
}

#[cfg(unix)]
mod platform {
    use nix::sys::signal::{SigSet, Signal};
    use tokio::sync::oneshot;

    use crate::disposition::{self, is_ignored};
    use crate::exit::{self, Failure};
    use crate::threads;

    /// The signals that ask a process to end, blocked and waited for by a thread of their own.
    ///
    /// Blocking instead of catching leaves their dispositions as they were: what `nohup` ignores
    /// stays ignored.
    pub(super) struct Signals {
        first: oneshot::Receiver<Signal>,
    }

    /// A signal that this process shall die of.
    pub(super) struct Fatal(Signal);

    impl Signals {
        pub(super) fn block() -> Result<Self, Failure> {
            let (tell, first) = oneshot::channel();
            let wanted = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
            let set: SigSet = wanted.into_iter().filter(|signal| !is_ignored(*signal)).collect();
            let cannot = |error: &dyn std::fmt::Display| {
                Failure::new(exit::SOFTWARE, format!("cannot listen to signals: {error}"))
            };
            set.thread_block().map_err(|error| cannot(&error))?;
            std::thread::Builder::new()
                .name("signals".to_owned())
                .spawn(move || set.wait().map(|signal| tell.send(signal)))
                .map_err(|error| threads::cannot(&error))?;
            Ok(Self { first })
        }

        pub(super) async fn next(&mut self) -> Fatal {
            match (&mut self.first).await {
                Ok(signal) => Fatal(signal),
                Err(_) => std::future::pending().await,
            }
        }
    }

    impl Fatal {
        /// Ends this process, as if the signal had never been blocked. Returns only where that is
        /// not possible.
        pub(super) fn die(self) -> Failure {
            disposition::die_of(self.0);
            Failure::silent(exit::signalled(self.0 as i32))
        }
    }
}

#[cfg(not(unix))]
mod platform {
    use crate::exit::{self, Failure};

    /// Ctrl-C.
    pub(super) struct Signals;

    pub(super) struct Fatal;

    impl Signals {
        pub(super) fn block() -> Result<Self, Failure> {
            Ok(Self)
        }

        pub(super) async fn next(&mut self) -> Fatal {
            match tokio::signal::ctrl_c().await {
                Ok(()) => Fatal,
                Err(_) => std::future::pending().await,
            }
        }
    }

    impl Fatal {
        pub(super) fn die(self) -> Failure {
            Failure::silent(exit::signalled(2))
        }
    }
}
