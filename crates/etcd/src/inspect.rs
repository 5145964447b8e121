//! Looking at locks, and an administrator's last resort.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use holdtight_core::{Fence, Holder, Key, LockError, Owner, Release};

use crate::acquire::{ROUNDS, restless};
use crate::error::Effect;
use crate::lease::span;
use crate::names::Range;
use crate::proto::{KeyValue, TxnRequest};
use crate::store::EtcdStore;
use crate::txn::{delete, is_unchanged};

/// The longest text of an owner that is read; ours are shorter.
const OWNER_BYTES: usize = 4096;

/// How many entries one step of a listing asks for.
const PAGE: i64 = 500;

/// How many leases a listing asks about at a time.
const AT_ONCE: usize = 32;

impl EtcdStore {
    pub(crate) async fn find(&self, key: &Key) -> Result<Option<Holder>, LockError> {
        let Some(entry) = self.link.holder(&self.names.lock(key)).await? else { return Ok(None) };
        self.describe(key.clone(), &entry).await.map(Some)
    }

    /// What can be told of the holder whose entry this is.
    pub(crate) async fn describe(&self, key: Key, entry: &KeyValue) -> Result<Holder, LockError> {
        let mut holder = Holder::of(key).owner(owner(&entry.value));
        if let Some(Ok(fence)) = entry.fence().map(|fence| self.mint(fence)) {
            holder = holder.fence(fence);
        }
        // An entry that somebody made without a lease never ends.
        if entry.lease != 0 {
            let rest = self.link.rest(entry.lease).await?;
            holder = holder.remaining(rest.map_or(Duration::ZERO, |rest| span(rest.most)));
        }
        Ok(holder)
    }

    pub(crate) async fn find_all(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Holder>, LockError> {
        let mut range = self.names.all(prefix);
        let mut found: Vec<(Key, KeyValue)> = Vec::new();
        // Where the holder of each lock stands in `found`: its entries follow each other, but not
        // by age.
        let mut places: HashMap<Key, usize> = HashMap::new();
        if limit == 0 {
            return Ok(Vec::new());
        }
        loop {
            let (entries, more) = self.link.page(&range, PAGE).await?;
            let last = entries.last().map(|entry| entry.key.clone());
            for entry in entries {
                let Some(key) = self.names.key_of(&entry.key) else { continue };
                match places.get(&key) {
                    Some(&at) if found[at].1.create_revision > entry.create_revision => {
                        found[at].1 = entry;
                    }
                    Some(_) => {}
                    None => {
                        places.insert(key.clone(), found.len());
                        found.push((key, entry));
                    }
                }
            }
            match last {
                // The last lock may have more entries on the next page, so one more is found than
                // needed.
                Some(mut next) if more && found.len() <= limit => {
                    next.push(0);
                    range = Range { start: next, end: range.end };
                }
                _ => break,
            }
        }
        found.truncate(limit);
        let described = futures_util::stream::iter(found)
            .map(|(key, entry)| async move { self.describe(key, &entry).await });
        let described: Vec<_> = described.buffered(AT_ONCE).collect().await;
        described.into_iter().collect()
    }

    /// Removes the holder's entry if its fence is still `fence`.
    pub(crate) async fn force_free(&self, key: &Key, fence: Fence) -> Result<Release, LockError> {
        let Some(revision) = self.revision_of(fence) else { return Ok(Release::NotHeld) };
        let lock = self.names.lock(key);
        for _ in 0..ROUNDS {
            let Some(entry) = self.link.holder(&lock).await? else { return Ok(Release::NotHeld) };
            if entry.fence() != Some(revision) {
                return Ok(Release::NotHeld);
            }
            let txn = TxnRequest {
                compare: is_unchanged(&entry).into(),
                success: vec![delete(&entry.key)],
                failure: Vec::new(),
            };
            if self.link.txn(Effect::Writes, txn).await?.succeeded {
                return Ok(Release::Released);
            }
        }
        Err(restless())
    }
}

/// Whoever wrote it: bounded, and nothing of it is trusted.
fn owner(value: &[u8]) -> Owner {
    match std::str::from_utf8(value) {
        Ok(text) if text.len() <= OWNER_BYTES => Owner::from_text(text),
        _ => Owner::unknown(),
    }
}
