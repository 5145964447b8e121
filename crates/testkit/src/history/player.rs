//! What one task of a load does: one move after the other, each a way in which users take a lock
//! and give it back.

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use holdtight_core::{
    AcquireAll, BootClock, Clock as _, DistributedLock, Held, LockError, LockHandle, LockSet,
    Moment,
};
use tokio::task::JoinSet;

use super::cancel::give_up_after;
use super::event::{Foreign, Form, LetGo, Patience, Refusal};
use super::load::{Load, PATIENCE};
use super::moves::Move;
use super::record::{Claim, Holding, Parting, Recorder};

impl Load {
    /// Plays until there are enough grants. Task n uses the lock n, beginning again after the last;
    /// tokens are resumed through any of them.
    ///
    /// The tasks run in the runtime of the caller. For several runtimes, call it in each, with the
    /// same recorder; for several processes, with a recorder for each.
    ///
    /// Everything that a task began comes to an end before this returns. If something does not
    /// within a minute, it is left alone, and the check calls it starved.
    ///
    /// # Panics
    /// There are no locks, or a task panicked.
    ///
    /// # Cancel safety
    /// Dropped, it stops playing; what was held then is released.
    pub async fn run(&self, locks: &[DistributedLock], recorder: &Recorder) {
        assert!(!locks.is_empty(), "a load needs a lock to play with");
        let load = Arc::new(self.clone());
        let until = BootClock.now().after(self.limit);
        let mut tasks = JoinSet::new();
        for number in 0..self.tasks {
            let player = Player::new(&load, number, locks, recorder);
            tasks.spawn(player.play(until));
        }
        for number in 0..self.long {
            let player = Player::new(&load, self.tasks + number, locks, recorder);
            tasks.spawn(player.hold_long(until));
        }
        let end = async {
            while let Some(ended) = tasks.join_next().await {
                ended.expect("a task of the load panicked");
            }
        };
        if tokio::time::timeout(self.limit + PATIENCE, end).await.is_err() {
            // Still waiting when the history is closed: that is what a check looks for.
            tasks.detach_all();
        }
    }
}

/// Counts a slow move for as long as it lasts.
struct Slow(Arc<AtomicUsize>);

impl Slow {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One task.
pub(super) struct Player {
    pub(super) load: Arc<Load>,
    number: usize,
    pub(super) random: Rng,
    pub(super) locks: Vec<DistributedLock>,
    pub(super) recorder: Recorder,
}

/// A lock in hand, and the pen that writes what becomes of it.
pub(super) type InHand = (LockHandle, Holding);

impl Player {
    pub(super) fn new(
        load: &Arc<Load>,
        number: usize,
        locks: &[DistributedLock],
        recorder: &Recorder,
    ) -> Self {
        let seed =
            load.seed.wrapping_add(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1));
        Self {
            load: Arc::clone(load),
            number,
            random: Rng::with_seed(seed),
            locks: locks.to_vec(),
            recorder: recorder.clone(),
        }
    }

    pub(super) async fn play(mut self, until: Moment) {
        // First a tour, shared by all tasks, so that everything is done at least once; then at
        // random.
        let (moves, number) = (self.load.moves, self.number % self.load.moves.len());
        for (step, _) in moves.iter().skip(number).step_by(self.load.tasks) {
            self.make(*step).await;
        }
        let total: u32 = moves.iter().map(|(_, weight)| weight).sum();
        while !self.load.is_over(&self.recorder, until) {
            let mut drawn = self.random.u32(..total);
            let chosen = moves.iter().find(|(_, weight)| {
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            });
            let step = chosen.map_or(Move::Try, |(step, _)| *step);
            let queued = step.is_slow() && self.load.slow.load(Ordering::Relaxed) > 0;
            self.make(if queued { Move::Try } else { step }).await;
            // A task that never has to wait must not keep the others of its thread from running.
            tokio::task::yield_now().await;
            self.rest().await;
        }
    }

    /// The pace of the load.
    pub(super) async fn rest(&mut self) {
        if !self.load.pace.is_zero() {
            let longest = u64::try_from(self.load.pace.as_micros()).unwrap_or(u64::MAX);
            tokio::time::sleep(self.micros(0..longest.max(1))).await;
        }
    }

    async fn make(&mut self, step: Move) {
        let _slow = step.is_slow().then(|| Slow::begin(&self.load.slow));
        match step {
            Move::Rush => self.rush().await,
            Move::Try => self.try_once().await,
            Move::ShortWait => {
                let wait = self.millis(1..=20);
                self.wait_and_hold(Some(wait)).await;
            }
            Move::LongWait => self.wait_long().await,
            Move::EndlessWait => self.wait_and_hold(None).await,
            Move::CancelLater => self.cancel(u32::MAX).await,
            Move::CancelAtPoll => {
                let polls = self.random.u32(1..8);
                self.cancel(polls).await;
            }
            Move::Run => self.run(None).await,
            Move::CancelRun => {
                let after = self.micros(0..5000);
                self.run(Some(after)).await;
            }
            Move::TryRun => self.try_run().await,
            Move::RunForced => self.run_forced().await,
            Move::Set => self.set().await,
            Move::SetRun => self.set_run().await,
            Move::CancelSet => self.cancel_set().await,
            Move::Campaign => self.campaign().await,
            Move::CampaignWithin => self.campaign_within().await,
            Move::CancelCampaign => self.cancel_campaign().await,
            Move::Lead => self.lead(None).await,
            Move::CancelLead => {
                let after = self.micros(0..8000);
                self.lead(Some(after)).await;
            }
            Move::Turn => self.turn().await,
            Move::Expire => self.expire().await,
            Move::RunExpired => self.run_expired().await,
            Move::Detach => self.detach().await,
            Move::ResumeHeld => self.resume_held().await,
            Move::ReleaseHeld => self.release_held().await,
            Move::ReleaseDetached => self.release_detached().await,
            Move::CancelToken => self.cancel_token().await,
            Move::Keep => self.keep().await,
            Move::Force => self.force().await,
        }
    }

    /// The lock that this task uses.
    pub(super) fn own(&self) -> DistributedLock {
        self.locks[self.number % self.locks.len()].clone()
    }

    /// Any lock: perhaps the same object, perhaps another client.
    pub(super) fn any(&mut self) -> DistributedLock {
        self.locks[self.random.usize(..self.locks.len())].clone()
    }

    pub(super) fn key(&mut self) -> String {
        self.load.key(self.random.usize(..self.load.keys))
    }

    pub(super) fn slow(&self, name: &str) -> String {
        format!("{}:{name}", self.load.prefix)
    }

    pub(super) fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    pub(super) fn micros(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.random.u64(range))
    }

    /// How long to hold: mostly not at all, or for a moment.
    pub(super) fn dwell(&mut self) -> Option<Duration> {
        match self.random.u32(..4) {
            0 => None,
            1 => Some(Duration::ZERO),
            2 => Some(Duration::from_micros(500)),
            _ => Some(self.micros(100..3000)),
        }
    }

    /// Waits for a lock, for ever if `wait` is none.
    pub(super) async fn acquire(
        &self,
        lock: &DistributedLock,
        key: &str,
        wait: Option<Duration>,
    ) -> Option<InHand> {
        let acquire = lock.acquire(key).ttl(self.load.ttl);
        let (acquire, patience) = match wait {
            Some(wait) => (acquire.wait(wait), Patience::Limited),
            None => (acquire.wait_forever(), Patience::Endless),
        };
        let claim = self.recorder.ask(key, Form::Acquire, patience);
        taken(claim, acquire.await)
    }

    /// Holds for a moment and lets go, in one of the ways there are.
    pub(super) async fn hold(&mut self, (handle, holding): InHand) {
        pause(self.dwell()).await;
        holding.look();
        if self.random.u32(..8) == 0 {
            holding.extended(handle.extend(self.load.ttl)).await;
        }
        if self.random.u32(..16) == 0 {
            holding.extended(handle.extend_by(Duration::from_millis(100))).await;
        }
        match self.random.u32(..4) {
            0 => {
                drop(holding);
                drop(handle);
            }
            1 => {
                // A release goes on without whoever asked for it.
                let _ = holding.letting_go(LetGo::Release);
                let limit = Duration::from_secs(1);
                give_up_after(handle.release(), 1, limit).await;
            }
            _ => release(handle, holding).await,
        }
    }

    async fn rush(&mut self) {
        let (lock, key, wait) = (self.own(), self.key(), self.millis(1..=20));
        let Some((handle, holding)) = self.acquire(&lock, &key, Some(wait)).await else { return };
        tokio::time::sleep(Duration::from_micros(500)).await;
        release(handle, holding).await;
    }

    async fn try_once(&mut self) {
        let (lock, key) = (self.own(), self.key());
        let claim = self.recorder.ask(&key, Form::Try, Patience::Limited);
        match lock.try_acquire(&key).ttl(self.load.ttl).await {
            Ok(Some(handle)) => {
                let holding = claim.granted(handle.held());
                self.hold((handle, holding)).await;
            }
            Ok(None) => claim.refused(Refusal::Busy),
            Err(error) => claim.failed(&error),
        }
    }

    async fn wait_and_hold(&mut self, wait: Option<Duration>) {
        let (lock, key) = (self.own(), self.key());
        if let Some(in_hand) = self.acquire(&lock, &key, wait).await {
            self.hold(in_hand).await;
        }
    }

    async fn wait_long(&mut self) {
        let wait = Duration::from_secs(5);
        if self.random.bool() {
            return self.wait_and_hold(Some(wait)).await;
        }
        // With the lease that the lock has unless told otherwise.
        let (lock, key) = (self.own(), self.key());
        let claim = self.recorder.ask(&key, Form::Acquire, Patience::Limited);
        if let Some(in_hand) = taken(claim, lock.wait_for_lock(&key, wait).await) {
            self.hold(in_hand).await;
        }
    }

    async fn cancel(&mut self, polls: u32) {
        let (lock, key, limit) = (self.own(), self.key(), self.micros(0..8000));
        let acquire = lock.acquire(&key).ttl(self.load.ttl).wait_forever();
        // Limited, because it is given up.
        let claim = self.recorder.ask(&key, Form::Acquire, Patience::Limited);
        if let Some(result) = give_up_after(acquire.into_future(), polls, limit).await
            && let Some(in_hand) = taken(claim, result)
        {
            self.hold(in_hand).await;
        }
    }

    async fn run(&mut self, cancelled_after: Option<Duration>) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let endless = self.random.bool() && cancelled_after.is_none();
        let patience = if endless { Patience::Endless } else { Patience::Limited };
        let acquire = lock.acquire(&key).ttl(self.load.ttl);
        let wait = self.millis(1..=200);
        let acquire = if endless { acquire.wait_forever() } else { acquire.wait(wait) };
        let work = Work::new(self.recorder.ask(&key, Form::Run, patience));
        let working = acquire.run(async |held| {
            let holding = work.begin(held);
            pause(dwell).await;
            work.end(holding);
        });
        let limit = cancelled_after.unwrap_or(Duration::MAX);
        if let Ok(result) = tokio::time::timeout(limit, working).await {
            work.answered(&result);
        }
    }

    async fn try_run(&mut self) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let work = Work::new(self.recorder.ask(&key, Form::Try, Patience::Limited));
        let result = lock
            .try_acquire(&key)
            .ttl(self.load.ttl)
            .run(async |held| {
                let holding = work.begin(held);
                pause(dwell).await;
                work.end(holding);
            })
            .await;
        match result {
            Ok(None) => work.refused(Refusal::Busy),
            result => work.answered(&result),
        }
    }

    async fn run_forced(&mut self) {
        let (lock, other, key) = (self.own(), self.any(), self.key());
        let acquire = lock.acquire(&key).ttl(self.load.ttl).wait_forever();
        let work = Work::new(self.recorder.ask(&key, Form::Run, Patience::Endless));
        let result = acquire
            .run(async |held| {
                let fence = held.fence();
                let holding = work.begin(held);
                let force = other.force_release(&key, fence);
                // Whether it can be forced is the store's matter; if it was, this work is in vain.
                let _ = holding.ended_by(Foreign::Force, force).await;
                work.end(holding);
            })
            .await;
        work.answered(&result);
    }

    fn some_keys(&mut self) -> Vec<String> {
        let mut keys: Vec<_> = (0..self.load.keys).map(|number| self.load.key(number)).collect();
        self.random.shuffle(&mut keys);
        keys.truncate(self.random.usize(1..=self.load.keys.min(3)));
        keys
    }

    /// Several keys at once, for ever or for a while; whether whoever asks stays to the end.
    fn ask_all(&mut self, stays: bool) -> (Vec<(String, Claim)>, AcquireAll) {
        let (lock, keys, wait) = (self.own(), self.some_keys(), self.millis(1..=500));
        let all = lock.acquire_all(keys.clone()).ttl(self.load.ttl);
        let (all, patience) = if self.random.bool() {
            (all.wait_forever(), if stays { Patience::Endless } else { Patience::Limited })
        } else {
            (all.wait(wait), Patience::Limited)
        };
        let ask = |key: String| {
            let claim = self.recorder.ask(&key, Form::Set, patience);
            (key, claim)
        };
        (keys.into_iter().map(ask).collect(), all)
    }

    async fn set(&mut self) {
        let (claims, all) = self.ask_all(true);
        self.hold_all(claims, all.await).await;
    }

    async fn cancel_set(&mut self) {
        let (claims, all) = self.ask_all(false);
        let polls = if self.random.bool() { u32::MAX } else { self.random.u32(1..12) };
        let limit = self.micros(0..8000);
        if let Some(result) = give_up_after(all.into_future(), polls, limit).await {
            self.hold_all(claims, result).await;
        }
    }

    async fn hold_all(&mut self, claims: Vec<(String, Claim)>, result: Result<LockSet, LockError>) {
        match result {
            Ok(set) => {
                let holdings = granted_all(claims, set.held());
                pause(self.dwell()).await;
                if self.random.bool() {
                    drop(holdings);
                    drop(set);
                    return;
                }
                let let_go =
                    |(key, holding): (String, Holding)| (key, holding.letting_go(LetGo::Release));
                let partings: Vec<_> = holdings.into_iter().map(let_go).collect();
                told_all(&partings, &set.release().await);
            }
            Err(error) => claims.into_iter().for_each(|(_, claim)| claim.failed(&error)),
        }
    }

    async fn set_run(&mut self) {
        let (claims, all) = self.ask_all(true);
        let (dwell, claims, partings) = (self.dwell(), Mutex::new(claims), Mutex::new(Vec::new()));
        let result = all
            .run(async |held| {
                let holdings = granted_all(std::mem::take(&mut *locked(&claims)), held);
                pause(dwell).await;
                let ended = holdings.into_iter().map(|(_, held)| held.letting_go(LetGo::Work));
                locked(&partings).extend(ended);
            })
            .await;
        locked(&partings).iter().for_each(|parting: &Parting| parting.worked(&result));
        if let Err(error) = result {
            locked(&claims).drain(..).for_each(|(_, claim)| claim.failed(&error));
        }
    }

    async fn turn(&mut self) {
        let (lock, key, dwell) = (self.own(), self.slow("turn"), self.dwell());
        let period = self.load.brief;
        let claim = self.recorder.ask(&key, Form::Turn, Patience::Limited);
        if self.random.bool() {
            let work = Work::new(claim);
            let result = lock
                .once_per(&key, period, async |held| {
                    let holding = work.begin(held);
                    pause(dwell).await;
                    work.end(holding);
                })
                .await;
            match result {
                Ok(None) => work.refused(Refusal::Busy),
                result => work.answered(&result),
            }
            return;
        }
        match lock.turn(&key, period).await {
            Ok(Some(turn)) => {
                let holding = claim.granted(turn.held());
                pause(dwell).await;
                let parting = holding.letting_go(LetGo::Detach);
                parting.done(&turn.done().await);
            }
            Ok(None) => claim.refused(Refusal::Busy),
            Err(error) => claim.failed(&error),
        }
    }

    async fn expire(&mut self) {
        let (lock, other, key) = (self.own(), self.any(), self.slow("expire"));
        let acquire = lock.acquire(&key).ttl(self.load.brief).auto_renew(false).wait_forever();
        let claim = self.recorder.ask(&key, Form::Acquire, Patience::Endless);
        let Some((handle, holding)) = taken(claim, acquire.await) else { return };
        // The next one gets it when the lease is over, not before the holder knows.
        let rival = self.acquire(&other, &key, None).await;
        holding.look();
        drop((holding, handle));
        if let Some(in_hand) = rival {
            self.hold(in_hand).await;
        }
    }

    async fn run_expired(&mut self) {
        let (lock, key) = (self.own(), self.slow("expire"));
        let acquire = lock.acquire(&key).wait_forever();
        let acquire = if self.random.bool() {
            acquire.ttl(self.load.brief).auto_renew(false)
        } else {
            acquire.ttl(self.load.ttl).max_hold(self.load.brief)
        };
        let work = Work::new(self.recorder.ask(&key, Form::Run, Patience::Endless));
        let long = self.load.brief * 2;
        let result = acquire
            .run(async |held| {
                let holding = work.begin(held);
                pause(Some(long)).await;
                work.end(holding);
            })
            .await;
        work.answered(&result);
    }
}

/// What came of asking for one lock.
pub(super) fn taken(claim: Claim, result: Result<LockHandle, LockError>) -> Option<InHand> {
    match result {
        Ok(handle) => {
            let holding = claim.granted(handle.held());
            Some((handle, holding))
        }
        Err(error) => {
            claim.failed(&error);
            None
        }
    }
}

pub(super) async fn release(handle: LockHandle, holding: Holding) {
    let parting = holding.letting_go(LetGo::Release);
    parting.done(&handle.release().await);
}

pub(super) async fn pause(span: Option<Duration>) {
    match span {
        None => {}
        Some(Duration::ZERO) => tokio::task::yield_now().await,
        Some(span) => tokio::time::sleep(span).await,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each claim of a set meets the lock of its key.
fn granted_all(claims: Vec<(String, Claim)>, held: Vec<Held>) -> Vec<(String, Holding)> {
    let mut held: Vec<_> = held.into_iter().map(Some).collect();
    let holder = |(key, claim): (String, Claim)| {
        let of =
            |held: &&mut Option<Held>| held.as_ref().is_some_and(|held| held.key().as_str() == key);
        let held = held.iter_mut().find(of).and_then(Option::take)?;
        Some((key, claim.granted(held)))
    };
    claims.into_iter().filter_map(holder).collect()
}

/// A set is released with one answer: an error names the key that it is about.
fn told_all(partings: &[(String, Parting)], result: &Result<(), LockError>) {
    let about = result.as_ref().err().and_then(LockError::key);
    for (key, parting) in partings {
        if about.is_none_or(|about| about.as_str() == key) {
            parting.done(result);
        }
    }
}

/// The claim of work that runs under a lock, from both sides: the work itself, and whoever waits
/// for its result.
pub(super) struct Work(Mutex<(Option<Claim>, Option<Parting>)>);

impl Work {
    pub(super) fn new(claim: Claim) -> Self {
        Self(Mutex::new((Some(claim), None)))
    }

    /// The work begins.
    pub(super) fn begin(&self, held: Held) -> Holding {
        let claim = locked(&self.0).0.take();
        claim.expect("work begins once for each claim").granted(held)
    }

    /// The work ends by itself.
    pub(super) fn end(&self, holding: Holding) {
        let parting = holding.letting_go(LetGo::Work);
        locked(&self.0).1 = Some(parting);
    }

    /// Somebody asks again for the same work.
    pub(super) fn again(&self, claim: Claim) {
        locked(&self.0).0 = Some(claim);
    }

    fn refused(&self, why: Refusal) {
        if let Some(claim) = locked(&self.0).0.take() {
            claim.refused(why);
        }
    }

    /// What the caller was told.
    pub(super) fn answered<T>(&self, result: &Result<T, LockError>) {
        let (claim, parting) = std::mem::take(&mut *locked(&self.0));
        if let Some(parting) = parting {
            parting.worked(result);
        }
        if let (Some(claim), Err(error)) = (claim, result) {
            claim.failed(error);
        }
    }
}
