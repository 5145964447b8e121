//! A store that answers nonsense: never a grant that is not one, never a lock believed in for too
//! long, never a panic.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Builder, Busy, Capabilities, DistributedLock, ErrorKind,
    ExtendRequest, Extension, Fence, Guarantees, Holder, Key, Lease, LockError, LockHandle, Loss,
    MemoryStore, Release, Reply, Secret, Transfer, TransferRequest,
};

/// How the store lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Grants and extends for a year.
    EndlessLease,
    /// Grants a lease of nothing.
    EmptyLease,
    /// Extends somebody else's lock.
    OtherFence,
    /// Answers no extension at all.
    NoAnswer,
    /// Answers more than was asked.
    TwoAnswers,
    /// Says busy and "come back at once", for ever.
    ImpatientBusy,
    /// Hands over to nobody.
    EmptyTransfer,
}

#[derive(Debug)]
struct Liar {
    lie: Lie,
    inner: Arc<MemoryStore>,
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn bend<T: Send + 'static>(truth: Reply<T>, how: impl FnOnce(T) -> T + Send + 'static) -> Reply<T> {
    Box::pin(async move { truth.await.map(how) })
}

impl Backend for Liar {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("liar").transfer(true)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        let lie = self.lie;
        bend(Arc::clone(&self.inner).acquire(request), move |truth| match (lie, truth) {
            (Lie::EndlessLease, Attempt::Granted(lease)) => {
                Attempt::Granted(Lease::new(lease.fence, YEAR))
            }
            (Lie::EmptyLease, Attempt::Granted(lease)) => {
                Attempt::Granted(Lease::new(lease.fence, Duration::ZERO))
            }
            (Lie::ImpatientBusy, _) => Attempt::Busy(Busy::new().retry_after(Duration::ZERO)),
            (_, truth) => truth,
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Arc::clone(&self.inner).release(key, secret)
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        let lie = self.lie;
        bend(Arc::clone(&self.inner).extend(leases), move |mut truth| {
            let change = |answer: &mut Result<Extension, LockError>| {
                if let Ok(Extension::Extended(lease)) = answer {
                    match lie {
                        Lie::EndlessLease => lease.ttl = YEAR,
                        Lie::OtherFence => lease.fence = Fence::new(lease.fence.get() + 1),
                        _ => {}
                    }
                }
            };
            truth.iter_mut().for_each(change);
            match lie {
                Lie::NoAnswer => truth.clear(),
                Lie::TwoAnswers => truth.push(Ok(Extension::NotHeld)),
                _ => {}
            }
            truth
        })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        let lie = self.lie;
        bend(Arc::clone(&self.inner).transfer(request), move |truth| match (lie, truth) {
            (Lie::EmptyTransfer, Transfer::Transferred(lease)) => {
                Transfer::Transferred(Lease::new(lease.fence, Duration::ZERO))
            }
            (_, truth) => truth,
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Arc::clone(&self.inner).lookup(key)
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Arc::clone(&self.inner).list(prefix, limit)
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Arc::clone(&self.inner).probe()
    }
}

fn liar(lie: Lie) -> (DistributedLock, Arc<MemoryStore>) {
    let clock = holdtight_core::TokioClock::new();
    let inner = Arc::new(MemoryStore::with_clock(clock.clone()));
    let store = Liar { lie, inner: Arc::clone(&inner) };
    (Builder::shared(Arc::new(store)).clock(clock).build().unwrap(), inner)
}

/// How long a test may take by the clock on the wall: a moment, on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a test in virtual time that ends, whatever the engine does: one that waits for nothing is
/// stopped after a virtual week, one that is busy for ever, so that virtual time stands still, by a
/// clock outside.
fn guarded(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let week = Duration::from_secs(7 * 24 * 3600);
        let ended = runtime.block_on(async { tokio::time::timeout(week, test()).await });
        ended.expect("something is waited for that never happens");
        done.send(()).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => panic!("the engine is busy for ever"),
        _ => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
    }
}

/// The loss, which must come within a virtual hour.
async fn loss(handle: &LockHandle) -> Loss {
    tokio::time::timeout(Duration::from_secs(3600), handle.lost())
        .await
        .expect("the loss goes unnoticed")
}

#[test]
fn a_lease_longer_than_asked_for_is_not_believed() {
    guarded(async || {
        let (lock, _) = liar(Lie::EndlessLease);
        let handle =
            lock.acquire("k").ttl(Duration::from_secs(10)).auto_renew(false).await.unwrap();
        assert!(handle.remaining() <= Duration::from_secs(10));
        handle.extend(Duration::from_secs(20)).await.unwrap();
        assert!(handle.remaining() <= holdtight_core::MAX_TTL);
    });
}

#[test]
fn a_lease_of_nothing_is_no_grant() {
    guarded(async || {
        let (lock, inner) = liar(Lie::EmptyLease);
        assert_eq!(lock.try_acquire("k").await.unwrap_err().kind(), ErrorKind::Ambiguous);
        lock.shutdown().await.unwrap();
        assert_eq!(inner.footprint(), 0);
    });
}

#[test]
fn an_extension_of_another_grant_is_a_loss() {
    guarded(async || {
        let (lock, _) = liar(Lie::OtherFence);
        let handle = lock.acquire("k").await.unwrap();
        assert_eq!(loss(&handle).await, Loss::TakenAway);
        let handle = lock.acquire("l").auto_renew(false).await.unwrap();
        assert_eq!(
            handle.extend(Duration::from_secs(60)).await.unwrap_err().kind(),
            ErrorKind::Lost
        );
        assert!(!handle.is_held());
    });
}

#[test]
fn a_wrong_number_of_answers_is_no_answer() {
    guarded(async || {
        for lie in [Lie::NoAnswer, Lie::TwoAnswers] {
            let (lock, _) = liar(lie);
            let handle = lock.acquire("k").await.unwrap();
            assert_eq!(
                handle.extend(Duration::from_secs(60)).await.unwrap_err().kind(),
                ErrorKind::Internal,
                "{lie:?}"
            );
            assert_eq!(
                lock.owns(&handle.token()).await.unwrap_err().kind(),
                ErrorKind::Internal,
                "{lie:?}"
            );
            assert!(handle.is_held(), "{lie:?}: nonsense is not a loss either");
            assert_eq!(
                loss(&handle).await,
                Loss::Expired,
                "{lie:?}: but renewals that fail end the lease"
            );
        }
    });
}

#[test]
fn come_back_at_once_does_not_mean_a_busy_loop() {
    guarded(async || {
        let (lock, _) = liar(Lie::ImpatientBusy);
        let error = lock.wait_for_lock("k", Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(
            error.attempts().unwrap() <= 1002,
            "{} attempts in a second",
            error.attempts().unwrap()
        );
    });
}

#[test]
fn a_hand_over_of_nothing_is_noticed_by_the_next_in_line() {
    guarded(async || {
        let (lock, inner) = liar(Lie::EmptyTransfer);
        let first = lock.acquire("k").await.unwrap();
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire("k").wait(Duration::from_secs(20)).await }
        });
        tokio::task::yield_now().await;
        first.release().await.unwrap();
        let second = waiter.await.unwrap().unwrap();
        assert!(second.is_held());
        second.release().await.unwrap();
        lock.shutdown().await.unwrap();
        assert_eq!(inner.footprint(), 0);
    });
}
