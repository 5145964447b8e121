//! Which lease is due when: pure bookkeeping. Moments and answers in, renewals and losses out.
//!
//! No I/O, no clock, no randomness of its own, so that tests and model checkers drive the very code
//! that runs. Each entry has an epoch; an answer for an epoch that has ended is ignored.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::model::clock::Moment;
use crate::model::lease;
use crate::model::loss::Loss;

/// Renewals that fall due this soon are sent along with those that are due now.
const COMPANY: u32 = 20;

/// An entry of the book and the epoch it was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GrantId {
    slot: usize,
    epoch: u64,
}

/// Where a lock stands in the book. Written once, before anybody else knows of the lock.
#[derive(Debug, Default)]
pub(crate) struct Place {
    slot: AtomicUsize,
    /// Zero until it is entered: the first epoch is one.
    epoch: AtomicU64,
}

impl Place {
    pub(crate) fn set(&self, id: GrantId) {
        self.slot.store(id.slot, Ordering::Relaxed);
        self.epoch.store(id.epoch, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<GrantId> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (epoch != 0).then(|| GrantId { slot: self.slot.load(Ordering::Relaxed), epoch })
    }
}

/// All leases that are kept. `T` is whatever the caller needs to find the lock again.
#[derive(Debug)]
pub(crate) struct Book<T> {
    entries: Vec<Option<Entry<T>>>,
    free: Vec<usize>,
    due: BTreeSet<(Moment, usize)>,
    epoch: u64,
    /// How many renewals one request takes.
    batch: usize,
}

#[derive(Debug)]
struct Entry<T> {
    epoch: u64,
    what: T,
    ttl: Duration,
    /// When the holder must have stopped if nothing is heard.
    valid_until: Moment,
    /// When `max_hold` ends it, however often it is renewed.
    hold_until: Moment,
    renewal: Renewal,
    /// The moment under which it stands in `due`.
    wake_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// Nobody asked for it.
    Off,
    /// Next at this moment; so many tries have failed since the last success.
    At(Moment, u32),
    /// On its way; so many tries have failed before.
    InFlight(u32),
}

/// A lease as it is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) sent_at: Moment,
    pub(crate) valid_until: Moment,
    pub(crate) hold_until: Moment,
    pub(crate) renew: bool,
}

/// What became of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The lease now ends no earlier than this, and it was asked for at `sent_at`.
    Extended { valid_until: Moment, sent_at: Moment },
    /// The store says that it is not ours.
    NotHeld,
    /// No answer, or an error: nothing is known.
    Failed,
}

/// What is to be done now.
#[derive(Debug)]
pub(crate) struct Due<T> {
    /// To be renewed, in one batch or several.
    pub(crate) renew: Vec<(GrantId, T)>,
    /// Over: already struck out.
    pub(crate) lost: Vec<(T, Loss)>,
}

impl<T: Clone> Book<T> {
    /// An empty book for a store that takes `batch` renewals in one request.
    pub(crate) fn new(batch: usize) -> Self {
        let due = BTreeSet::new();
        Self { entries: Vec::new(), free: Vec::new(), due, epoch: 0, batch: batch.max(1) }
    }

    /// Enters a lease. `jitter` is uniform in `0.0..1.0`.
    pub(crate) fn admit(&mut self, what: T, terms: Terms, jitter: f64) -> GrantId {
        self.epoch += 1;
        let renewal = if terms.renew {
            Renewal::At(lease::renew_at(terms.sent_at, terms.ttl, jitter), 0)
        } else {
            Renewal::Off
        };
        let mut entry = Entry {
            epoch: self.epoch,
            what,
            ttl: terms.ttl,
            valid_until: terms.valid_until,
            hold_until: terms.hold_until,
            renewal,
            wake_at: Moment::FAR_FUTURE,
        };
        entry.wake_at = entry.next();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.due.insert((entry.wake_at, slot));
        self.entries[slot] = Some(entry);
        GrantId { slot, epoch: self.epoch }
    }

    /// Strikes a lease out: its holder gave it back. Whatever is still said about it is ignored.
    pub(crate) fn dismiss(&mut self, id: GrantId) {
        if self.entry(id).is_some() {
            self.strike(id.slot);
        }
    }

    /// The holder extended the lease itself.
    pub(crate) fn moved(&mut self, id: GrantId, valid_until: Moment) {
        if let Some(entry) = self.entry(id) {
            entry.valid_until = entry.valid_until.max(valid_until);
            self.reschedule(id.slot);
        }
    }

    /// Takes note of what became of a renewal. Returns the lock if this means that it is lost.
    pub(crate) fn answered(
        &mut self,
        id: GrantId,
        answer: Answer,
        now: Moment,
        jitter: f64,
    ) -> Option<(T, Loss)> {
        let entry = self.entry(id)?;
        let failures = match entry.renewal {
            Renewal::InFlight(failures) | Renewal::At(_, failures) => failures,
            Renewal::Off => 0,
        };
        match answer {
            Answer::NotHeld => return self.strike(id.slot).map(|what| (what, Loss::TakenAway)),
            Answer::Extended { valid_until, sent_at } => {
                entry.valid_until = entry.valid_until.max(valid_until);
                entry.renewal = Renewal::At(lease::renew_at(sent_at, entry.ttl, jitter), 0);
            }
            Answer::Failed => {
                entry.renewal =
                    Renewal::At(now.after(pause(entry.ttl, failures, jitter)), failures + 1);
            }
        }
        self.reschedule(id.slot);
        None
    }

    /// What is due at `now`. Renewals are marked as being on their way.
    pub(crate) fn due(&mut self, now: Moment) -> Due<T> {
        let mut due = Due { renew: Vec::new(), lost: Vec::new() };
        while let Some(&(wake_at, slot)) = self.due.first() {
            if wake_at > now {
                break;
            }
            let Some(entry) = self.entries[slot].as_mut() else {
                self.due.pop_first();
                continue;
            };
            if let Some(loss) = entry.loss(now) {
                due.lost.extend(self.strike(slot).map(|what| (what, loss)));
                continue;
            }
            if let Renewal::At(at, failures) = entry.renewal
                && at <= now
            {
                entry.renewal = Renewal::InFlight(failures);
                due.renew.push((GrantId { slot, epoch: entry.epoch }, entry.what.clone()));
            }
            self.reschedule(slot);
        }
        self.add_company(now, &mut due.renew);
        due
    }

    /// A request is going out anyway: those that would be due shortly go with it, until it is full.
    /// Whoever is left fills the next one; many full ones at once would only need memory.
    fn add_company(&mut self, now: Moment, renew: &mut Vec<(GrantId, T)>) {
        let room = renew.len().next_multiple_of(self.batch) - renew.len();
        let mut joined = Vec::new();
        for &(wake_at, slot) in &self.due {
            let Some(entry) = self.entries[slot].as_mut() else { continue };
            if joined.len() == room || wake_at > now.after(entry.ttl / COMPANY) {
                break;
            }
            if let Renewal::At(at, failures) = entry.renewal
                && at == wake_at
            {
                entry.renewal = Renewal::InFlight(failures);
                renew.push((GrantId { slot, epoch: entry.epoch }, entry.what.clone()));
                joined.push(slot);
            }
        }
        for slot in joined {
            self.reschedule(slot);
        }
    }

    /// When there will be something to do next.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.due.first().map(|&(wake_at, _)| wake_at)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    fn entry(&mut self, id: GrantId) -> Option<&mut Entry<T>> {
        self.entries.get_mut(id.slot)?.as_mut().filter(|entry| entry.epoch == id.epoch)
    }

    fn strike(&mut self, slot: usize) -> Option<T> {
        let entry = self.entries[slot].take()?;
        self.due.remove(&(entry.wake_at, slot));
        self.free.push(slot);
        // A book that was full once does not stay large for ever.
        if self.due.is_empty() && self.entries.len() > 1024 {
            *self = Self { epoch: self.epoch, ..Self::new(self.batch) };
        }
        Some(entry.what)
    }

    fn reschedule(&mut self, slot: usize) {
        if let Some(entry) = self.entries[slot].as_mut() {
            self.due.remove(&(entry.wake_at, slot));
            entry.wake_at = entry.next();
            self.due.insert((entry.wake_at, slot));
        }
    }
}

impl<T> Entry<T> {
    fn next(&self) -> Moment {
        let end = self.valid_until.min(self.hold_until);
        match self.renewal {
            Renewal::At(at, _) => end.min(at),
            Renewal::Off | Renewal::InFlight(_) => end,
        }
    }

    fn loss(&self, now: Moment) -> Option<Loss> {
        if now >= self.hold_until {
            Some(Loss::MaxHold)
        } else if now >= self.valid_until {
            Some(Loss::Expired)
        } else {
            None
        }
    }
}

/// How long to wait after a renewal failed: soon at first, and never so long that the lease runs
/// out untried.
fn pause(ttl: Duration, failures: u32, jitter: f64) -> Duration {
    let first = ttl / 60;
    let whole = first.saturating_mul(1 << failures.min(4)).min(ttl / 8);
    whole / 2 + (whole / 2).mul_f64(jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
