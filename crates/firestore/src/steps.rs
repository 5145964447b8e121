//! The atomic steps: each reads the document with its time, decides by the server's times, and
//! commits one write that is valid only if the document is still the one that was read.
//!
//! The read is left out where the write's precondition says it all: a lock that is probably free is
//! made only if there is none, and what this process wrote last is deleted only if nobody wrote
//! since.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, ExtendRequest, Extension, Fence, Holder, Key, Lease,
    LockError, MAX_TTL, Release, Secret, Transfer, TransferRequest,
};
use serde_json::{Value, json};

use crate::config::Layout;
use crate::document::{Found, GRACE};
use crate::error::{Fault, nonsense};
use crate::names::document_id;
use crate::place::Place;
use crate::record::{Held, Record};
use crate::syncguard;
use crate::time::Micros;

/// How often a step is tried when others write to the same document: with the pauses, about a
/// second.
const ROUNDS: u32 = 8;

/// The first pause after a conflict; each further one is twice as long, and all are cut at random
/// by up to a half.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// One key.
pub(crate) struct Step {
    place: Arc<Place>,
    /// The full name of the document.
    name: String,
    /// The full name of the counter's document, in the layout that has one.
    counter: Option<String>,
    key: Key,
}

/// What stands in the database for a key, at one moment.
struct Seen {
    now: Micros,
    found: Option<Found>,
    /// The counter's document, if there is one.
    counter: Option<Value>,
}

/// When a commit was done.
struct Committed {
    time: Micros,
    /// The same as text, for preconditions.
    version: String,
}

/// Which lock may be deleted.
enum Whose {
    /// That of this owner.
    Owner(Secret),
    /// That of this grant, whoever owns it.
    Grant(Fence),
}

/// Counts how often a step was certainly not done, and says when to give up.
struct Rounds {
    left: u32,
    pause: Duration,
}

impl Rounds {
    fn new() -> Self {
        Self { left: ROUNDS, pause: FIRST_PAUSE }
    }

    /// Returns when the step may be tried again.
    async fn next(&mut self, fault: Fault, key: &Key) -> Result<(), LockError> {
        self.left -= 1;
        match fault {
            Fault::Failed(error) => return Err(error.with_key(key)),
            _ if self.left == 0 => {
                let restless = LockError::unavailable(format!(
                    "others wrote to its document {ROUNDS} times in between; try again a little later"
                ));
                return Err(restless.with_key(key));
            }
            // Who was first is decided by now.
            Fault::Overtaken => {}
            // This needs time.
            Fault::Aborted => {
                tokio::time::sleep(self.pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                self.pause *= 2;
            }
        }
        Ok(())
    }
}

impl Step {
    pub(crate) fn new(place: Arc<Place>, key: Key) -> Result<Self, LockError> {
        let (id, counter) = match place.layout {
            Layout::Native => (document_id(&key), None),
            Layout::Syncguard => {
                let (id, counter) = syncguard::ids(&key)?;
                (id, Some(format!("{}/{counter}", place.counters)))
            }
        };
        Ok(Self { name: format!("{}/{id}", place.collection), counter, place, key })
    }

    pub(crate) async fn acquire(self, request: AcquireRequest) -> Result<Attempt, LockError> {
        let mut rounds = Rounds::new();
        let memory = &self.place.memory;
        let native = self.place.layout == Layout::Native;
        let mut blindly = native && !memory.was_busy(&self.name);
        loop {
            let tried = match memory.now().filter(|_| blindly) {
                Some(now) => self.make(&request, now).await,
                None => self.try_acquire(&request).await,
            };
            match tried {
                Ok(answer) => return Ok(answer),
                // Written by others, again and again, between our two requests.
                Err(Fault::Overtaken) if rounds.left == 1 => return self.as_it_is(&request).await,
                Err(fault) => {
                    if matches!(fault, Fault::Overtaken) {
                        // There is a document: now it must be read, and the next time too.
                        memory.note_busy(&self.name);
                        blindly = false;
                    }
                    rounds.next(fault, &self.key).await?;
                }
            }
        }
    }

    /// An answer that writes nothing. Retries of one owner overtake each other too, and each of
    /// them holds the lock.
    async fn as_it_is(&self, request: &AcquireRequest) -> Result<Attempt, LockError> {
        let seen = match self.read().await {
            Ok(seen) => seen,
            Err(Fault::Failed(error)) => return Err(error.with_key(&self.key)),
            Err(Fault::Overtaken | Fault::Aborted) => return Ok(Attempt::Busy(Busy::new())),
        };
        let Some(found) = &seen.found else { return Ok(Attempt::Busy(Busy::new())) };
        Ok(match (found.held_by(&request.secret), found.left()) {
            (Some(held), Some(left)) => Attempt::Granted(Lease::new(held.fence, left)),
            (None, Some(_)) if !found.is_over() => Attempt::Busy(self.busy(found)),
            _ => Attempt::Busy(Busy::new()),
        })
    }

    /// Takes the lock if there is no document, without looking first.
    async fn make(&self, request: &AcquireRequest, now: Micros) -> Result<Attempt, Fault> {
        let nothing = Seen { now, found: None, counter: None };
        let only_if = json!({ "exists": false });
        Ok(Attempt::Granted(self.grant(request, &nothing, only_if).await?))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt, Fault> {
        let seen = self.read().await?;
        let Some(found) = &seen.found else {
            let only_if = json!({ "exists": false });
            return Ok(Attempt::Granted(self.grant(request, &seen, only_if).await?));
        };
        if let Some(held) = found.held_by(&request.secret) {
            let by = ExtendBy::AtLeast(request.ttl);
            return Ok(Attempt::Granted(self.move_end(found, held, by).await?));
        }
        if !found.is_over() {
            self.place.memory.note_busy(&self.name);
            return Ok(Attempt::Busy(self.busy(found)));
        }
        let unchanged = json!({ "updateTime": found.version });
        Ok(Attempt::Granted(self.grant(request, &seen, unchanged).await?))
    }

    /// Makes `request` the owner, with a new fence, if the document is still as it should be.
    async fn grant(
        &self,
        request: &AcquireRequest,
        seen: &Seen,
        only_if: Value,
    ) -> Result<Lease, Fault> {
        let record = Record {
            secret: request.secret.clone(),
            key: self.key.as_str().to_owned(),
            lease: request.ttl,
            fence: None,
            owner: request.owner.to_text(),
            renewals: 0,
        };
        let fence = match &self.counter {
            None => {
                let fields = record.to_fields(seen.now);
                let committed = self.commit(json!([self.update(&fields, &only_if)])).await?;
                let fence = Fence::new(committed.time.0);
                self.remember(&record, committed);
                fence
            }
            Some(counter) => {
                let fence = syncguard::next_fence(seen.counter.as_ref())?;
                let only_if_uncounted =
                    match seen.counter.as_ref().and_then(|counter| counter.get("updateTime")) {
                        Some(version) => json!({ "updateTime": version }),
                        None => json!({ "exists": false }),
                    };
                let fields = syncguard::lock_fields(&record, seen.now, fence);
                let count = json!({ "name": counter, "fields": syncguard::counter_fields(fence, &self.key) });
                let count = json!({ "update": count, "currentDocument": only_if_uncounted });
                self.commit(json!([self.update(&fields, &only_if), count])).await?;
                fence
            }
        };
        Ok(Lease::new(fence, request.ttl))
    }

    pub(crate) async fn extend(self, request: ExtendRequest) -> Result<Extension, LockError> {
        let mut rounds = Rounds::new();
        loop {
            match self.try_extend(&request).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => rounds.next(fault, &self.key).await?,
            }
        }
    }

    async fn try_extend(&self, request: &ExtendRequest) -> Result<Extension, Fault> {
        let Some(found) = self.read().await?.found else { return Ok(Extension::NotHeld) };
        match found.held_by(&request.secret) {
            Some(held) => Ok(Extension::Extended(self.move_end(&found, held, request.by).await?)),
            None => Ok(Extension::NotHeld),
        }
    }

    /// Moves the end of our own lease, if it is too near.
    async fn move_end(&self, found: &Found, held: &Held, by: ExtendBy) -> Result<Lease, Fault> {
        let left = found.left().unwrap_or_default();
        let lease = match by {
            ExtendBy::AtLeast(ttl) => ttl,
            ExtendBy::Add(extra) => left.saturating_add(extra).min(MAX_TTL),
            // An extension that this version does not know is none.
            _ => return Err(LockError::unsupported("this kind of extension").into()),
        };
        if lease <= left {
            return Ok(Lease::new(held.fence, left));
        }
        let unchanged = json!({ "updateTime": found.version });
        match self.place.layout {
            Layout::Native => {
                let renewals = held.record.renewals.wrapping_add(1) & (u64::MAX >> 1);
                let record = held.record.clone();
                let record = Record { lease, fence: Some(held.fence), renewals, ..record };
                let write = self.update(&record.to_fields(found.read), &unchanged);
                let committed = self.commit(json!([write])).await?;
                self.remember(&record, committed);
            }
            Layout::Syncguard => {
                let mut write = self.update(&syncguard::end_fields(found.read, lease), &unchanged);
                write["updateMask"] = json!({ "fieldPaths": ["expiresAtMs"] });
                self.commit(json!([write])).await?;
            }
        }
        Ok(Lease::new(held.fence, lease))
    }

    pub(crate) async fn release(self, secret: Secret) -> Result<Release, LockError> {
        if let Some(written) = self.place.memory.take(&self.name, &secret) {
            match self.commit(json!([self.deletion(&written.version)])).await {
                // What is over is nobody's, even if its document was ours to the end.
                Ok(committed) if committed.time >= written.over => return Ok(Release::NotHeld),
                Ok(_) => return Ok(Release::Released),
                Err(Fault::Failed(error)) => return Err(error.with_key(&self.key)),
                Err(Fault::Overtaken | Fault::Aborted) => {}
            }
        }
        self.delete(Whose::Owner(secret)).await
    }

    pub(crate) async fn force_release(self, fence: Fence) -> Result<Release, LockError> {
        self.delete(Whose::Grant(fence)).await
    }

    async fn delete(&self, whose: Whose) -> Result<Release, LockError> {
        let mut rounds = Rounds::new();
        loop {
            match self.try_delete(&whose).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => rounds.next(fault, &self.key).await?,
            }
        }
    }

    /// The document goes, and its fence with it: the next grant is a later commit on the same
    /// document, and the commits on one document have times that rise strictly.
    async fn try_delete(&self, whose: &Whose) -> Result<Release, Fault> {
        let Some(found) = self.read().await?.found else { return Ok(Release::NotHeld) };
        let held = match whose {
            Whose::Owner(secret) => found.held_by(secret).is_some(),
            Whose::Grant(fence) => found.fence() == Some(*fence) && !found.is_over(),
        };
        if !held {
            return Ok(Release::NotHeld);
        }
        self.commit(json!([self.deletion(&found.version)])).await?;
        Ok(Release::Released)
    }

    pub(crate) async fn transfer(self, request: TransferRequest) -> Result<Transfer, LockError> {
        let mut rounds = Rounds::new();
        loop {
            match self.try_transfer(&request).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => rounds.next(fault, &self.key).await?,
            }
        }
    }

    async fn try_transfer(&self, request: &TransferRequest) -> Result<Transfer, Fault> {
        let seen = self.read().await?;
        let Some(found) = &seen.found else { return Ok(Transfer::NotHeld) };
        // Done before, by a request whose answer was lost: the same grant, with its fence.
        if let Some(held) = found.held_by(&request.to.secret) {
            let by = ExtendBy::AtLeast(request.to.ttl);
            return Ok(Transfer::Transferred(self.move_end(found, held, by).await?));
        }
        if found.held_by(&request.from).is_none() {
            return Ok(Transfer::NotHeld);
        }
        let unchanged = json!({ "updateTime": found.version });
        Ok(Transfer::Transferred(self.grant(&request.to, &seen, unchanged).await?))
    }

    pub(crate) async fn lookup(self) -> Result<Option<Holder>, LockError> {
        let mut rounds = Rounds::new();
        loop {
            match self.try_lookup().await {
                Ok(answer) => return Ok(answer),
                Err(fault) => rounds.next(fault, &self.key).await?,
            }
        }
    }

    async fn try_lookup(&self) -> Result<Option<Holder>, Fault> {
        let found = self.read().await?.found.filter(|found| !found.is_over());
        Ok(found.map(|found| self.holder(&found)))
    }

    /// Reads all that belongs to the key at one moment.
    async fn read(&self) -> Result<Seen, Fault> {
        let names: Vec<&String> = std::iter::once(&self.name).chain(&self.counter).collect();
        let answer = self.place.client.read("batchGet", &json!({ "documents": names })).await?;
        let (mut now, mut lock, mut counter) = (None, None, None);
        for entry in answer.as_array().ok_or_else(|| nonsense("it is no list"))? {
            let document = entry.get("found");
            let name =
                document.map_or_else(|| entry.get("missing"), |document| document.get("name"));
            let name = name.and_then(Value::as_str);
            let time = entry.get("readTime").and_then(Value::as_str).and_then(Micros::parse);
            let time = time.ok_or_else(|| nonsense("it has no time"))?;
            // The times are the same in theory; the earliest is the safe one.
            now = Some(now.map_or(time, |now: Micros| now.min(time)));
            // They come in any order.
            match name {
                Some(name) if name == self.name => lock = Some(document),
                Some(name) if Some(name) == self.counter.as_deref() => {
                    counter = Some(document.cloned());
                }
                _ => return Err(nonsense("it is about another document").into()),
            }
        }
        let (Some(now), Some(lock)) = (now, lock) else {
            return Err(nonsense("it is empty").into());
        };
        self.place.memory.saw(now);
        if self.counter.is_some() && counter.is_none() {
            return Err(nonsense("the counter is left out").into());
        }
        let found = match lock {
            None => None,
            Some(document) => {
                let found = Found::from_json(document, now, self.place.layout);
                Some(self.checked(found.ok_or_else(|| nonsense("a document has no time"))?))
            }
        };
        Ok(Seen { now, found, counter: counter.flatten() })
    }

    /// A document of ours that names another key is nobody's that we know. Syncguard writes keys as
    /// they were typed.
    fn checked(&self, mut found: Found) -> Found {
        if self.place.layout == Layout::Native {
            found.held = found.held.filter(|held| held.record.key == self.key.as_str());
        }
        found
    }

    fn update(&self, fields: &Value, only_if: &Value) -> Value {
        json!({ "update": { "name": self.name, "fields": fields }, "currentDocument": only_if })
    }

    fn deletion(&self, version: &str) -> Value {
        json!({ "delete": self.name, "currentDocument": { "updateTime": version } })
    }

    /// Commits all writes or none.
    async fn commit(&self, writes: Value) -> Result<Committed, Fault> {
        let answer = self.place.client.write("commit", &json!({ "writes": writes })).await?;
        // A deletion has no update time of its own, only that of the commit.
        let time =
            answer.pointer("/writeResults/0/updateTime").or_else(|| answer.get("commitTime"));
        let version = time.and_then(Value::as_str).unwrap_or_default();
        let time = Micros::parse(version).ok_or_else(|| nonsense("a commit has no time"))?;
        self.place.memory.saw(time);
        Ok(Committed { time, version: version.to_owned() })
    }

    /// Saves the release a look at what was just written.
    fn remember(&self, record: &Record, committed: Committed) {
        let over = committed.time.after(record.lease).after(GRACE);
        self.place.memory.wrote(&self.name, &record.secret, committed.version, over);
    }

    fn busy(&self, found: &Found) -> Busy {
        let busy = Busy::held_by(self.holder(found));
        match found.free_in() {
            // Not at the end of the lease: asking during the grace after it would cost reads and
            // come to nothing.
            Some(after) => busy.retry_after(after),
            None => busy,
        }
    }

    fn holder(&self, found: &Found) -> Holder {
        holder(self.key.clone(), found)
    }
}

/// Who holds `key`, as the document says.
pub(crate) fn holder(key: Key, found: &Found) -> Holder {
    let mut holder = Holder::of(key).owner(found.owner());
    holder.fence = found.fence();
    holder.age = found.age();
    holder.remaining = found.left();
    holder
}
