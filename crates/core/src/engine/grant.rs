//! One grant of one lock: what was asked for, and the single state machine that says whether it is
//! still held.
//!
//! Shared by the handle, the keeper and everybody who awaits the loss. The first to end it decides
//! how it ended; late answers find it ended and change nothing.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::options::AcquireOptions;
use crate::engine::queue::{Front, Seat, Waiter};
use crate::engine::schedule::Place;
use crate::model::clock::{Clock, Moment};
use crate::model::fence::Fence;
use crate::model::key::Key;
use crate::model::lease;
use crate::model::loss::Loss;
use crate::model::secret::Secret;
use crate::store::{AcquireRequest, Intent, Lease};

/// What one call asks for: a key, under a secret of its own, with its options. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest(Arc<Requested>);

#[derive(Debug)]
pub(crate) struct Requested {
    pub(crate) key: Key,
    pub(crate) secret: Secret,
    pub(crate) options: Arc<AcquireOptions>,
    seat: Seat<Delivery>,
}

impl Deref for LockRequest {
    type Target = Requested;

    fn deref(&self) -> &Requested {
        &self.0
    }
}

impl LockRequest {
    pub(crate) fn new(key: Key, secret: Secret, options: Arc<AcquireOptions>) -> Self {
        Self(Arc::new(Requested { key, secret, options, seat: Seat::default() }))
    }

    /// As the store is asked.
    pub(crate) fn to_store(&self, intent: Intent) -> AcquireRequest {
        AcquireRequest {
            key: self.key.clone(),
            secret: self.secret.clone(),
            ttl: self.options.ttl,
            owner: Arc::clone(&self.options.owner),
            intent,
            liveness: self.options.liveness,
        }
    }
}

impl Waiter for LockRequest {
    type Lock = Delivery;

    fn seat(&self) -> &Seat<Delivery> {
        &self.seat
    }
}

/// The front of the engine's queue.
pub(crate) type LockFront = Front<LockRequest>;

/// Gives back a lock that nobody came for.
pub(crate) trait GiveBack: Send + Sync {
    fn give_back(self: Arc<Self>, grant: Arc<Grant>);
}

/// A lock that was handed over and lies ready for its waiter. Dropping it gives the lock back.
pub(crate) struct Delivery {
    grant: Option<Arc<Grant>>,
    sender: Arc<dyn GiveBack>,
}

impl Delivery {
    pub(crate) fn new(grant: Arc<Grant>, sender: Arc<dyn GiveBack>) -> Self {
        Self { grant: Some(grant), sender }
    }

    /// The lock inside, from here on the caller's to give back.
    pub(crate) fn accept(mut self) -> Option<Arc<Grant>> {
        self.grant.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            Arc::clone(&self.sender).give_back(grant);
        }
    }
}

/// While something is awaited on a clock that may run ahead of timers, it is looked at this often.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How a grant ended. The numbers are the states of [`Grant::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    Released = 1,
    Detached = 2,
    LostExpired = 3,
    LostTaken = 4,
    LostMaxHold = 5,
}

impl From<Loss> for End {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Expired => Self::LostExpired,
            // A copy in a forked child is not ended: the lock is not its own.
            Loss::TakenAway | Loss::Forked => Self::LostTaken,
            Loss::MaxHold => Self::LostMaxHold,
        }
    }
}

const HELD: u8 = 0;

/// Set beside the state once somebody awaits the end. Nobody needs to be told otherwise, as with
/// most locks.
const WATCHED: u8 = 1 << 7;

const NOBODY: u8 = 0;
const SOMEBODY: u8 = 1;
const UNKNOWN: u8 = 2;

/// Who else waits, as a number.
fn crowd(contended: Option<bool>) -> u8 {
    match contended {
        Some(false) => NOBODY,
        Some(true) => SOMEBODY,
        None => UNKNOWN,
    }
}

pub(crate) struct Grant {
    request: LockRequest,
    pub(crate) fence: Fence,
    pub(crate) acquired_at: Moment,
    /// The end that `max_hold` sets.
    pub(crate) hold_until: Moment,
    valid_until: AtomicU64,
    /// [`HELD`] or an [`End`], and perhaps [`WATCHED`].
    state: AtomicU8,
    /// One of the numbers of [`crowd`].
    crowd: AtomicU8,
    /// A request under its secret was given up and may still arrive at the store.
    unresolved: AtomicBool,
    /// Whether its holder knows of it: one to whom it was handed over has to come for it first.
    taken: AtomicBool,
    /// Its holder is moving it to another secret, and the answer is not there yet.
    leaving: AtomicBool,
    /// When whoever holds it at the moment will have gone on, if polled at all: it is not renewed
    /// after that.
    back_by: AtomicU64,
    ended: Notify,
    front: Mutex<Option<LockFront>>,
    /// Where the keeper finds it; set once, right after it was made.
    pub(crate) kept: Place,
}

impl Grant {
    /// A grant of `lease` for `request`, which left at `sent_at`.
    pub(crate) fn new(
        request: LockRequest,
        lease: Lease,
        sent_at: Moment,
        front: Option<LockFront>,
    ) -> Self {
        // A store may round a lease up, but what it says beyond the lease asked for is not needed,
        // so not trusted.
        let ttl = lease.ttl.min(request.options.ttl);
        let hold_until =
            request.options.max_hold.map_or(Moment::FAR_FUTURE, |most| sent_at.after(most));
        Self {
            request,
            fence: lease.fence,
            acquired_at: sent_at,
            hold_until,
            valid_until: AtomicU64::new(lease::valid_until(sent_at, ttl).as_nanos()),
            state: AtomicU8::new(HELD),
            crowd: AtomicU8::new(crowd(lease.contended)),
            unresolved: AtomicBool::new(false),
            taken: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            back_by: AtomicU64::new(Moment::FAR_FUTURE.as_nanos()),
            ended: Notify::new(),
            front: Mutex::new(front),
            kept: Place::default(),
        }
    }

    /// Until when the holder may believe in it, if nothing ends it earlier.
    pub(crate) fn deadline(&self) -> Moment {
        self.valid_until().min(self.hold_until)
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Takes note of an extension: the end never moves earlier, because the store's never does.
    pub(crate) fn extended(&self, lease: Lease, sent_at: Moment) {
        let end = lease::valid_until(sent_at, lease.ttl.min(lease::MAX_TTL));
        self.valid_until.fetch_max(end.as_nanos(), Ordering::AcqRel);
        if lease.contended.is_some() {
            self.crowd.store(crowd(lease.contended), Ordering::Relaxed);
        }
    }

    /// Whether other processes may be waiting for it: unless the store last said that there are
    /// none.
    pub(crate) fn is_contended(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) != NOBODY
    }

    /// Whether the store last said that other processes wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) == SOMEBODY
    }

    /// Takes note that a request under its secret may still be on its way.
    pub(crate) fn note_unresolved(&self) {
        self.unresolved.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_unresolved(&self) -> bool {
        self.unresolved.load(Ordering::Relaxed)
    }

    /// It lies ready for somebody who has not come for it yet.
    pub(crate) fn lay_ready(&self) {
        self.taken.store(false, Ordering::Relaxed);
    }

    /// Its holder has come for it.
    pub(crate) fn take(&self) {
        self.taken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Its holder moves it to another secret, perhaps for less than is left of the lease: nobody
    /// believes in it any more, and that the store does not find it under this secret says nothing.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// It is held by a call that waits for something else, until then at most. A call that nobody
    /// polls does not notice that its time is over, and must not keep the lock for ever.
    /// [`Moment::FAR_FUTURE`] takes that back.
    pub(crate) fn back_by(&self, due: Moment) {
        self.back_by.store(due.as_nanos(), Ordering::Relaxed);
    }

    /// Whether somebody is there for whom it should be renewed.
    pub(crate) fn wants_renewal(&self, now: Moment) -> bool {
        let back_by = Moment::from_nanos(self.back_by.load(Ordering::Relaxed));
        self.is_taken() && !self.is_leaving() && now < back_by
    }

    /// Without the note whether it is watched.
    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire) & !WATCHED
    }

    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.state() == HELD && !self.is_leaving() && now < self.deadline()
    }

    /// Ends it, unless it has ended already. Returns whether this call did.
    pub(crate) fn end(&self, how: End) -> bool {
        let end = |state| (state & !WATCHED == HELD).then_some(state | how as u8);
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, end);
        if before == Ok(HELD | WATCHED) {
            self.ended.notify_waiters();
        }
        before.is_ok()
    }

    /// How it was lost, if it was. A passed deadline counts even before the keeper has noticed.
    pub(crate) fn loss(&self, now: Moment) -> Option<Loss> {
        match self.state() {
            HELD if now >= self.hold_until => Some(Loss::MaxHold),
            HELD if now >= self.valid_until() => Some(Loss::Expired),
            3 => Some(Loss::Expired),
            4 => Some(Loss::TakenAway),
            5 => Some(Loss::MaxHold),
            _ => None,
        }
    }

    /// Resolves when it is lost; never, if it is given back.
    ///
    /// It looks at the clock itself: a keeper that died with its runtime hides no loss, and neither
    /// do timers that stood still while the machine slept.
    pub(crate) async fn lost(&self, clock: &dyn Clock) -> Loss {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            // Whoever ends it after this sees the mark and tells; an end before this is seen below.
            self.state.fetch_or(WATCHED, Ordering::AcqRel);
            let now = clock.now();
            if let Some(loss) = self.loss(now) {
                return loss;
            }
            if self.state() != HELD {
                return std::future::pending().await;
            }
            let left = self.deadline().since(now).min(TICK);
            let _ = tokio::time::timeout(left, ended).await;
        }
    }

    /// Takes the front of the line away, to pass it on.
    pub(crate) fn take_front(&self) -> Option<LockFront> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether others of this process wait behind it.
    pub(crate) fn has_waiters(&self) -> bool {
        let front = self.front.lock().unwrap_or_else(PoisonError::into_inner);
        front.as_ref().is_some_and(Front::has_waiters)
    }
}

/// Key, secret and options of the call that got it.
impl Deref for Grant {
    type Target = Requested;

    fn deref(&self) -> &Requested {
        &self.request
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("key", &self.key)
            .field("fence", &self.fence)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn whoever_awaits_a_loss_is_told_at_once_and_not_at_the_next_tick() {
        let clock = TokioClock::new();
        let (key, secret) = (Key::new("k").unwrap(), Secret::generate().unwrap());
        let request = LockRequest::new(key, secret, Arc::new(AcquireOptions::default()));
        let lease = Lease::new(Fence::new(1), lease::DEFAULT_TTL);
        let grant = Arc::new(Grant::new(request, lease, clock.now(), None));
        let start = tokio::time::Instant::now();
        let watching: Vec<_> = (0..2)
            .map(|_| {
                let (grant, clock) = (Arc::clone(&grant), clock.clone());
                tokio::spawn(async move { grant.lost(&clock).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(grant.end(End::LostTaken));
        assert!(!grant.end(End::Released), "it ends once");
        for told in watching {
            assert_eq!(told.await.unwrap(), Loss::TakenAway);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
