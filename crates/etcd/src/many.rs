//! Taking several locks in one transaction: all of them, or none.
//!
//! Each lock hangs on a lease of its own, because each is extended and released on its own. What is
//! ours already, from an attempt whose answer was lost, is extended first, and the transaction
//! makes the rest only if that still stands. Nobody stands in line here: whoever wants to wait for
//! several locks does so lock by lock.

use holdtight_core::{AcquireRequest, Extension, Lease, LockError, ManyAttempt};

use crate::acquire::{ROUNDS, restless};
use crate::entry::holding;
use crate::error::{Effect, doubtful};
use crate::lease::{Granted, seconds, span};
use crate::names::Place;
use crate::proto::{KeyValue, TxnRequest};
use crate::store::{EtcdStore, MAX_BATCH};
use crate::txn::{Answer, is_empty, oldest, put, read, was_created};

/// One lock of a set, and where its owner's entry stands or would stand.
struct Wish<'a> {
    request: &'a AcquireRequest,
    place: Place,
    /// Whoever holds it, as last seen.
    holder: Option<KeyValue>,
    /// At which revision that was seen.
    seen: i64,
}

impl Wish<'_> {
    fn is_taken_by_another(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| !holder.belongs_to(&self.place))
    }
}

impl EtcdStore {
    pub(crate) async fn attempt_all(
        &self,
        requests: &[AcquireRequest],
    ) -> Result<ManyAttempt, LockError> {
        if requests.len() > MAX_BATCH {
            return Err(LockError::unsupported(format!(
                "{} locks do not fit into one transaction of etcd; take at most {MAX_BATCH} at once",
                requests.len()
            )));
        }
        let mut wishes = Vec::with_capacity(requests.len());
        for request in requests {
            let place = self.names.place(&request.key, &request.secret);
            wishes.push(Wish { request, place, holder: None, seen: 0 });
        }
        // Leases made in vain cost the cluster two writes each, a look costs none.
        if wishes.iter().any(|wish| self.line.was_busy(&wish.place.lock)) {
            self.look_at(&mut wishes).await?;
        }
        for _ in 0..ROUNDS {
            if let Some(Wish { request, place, holder: Some(holder), .. }) =
                wishes.iter().find(|wish| wish.is_taken_by_another())
            {
                self.line.note_busy(&place.lock);
                let busy = self.busy(&request.key, holder.clone(), false).await?;
                return Ok(ManyAttempt::Busy(request.key.clone(), busy));
            }
            match self.keep_ours(&wishes).await.map_err(doubtful)? {
                Some(kept) => {
                    if let Some(leases) = self.make_rest(&mut wishes, kept).await? {
                        return Ok(ManyAttempt::Granted(leases));
                    }
                }
                None => self.look_at(&mut wishes).await?,
            }
        }
        Err(restless())
    }

    async fn look_at(&self, wishes: &mut [Wish<'_>]) -> Result<(), LockError> {
        let questions = wishes.iter().map(|wish| oldest(&wish.place.lock)).collect();
        note_holders(wishes, &mut self.link.read(questions).await?)
    }

    /// Gives what is ours already its full lease: a lease for each, nothing for what is free.
    /// `None` if one is gone.
    async fn keep_ours(
        &self,
        wishes: &[Wish<'_>],
    ) -> Result<Option<Vec<Option<Lease>>>, LockError> {
        let mut kept = Vec::with_capacity(wishes.len());
        for wish in wishes {
            let Some(entry) = &wish.holder else {
                kept.push(None);
                continue;
            };
            match self.claim(&wish.place, entry, wish.request, Some(wish.seen)).await? {
                Extension::Extended(lease) => kept.push(Some(lease)),
                _ => return Ok(None),
            }
        }
        Ok(Some(kept))
    }

    /// Makes the entries that are missing, if the others still stand; `None` if the locks are other
    /// than expected.
    async fn make_rest(
        &self,
        wishes: &mut [Wish<'_>],
        kept: Vec<Option<Lease>>,
    ) -> Result<Option<Vec<Lease>>, LockError> {
        let missing: Vec<_> = wishes.iter().filter(|wish| wish.holder.is_none()).collect();
        let leases = self.grant_all(missing.iter().map(|wish| wish.request)).await?;
        let entry = |(wish, lease): (&&Wish<'_>, &Granted)| {
            put(&wish.place.entry, holding(wish.request), lease.id)
        };
        let as_expected = |wish: &Wish<'_>| match &wish.holder {
            Some(ours) => was_created(&ours.key, ours.create_revision),
            None => is_empty(&wish.place.lock),
        };
        let txn = TxnRequest {
            compare: wishes.iter().map(as_expected).collect(),
            success: missing.iter().zip(&leases).map(entry).collect(),
            failure: wishes.iter().map(|wish| read(oldest(&wish.place.lock))).collect(),
        };
        // If the answer is lost, entries may hang on the leases: then they are left alone.
        let mut answer = self.link.txn(Effect::Writes, txn).await?;
        if !answer.succeeded {
            self.let_go_all(&leases).await;
            note_holders(wishes, &mut answer)?;
            return Ok(None);
        }
        let fence = self.mint(answer.revision)?;
        let mut made = leases.into_iter();
        let mut all = Vec::with_capacity(wishes.len());
        for (wish, kept) in wishes.iter().zip(kept) {
            all.push(if let Some(kept) = kept {
                kept
            } else {
                answer.put()?;
                let seconds = made.next().map_or(0, |lease| lease.seconds);
                Lease::new(fence, span(seconds))
            });
            self.line.note_free(&wish.place.lock);
        }
        Ok(Some(all))
    }

    /// A lease for each request, side by side; none, if one cannot be had.
    async fn grant_all(
        &self,
        requests: impl Iterator<Item = &AcquireRequest>,
    ) -> Result<Vec<Granted>, LockError> {
        let asked = requests.map(|request| self.link.grant(seconds(request.ttl)));
        let mut granted = Vec::new();
        let mut failure = None;
        for answer in futures_util::future::join_all(asked).await {
            match answer {
                Ok(lease) => granted.push(lease),
                Err(error) => failure = Some(error),
            }
        }
        let Some(error) = failure else { return Ok(granted) };
        self.let_go_all(&granted).await;
        Err(error)
    }

    async fn let_go_all(&self, leases: &[Granted]) {
        let ended = leases.iter().map(|lease| self.link.end(lease.id));
        futures_util::future::join_all(ended).await;
    }
}

/// Reads who holds each lock from the answers to `oldest`.
fn note_holders(wishes: &mut [Wish<'_>], answer: &mut Answer) -> Result<(), LockError> {
    for wish in wishes {
        wish.holder = answer.key()?;
        wish.seen = answer.revision;
    }
    Ok(())
}
