//! The atomic steps: each reads the document with its time, decides by the server's times, and commits one write that
//! is valid only if the document is still the one that was read.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, ExtendRequest, Extension, Fence, Holder, Key, Lease,
    LockError, MAX_TTL, Release, Secret, Transfer, TransferRequest,
};
use serde_json::{Value, json};

use crate::document::{Found, Record};
use crate::error::{Fault, nonsense};
use crate::names::document_id;
use crate::store::Place;
use crate::time::Micros;

/// How often a step is tried when others write to the same document: with the pauses, about a second.
const ROUNDS: u32 = 8;

/// The first pause after a conflict; each further one is twice as long, and all are cut at random by up to a half.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// One key.
pub(crate) struct Step {
    place: Arc<Place>,
    /// The full name of the document.
    name: String,
    key: Key,
}

/// How a read ended.
enum Seen {
    /// Nothing is there; the server's time.
    Nothing(Micros),
    Something(Found),
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
    pub(crate) fn new(place: Arc<Place>, key: Key) -> Self {
        let name = format!("{}/{}", place.collection, document_id(&key));
        Self { place, name, key }
    }

    pub(crate) async fn acquire(self, request: AcquireRequest) -> Result<Attempt, LockError> {
        let mut rounds = Rounds::new();
        loop {
            match self.try_acquire(&request).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => rounds.next(fault, &self.key).await?,
            }
        }
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt, Fault> {
        let fresh = self.fresh(request);
        match self.read().await? {
            Seen::Nothing(now) => {
                let updated = self.put(&fresh, now, json!({ "exists": false })).await?;
                Ok(Attempt::Granted(Lease::new(Fence::new(updated.0), request.ttl)))
            }
            Seen::Something(found) => match found.held_by(&request.secret) {
                Some(record) => {
                    let by = ExtendBy::AtLeast(request.ttl);
                    Ok(Attempt::Granted(self.move_end(&found, record, by).await?))
                }
                None if found.is_over() => {
                    let unchanged = json!({ "updateTime": found.version });
                    let updated = self.put(&fresh, found.read, unchanged).await?;
                    Ok(Attempt::Granted(Lease::new(Fence::new(updated.0), request.ttl)))
                }
                None => Ok(Attempt::Busy(Busy::held_by(self.holder(&found)))),
            },
        }
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
        let Seen::Something(found) = self.read().await? else { return Ok(Extension::NotHeld) };
        match found.held_by(&request.secret) {
            Some(record) => {
                Ok(Extension::Extended(self.move_end(&found, record, request.by).await?))
            }
            None => Ok(Extension::NotHeld),
        }
    }

    /// Moves the end of our own lease, if it is too near.
    async fn move_end(&self, found: &Found, record: &Record, by: ExtendBy) -> Result<Lease, Fault> {
        let fence = found.fence().ok_or_else(|| nonsense("a lock of ours has no fence"))?;
        let left = found.left().unwrap_or_default();
        let lease = match by {
            ExtendBy::AtLeast(ttl) => ttl,
            ExtendBy::Add(extra) => left.saturating_add(extra).min(MAX_TTL),
            // An extension that this version does not know is none.
            _ => return Err(LockError::unsupported("this kind of extension").into()),
        };
        if lease <= left {
            return Ok(Lease::new(fence, left));
        }
        let renewals = record.renewals.wrapping_add(1) & (u64::MAX >> 1);
        let record = Record { lease, fence: Some(fence), renewals, ..record.clone() };
        self.put(&record, found.read, json!({ "updateTime": found.version })).await?;
        Ok(Lease::new(fence, lease))
    }

    pub(crate) async fn release(self, secret: Secret) -> Result<Release, LockError> {
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

    /// The document goes, and its fence with it: the next grant is a later commit on the same document, and the
    /// commits on one document have times that rise strictly.
    async fn try_delete(&self, whose: &Whose) -> Result<Release, Fault> {
        let Seen::Something(found) = self.read().await? else { return Ok(Release::NotHeld) };
        let held = match whose {
            Whose::Owner(secret) => found.held_by(secret).is_some(),
            Whose::Grant(fence) => found.fence() == Some(*fence) && !found.is_over(),
        };
        if !held {
            return Ok(Release::NotHeld);
        }
        let unchanged = json!({ "updateTime": found.version });
        self.commit(json!({ "delete": self.name, "currentDocument": unchanged })).await?;
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
        match self.read().await? {
            Seen::Something(found) if found.held_by(&request.from).is_some() => {
                let unchanged = json!({ "updateTime": found.version });
                let updated = self.put(&self.fresh(&request.to), found.read, unchanged).await?;
                Ok(Transfer::Transferred(Lease::new(Fence::new(updated.0), request.to.ttl)))
            }
            _ => Ok(Transfer::NotHeld),
        }
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
        Ok(match self.read().await? {
            Seen::Something(found) if !found.is_over() => Some(self.holder(&found)),
            _ => None,
        })
    }

    async fn read(&self) -> Result<Seen, Fault> {
        let answer =
            self.place.client.read("batchGet", &json!({ "documents": [self.name] })).await?;
        let one = answer.get(0).ok_or_else(|| nonsense("it is empty"))?;
        let read = one.get("readTime").and_then(Value::as_str).and_then(Micros::parse);
        let read = read.ok_or_else(|| nonsense("it has no time"))?;
        let is_ours = |name: Option<&Value>| name.and_then(Value::as_str) == Some(&self.name);
        match one.get("found") {
            Some(document) if is_ours(document.get("name")) => {
                let found = Found::from_json(document, read);
                let found = found.ok_or_else(|| nonsense("a document has no time"))?;
                Ok(Seen::Something(found.of(&self.key)))
            }
            None if is_ours(one.get("missing")) => Ok(Seen::Nothing(read)),
            _ => Err(nonsense("it is about another document").into()),
        }
    }

    /// Writes the record, if the document is still as it should be; the time of the commit.
    async fn put(&self, record: &Record, now: Micros, only_if: Value) -> Result<Micros, Fault> {
        let document = json!({ "name": self.name, "fields": record.to_fields(now) });
        self.commit(json!({ "update": document, "currentDocument": only_if })).await
    }

    async fn commit(&self, write: Value) -> Result<Micros, Fault> {
        let answer = self.place.client.write("commit", &json!({ "writes": [write] })).await?;
        // A deletion has no update time of its own, only that of the commit.
        let time =
            answer.pointer("/writeResults/0/updateTime").or_else(|| answer.get("commitTime"));
        let time = time.and_then(Value::as_str).and_then(Micros::parse);
        time.ok_or_else(|| nonsense("a commit has no time").into())
    }

    fn fresh(&self, request: &AcquireRequest) -> Record {
        Record {
            secret: request.secret.clone(),
            key: self.key.as_str().to_owned(),
            lease: request.ttl,
            fence: None,
            owner: request.owner.to_text(),
            renewals: 0,
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
