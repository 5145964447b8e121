//! The in-process queue: one line per key, first come first served, one at the front.
//!
//! Only whoever has the [`Front`] of a line talks to the store about its key; all others of this
//! process wait here at no cost to the store. No I/O and no clock: what to do at the front is
//! decided elsewhere.
//!
//! Whoever is at the front is a future of some caller, and may not be polled any more. So it says
//! by when it will be back, and one that is overdue is replaced by the next in line. That is safe,
//! because the store excludes and not the line.
//!
//! Those behind it may not be polled either. So they are woken before somebody is called in its
//! place: who does not answer is passed over, and keeps its place until it does. If nobody answers,
//! the front is left to whoever comes first.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::engine::sync::{Arc, Mutex, lock};
use crate::model::clock::Moment;
use crate::model::key::{Key, KeyMap};

/// After so many hand-overs in a row, or so long, other processes get their chance.
const STREAK_LENGTH: u32 = 32;
const STREAK_TIME: Duration = Duration::from_millis(50);

/// Somebody who can stand in a line. Clones are the same waiter.
pub(crate) trait Waiter: Clone {
    /// What it gets when the lock is handed to it.
    type Lock;

    /// Where it is called. One seat serves one wait.
    fn seat(&self) -> &Seat<Self::Lock>;
}

/// All lines of one engine.
pub(crate) struct Queue<W: Waiter> {
    shards: Box<[Shard<W>]>,
    /// Fronts are numbered, so that one that was replaced is told from all others, also those of
    /// later lines.
    numbers: AtomicU64,
}

type Shard<W> = Mutex<KeyMap<Line<W>>>;

/// Exists as long as somebody is at the front or behind it; the crowd is made when a second one
/// comes.
struct Line<W> {
    /// Tells this front from one that was replaced. None while all that are left do not answer.
    front: Option<u64>,
    crowd: Option<Box<Crowd<W>>>,
}

/// Those behind the front.
struct Crowd<W> {
    waiters: VecDeque<W>,
    /// How many of `waiters` have left; they are cleared out when they are the majority.
    left: usize,
    streak: Streak,
    due: Option<Due>,
}

/// By when whoever is at the front wants to be back, or the patrol expects it to be.
#[derive(Clone, Copy)]
struct Due {
    front: u64,
    at: Moment,
    /// Whether those behind it were asked who is there, because it may not come.
    asked: bool,
}

/// Hand-overs since the lock last went back to the store.
#[derive(Clone, Copy, Default)]
struct Streak {
    length: u32,
    since: Option<Moment>,
}

/// The place where a waiter is called. It is part of the waiter, so that waiting needs no memory of
/// its own.
pub(crate) struct Seat<G>(Mutex<State<G>>);

enum State<G> {
    Waiting(Option<Waker>),
    /// As above, and it was woken to see whether anybody polls it. Nobody has so far.
    Asked(Option<Waker>),
    Called(Call<G>),
    Left,
    /// It left when it had been called after a hand-over of unknown outcome, and never knew.
    LeftInDoubt,
}

/// What is known of somebody in line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    There,
    /// It does not answer.
    Silent,
    Left,
}

/// What a waiter is woken with.
enum Call<G> {
    Granted(G),
    /// To the front of this number.
    Contend(Why, u64),
    Closed,
}

/// What a waiter makes of its call.
pub(crate) enum Turn<W: Waiter> {
    /// The lock was handed over.
    Granted(W::Lock),
    /// The front of the line: ask the store.
    Contend(Front<W>, Why),
    /// The engine was shut down.
    Closed,
}

/// Why a waiter came to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Whoever was there before has left.
    Vacant,
    /// The lock went back to the store so that other processes get their chance: do not snatch it
    /// back.
    Yielded,
    /// A hand-over to this waiter had an unknown outcome: its secret may own the lock already.
    Uncertain,
}

/// The right to talk to the store about one key. Dropping it calls the next in line.
pub(crate) struct Front<W: Waiter> {
    queue: Arc<Queue<W>>,
    key: Key,
    number: u64,
    /// False once the right has been passed on.
    armed: bool,
}

/// A place in a line. Dropping it leaves.
pub(crate) struct Ticket<'a, W: Waiter> {
    queue: &'a Arc<Queue<W>>,
    key: &'a Key,
    waiter: &'a W,
    /// Whether the turn has come and was taken: nothing is left in the seat.
    served: bool,
}

/// The outcome of [`Queue::enter`].
pub(crate) enum Entered<'a, W: Waiter> {
    Front(Front<W>),
    Behind(Ticket<'a, W>),
}

/// What to do with a lock that is being given back.
pub(crate) enum Next<W: Waiter> {
    /// Hand it to this waiter.
    HandOver(HandOver<W>),
    /// Release it; then drop the front.
    Release(Front<W>),
    /// Release it; then give the front on by [`Front::yield_on`].
    Yield(Front<W>),
}

/// A waiter that was called out of the line and must not be forgotten: dropping this puts it to the
/// front.
pub(crate) struct HandOver<W: Waiter> {
    front: Option<Front<W>>,
    waiter: W,
}

impl<W: Waiter> Queue<W> {
    pub(crate) fn new() -> Arc<Self> {
        let shards = (0..16).map(|_| Mutex::new(KeyMap::default())).collect();
        Arc::new(Self { shards, numbers: AtomicU64::new(0) })
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn shard(&self, key: &Key) -> &Shard<W> {
        // Bits from the middle: the maps inside use the ends.
        let bits = key.carried_hash().to_le_bytes()[3];
        &self.shards[usize::from(bits) % self.shards.len()]
    }

    /// Steps to the front if nobody is there, or behind everybody else.
    pub(crate) fn enter<'a>(self: &'a Arc<Self>, key: &'a Key, waiter: &'a W) -> Entered<'a, W> {
        let mut shard = lock(self.shard(key));
        match self.step_up(&mut shard, key) {
            Ok(number) => Entered::Front(self.front(key, number)),
            Err(line) => {
                line.crowd.get_or_insert_default().waiters.push_back(waiter.clone());
                Entered::Behind(Ticket { queue: self, key, waiter, served: false })
            }
        }
    }

    /// The number of a new front if nobody is there, otherwise the line.
    fn step_up<'a>(
        &self,
        shard: &'a mut KeyMap<Line<W>>,
        key: &Key,
    ) -> Result<u64, &'a mut Line<W>> {
        let line = shard.entry(key.clone()).or_insert(Line { front: None, crowd: None });
        if line.front.is_some() {
            return Err(line);
        }
        let number = self.next_number();
        line.front = Some(number);
        Ok(number)
    }

    fn front(self: &Arc<Self>, key: &Key, number: u64) -> Front<W> {
        Front { queue: Arc::clone(self), key: key.clone(), number, armed: true }
    }

    /// Steps to the front only if nobody is there.
    pub(crate) fn try_front(self: &Arc<Self>, key: &Key) -> Option<Front<W>> {
        let number = self.step_up(&mut lock(self.shard(key)), key).ok()?;
        Some(self.front(key, number))
    }

    /// Takes the first waiter for the front out of the line. A line without any is closed, and
    /// where none answers nobody is at the front. Only if the front is still `number`: one that was
    /// replaced has nothing to pass on.
    fn call_next(&self, key: &Key, number: u64, why: Why) -> Option<W> {
        let mut shard = lock(self.shard(key));
        let line = shard.get_mut(key).filter(|line| line.front == Some(number))?;
        if let Some(crowd) = &mut line.crowd {
            if why == Why::Yielded {
                crowd.streak = Streak::default();
            }
            crowd.due = None;
            let next = crowd.pop();
            if next.is_some() {
                return next;
            }
            if !crowd.waiters.is_empty() {
                crowd.streak = Streak::default();
                line.front = None;
                return None;
            }
        }
        shard.remove(key);
        None
    }

    /// Looks after lines whose front is overdue at `now`: the next in line that answers is called
    /// to the front instead. All are asked in the round before, which was about `round` ago.
    /// `holds` says whether a key is held, which may last. Who has not said when it will be back is
    /// given `grace`. Returns whether anybody stands behind somebody else.
    pub(crate) fn patrol(
        &self,
        now: Moment,
        grace: Duration,
        round: Duration,
        holds: impl Fn(&Key) -> bool,
    ) -> bool {
        let (mut overdue, mut asked, mut anybody) = (Vec::new(), Vec::new(), false);
        for shard in &self.shards {
            for (key, line) in &mut *lock(shard) {
                let Some(front) = line.front else { continue };
                let Some(crowd) = line.crowd.as_mut().filter(|crowd| crowd.has_waiters()) else {
                    continue;
                };
                anybody = true;
                match &mut crowd.due {
                    Some(due) if due.front == front && due.at > now.after(round) => {}
                    Some(due) if due.front == front && !holds(key) => {
                        if !std::mem::replace(&mut due.asked, true) {
                            asked.extend(crowd.waiters.iter().filter_map(|w| w.seat().ask()));
                        } else if due.at <= now {
                            overdue.push((key.clone(), front));
                        }
                    }
                    _ => crowd.due = Some(Due { front, at: now.after(grace), asked: false }),
                }
            }
        }
        for waker in asked {
            waker.wake();
        }
        for (key, front) in overdue {
            self.replace(&key, front);
        }
        anybody
    }

    /// Calls the next in line to the front, in the place of whoever is there.
    fn replace(&self, key: &Key, front: u64) {
        let mut shard = lock(self.shard(key));
        let Some(line) = shard.get_mut(key).filter(|line| line.front == Some(front)) else {
            return;
        };
        let fresh = self.next_number();
        line.front = Some(fresh);
        drop(shard);
        self.pass_on(key, fresh, Why::Vacant);
    }

    /// Counts a waiter that left, and clears the line out when most have.
    fn note_left(&self, key: &Key) {
        let mut shard = lock(self.shard(key));
        let Some(line) = shard.get_mut(key) else { return };
        let Some(crowd) = &mut line.crowd else { return };
        crowd.left += 1;
        if crowd.left * 2 > crowd.waiters.len() {
            crowd.waiters.retain(|waiter| waiter.seat().standing() != Standing::Left);
            crowd.waiters.shrink_to_fit();
            crowd.left = 0;
        }
        if line.front.is_none() && crowd.waiters.is_empty() {
            shard.remove(key);
        }
    }

    /// Tells every waiter of every line that it is over.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let mut lines = lock(shard);
            let waiters: Vec<_> = lines
                .values_mut()
                .filter_map(|line| line.crowd.as_mut())
                .flat_map(|crowd| crowd.waiters.drain(..))
                .collect();
            lines.retain(|_, line| line.front.is_some());
            drop(lines);
            for waiter in waiters {
                // A waiter that has just left needs no word.
                drop(waiter.seat().call(Call::Closed));
            }
        }
    }

    /// How many lines and waiters there are: for tests of what stays behind.
    #[cfg(any(test, shuttle))]
    pub(crate) fn census(&self) -> (usize, usize) {
        let count = |shard: &Shard<W>| {
            let shard = lock(shard);
            let waiters = shard
                .values()
                .filter_map(|line| line.crowd.as_ref())
                .map(|crowd| crowd.waiters.len());
            (shard.len(), waiters.sum::<usize>())
        };
        self.shards.iter().map(count).fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }
}

impl<W> Default for Crowd<W> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), left: 0, streak: Streak::default(), due: None }
    }
}

impl<W> Crowd<W> {
    fn has_waiters(&self) -> bool {
        self.waiters.len() > self.left
    }
}

impl<W: Waiter> Crowd<W> {
    /// The first waiter that is still there. Those that do not answer keep their places.
    fn pop(&mut self) -> Option<W> {
        let mut nth = 0;
        while let Some(waiter) = self.waiters.get(nth) {
            match waiter.seat().standing() {
                Standing::There => return self.waiters.remove(nth),
                Standing::Silent => nth += 1,
                Standing::Left => {
                    self.waiters.remove(nth);
                    self.left = self.left.saturating_sub(1);
                }
            }
        }
        None
    }
}

impl<G> Default for Seat<G> {
    fn default() -> Self {
        Self(Mutex::new(State::Waiting(None)))
    }
}

impl<G> Seat<G> {
    fn standing(&self) -> Standing {
        match *lock(&self.0) {
            State::Waiting(_) | State::Called(_) => Standing::There,
            State::Asked(_) => Standing::Silent,
            State::Left | State::LeftInDoubt => Standing::Left,
        }
    }

    /// Asks the waiter whether it is there: it is, once it is polled. Returns what wakes it, if it
    /// was not asked before.
    fn ask(&self) -> Option<Waker> {
        let mut state = lock(&self.0);
        let State::Waiting(waker) = &mut *state else { return None };
        let waker = waker.take();
        *state = State::Asked(waker.clone());
        waker
    }

    /// Whether its waiter left without knowing that its secret may own the lock.
    pub(crate) fn is_left_in_doubt(&self) -> bool {
        matches!(*lock(&self.0), State::LeftInDoubt)
    }

    /// Wakes the waiter with its call, or gives the call back if it has left.
    fn call(&self, call: Call<G>) -> Result<(), Call<G>> {
        let mut state = lock(&self.0);
        match &mut *state {
            State::Waiting(waker) | State::Asked(waker) => {
                let waker = waker.take();
                *state = State::Called(call);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Ok(())
            }
            State::Called(_) | State::Left | State::LeftInDoubt => Err(call),
        }
    }
}

impl<W: Waiter> Front<W> {
    /// Decides what becomes of a lock that this front has held. `contended` says whether other
    /// processes wait.
    ///
    /// The line stays while the lock goes back, so that whoever comes meanwhile does not outrun the
    /// release. Without `hand_over` the store cannot pass a lock on, and waiters ask for it
    /// themselves.
    pub(crate) fn next(self, now: Moment, contended: bool, hand_over: bool) -> Next<W> {
        let mut shard = lock(self.queue.shard(&self.key));
        let line = shard.get_mut(&self.key).filter(|line| line.front == Some(self.number));
        let Some(crowd) = line.and_then(|line| line.crowd.as_mut()) else {
            drop(shard);
            return Next::Release(self);
        };
        crowd.due = None;
        let since = *crowd.streak.since.get_or_insert(now);
        if contended && (crowd.streak.length >= STREAK_LENGTH || now.since(since) >= STREAK_TIME) {
            drop(shard);
            return Next::Yield(self);
        }
        crowd.streak.length += 1;
        let next = if hand_over { crowd.pop() } else { None };
        drop(shard);
        match next {
            None => Next::Release(self),
            Some(waiter) => Next::HandOver(HandOver { front: Some(self), waiter }),
        }
    }

    /// Whether anybody waits behind.
    pub(crate) fn has_waiters(&self) -> bool {
        let shard = lock(self.queue.shard(&self.key));
        let line = shard.get(&self.key).filter(|line| line.front == Some(self.number));
        line.and_then(|line| line.crowd.as_ref()).is_some_and(|crowd| crowd.has_waiters())
    }

    /// Says by when whoever is at the front will be back.
    pub(crate) fn back_by(&self, due: Moment) {
        let mut shard = lock(self.queue.shard(&self.key));
        if let Some(line) = shard.get_mut(&self.key).filter(|line| line.front == Some(self.number))
            && let Some(crowd) = &mut line.crowd
        {
            crowd.due = Some(Due { front: self.number, at: due, asked: false });
        }
    }

    /// Calls the next in line after the lock was given back for the sake of other processes.
    pub(crate) fn yield_on(mut self) {
        self.armed = false;
        self.queue.pass_on(&self.key, self.number, Why::Yielded);
    }
}

impl<W: Waiter> Queue<W> {
    fn pass_on(&self, key: &Key, number: u64, why: Why) {
        // Whoever left just now is passed over.
        while let Some(waiter) = self.call_next(key, number, why) {
            if waiter.seat().call(Call::Contend(why, number)).is_ok() {
                return;
            }
        }
    }
}

impl<W: Waiter> Drop for Front<W> {
    fn drop(&mut self) {
        if self.armed {
            self.queue.pass_on(&self.key, self.number, Why::Vacant);
        }
    }
}

impl<W: Waiter> HandOver<W> {
    /// Who is to have the lock.
    pub(crate) fn waiter(&self) -> &W {
        &self.waiter
    }

    /// Delivers the lock, made for the waiter from the front, or gives it back if the waiter has
    /// left.
    pub(crate) fn deliver(
        mut self,
        lock: impl FnOnce(&W, Front<W>) -> W::Lock,
    ) -> Result<(), W::Lock> {
        let Some(front) = self.front.take() else { return Ok(()) };
        match self.waiter.seat().call(Call::Granted(lock(&self.waiter, front))) {
            Err(Call::Granted(lock)) => Err(lock),
            _ => Ok(()),
        }
    }

    /// Puts the waiter to the front instead. `Err` if it has left: then its secret needs looking
    /// after.
    pub(crate) fn contend(mut self, why: Why) -> Result<(), ()> {
        self.call_to_front(why)
    }

    fn call_to_front(&mut self, why: Why) -> Result<(), ()> {
        let Some(mut front) = self.front.take() else { return Ok(()) };
        // If it has left, dropping the front calls the next in line.
        self.waiter.seat().call(Call::Contend(why, front.number)).map_err(drop)?;
        front.armed = false;
        Ok(())
    }
}

impl<W: Waiter> Drop for HandOver<W> {
    fn drop(&mut self) {
        let _ = self.call_to_front(Why::Uncertain);
    }
}

impl<W: Waiter> Ticket<'_, W> {
    /// Leaves the line; a turn that came in the meantime is returned.
    pub(crate) fn leave(mut self) -> Option<Turn<W>> {
        self.take_turn()
    }

    fn take_turn(&mut self) -> Option<Turn<W>> {
        if std::mem::replace(&mut self.served, true) {
            return None;
        }
        let before = std::mem::replace(&mut *lock(&self.waiter.seat().0), State::Left);
        match before {
            State::Called(call) => Some(self.turn(call)),
            State::Waiting(_) | State::Asked(_) => {
                self.queue.note_left(self.key);
                None
            }
            State::Left | State::LeftInDoubt => None,
        }
    }

    /// Steps to the front if nobody is there, for somebody who was asked and has just answered.
    fn step_up(&mut self) -> Option<Turn<W>> {
        let mut shard = lock(self.queue.shard(self.key));
        let line = shard.get_mut(self.key).filter(|line| line.front.is_none())?;
        let waiters = &mut line.crowd.as_mut()?.waiters;
        let seat = self.waiter.seat();
        // With nobody at the front nobody is called out of the line. So it stands there, unless the
        // engine was shut down.
        let place = waiters.iter().position(|waiter| std::ptr::eq(waiter.seat(), seat))?;
        waiters.remove(place);
        *lock(&seat.0) = State::Left;
        let number = self.queue.next_number();
        line.front = Some(number);
        drop(shard);
        self.served = true;
        Some(self.turn(Call::Contend(Why::Vacant, number)))
    }

    /// From here on the front, if that is what it was called to, is the waiter's to pass on.
    fn turn(&self, call: Call<W::Lock>) -> Turn<W> {
        match call {
            Call::Granted(lock) => Turn::Granted(lock),
            Call::Contend(why, number) => Turn::Contend(self.queue.front(self.key, number), why),
            Call::Closed => Turn::Closed,
        }
    }
}

impl<W: Waiter> Future for Ticket<'_, W> {
    type Output = Turn<W>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn<W>> {
        let waiter = self.waiter;
        let mut state = lock(&waiter.seat().0);
        if let State::Waiting(waker) | State::Asked(waker) = &mut *state {
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            let State::Asked(waker) = &mut *state else { return Poll::Pending };
            // From here on it is called like the others. Whoever passed it over before that has
            // left the front to it.
            *state = State::Waiting(waker.take());
            drop(state);
            return self.step_up().map_or(Poll::Pending, Poll::Ready);
        }
        let before = std::mem::replace(&mut *state, State::Left);
        drop(state);
        match before {
            State::Called(call) => {
                self.served = true;
                Poll::Ready(self.turn(call))
            }
            State::Waiting(_) | State::Asked(_) | State::Left | State::LeftInDoubt => Poll::Pending,
        }
    }
}

impl<W: Waiter> Drop for Ticket<'_, W> {
    fn drop(&mut self) {
        // Whatever was delivered is dropped here, outside all locks: a lock goes back, a front is
        // passed on.
        let turn = self.take_turn();
        if let Some(Turn::Contend(_, Why::Uncertain)) = turn {
            *lock(&self.waiter.seat().0) = State::LeftInDoubt;
        }
        drop(turn);
    }
}

impl<W: Waiter> fmt::Debug for Queue<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl<W: Waiter> fmt::Debug for Front<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<G> fmt::Debug for Seat<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;
