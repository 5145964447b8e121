//! The atomic steps: each reads the item with its CAS number, compares the secret, and writes only
//! if the item is still the one that was read.
//!
//! One `ms` or `md` with a CAS number is the step; the reading before it only finds the number, and
//! is left out where the number is known. A write that is answered `EX` was not done, so it may be
//! tried again.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, ExtendRequest, Extension, Fence, Holder, Key, Lease,
    LockError, Release, Secret, Transfer, TransferRequest,
};
use holdtight_kit::Connected;
use tokio::time::Instant;

use crate::connection::Session;
use crate::names::Names;
use crate::protocol::{Left, Reply, Request, Write};
use crate::record::{Record, mint};
use crate::ticks;

/// How often a step is tried whose item changes under it. Only steps on the same key at the same
/// time do that.
const ROUNDS: usize = 16;

/// One key on one connection.
pub(crate) struct Step {
    session: Arc<Connected<Session>>,
    name: String,
    key: Key,
}

/// What stands under a name now.
struct Item {
    cas: u64,
    left: Left,
    /// `None` if it is not one of ours, or of another key.
    record: Option<Record>,
}

/// How a conditional write ended.
enum Written {
    /// Done; the item's new CAS number.
    Done(u64),
    /// Not done: the item is another one now, or there is one where none was expected.
    Overtaken,
    /// Not done: the item is gone.
    Gone,
}

impl Step {
    pub(crate) fn new(session: Arc<Connected<Session>>, names: &Names, key: Key) -> Self {
        Self { session, name: names.of(&key), key }
    }

    pub(crate) async fn acquire(self, request: AcquireRequest) -> Result<Attempt, LockError> {
        let answer = self.try_acquire(&request).await;
        answer.map_err(|error| error.with_key(&self.key))
    }

    /// Looks before it adds, although `ms … ME` alone would be atomic: a server that is out of
    /// memory answers an add with an error *and deletes the item that was there*, which would be
    /// somebody's lock.
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt, LockError> {
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            match self.read().await? {
                None => {
                    self.session.settled().await;
                    let record = self.fresh(request);
                    let written = self.write(&record, Write::Add, ticks::ask(request.ttl)).await?;
                    // If the server was slow, the next round finds it taken by ourselves.
                    if let Written::Done(cas) = written
                        && self.kept_time(asked).await?
                    {
                        return Ok(Attempt::Granted(Lease::new(self.minted(cas)?, request.ttl)));
                    }
                }
                Some(item) => match item.owned_by(&request.secret) {
                    None => return Ok(Attempt::Busy(self.busy(&item))),
                    // An earlier attempt of this very call was granted after all.
                    Some(record) => {
                        let by = ExtendBy::AtLeast(request.ttl);
                        if let Some(lease) = self.move_end(&item, record, by).await?
                            && self.kept_time(asked).await?
                        {
                            return Ok(Attempt::Granted(lease));
                        }
                    }
                },
            }
        }
        // Taken and freed by others, again and again, between our two requests: busy is the truth.
        Ok(Attempt::Busy(Busy::new()))
    }

    pub(crate) async fn extend(self, request: ExtendRequest) -> Result<Extension, LockError> {
        let answer = self.try_extend(&request).await;
        answer.map_err(|error| error.with_key(&self.key))
    }

    async fn try_extend(&self, request: &ExtendRequest) -> Result<Extension, LockError> {
        let mut by = request.by;
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            let Some(item) = self.read().await? else { return Ok(Extension::NotHeld) };
            let Some(record) = item.owned_by(&request.secret) else {
                return Ok(Extension::NotHeld);
            };
            if let Some(lease) = self.move_end(&item, record, by).await? {
                if self.kept_time(asked).await? {
                    return Ok(Extension::Extended(lease));
                }
                // What was added is there, and not to be added again; how much that is has to be
                // asked.
                if let ExtendBy::Add(_) = by {
                    by = ExtendBy::AtLeast(Duration::ZERO);
                }
            }
        }
        Err(Self::restless())
    }

    /// As [`Session::kept_time`]. What was written before must not be called undone.
    async fn kept_time(&self, asked: Instant) -> Result<bool, LockError> {
        self.session.kept_time(asked).await.map_err(|error| {
            let unknown = "memcached was slow, and did not say what time it is then";
            LockError::ambiguous(unknown).with_source(error)
        })
    }

    /// Moves the end of our own item; `None` if it changed meanwhile and must be read again.
    async fn move_end(
        &self,
        item: &Item,
        record: &Record,
        by: ExtendBy,
    ) -> Result<Option<Lease>, LockError> {
        let fence = record.fence(item.cas).ok_or_else(Self::countless)?;
        let left = match item.left {
            Left::Seconds(left) => left,
            Left::Forever => u64::MAX,
        };
        let (seconds, ttl) = match by {
            ExtendBy::AtLeast(Duration::ZERO) => (0, Duration::ZERO),
            ExtendBy::AtLeast(ttl) => (ticks::ask(ttl), ttl),
            ExtendBy::Add(extra) => {
                let seconds = ticks::ask_more(left, extra);
                (seconds, ticks::at_least(seconds))
            }
            // An extension that this version does not know is none.
            _ => return Err(LockError::unsupported("this kind of extension")),
        };
        if seconds <= left {
            return Ok(Some(Lease::new(fence, ticks::at_least(left).max(ttl))));
        }
        let record = Record { fence: Some(fence), ..record.clone() };
        match self.write(&record, Write::Replace(item.cas), seconds).await {
            Ok(Written::Done(_)) => Ok(Some(Lease::new(fence, ticks::at_least(seconds).max(ttl)))),
            Ok(Written::Overtaken | Written::Gone) => Ok(None),
            // A server without memory for the new item deletes the old one as well. Whoever held it
            // must hear that.
            Err(error) if error.kind() == holdtight_core::ErrorKind::RateLimited => {
                match self.read().await? {
                    Some(item) if item.owned_by(&record.secret).is_some() => Err(error),
                    _ => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn release(self, secret: Secret) -> Result<Release, LockError> {
        let answer = self.try_release(&secret).await;
        answer.map_err(|error| error.with_key(&self.key))
    }

    async fn try_release(&self, secret: &Secret) -> Result<Release, LockError> {
        if let Some(cas) = self.session.recent.take(&self.name, secret)
            && let Some(release) = self.delete(cas).await?
        {
            return Ok(release);
        }
        self.delete_if(|item| item.owned_by(secret).is_some()).await
    }

    pub(crate) async fn force_release(self, fence: Fence) -> Result<Release, LockError> {
        let that =
            |item: &Item| item.record.as_ref().and_then(|r| r.fence(item.cas)) == Some(fence);
        let answer = self.delete_if(that).await;
        answer.map_err(|error| error.with_key(&self.key))
    }

    async fn delete_if(&self, wanted: impl Fn(&Item) -> bool) -> Result<Release, LockError> {
        for _ in 0..ROUNDS {
            let item = self.read().await?;
            let Some(item) = item.filter(&wanted) else { return Ok(Release::NotHeld) };
            if let Some(release) = self.delete(item.cas).await? {
                return Ok(release);
            }
        }
        Err(Self::restless())
    }

    /// Deletes the item if it still has this CAS number; `None` if it has another one.
    async fn delete(&self, cas: u64) -> Result<Option<Release>, LockError> {
        match self.session.ask(Request::Delete { name: &self.name, cas }).await? {
            Reply::Done(_) => Ok(Some(Release::Released)),
            Reply::NotFound => Ok(Some(Release::NotHeld)),
            Reply::Changed => Ok(None),
            other => Err(self.session.refused(&other)),
        }
    }

    pub(crate) async fn transfer(self, request: TransferRequest) -> Result<Transfer, LockError> {
        let answer = self.try_transfer(&request).await;
        answer.map_err(|error| error.with_key(&self.key))
    }

    async fn try_transfer(&self, request: &TransferRequest) -> Result<Transfer, LockError> {
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            let Some(item) = self.read().await? else { return Ok(Transfer::NotHeld) };
            if let Some(record) = item.owned_by(&request.to.secret) {
                // Done before, by a request whose answer was lost: the same grant, with its fence.
                let by = ExtendBy::AtLeast(request.to.ttl);
                match self.move_end(&item, record, by).await? {
                    Some(lease) if self.kept_time(asked).await? => {
                        return Ok(Transfer::Transferred(lease));
                    }
                    _ => continue,
                }
            }
            if item.owned_by(&request.from).is_none() {
                return Ok(Transfer::NotHeld);
            }
            self.session.settled().await;
            let (record, ttl) = (self.fresh(&request.to), request.to.ttl);
            let write = Write::Replace(item.cas);
            if let Written::Done(cas) = self.write(&record, write, ticks::ask(ttl)).await?
                && self.kept_time(asked).await?
            {
                return Ok(Transfer::Transferred(Lease::new(self.minted(cas)?, ttl)));
            }
        }
        Err(Self::restless())
    }

    pub(crate) async fn lookup(self) -> Result<Option<Holder>, LockError> {
        match self.read().await {
            Ok(item) => Ok(item.map(|item| self.holder(&item))),
            Err(error) => Err(error.with_key(&self.key)),
        }
    }

    async fn read(&self) -> Result<Option<Item>, LockError> {
        match self.session.ask(Request::Get { name: &self.name }).await? {
            Reply::Missing => Ok(None),
            Reply::Value(flags, value) => {
                let (Some(cas), Some(left)) = (flags.cas, flags.left) else {
                    return Err(LockError::internal("memcached left out what it was asked for"));
                };
                let record = value.and_then(|value| Record::from_bytes(&value));
                let record = record.filter(|record| record.is_of(&self.key));
                Ok(Some(Item { cas, left, record }))
            }
            other => Err(self.session.refused(&other)),
        }
    }

    async fn write(
        &self,
        record: &Record,
        write: Write,
        seconds: u64,
    ) -> Result<Written, LockError> {
        let (name, value) = (&self.name, record.to_bytes());
        match self.session.ask(Request::Set { name, value: &value, write, seconds }).await? {
            Reply::Done(flags) => {
                let cas = flags.cas.ok_or_else(Self::countless)?;
                self.session.recent.wrote(&self.name, &record.secret, cas);
                Ok(Written::Done(cas))
            }
            Reply::NotStored | Reply::Changed => Ok(Written::Overtaken),
            Reply::NotFound => Ok(Written::Gone),
            other => Err(self.session.refused(&other)),
        }
    }

    fn fresh(&self, request: &AcquireRequest) -> Record {
        Record {
            secret: request.secret.clone(),
            start: self.session.start,
            fence: None,
            granted_at: self.session.server_time(),
            key: self.key.as_str().to_owned(),
            owner: self.session.owners.of(&request.owner),
        }
    }

    /// The fence of the write that the server gave this number to.
    fn minted(&self, cas: u64) -> Result<Fence, LockError> {
        mint(self.session.start, cas).ok_or_else(Self::countless)
    }

    fn holder(&self, item: &Item) -> Holder {
        let mut holder = Holder::of(self.key.clone());
        // An upper bound: when so much has passed, the item is gone.
        if let Left::Seconds(left) = item.left {
            holder.remaining = Some(Duration::from_secs(left));
        }
        if let Some(record) = &item.record {
            holder.fence = record.fence(item.cas);
            holder.owner = record.owner();
            let age = self.session.server_time().saturating_sub(record.granted_at);
            holder.age = Some(Duration::from_secs(age));
        }
        holder
    }

    fn busy(&self, item: &Item) -> Busy {
        Busy::held_by(self.holder(item))
    }

    fn restless() -> LockError {
        LockError::unavailable(format!(
            "its item changed {ROUNDS} times while it was being written; try again a little later"
        ))
    }

    fn countless() -> LockError {
        LockError::internal(
            "memcached gave no CAS number, from which fences are made; start it without -C",
        )
    }
}

impl Item {
    /// The record, if `secret` is its owner.
    fn owned_by(&self, secret: &Secret) -> Option<&Record> {
        self.record.as_ref().filter(|record| record.secret == *secret)
    }
}
