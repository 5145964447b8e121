//! Taking up a lock that was detached: the same entry, so that nobody in line comes before it,
//! under a fresh secret and a fresh fence, in one transaction.
//!
//! Whoever holds the token of a detached lock holds no more than the right to resume it, once. What
//! stands in the entry afterwards, and why its fence is greater than all before and smaller than
//! all later ones, is told in `entry.rs`.

use holdtight_core::{ExtendBy, Extension, Lease, LockError, Release, Transfer, TransferRequest};

use crate::acquire::{ROUNDS, restless};
use crate::entry::resumed;
use crate::error::Effect;
use crate::lease::{seconds, span};
use crate::names::Place;
use crate::proto::{KeyValue, TxnRequest};
use crate::store::EtcdStore;
use crate::txn::{delete, is_unchanged, oldest, put, read, was_created};

impl EtcdStore {
    pub(crate) async fn take_up(&self, request: &TransferRequest) -> Result<Transfer, LockError> {
        let to = &request.to;
        let from = self.names.place(&to.key, &request.from);
        let place = self.names.place(&to.key, &to.secret);
        for _ in 0..ROUNDS {
            let mut view = self.link.read(vec![oldest(&from.lock)]).await?;
            let seen = view.revision;
            let Some(entry) = view.key()? else { return Ok(Transfer::NotHeld) };
            if entry.belongs_to(&place) {
                // Done before, by a request whose answer was lost.
                return Ok(match self.prolong(&place, ExtendBy::AtLeast(to.ttl)).await? {
                    Extension::Extended(lease) => Transfer::Transferred(lease),
                    _ => Transfer::NotHeld,
                });
            }
            if !entry.belongs_to(&from) {
                return Ok(Transfer::NotHeld);
            }
            if !self.is_alive(&entry).await? {
                // Over, and etcd is about to remove it; unless it was hung on another lease just
                // now.
                if self.is_unchanged(&entry).await? {
                    return Ok(Transfer::NotHeld);
                }
                continue;
            }
            let text = resumed(to, seen, &place);
            let hold = |lease| put(&entry.key, text, lease);
            if let Some(lease) = self.replace(&entry, seconds(to.ttl), hold).await? {
                let lease = Lease::new(self.mint(seen + 1)?, span(lease.seconds));
                return Ok(Transfer::Transferred(lease));
            }
        }
        Err(restless())
    }

    /// Whether the lease of an entry is not over: only restarting it tells for sure.
    async fn is_alive(&self, entry: &KeyValue) -> Result<bool, LockError> {
        match self.link.keep_alive(&[entry.lease]).await.pop() {
            Some(length) => Ok(length? > 0),
            None => Err(LockError::internal("no keep-alive was sent")),
        }
    }

    /// Removes the entry of a lock that was resumed: it bears another name than its owner's.
    pub(crate) async fn give_back_resumed(
        &self,
        place: &Place,
        mut entry: KeyValue,
    ) -> Result<Release, LockError> {
        for _ in 0..ROUNDS {
            let txn = TxnRequest {
                compare: is_unchanged(&entry).into(),
                success: vec![delete(&entry.key)],
                failure: vec![read(oldest(&place.lock))],
            };
            let mut answer = self.link.txn(Effect::Writes, txn).await?;
            if answer.succeeded {
                self.link.end(entry.lease).await;
                return Ok(Release::Released);
            }
            match answer.key()?.filter(|now| now.belongs_to(place)) {
                Some(now) => entry = now,
                None => return Ok(Release::NotHeld),
            }
        }
        Err(restless())
    }

    /// Takes back a place in the line that was made at `created` and is not needed.
    pub(crate) async fn withdraw(&self, place: &Place, created: i64) -> Result<(), LockError> {
        let txn = TxnRequest {
            compare: vec![was_created(&place.entry, created)],
            success: vec![delete(&place.entry)],
            failure: Vec::new(),
        };
        let mut answer = self.link.txn(Effect::Writes, txn).await?;
        if answer.succeeded
            && let Some(gone) = answer.deleted()?
        {
            self.link.let_go(gone.lease);
        }
        Ok(())
    }
}
