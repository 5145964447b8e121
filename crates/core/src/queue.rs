//! The in-process queue: one line per key, first come first served, one at the front.
//!
//! Only whoever has the [`Front`] of a line talks to the store about its key; all others of this process wait
//! here at no cost to the store. No I/O and no clock: what to do at the front is decided elsewhere.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Moment;
use crate::key::{Key, KeyMap};
use crate::sync::{Arc, Mutex, lock};

/// After so many hand-overs in a row, or so long, other processes get their chance.
const STREAK_LENGTH: u32 = 32;
const STREAK_TIME: Duration = Duration::from_millis(50);

/// All lines of one engine. `W` is what a waiter wants, `G` is what it gets when the lock is handed to it.
pub(crate) struct Queue<W, G> {
    shards: Box<[Shard<W, G>]>,
}

type Shard<W, G> = Mutex<KeyMap<Line<W, G>>>;

/// Exists exactly as long as somebody is at the front; the crowd is made when a second one comes.
type Line<W, G> = Option<Box<Crowd<W, G>>>;

/// Those behind the front.
struct Crowd<W, G> {
    waiters: VecDeque<Arc<Slot<W, G>>>,
    /// How many of `waiters` have left; they are cleared out when they are the majority.
    left: usize,
    streak: Streak,
}

/// Hand-overs since the lock last went back to the store.
#[derive(Clone, Copy, Default)]
struct Streak {
    length: u32,
    since: Option<Moment>,
}

struct Slot<W, G> {
    wish: W,
    state: Mutex<State<W, G>>,
}

enum State<W, G> {
    Waiting(Option<Waker>),
    Called(Turn<W, G>),
    Left,
}

/// What a waiter is woken with.
pub(crate) enum Turn<W, G> {
    /// The lock was handed over.
    Granted(G),
    /// The front of the line: ask the store.
    Contend(Front<W, G>, Why),
    /// The engine was shut down.
    Closed,
}

/// Why a waiter came to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Whoever was there before has left.
    Vacant,
    /// The lock went back to the store so that other processes get their chance: do not snatch it back.
    Yielded,
    /// A hand-over to this waiter had an unknown outcome: its secret may own the lock already.
    Uncertain,
}

/// The right to talk to the store about one key. Dropping it calls the next in line.
pub(crate) struct Front<W, G> {
    queue: Arc<Queue<W, G>>,
    key: Key,
    /// False once the right has been passed on.
    armed: bool,
}

/// A place in a line. Dropping it leaves.
pub(crate) struct Ticket<W, G> {
    queue: Arc<Queue<W, G>>,
    key: Key,
    slot: Arc<Slot<W, G>>,
}

/// The outcome of [`Queue::enter`].
pub(crate) enum Entered<W, G> {
    Front(Front<W, G>),
    Behind(Ticket<W, G>),
}

/// What to do with a lock that is being given back.
pub(crate) enum Next<W, G> {
    /// Hand it to this waiter.
    HandOver(HandOver<W, G>),
    /// Release it; then drop the front.
    Release(Front<W, G>),
    /// Release it; then give the front on by [`Front::yield_on`].
    Yield(Front<W, G>),
}

/// A waiter that was called out of the line and must not be forgotten: dropping this puts it to the front.
pub(crate) struct HandOver<W, G> {
    front: Option<Front<W, G>>,
    slot: Arc<Slot<W, G>>,
}

impl<W, G> Queue<W, G> {
    pub(crate) fn new() -> Arc<Self> {
        let shards = (0..16).map(|_| Mutex::new(KeyMap::default())).collect();
        Arc::new(Self { shards })
    }

    fn shard(&self, key: &Key) -> &Shard<W, G> {
        // Bits from the middle: the maps inside use the ends.
        let bits = key.carried_hash().to_le_bytes()[3];
        &self.shards[usize::from(bits) % self.shards.len()]
    }

    /// Steps to the front if nobody is there, or behind everybody else.
    pub(crate) fn enter(self: &Arc<Self>, key: &Key, wish: impl FnOnce() -> W) -> Entered<W, G> {
        let mut shard = lock(self.shard(key));
        if let Some(line) = shard.get_mut(key) {
            let slot = Arc::new(Slot { wish: wish(), state: Mutex::new(State::Waiting(None)) });
            line.get_or_insert_default().waiters.push_back(Arc::clone(&slot));
            Entered::Behind(Ticket { queue: Arc::clone(self), key: key.clone(), slot })
        } else {
            shard.insert(key.clone(), None);
            Entered::Front(Front { queue: Arc::clone(self), key: key.clone(), armed: true })
        }
    }

    /// Steps to the front only if nobody is there.
    pub(crate) fn try_front(self: &Arc<Self>, key: &Key) -> Option<Front<W, G>> {
        let mut shard = lock(self.shard(key));
        if shard.contains_key(key) {
            return None;
        }
        shard.insert(key.clone(), None);
        Some(Front { queue: Arc::clone(self), key: key.clone(), armed: true })
    }

    /// Takes the first waiter for the front out of the line; a line without any is closed.
    fn call_next(&self, key: &Key, why: Why) -> Option<Arc<Slot<W, G>>> {
        let mut shard = lock(self.shard(key));
        let next = shard.get_mut(key)?.as_mut().and_then(|crowd| {
            if why == Why::Yielded {
                crowd.streak = Streak::default();
            }
            crowd.pop()
        });
        if next.is_none() {
            shard.remove(key);
        }
        next
    }

    /// Counts a waiter that left, and clears the line out when most have.
    fn note_left(&self, key: &Key) {
        let mut shard = lock(self.shard(key));
        if let Some(Some(line)) = shard.get_mut(key) {
            line.left += 1;
            if line.left * 2 > line.waiters.len() {
                line.waiters.retain(|slot| !matches!(*lock(&slot.state), State::Left));
                line.waiters.shrink_to_fit();
                line.left = 0;
            }
        }
    }

    /// Tells every waiter of every line that it is over.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let waiters: Vec<_> = lock(shard)
                .values_mut()
                .flatten()
                .flat_map(|line| line.waiters.drain(..))
                .collect();
            for slot in waiters {
                // A waiter that has just left needs no word.
                drop(slot.call(Turn::Closed));
            }
        }
    }

    /// How many lines and waiters there are: for tests of what stays behind.
    #[cfg(any(test, shuttle))]
    pub(crate) fn census(&self) -> (usize, usize) {
        let count = |shard: &Shard<W, G>| {
            let shard = lock(shard);
            let waiters = shard.values().flatten().map(|line| line.waiters.len());
            (shard.len(), waiters.sum::<usize>())
        };
        self.shards.iter().map(count).fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }
}

impl<W, G> Default for Crowd<W, G> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), left: 0, streak: Streak::default() }
    }
}

impl<W, G> Crowd<W, G> {
    /// The first waiter that is still there.
    fn pop(&mut self) -> Option<Arc<Slot<W, G>>> {
        while let Some(slot) = self.waiters.pop_front() {
            if !matches!(*lock(&slot.state), State::Left) {
                return Some(slot);
            }
            self.left = self.left.saturating_sub(1);
        }
        None
    }
}

impl<W, G> Slot<W, G> {
    /// Wakes the waiter with its turn, or gives the turn back if it has left.
    fn call(&self, turn: Turn<W, G>) -> Result<(), Turn<W, G>> {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = State::Called(turn);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Ok(())
            }
            State::Called(_) | State::Left => Err(turn),
        }
    }
}

impl<W, G> Front<W, G> {
    /// Decides what becomes of a lock that this front has held. `contended` says whether other processes wait.
    ///
    /// The line stays while the lock goes back, so that whoever comes meanwhile does not outrun the release.
    /// Without `hand_over` the store cannot pass a lock on, and waiters ask for it themselves.
    pub(crate) fn next(self, now: Moment, contended: bool, hand_over: bool) -> Next<W, G> {
        let mut shard = lock(self.queue.shard(&self.key));
        let Some(Some(line)) = shard.get_mut(&self.key) else {
            drop(shard);
            return Next::Release(self);
        };
        let since = *line.streak.since.get_or_insert(now);
        if contended && (line.streak.length >= STREAK_LENGTH || now.since(since) >= STREAK_TIME) {
            drop(shard);
            return Next::Yield(self);
        }
        line.streak.length += 1;
        let next = if hand_over { line.pop() } else { None };
        drop(shard);
        match next {
            None => Next::Release(self),
            Some(slot) => Next::HandOver(HandOver { front: Some(self), slot }),
        }
    }

    /// Whether anybody waits behind.
    pub(crate) fn has_waiters(&self) -> bool {
        let shard = lock(self.queue.shard(&self.key));
        let line = shard.get(&self.key).and_then(Option::as_ref);
        line.is_some_and(|crowd| crowd.waiters.len() > crowd.left)
    }

    /// Calls the next in line after the lock was given back for the sake of other processes.
    pub(crate) fn yield_on(mut self) {
        self.armed = false;
        self.queue.pass_on(&self.key, Why::Yielded);
    }
}

impl<W, G> Queue<W, G> {
    fn pass_on(self: &Arc<Self>, key: &Key, why: Why) {
        while let Some(slot) = self.call_next(key, why) {
            let front = Front { queue: Arc::clone(self), key: key.clone(), armed: true };
            match slot.call(Turn::Contend(front, why)) {
                Ok(()) => return,
                // It left just now: the next one. Its front must not pass on as well.
                Err(Turn::Contend(mut front, _)) => front.armed = false,
                Err(_) => {}
            }
        }
    }
}

impl<W, G> Drop for Front<W, G> {
    fn drop(&mut self) {
        if self.armed {
            self.queue.pass_on(&self.key, Why::Vacant);
        }
    }
}

impl<W, G> HandOver<W, G> {
    /// What the waiter wants.
    pub(crate) fn wish(&self) -> &W {
        &self.slot.wish
    }

    /// Delivers the lock, made from the front, or gives it back if the waiter has left.
    pub(crate) fn deliver(mut self, grant: impl FnOnce(Front<W, G>) -> G) -> Result<(), G> {
        let Some(front) = self.front.take() else { return Ok(()) };
        match self.slot.call(Turn::Granted(grant(front))) {
            Err(Turn::Granted(grant)) => Err(grant),
            _ => Ok(()),
        }
    }

    /// Puts the waiter to the front instead. `Err` if it has left: then its secret needs looking after.
    pub(crate) fn contend(mut self, why: Why) -> Result<(), ()> {
        let Some(front) = self.front.take() else { return Ok(()) };
        match self.slot.call(Turn::Contend(front, why)) {
            Ok(()) => Ok(()),
            // Dropping the front calls the next in line.
            Err(turn) => {
                drop(turn);
                Err(())
            }
        }
    }
}

impl<W, G> Drop for HandOver<W, G> {
    fn drop(&mut self) {
        if let Some(front) = self.front.take() {
            drop(self.slot.call(Turn::Contend(front, Why::Uncertain)));
        }
    }
}

impl<W, G> Ticket<W, G> {
    /// Leaves the line; a turn that came in the meantime is returned.
    pub(crate) fn leave(self) -> Option<Turn<W, G>> {
        self.take_turn()
    }

    fn take_turn(&self) -> Option<Turn<W, G>> {
        let before = std::mem::replace(&mut *lock(&self.slot.state), State::Left);
        match before {
            State::Called(turn) => Some(turn),
            State::Waiting(_) => {
                self.queue.note_left(&self.key);
                None
            }
            State::Left => None,
        }
    }
}

impl<W, G> Future for Ticket<W, G> {
    type Output = Turn<W, G>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn<W, G>> {
        let mut state = lock(&self.slot.state);
        match &mut *state {
            State::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            State::Called(_) => match std::mem::replace(&mut *state, State::Left) {
                State::Called(turn) => Poll::Ready(turn),
                State::Waiting(_) | State::Left => Poll::Pending,
            },
            State::Left => Poll::Pending,
        }
    }
}

impl<W, G> Drop for Ticket<W, G> {
    fn drop(&mut self) {
        // Whatever was delivered is dropped here, outside all locks: a lock goes back, a front is passed on.
        drop(self.take_turn());
    }
}

impl<W, G> fmt::Debug for Queue<W, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl<W, G> fmt::Debug for Front<W, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;
