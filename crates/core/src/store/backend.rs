//! The contract between the engine and a store: one call is one atomic step in the store.
//!
//! Stores know nothing of waiting, renewal or policy; the engine knows nothing of Redis. Whoever
//! writes a store reads [`Backend`] and runs the conformance suite of `holdtight-testkit` against
//! it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::capabilities::Capabilities;
use super::reply::{Attempt, Extension, ManyAttempt, Release, Transfer};
use super::request::{AcquireRequest, ExtendBy, ExtendRequest, TransferRequest};
use super::wake::Subscription;
use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::health::Guarantees;
use crate::model::holder::Holder;
use crate::model::key::Key;
use crate::model::secret::Secret;

/// The answer of a store, on its way.
///
/// `'static`, so that the engine can go on driving a call whose caller has gone away: a step that
/// has left is never abandoned, only its result is put to another use.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'static>>;

/// A place that keeps locks.
///
/// # The contract
///
/// 1. **One call is one atomic step.** Between reading who holds a key and writing that somebody
///    does, nobody else may come. "Get, then set" is not a store.
/// 2. **Expiry is the store's.** A grant of `ttl` ends by itself, by the store's clock, no earlier
///    than `ttl` after the request arrived and not much later. The wall clock of a client decides
///    nothing.
/// 3. **The secret is the owner.** [`extend`](Self::extend), [`release`](Self::release) and
///    [`transfer`](Self::transfer) compare it inside the step and touch nothing when it differs.
/// 4. **Retries are idempotent.** [`acquire`](Self::acquire) of a key that the *same secret*
///    already holds, and [`transfer`](Self::transfer) *to* a secret that already holds it, is a
///    grant with the *same fence*, its lease at least `ttl` from now.
/// 5. **Nothing is revived.** [`extend`](Self::extend) of a lease that has ended answers
///    [`NotHeld`](Extension::NotHeld), even if nobody took the key since; it never shortens a lease
///    either.
/// 6. **A fence is minted in the step that grants**, strictly greater than every earlier fence of
///    that key: `max(last + 1, store time in µs)`, see [`Fence::next`]. Numbers may be skipped, by a
///    refused attempt too, which changes nothing else. When they run out the answer is an error,
///    before anything is granted.
/// 7. **Busy is an answer, not an error.** A value that the store cannot read is *held by somebody
///    else*, and is never overwritten.
/// 8. **Three outcomes.** `Ok` is what happened. [`Ambiguous`](crate::ErrorKind::Ambiguous) means
///    *perhaps done*: a timeout or a cut connection after the request left;
///    [`Internal`](crate::ErrorKind::Internal) is taken the same way. All other kinds mean *not
///    done*. The engine compensates; a store never repeats a step on its own unless it knows that
///    the first one did not happen.
/// 9. **Calls end.** Every future resolves in bounded time, by a timeout of the store's own if need
///    be, and may be dropped at any point. Dropping may or may not stop the step; it never breaks
///    the connection for others.
/// 10. **Replies are checked.** Sizes are bounded, types are exact; whatever is malformed is
///     [`Internal`](crate::ErrorKind::Internal), never a grant and never a panic. No error or
///     `Debug` shows a secret.
///
/// Futures run inside a tokio runtime, on any thread, many at once.
///
/// `examples/own_store.rs` of `holdtight-testkit` is a whole store in about a hundred lines.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can do. Constant for the life of the value.
    fn capabilities(&self) -> Capabilities;

    /// Takes the key if it is free, or says who has it.
    ///
    /// With [`Intent::Queue`](crate::Intent::Queue) a busy store may keep an entry for this secret,
    /// so that a release wakes it. The entry may outlive the call; [`release`](Self::release)
    /// withdraws it, and so must its own short lease if the caller is never heard of again.
    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt>;

    /// Gives the key back if `secret` holds it, withdraws its queue entry if it has one, and hints
    /// one waiter, as [`subscribe`](Self::subscribe) says.
    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release>;

    /// Moves the ends of several leases, each on its own, in as few requests as the store can.
    ///
    /// Answers stand in the order of the requests. An outer error speaks for the whole batch. There
    /// are never more than [`Capabilities::max_batch`] requests.
    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>>;

    /// Who holds `key` now; `None` if it is free or its lease is over.
    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>>;

    /// Who holds the keys that begin with `prefix`, in any order, at most `limit` of them. Not
    /// atomic.
    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>>;

    /// Hints that `key` may have become free, until the [`Subscription`] is dropped.
    ///
    /// Hints are for those who stand in the store's queue: subscribed first, then refused with
    /// [`Intent::Queue`](crate::Intent::Queue). A release, a forced one and a queued waiter that
    /// withdraws from a free key hint *one* of them, of all processes together, usually the one
    /// that came first; that uses up its place until its next refusal. The others hear nothing.
    /// Within one value of the store a hint rings one subscriber of the key. Whoever subscribed
    /// without queueing may hear nothing at all, the end of a lease by itself is not hinted, and a
    /// store that may have missed hints (a connection that broke) rings for every subscriber.
    ///
    /// Hints may be lost, doubled or late: nothing but speed depends on them, because the engine
    /// also asks again by its timer, at the latest after
    /// [`Busy::retry_after`](crate::Busy::retry_after). A store without any keeps the default.
    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        let _ = key;
        Box::pin(async { Ok(Subscription::silent()) })
    }

    /// Reads from the store what decides safety: eviction, persistence, role, version, clock.
    fn probe(self: Arc<Self>) -> Reply<Guarantees>;

    /// Moves a held key to another owner in one step: new secret, lease, metadata, liveness and
    /// fence. The lease is the new owner's from then on, also if that is shorter than the one
    /// before.
    ///
    /// So a lock is handed to the next waiter of a process, taken up by whoever has its token, and
    /// left for a cooldown. Called only if [`Capabilities::transfer`] says so.
    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        let key = request.to.key;
        Box::pin(async move {
            Err(LockError::unsupported("this store cannot hand a lock over").with_key(&key))
        })
    }

    /// Takes all keys or none, in one step. No key is asked for twice.
    ///
    /// Called only if [`Capabilities::acquire_many`] says so.
    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        let _ = requests;
        Box::pin(async {
            Err(LockError::unsupported("this store cannot take several keys in one step"))
        })
    }

    /// Lets a lock live on by its lease alone, whatever becomes of this process: at least `ttl`
    /// from now.
    ///
    /// Only stores that also watch the holder's process need to do more than extend.
    fn detach(
        self: Arc<Self>,
        key: Key,
        secret: Secret,
        ttl: std::time::Duration,
    ) -> Reply<Extension> {
        extend_one(self.extend(vec![ExtendRequest::new(key, secret, ExtendBy::AtLeast(ttl))]))
    }

    /// Frees `key`, whoever holds it, if its fence is still `fence`: an administrator's last
    /// resort.
    ///
    /// Never lowers a fence.
    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        let _ = fence;
        Box::pin(async move {
            Err(LockError::unsupported("this store cannot force a release").with_key(&key))
        })
    }

    /// Releases without waiting, where the store needs no I/O worth waiting for; `None` if it
    /// cannot.
    ///
    /// Used when a handle is dropped. It may block for microseconds, not for a network.
    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        let _ = (key, secret);
        None
    }
}

/// The answer for a batch of one.
fn extend_one(batch: Reply<Vec<Result<Extension, LockError>>>) -> Reply<Extension> {
    Box::pin(async move {
        let mut answers = batch.await?;
        match (answers.pop(), answers.is_empty()) {
            (Some(answer), true) => answer,
            _ => Err(LockError::internal(
                "the store answered a batch of one with another number of answers",
            )),
        }
    })
}
