//! Taking a lock and giving it back: the entry, its place in the line, and its lease.
//!
//! The entry with the lowest create revision holds the lock. An attempt that does not queue makes
//! an entry only if there is none; one that queues makes it in any case, on a short lease of its
//! own, and when it turns out to be the oldest it is hung on a lease of full length, and its fence
//! is written down.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, Extension, Intent, Key, Lease, LockError, Release,
    Secret, spawn_lasting,
};

use crate::entry::{granted, holding, waiting};
use crate::error::{Effect, doubtful};
use crate::lease::{seconds, span};
use crate::names::Place;
use crate::proto::{KeyValue, TxnRequest};
use crate::store::EtcdStore;
use crate::txn::{
    Answer, before, delete, is_empty, oldest, put, read, single, was_created, was_resumed, youngest,
};
use crate::watch::Watch;

/// How long a place in the line outlives its waiter.
const QUEUE_LIFE: Duration = Duration::from_secs(10);

/// When a waiter asks again at the latest, so that its place stays alive.
const QUEUE_REFRESH: Duration = Duration::from_secs(3);

/// How often a step starts again because the lock changed between two requests.
pub(crate) const ROUNDS: usize = 8;

/// What stands in etcd about a lock: its holder's entry and our own.
struct View {
    holder: Option<KeyValue>,
    own: Option<KeyValue>,
    revision: i64,
}

impl View {
    /// Reads the answers to `oldest` and `single`.
    fn from(answer: &mut Answer) -> Result<Self, LockError> {
        Ok(Self { holder: answer.key()?, own: answer.key()?, revision: answer.revision })
    }
}

impl EtcdStore {
    pub(crate) async fn attempt(&self, request: &AcquireRequest) -> Result<Attempt, LockError> {
        let place = self.names.place(&request.key, &request.secret);
        // A lease made in vain costs the cluster two writes, a look costs none.
        let mut look = self.line.stands(&place) || self.line.was_busy(&place.lock);
        for _ in 0..ROUNDS {
            if look {
                let questions = vec![oldest(&place.lock), single(&place.entry)];
                let view = View::from(&mut self.link.read(questions).await?)?;
                if let Some(attempt) = self.judge(&place, request, view).await? {
                    return Ok(attempt);
                }
            }
            if let Some(attempt) = self.enter(&place, request).await? {
                return Ok(attempt);
            }
            look = true;
        }
        Err(restless())
    }

    /// What a view of the lock means for us; `None` if an entry must be made first.
    async fn judge(
        &self,
        place: &Place,
        request: &AcquireRequest,
        view: View,
    ) -> Result<Option<Attempt>, LockError> {
        let Some(holder) = view.holder else { return Ok(None) };
        if holder.belongs_to(place) {
            let claimed = self.claim(place, &holder, request, Some(view.revision));
            let extended = claimed.await.map_err(doubtful)?;
            let Extension::Extended(lease) = extended else { return Ok(None) };
            self.line.forget(place);
            self.line.note_free(&place.lock);
            return Ok(Some(Attempt::Granted(lease)));
        }
        self.line.note_busy(&place.lock);
        let queued = match (request.intent, view.own) {
            (Intent::Queue, None) => return Ok(None),
            (Intent::Queue, Some(own)) => {
                self.stay(place, &own).await.map_err(doubtful)?;
                let watching =
                    self.watch_predecessor(place, own.create_revision, None, view.revision);
                watching.await.map_err(doubtful)?;
                true
            }
            _ => false,
        };
        let busy = self.busy(&request.key, holder, queued).await;
        Ok(Some(Attempt::Busy(busy.map_err(|error| if queued { doubtful(error) } else { error })?)))
    }

    /// The entry that holds the lock is ours, waited for or asked for again: gives it the lease
    /// that it should have.
    ///
    /// `waited` is the revision at which it was seen to be the oldest; none if it has been so since
    /// it was made.
    pub(crate) async fn claim(
        &self,
        place: &Place,
        entry: &KeyValue,
        request: &AcquireRequest,
        waited: Option<i64>,
    ) -> Result<Extension, LockError> {
        if entry.is_waiting() {
            let (text, fence) = match waited {
                Some(seen) => (granted(request, seen), seen + 1),
                None => (holding(request), entry.create_revision),
            };
            // The lease of a place in the line says nothing about the lock's: it may be longer,
            // too.
            let hold = |lease| put(&entry.key, text, lease);
            if let Some(lease) = self.replace(entry, seconds(request.ttl), hold).await? {
                let lease = Lease::new(self.mint(fence)?, span(lease.seconds));
                return Ok(Extension::Extended(lease));
            }
        }
        self.prolong(place, ExtendBy::AtLeast(request.ttl)).await
    }

    /// Makes an entry; `None` if the lock turned out to be other than expected and must be looked
    /// at again.
    async fn enter(
        &self,
        place: &Place,
        request: &AcquireRequest,
    ) -> Result<Option<Attempt>, LockError> {
        let queues = request.intent == Intent::Queue;
        let (life, text) =
            if queues { (QUEUE_LIFE, waiting(request)) } else { (request.ttl, holding(request)) };
        let lease = self.link.grant(seconds(life)).await?;
        let entry = put(&place.entry, text, lease.id);
        let look = vec![read(oldest(&place.lock)), read(single(&place.entry))];
        let txn = if queues {
            TxnRequest {
                compare: vec![was_created(&place.entry, 0)],
                success: vec![entry, read(oldest(&place.lock)), read(youngest(&place.lock, 2))],
                failure: look,
            }
        } else {
            TxnRequest { compare: vec![is_empty(&place.lock)], success: vec![entry], failure: look }
        };
        // If the answer is lost, our entry may hang on the lease: then it is left alone.
        let mut answer = self.link.txn(Effect::Writes, txn).await?;
        if !answer.succeeded {
            self.link.end(lease.id).await;
            return self.judge(place, request, View::from(&mut answer)?).await;
        }
        answer.put()?;
        if queues {
            self.entered(place, request, answer).await
        } else {
            self.line.note_free(&place.lock);
            let fence = self.mint(answer.revision)?;
            Ok(Some(Attempt::Granted(Lease::new(fence, span(lease.seconds)))))
        }
    }

    /// A place in the line was made: at its head, or behind somebody.
    async fn entered(
        &self,
        place: &Place,
        request: &AcquireRequest,
        mut answer: Answer,
    ) -> Result<Option<Attempt>, LockError> {
        let created = answer.revision;
        let (holder, last) = (answer.key()?, answer.keys()?);
        let Some(holder) = holder else {
            return Err(LockError::internal("etcd does not show an entry that it has just made"));
        };
        if holder.belongs_to(place) {
            if holder.key != place.entry {
                // It holds the lock already, under the name of the one it was resumed from.
                self.withdraw(place, created).await.map_err(doubtful)?;
            }
            let extended = self.claim(place, &holder, request, None).await;
            return match extended.map_err(doubtful)? {
                Extension::Extended(lease) => Ok(Some(Attempt::Granted(lease))),
                _ => Ok(None),
            };
        }
        self.line.note_busy(&place.lock);
        self.line.stand(place, created);
        let predecessor = last.into_iter().find(|entry| entry.key != place.entry);
        let watching = self.watch_predecessor(place, created, predecessor, created);
        watching.await.map_err(doubtful)?;
        let busy = self.busy(&request.key, holder, true).await;
        Ok(Some(Attempt::Busy(busy.map_err(doubtful)?)))
    }

    /// Keeps our place in the line alive, if that was not done a moment ago.
    async fn stay(&self, place: &Place, own: &KeyValue) -> Result<(), LockError> {
        if self.line.is_fresh(place, own.create_revision, QUEUE_REFRESH) {
            return Ok(());
        }
        for answer in self.link.keep_alive(&[own.lease]).await {
            // A lease that is gone takes the place with it; the next attempt makes another.
            answer?;
        }
        self.line.stand(place, own.create_revision);
        Ok(())
    }

    /// Watches the entry before ours from `revision` on, if somebody here listens and nobody
    /// watches yet.
    async fn watch_predecessor(
        &self,
        place: &Place,
        created: i64,
        predecessor: Option<KeyValue>,
        revision: i64,
    ) -> Result<(), LockError> {
        if self.line.is_watched(place, created) != Some(false) {
            return Ok(());
        }
        let (predecessor, revision) = if let Some(predecessor) = predecessor {
            (predecessor, revision)
        } else {
            let mut answer = self.link.read(vec![before(&place.lock, created)]).await?;
            let Some(predecessor) = answer.key()? else {
                // It left in this moment: we may be the first.
                self.line.ring(&place.lock.start);
                return Ok(());
            };
            (predecessor, answer.revision)
        };
        let watch = Watch {
            link: Arc::clone(&self.link),
            line: Arc::downgrade(&self.line),
            lock: place.lock.start.clone(),
            entry: predecessor.key,
            from: revision + 1,
        };
        let task = spawn_lasting(watch.run());
        self.line.watch(place, created, task.abort_handle());
        Ok(())
    }

    pub(crate) async fn busy(
        &self,
        key: &Key,
        holder: KeyValue,
        queued: bool,
    ) -> Result<Busy, LockError> {
        let holder = self.describe(key.clone(), &holder).await?;
        let rest = holder.remaining;
        let busy = Busy::held_by(holder);
        Ok(match (queued, rest) {
            (true, rest) => {
                busy.retry_after(rest.map_or(QUEUE_REFRESH, |rest| rest.min(QUEUE_REFRESH)))
            }
            (false, _) => busy,
        })
    }

    /// Removes our entry, whether it holds the lock or waits for it; says whether it held it.
    pub(crate) async fn give_back(&self, key: &Key, secret: &Secret) -> Result<Release, LockError> {
        let place = self.names.place(key, secret);
        let txn = TxnRequest {
            // What bears our name but was resumed by another is not ours to remove.
            compare: vec![was_resumed(&place.entry)],
            success: vec![read(oldest(&place.lock))],
            // In this order: who held it before we let go?
            failure: vec![read(oldest(&place.lock)), delete(&place.entry)],
        };
        let mut answer = self.link.txn(Effect::Writes, txn).await?;
        let holder = answer.key()?;
        let gone = if answer.succeeded { None } else { answer.deleted()? };
        self.line.forget(&place);
        match (gone, holder) {
            (Some(gone), holder) => {
                self.link.end(gone.lease).await;
                Ok(match holder {
                    Some(holder) if holder.key == place.entry => Release::Released,
                    _ => Release::NotHeld,
                })
            }
            (None, Some(holder)) if holder.belongs_to(&place) => {
                self.give_back_resumed(&place, holder).await
            }
            (None, _) => Ok(Release::NotHeld),
        }
    }
}

/// Gives up on a lock that never stands still.
pub(crate) fn restless() -> LockError {
    LockError::unavailable("the lock changed in etcd between every two requests; try again")
}
