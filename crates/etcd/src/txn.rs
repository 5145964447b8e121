//! Transactions and reads, from small parts; and their answers, checked.
//!
//! Every read here is linearizable: etcd's default, and the stubs do not even know the other kind.

use std::sync::Arc;

use holdtight_core::LockError;

use crate::entry::RESUMED_FROM;
use crate::error::Effect;
use crate::link::Link;
use crate::names::{Place, Range};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse, compare, kv_client::KvClient, request_op, response_op,
};

/// The oldest entry of a lock: its holder.
pub(crate) fn oldest(lock: &Range) -> RangeRequest {
    RangeRequest { limit: 1, ..by_age(lock, SortOrder::Ascend) }
}

/// The youngest `count` entries of a lock, without values.
pub(crate) fn youngest(lock: &Range, count: i64) -> RangeRequest {
    RangeRequest { limit: count, keys_only: true, ..by_age(lock, SortOrder::Descend) }
}

/// The entry right before the one that was made at `created`, without its value.
pub(crate) fn before(lock: &Range, created: i64) -> RangeRequest {
    RangeRequest { max_create_revision: created - 1, ..youngest(lock, 1) }
}

fn by_age(lock: &Range, order: SortOrder) -> RangeRequest {
    RangeRequest {
        key: lock.start.clone(),
        range_end: lock.end.clone(),
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// One key.
pub(crate) fn single(name: &[u8]) -> RangeRequest {
    RangeRequest { key: name.to_vec(), keys_only: true, ..RangeRequest::default() }
}

pub(crate) fn read(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

pub(crate) fn put(name: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    let put = PutRequest { key: name.to_vec(), value, lease, ignore_value: false };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

/// Hangs an existing key on another lease; its value and its create revision stay.
pub(crate) fn rehang(name: &[u8], lease: i64) -> RequestOp {
    let put = PutRequest { key: name.to_vec(), value: Vec::new(), lease, ignore_value: true };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

pub(crate) fn delete(name: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: name.to_vec(), prev_kv: true };
    RequestOp { request: Some(request_op::Request::RequestDeleteRange(delete)) }
}

/// Nobody has an entry for this lock.
pub(crate) fn is_empty(lock: &Range) -> Compare {
    Compare { range_end: lock.end.clone(), ..was_created(&lock.start, 0) }
}

/// The key was made at this revision; 0 means that there is none.
pub(crate) fn was_created(name: &[u8], revision: i64) -> Compare {
    Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Create.into(),
        key: name.to_vec(),
        target_union: Some(compare::TargetUnion::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

/// The key is still as it was read: made then, and not touched since.
pub(crate) fn is_unchanged(entry: &KeyValue) -> [Compare; 2] {
    let touched = Compare {
        target: compare::CompareTarget::Mod.into(),
        target_union: Some(compare::TargetUnion::ModRevision(entry.mod_revision)),
        ..was_created(&entry.key, 0)
    };
    [was_created(&entry.key, entry.create_revision), touched]
}

/// The key is there, and was resumed under another secret than its name tells.
pub(crate) fn was_resumed(name: &[u8]) -> Compare {
    Compare {
        result: compare::CompareResult::Greater.into(),
        target: compare::CompareTarget::Value.into(),
        target_union: Some(compare::TargetUnion::Value(RESUMED_FROM.to_vec())),
        ..was_created(name, 0)
    }
}

/// What a transaction answered: which branch was taken, at which revision, and what its steps said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    responses: std::vec::IntoIter<ResponseOp>,
}

impl Answer {
    fn from(answer: TxnResponse, wanted: [usize; 2]) -> Result<Self, LockError> {
        let wanted = wanted[usize::from(!answer.succeeded)];
        if answer.responses.len() != wanted {
            return Err(malformed());
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        if revision <= 0 {
            return Err(malformed());
        }
        Ok(Self { succeeded: answer.succeeded, revision, responses: answer.responses.into_iter() })
    }

    /// The keys that the next step read.
    pub(crate) fn keys(&mut self) -> Result<Vec<KeyValue>, LockError> {
        match self.responses.next().and_then(|step| step.response) {
            Some(response_op::Response::ResponseRange(range)) => checked(range),
            _ => Err(malformed()),
        }
    }

    /// The first key that the next step read.
    pub(crate) fn key(&mut self) -> Result<Option<KeyValue>, LockError> {
        Ok(self.keys()?.into_iter().next())
    }

    /// Passes over a put.
    pub(crate) fn put(&mut self) -> Result<(), LockError> {
        match self.responses.next().and_then(|step| step.response) {
            Some(response_op::Response::ResponsePut(_)) => Ok(()),
            _ => Err(malformed()),
        }
    }

    /// The key that the next step deleted, if there was one.
    pub(crate) fn deleted(&mut self) -> Result<Option<KeyValue>, LockError> {
        match self.responses.next().and_then(|step| step.response) {
            Some(response_op::Response::ResponseDeleteRange(gone)) if gone.deleted <= 1 => {
                match (gone.deleted, gone.prev_kvs.into_iter().next()) {
                    (0, None) => Ok(None),
                    (1, Some(key)) => Ok(Some(key)),
                    _ => Err(malformed()),
                }
            }
            _ => Err(malformed()),
        }
    }
}

fn checked(range: RangeResponse) -> Result<Vec<KeyValue>, LockError> {
    let sound = |key: &KeyValue| {
        !key.key.is_empty() && key.create_revision > 0 && key.mod_revision >= key.create_revision
    };
    if range.kvs.iter().all(sound) { Ok(range.kvs) } else { Err(malformed()) }
}

fn malformed() -> LockError {
    LockError::internal("etcd's answer does not fit the request; nothing is concluded from it")
}

impl Link {
    /// One transaction.
    pub(crate) async fn txn(
        self: &Arc<Self>,
        effect: Effect,
        txn: TxnRequest,
    ) -> Result<Answer, LockError> {
        let wanted = [txn.success.len(), txn.failure.len()];
        let answer = self.ask(effect, |wire| {
            let question = wire.request(txn.clone());
            async move { KvClient::new(wire.channel.clone()).txn(question).await }
        });
        Answer::from(answer.await?, wanted)
    }

    /// Several reads at one revision.
    pub(crate) async fn read(
        self: &Arc<Self>,
        ranges: Vec<RangeRequest>,
    ) -> Result<Answer, LockError> {
        let success = ranges.into_iter().map(read).collect();
        self.txn(Effect::Reads, TxnRequest { success, ..TxnRequest::default() }).await
    }

    /// The holder's entry, if the lock is held.
    pub(crate) async fn holder(
        self: &Arc<Self>,
        lock: &Range,
    ) -> Result<Option<KeyValue>, LockError> {
        self.read(vec![oldest(lock)]).await?.key()
    }

    /// The holder's entry, if it belongs to the owner of `place`.
    pub(crate) async fn held(
        self: &Arc<Self>,
        place: &Place,
    ) -> Result<Option<KeyValue>, LockError> {
        Ok(self.holder(&place.lock).await?.filter(|entry| entry.belongs_to(place)))
    }

    /// One page of a range, by name: its keys, and whether there are more.
    pub(crate) async fn page(
        self: &Arc<Self>,
        range: &Range,
        limit: i64,
    ) -> Result<(Vec<KeyValue>, bool), LockError> {
        let page = RangeRequest {
            key: range.start.clone(),
            range_end: range.end.clone(),
            limit,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self
            .ask(Effect::Reads, |wire| {
                let question = wire.request(page.clone());
                async move { KvClient::new(wire.channel.clone()).range(question).await }
            })
            .await?;
        let more = answer.more;
        Ok((checked(answer)?, more))
    }
}

#[cfg(test)]
mod tests {
    use holdtight_core::ErrorKind;

    use super::*;
    use crate::proto::{DeleteRangeResponse, PutResponse, ResponseHeader};

    fn step(response: response_op::Response) -> ResponseOp {
        ResponseOp { response: Some(response) }
    }

    fn keys(kvs: Vec<KeyValue>) -> ResponseOp {
        step(response_op::Response::ResponseRange(RangeResponse {
            kvs,
            ..RangeResponse::default()
        }))
    }

    fn answer(revision: i64, responses: Vec<ResponseOp>) -> Result<Answer, LockError> {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        Answer::from(TxnResponse { header, succeeded: true, responses }, [1, 0])
    }

    fn sound() -> KeyValue {
        KeyValue { key: b"k".to_vec(), create_revision: 3, mod_revision: 4, ..KeyValue::default() }
    }

    #[test]
    fn a_sound_answer_is_read() {
        let mut read = answer(9, vec![keys(vec![sound()])]).unwrap();
        assert_eq!(read.key().unwrap(), Some(sound()));
        assert_eq!(answer(9, vec![keys(Vec::new())]).unwrap().key().unwrap(), None);
    }

    #[test]
    fn an_answer_that_does_not_fit_is_nothing_but_an_error() {
        let put = || step(response_op::Response::ResponsePut(PutResponse {}));
        for misfit in [
            answer(9, Vec::new()),
            answer(9, vec![put(), put()]),
            answer(0, vec![put()]),
            answer(-1, vec![put()]),
        ] {
            assert_eq!(misfit.unwrap_err().kind(), ErrorKind::Internal);
        }
        for (what, change) in [
            ("no name", KeyValue { key: Vec::new(), ..sound() }),
            ("never made", KeyValue { create_revision: 0, ..sound() }),
            ("touched before it was made", KeyValue { mod_revision: 2, ..sound() }),
        ] {
            let error = answer(9, vec![keys(vec![change])]).unwrap().keys().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{what}");
        }
        assert!(answer(9, vec![put()]).unwrap().keys().is_err(), "a put is no read");
        assert!(answer(9, vec![ResponseOp { response: None }]).unwrap().put().is_err());
        let gone = |deleted, prev_kvs| {
            let gone = DeleteRangeResponse { deleted, prev_kvs };
            answer(9, vec![step(response_op::Response::ResponseDeleteRange(gone))])
                .unwrap()
                .deleted()
        };
        assert_eq!(gone(1, vec![sound()]).unwrap(), Some(sound()));
        assert_eq!(gone(0, Vec::new()).unwrap(), None);
        for (deleted, shown) in
            [(1, Vec::new()), (0, vec![sound()]), (2, vec![sound()]), (-1, vec![sound()])]
        {
            assert!(gone(deleted, shown).is_err(), "{deleted} deleted");
        }
    }
}
