//! What the engine asks of a store, done with files: each call is one step on one record.
//!
//! Nothing is decided here. The rules are in `rules`, the locking in `step`, the wake-ups in
//! `wake`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ExtendBy, ExtendRequest, Extension, Fence,
    Guarantees, Holder, Intent, Key, Lease, Liveness, LockError, ManyAttempt, Release, Reply,
    Secret, Subscription, Transfer, TransferRequest, WakeUps,
};

use crate::names::name_of;
use crate::place::check_key;
use crate::record::{ProcessId, Record};
use crate::rules::Change;
use crate::step::{Absent, Page, Try, peek};
use crate::store::{FileStore, Tried};
use crate::sweep::records;
use crate::threads;

/// How long a dropped handle may keep its thread, before its release goes to the background.
const AT_ONCE: Duration = Duration::from_millis(2);

impl FileStore {
    /// One attempt; `at` becomes the time when it was made.
    fn try_acquire(&self, request: &AcquireRequest, at: &mut u64) -> Tried<Attempt> {
        let (who, presence) = self.presence()?;
        let me = presence.id;
        let queued = request.intent == Intent::Queue;
        let name = queued.then(|| name_of(&request.key));
        let listening = name.as_ref().map_or(0, |name| self.board.waiters(name));
        // Put aside and not handed up from call to call: with a holder in it, it is large.
        let mut outcome = None;
        let stepped = self.step_of(who, &request.key, Absent::Make(me), |record, scene| {
            let (attempt, mut change) = record.attempt(request, me, scene)?;
            let changed = match outcome.insert(attempt) {
                // Served: others here, if there are any, still want to be called.
                Attempt::Granted(_) if listening == 1 => record.delist(me),
                Attempt::Busy(_) if listening > 0 => record.enlist(me, scene),
                _ => Change::None,
            };
            if changed == Change::Write {
                change = Change::Write;
            }
            let holder = record.grant.as_ref().and_then(|grant| grant.process);
            *at = scene.now;
            Ok(((holder, record.waiters.contains(&me)), change))
        })?;
        let Some(answer) = stepped else { return Ok(None) };
        let (holder, listed) = answer.ok_or_else(|| vanished(&request.key))?;
        if let Some(name) = &name {
            self.board.set_listed(name, listed);
        }
        match (&outcome, holder) {
            (Some(Attempt::Granted(_)), _) => self.count_bound(request.liveness),
            (Some(Attempt::Busy(_)), Some(holder)) if holder != me => {
                if let Some(name) = &name {
                    self.board.watch(&self.directory, name, holder, presence.pipe.as_ref());
                }
            }
            _ => {}
        }
        Ok(outcome)
    }

    fn count_bound(&self, liveness: Liveness) {
        if liveness != Liveness::Lease {
            self.bound.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_release(&self, key: &Key, secret: &Secret) -> Tried<Release> {
        let me = self.me();
        let stepped = self.step_of(me, key, Absent::Skip, |record, scene| {
            let ours = record
                .grant
                .as_ref()
                .is_some_and(|grant| me.id.is_some() && grant.process == me.id);
            let (release, change) = record.release(secret, scene);
            let called = match release {
                Release::Released => record.call_waiters(scene),
                _ => Vec::new(),
            };
            Ok(((release, called, ours), change))
        })?;
        Ok(stepped.map(|answer| self.released(key, answer)))
    }

    fn released(&self, key: &Key, answer: Option<(Release, Vec<ProcessId>, bool)>) -> Release {
        let Some((release, called, ours)) = answer else { return Release::NotHeld };
        if release == Release::Released && ours {
            self.bound.fetch_sub(1, Ordering::Relaxed);
        }
        self.call(key, &called);
        release
    }

    fn try_extend(&self, request: &ExtendRequest, rebind: Option<Liveness>) -> Tried<Extension> {
        let who = match rebind {
            Some(_) => self.presence()?.0,
            None => self.me(),
        };
        let me = who.id;
        let stepped = self.step_of(who, &request.key, Absent::Skip, |record, scene| {
            let before = me.map_or(0, |me| record.bound_to(me));
            let rebind = rebind.zip(me);
            let (extension, change) = record.extend(&request.secret, request.by, rebind, scene);
            let bound = me.map_or(0, |me| record.bound_to(me)) - before;
            Ok(((extension, bound), change))
        })?;
        Ok(stepped.map(|answer| match answer {
            None => Extension::NotHeld,
            Some((extension, bound)) => {
                self.bound.fetch_add(bound, Ordering::Relaxed);
                extension
            }
        }))
    }

    fn try_transfer(&self, request: &TransferRequest) -> Tried<Transfer> {
        let (who, presence) = self.presence()?;
        let me = presence.id;
        let stepped = self.step_of(who, &request.to.key, Absent::Skip, |record, scene| {
            let before = record.bound_to(me);
            let (transfer, change) = record.transfer(&request.from, &request.to, me, scene)?;
            Ok(((transfer, record.bound_to(me) - before), change))
        })?;
        Ok(stepped.map(|answer| match answer {
            None => Transfer::NotHeld,
            Some((transfer, bound)) => {
                // A lock that is taken up by its token was bound to another process, or to none.
                self.bound.fetch_add(bound, Ordering::Relaxed);
                transfer
            }
        }))
    }

    /// Locks all files in the order of their keys, so that two such calls cannot block each other.
    fn try_acquire_many(&self, requests: &[AcquireRequest]) -> Tried<ManyAttempt> {
        let (who, presence) = self.presence()?;
        let me = presence.id;
        let mut taken: BTreeMap<Key, Taken<'_>> =
            requests.iter().map(|request| (request.key.clone(), Taken::default())).collect();
        for (key, taken) in &mut taken {
            match self.files.try_lock(&self.directory, key, who.process, Absent::Make(me))? {
                Try::Locked(mut page) => {
                    taken.before = Some(page.read()?);
                    taken.page = Some(page);
                }
                Try::Contended => return Ok(None),
                Try::Absent => return Err(vanished(key)),
            }
        }
        let decided = self.scene(|scene| {
            let mut leases: Vec<Lease> = Vec::with_capacity(requests.len());
            for request in requests {
                let Some(taken) = taken.get_mut(&request.key) else { continue };
                let record = match (&mut taken.after, &taken.before) {
                    (Some(record), _) => record,
                    (after, Some(before)) => after.insert(before.clone()),
                    (_, None) => return Err(vanished(&request.key)),
                };
                match record.attempt(request, me, scene)? {
                    (Attempt::Granted(lease), _) => leases.push(lease),
                    // Nothing has been written yet, so there is nothing to undo.
                    (Attempt::Busy(busy), _) => {
                        return Ok(ManyAttempt::Busy(request.key.clone(), busy));
                    }
                    (_, _) => return Err(LockError::internal("an attempt with no known outcome")),
                }
                record.boot = scene.boot;
                record.written_at = scene.now;
            }
            Ok(ManyAttempt::Granted(leases))
        })?;
        if let ManyAttempt::Granted(_) = &decided {
            write_all(taken.values_mut())?;
            for taken in taken.into_values() {
                if let Some(page) = taken.page {
                    page.finish()?;
                }
            }
            for request in requests {
                self.count_bound(request.liveness);
            }
        }
        Ok(Some(decided))
    }

    /// Rings a new bell for `key`, and has its record call this process.
    fn try_subscribe(&self, key: &Key) -> Tried<()> {
        let (who, presence) = self.presence()?;
        let name = name_of(key);
        if presence.pipe.is_none() {
            // The bell is rung by a timer, and the record need not know.
            return Ok(Some(()));
        }
        let stepped = self.step_of(who, key, Absent::Make(presence.id), |record, scene| {
            let change = record.enlist(presence.id, scene);
            let holder = record.live(scene).and_then(|grant| grant.process);
            Ok(((holder, record.waiters.contains(&presence.id)), change))
        })?;
        let Some(answer) = stepped else { return Ok(None) };
        let (holder, listed) = answer.ok_or_else(|| vanished(key))?;
        self.board.set_listed(&name, listed);
        if let Some(holder) = holder.filter(|holder| *holder != presence.id) {
            self.board.watch(&self.directory, &name, holder, presence.pipe.as_ref());
        }
        Ok(Some(()))
    }

    fn holder_of(&self, key: &Key) -> Result<Option<Holder>, LockError> {
        let name = name_of(key);
        self.directory.check_lately(self.boot.now())?;
        let peeked = peek(&self.directory, &name).map_err(|error| error.with_key(key))?;
        let Some(record) = peeked else { return Ok(None) };
        check_key(&record, key, &self.directory.path_of(&name))?;
        Ok(self.scene(|scene| record.current_holder(scene)))
    }

    fn list_holders(&self, prefix: &str, limit: usize) -> Result<Vec<Holder>, LockError> {
        self.directory.check_still_there()?;
        let mut found = Vec::new();
        for name in records(&self.directory)? {
            if found.len() >= limit {
                break;
            }
            match peek(&self.directory, &name) {
                Ok(Some(record)) => {
                    if record.key.as_str().starts_with(prefix) && name_of(&record.key) == name {
                        found.extend(self.scene(|scene| record.current_holder(scene)));
                    }
                }
                Ok(None) => {}
                // Its key is not known, so it has no place here: `damaged` and a probe tell of it.
                Err(error) => tracing::warn!(%error, "left out of the list"),
            }
        }
        Ok(found)
    }
}

/// One of several keys in one step.
#[derive(Default)]
struct Taken<'f> {
    page: Option<Page<'f>>,
    before: Option<Record>,
    after: Option<Record>,
}

/// Writes all records, or puts back what was written. A process that dies in between leaves grants
/// that are bound to it, which are void, or leases that nobody knows of, which end.
fn write_all<'t, 'f: 't>(all: impl Iterator<Item = &'t mut Taken<'f>>) -> Result<(), LockError> {
    let mut done: Vec<&mut Taken<'f>> = Vec::new();
    for taken in all {
        let Taken { page: Some(page), after: Some(after), .. } = taken else { continue };
        if let Err(error) = page.write(after) {
            for taken in done {
                if let Taken { page: Some(page), before: Some(before), after: Some(after) } = taken
                {
                    // The fence stays: a number that was on the disk is not given out again.
                    before.fence = after.fence;
                    before.number = after.number;
                    page.write(before).map_err(|second| {
                        LockError::ambiguous("some of several keys may have been taken")
                            .with_key(&after.key)
                            .with_source(second)
                    })?;
                }
            }
            return Err(error);
        }
        done.push(taken);
    }
    Ok(())
}

#[cold]
fn vanished(key: &Key) -> LockError {
    LockError::internal("a file that was just made is not there").with_key(key)
}

impl Backend for FileStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("file")
            .wake_ups(WakeUps::PerKey)
            .transfer(true)
            .acquire_many(true)
            .force_release(true)
            .process_liveness(true)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        Box::pin(async move {
            let mut at = 0;
            // Nearly always the first try is the last, and nothing need be set up for more of them.
            let first = if self.config.sync { None } else { self.try_acquire(&request, &mut at)? };
            if let Some(attempt) = first {
                self.sweep_in_time(at);
                return Ok(attempt);
            }
            let (store, key) = (Arc::clone(&self), request.key.clone());
            let again = move |store: &Self| store.try_acquire(&request, &mut 0);
            let attempt = Box::pin(store.drive(key, again)).await?;
            self.sweep_in_time(self.boot.now());
            Ok(attempt)
        })
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        Box::pin(async move {
            let first = if self.config.sync { None } else { self.try_release(&key, &secret)? };
            if let Some(release) = first {
                return Ok(release);
            }
            let named = key.clone();
            let again = move |store: &Self| store.try_release(&key, &secret);
            Box::pin(self.drive(named, again)).await
        })
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        if self.config.sync {
            return None;
        }
        self.insist(AT_ONCE, &mut |store| store.try_release(key, secret)).transpose()
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        Box::pin(async move {
            let mut answers: Vec<Option<Result<Extension, LockError>>> = Vec::new();
            let mut others = tokio::task::JoinSet::new();
            for (at, request) in leases.into_iter().enumerate() {
                let first =
                    if self.config.sync { Ok(None) } else { self.try_extend(&request, None) };
                answers.push(first.transpose());
                if answers.last().is_some_and(Option::is_none) {
                    // Beside each other: one that is frozen must not keep the rest until their
                    // leases are over.
                    let (store, key) = (Arc::clone(&self), request.key.clone());
                    let again = move |store: &Self| store.try_extend(&request, None);
                    others.spawn(async move { (at, store.drive(key, again).await) });
                }
            }
            while let Some(done) = others.join_next().await {
                if let Ok((at, answer)) = done {
                    answers[at] = Some(answer);
                }
            }
            let cut_off = || Err(LockError::ambiguous("the step was cut off"));
            Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(cut_off)).collect())
        })
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Box::pin(async move { self.holder_of(&key) })
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Box::pin(async move {
            threads::must_start()?;
            tokio::task::spawn_blocking(move || self.list_holders(&prefix, limit))
                .await
                .map_err(|source| LockError::internal("listing was stopped").with_source(source))?
        })
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        Box::pin(async move {
            let name = name_of(&key);
            let (_, presence) = self.presence()?;
            let (bell, subscription) = Subscription::channel();
            self.board.add(name, bell, presence.pipe.as_ref());
            let (store, theirs) = (Arc::downgrade(&self), key.clone());
            // Before the step: if this future is dropped inside it, the bell goes with it.
            let subscription = subscription.on_drop(move || {
                if let Some(store) = store.upgrade() {
                    store.leave(&theirs, &name);
                }
            });
            self.drive(key.clone(), move |store| store.try_subscribe(&key)).await?;
            Ok(subscription)
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Box::pin(async move {
            threads::must_start()?;
            tokio::task::spawn_blocking(move || self.examine())
                .await
                .map_err(|source| LockError::internal("probing was stopped").with_source(source))?
        })
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        let key = request.to.key.clone();
        Box::pin(self.drive(key, move |store| store.try_transfer(&request)))
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        Box::pin(async move {
            let Some(first) = requests.first() else { return Ok(ManyAttempt::Granted(Vec::new())) };
            let (store, key) = (Arc::clone(&self), first.key.clone());
            let attempt = self.drive(key, move |store| store.try_acquire_many(&requests)).await?;
            store.sweep_in_time(store.boot.now());
            Ok(attempt)
        })
    }

    fn detach(self: Arc<Self>, key: Key, secret: Secret, ttl: Duration) -> Reply<Extension> {
        let request = ExtendRequest::new(key.clone(), secret, ExtendBy::AtLeast(ttl));
        Box::pin(self.drive(key, move |store| store.try_extend(&request, Some(Liveness::Lease))))
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        let forced = key.clone();
        Box::pin(self.drive(key, move |store| {
            let stepped = store.step(&forced, Absent::Skip, |record, scene| {
                let (release, change) = record.force_release(fence, scene);
                let called = match release {
                    Release::Released => record.call_waiters(scene),
                    _ => Vec::new(),
                };
                Ok(((release, called, false), change))
            })?;
            Ok(stepped.map(|answer| store.released(&forced, answer)))
        }))
    }
}
