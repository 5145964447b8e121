//! Moving the end of a lease later, though etcd can only restart one.
//!
//! A lease that is long enough is restarted, and then the entry is read once more: it must still be
//! ours and hang on that lease, because some servers have kept leases alive that were gone. One
//! that is too short is replaced: the entry is hung on a new one, in a transaction that fails if
//! anybody touched it, and keeps its fence.

use holdtight_core::{ExtendBy, ExtendRequest, Extension, Lease, LockError, MAX_TTL};

use crate::acquire::{ROUNDS, restless};
use crate::error::{Effect, doubtful};
use crate::lease::{Granted, seconds, span};
use crate::names::Place;
use crate::proto::{KeyValue, RequestOp, TxnRequest};
use crate::store::EtcdStore;
use crate::txn::{is_unchanged, oldest, rehang, single};

impl EtcdStore {
    /// Each on its own, but with as few requests as etcd allows.
    pub(crate) async fn prolong_all(
        &self,
        requests: &[ExtendRequest],
    ) -> Result<Vec<Result<Extension, LockError>>, LockError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<_> = requests
            .iter()
            .map(|request| self.names.place(&request.key, &request.secret))
            .collect();
        let restarted = self.restart(requests, &places).await?;
        let answers = requests.iter().zip(&places).zip(restarted).map(
            async |((request, place), restarted)| {
                let answer = match restarted {
                    Some(answer) => Ok(answer),
                    None => self.prolong(place, request.by).await,
                };
                answer.map_err(|error| error.with_key(&request.key))
            },
        );
        Ok(futures_util::future::join_all(answers).await)
    }

    /// The common case for the whole batch: one read, the keep-alives, one more read. `None` for
    /// whatever is left to be done one by one; an error speaks for all and says that nothing was
    /// done.
    async fn restart(
        &self,
        requests: &[ExtendRequest],
        places: &[Place],
    ) -> Result<Vec<Option<Extension>>, LockError> {
        let mut holders =
            self.link.read(places.iter().map(|place| oldest(&place.lock)).collect()).await?;
        let mut outcomes = Vec::with_capacity(places.len());
        let mut candidates = Vec::new();
        for (at, (request, place)) in requests.iter().zip(places).enumerate() {
            match (holders.key()?.filter(|holder| holder.belongs_to(place)), request.by) {
                (None, _) => outcomes.push(Some(Extension::NotHeld)),
                (Some(entry), ExtendBy::AtLeast(ttl)) if !ttl.is_zero() => {
                    outcomes.push(None);
                    candidates.push((at, entry, seconds(ttl)));
                }
                (Some(_), _) => outcomes.push(None),
            }
        }
        let ids: Vec<_> = candidates.iter().map(|(_, entry, _)| entry.lease).collect();
        let lengths = self.link.keep_alive(&ids).await;
        let mut restarted: Vec<_> = candidates
            .into_iter()
            .zip(lengths)
            .filter_map(|((at, entry, wanted), length)| {
                let length = length.ok().filter(|length| *length >= wanted)?;
                Some((at, entry, length))
            })
            .collect();
        if restarted.is_empty() {
            return Ok(outcomes);
        }
        let again = restarted.iter().map(|(_, entry, _)| single(&entry.key)).collect();
        let Ok(mut entries) = self.link.read(again).await else { return Ok(outcomes) };
        for (at, entry, length) in restarted.drain(..) {
            if entries.key()?.is_some_and(|now| is_same(&now, &entry)) {
                outcomes[at] = Some(self.extended(&entry, length)?);
            }
        }
        Ok(outcomes)
    }

    /// Moves the end of one lease.
    pub(crate) async fn prolong(
        &self,
        place: &Place,
        by: ExtendBy,
    ) -> Result<Extension, LockError> {
        for _ in 0..ROUNDS {
            let Some(entry) = self.link.held(place).await? else { return Ok(Extension::NotHeld) };
            let moved = match by {
                ExtendBy::AtLeast(ttl) if ttl.is_zero() => self.ask(&entry).await?,
                ExtendBy::AtLeast(ttl) => self.at_least(&entry, seconds(ttl)).await?,
                ExtendBy::Add(extra) => self.add(place, entry, seconds(extra)).await?,
                _ => return Err(LockError::unsupported("etcd knows no such way to extend")),
            };
            if let Some(moved) = moved {
                return Ok(moved);
            }
        }
        Err(restless())
    }

    /// How much is left; `None` if the entry changed meanwhile.
    async fn ask(&self, entry: &KeyValue) -> Result<Option<Extension>, LockError> {
        match self.link.rest(entry.lease).await? {
            Some(rest) => Ok(Some(self.extended(entry, rest.least)?)),
            None => Ok(self.is_unchanged(entry).await?.then_some(Extension::NotHeld)),
        }
    }

    /// At least so many seconds from now; `None` if the entry changed meanwhile.
    async fn at_least(
        &self,
        entry: &KeyValue,
        wanted: i64,
    ) -> Result<Option<Extension>, LockError> {
        let length = self.link.keep_alive(&[entry.lease]).await.pop();
        let length =
            length.unwrap_or_else(|| Err(LockError::internal("no keep-alive was sent")))?;
        if length > 0 && length < wanted {
            // Longer than the old one can ever be, so that nothing is shortened, whoever restarts
            // the old one.
            let new = self.replace(entry, wanted, |lease| rehang(&entry.key, lease)).await?;
            return new.map(|new| self.extended(entry, new.seconds)).transpose();
        }
        if !self.is_unchanged(entry).await.map_err(doubtful)? {
            return Ok(None);
        }
        // Gone, though its entry is still there: over, and etcd is about to remove it.
        let gone = length <= 0;
        Ok(Some(if gone { Extension::NotHeld } else { self.extended(entry, length)? }))
    }

    /// So many seconds more than there are; `None` if the entry changed meanwhile.
    async fn add(
        &self,
        place: &Place,
        mut entry: KeyValue,
        extra: i64,
    ) -> Result<Option<Extension>, LockError> {
        let first = entry.lease;
        let mut added: Option<(Granted, i64)> = None;
        for _ in 0..ROUNDS {
            let rest = match self.link.rest(first).await {
                Ok(Some(rest)) => rest,
                Ok(None) if added.is_some() => break,
                Ok(None) => {
                    return Ok(self.is_unchanged(&entry).await?.then_some(Extension::NotHeld));
                }
                // The lease is as long as it was when we looked, or somebody made it longer: nobody
                // knows.
                Err(error) if added.is_some() => return Err(doubtful(error)),
                Err(error) => return Err(error),
            };
            let wanted = (rest.most + extra).min(seconds(MAX_TTL)).max(rest.most);
            if let Some((_, done)) = added
                && wanted <= done
            {
                break;
            }
            // Somebody may restart the first lease while we replace it. So it is looked at again
            // afterwards.
            let swapped = self.swap(&entry, wanted, |lease| rehang(&entry.key, lease)).await;
            let swapped =
                swapped.map_err(|error| if added.is_some() { doubtful(error) } else { error });
            let Some(new) = swapped? else { break };
            if let Some((old, _)) = added.replace((new, wanted)) {
                self.link.let_go(old.id);
            }
            match self.link.held(place).await.map_err(doubtful)? {
                Some(now) if now.create_revision == entry.create_revision => entry = now,
                _ => return Ok(Some(Extension::NotHeld)),
            }
            if entry.lease != new.id {
                // Somebody else extended what we had extended, and never shortens.
                break;
            }
        }
        let Some((new, _)) = added else { return Ok(None) };
        self.link.let_go(first);
        self.extended(&entry, new.seconds).map(Some)
    }

    /// Hangs an entry on a new lease by the step `hang`, and ends the old one; `None` if it changed
    /// since it was read.
    pub(crate) async fn replace(
        &self,
        entry: &KeyValue,
        length: i64,
        hang: impl FnOnce(i64) -> RequestOp,
    ) -> Result<Option<Granted>, LockError> {
        let new = self.swap(entry, length, hang).await?;
        if new.is_some() {
            self.link.let_go(entry.lease);
        }
        Ok(new)
    }

    /// Hangs an entry on a new lease; `None` if it changed since it was read.
    async fn swap(
        &self,
        entry: &KeyValue,
        length: i64,
        hang: impl FnOnce(i64) -> RequestOp,
    ) -> Result<Option<Granted>, LockError> {
        let new = self.link.grant(length).await?;
        let txn = TxnRequest {
            compare: is_unchanged(entry).into(),
            success: vec![hang(new.id)],
            failure: Vec::new(),
        };
        // If the answer is lost, the entry may hang on the new lease: then it must not be ended.
        let answer = self.link.txn(Effect::Writes, txn).await?;
        if !answer.succeeded {
            self.link.let_go(new.id);
            return Ok(None);
        }
        Ok(Some(new))
    }

    /// Whether the entry is still there, ours, and on the same lease.
    pub(crate) async fn is_unchanged(&self, entry: &KeyValue) -> Result<bool, LockError> {
        let now = self.link.read(vec![single(&entry.key)]).await?.key()?;
        Ok(now.is_some_and(|now| is_same(&now, entry)))
    }

    pub(crate) fn extended(&self, entry: &KeyValue, length: i64) -> Result<Extension, LockError> {
        let fence = entry.fence().ok_or_else(|| {
            LockError::internal(
                "the entry of this lock in etcd names a fence that cannot be its own",
            )
        })?;
        Ok(Extension::Extended(Lease::new(self.mint(fence)?, span(length))))
    }
}

fn is_same(now: &KeyValue, then: &KeyValue) -> bool {
    (now.create_revision, now.mod_revision, now.lease)
        == (then.create_revision, then.mod_revision, then.lease)
}
