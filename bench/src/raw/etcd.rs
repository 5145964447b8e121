//! etcd: a lease, a transaction that makes an entry on it if there is none, one that removes it,
//! and the lease's end, which our store does not wait for either.

use tonic::transport::Channel;

use super::OWNER;
use crate::Failure;
use proto::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::kv_client::KvClient;
use proto::lease_client::LeaseClient;
use proto::range_request::{SortOrder, SortTarget};
use proto::request_op::Request;
use proto::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};

// The stubs that our store uses, which are private to it.
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
#[path = "../../../crates/etcd/src/proto.rs"]
mod proto;

#[derive(Clone)]
pub(crate) struct Raw {
    channel: Channel,
}

impl Raw {
    pub(crate) async fn connect(port: u16) -> Result<Self, Failure> {
        let endpoint = Channel::from_shared(format!("http://127.0.0.1:{port}"))?.tcp_nodelay(true);
        Ok(Self { channel: endpoint.connect().await? })
    }

    pub(crate) async fn pair(self, key: String) -> Result<(), Failure> {
        let (mut leases, mut keys) =
            (LeaseClient::new(self.channel.clone()), KvClient::new(self.channel));
        let lease = leases.lease_grant(LeaseGrantRequest { ttl: 30, id: 0 }).await?.into_inner().id;
        let beginning = format!("raw/{key}/").into_bytes();
        let end = format!("raw/{key}0").into_bytes();
        let entry = format!("raw/{key}/an owner of 22 characters").into_bytes();
        let nobody = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: beginning.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            range_end: end.clone(),
        };
        let value = OWNER.as_bytes().to_vec();
        let put = PutRequest { key: entry.clone(), value, lease, ignore_value: false };
        let acquire = TxnRequest {
            compare: vec![nobody],
            success: vec![op(Request::RequestPut(put))],
            failure: vec![op(Request::RequestRange(oldest(&beginning, &end)))],
        };
        if !keys.txn(acquire).await?.into_inner().succeeded {
            return Err("a key of its own was busy".into());
        }
        let delete = DeleteRangeRequest { key: entry, prev_kv: true };
        let release = TxnRequest {
            compare: Vec::new(),
            success: vec![
                op(Request::RequestRange(oldest(&beginning, &end))),
                op(Request::RequestDeleteRange(delete)),
            ],
            failure: Vec::new(),
        };
        keys.txn(release).await?;
        tokio::spawn(async move { leases.lease_revoke(LeaseRevokeRequest { id: lease }).await });
        Ok(())
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn oldest(beginning: &[u8], end: &[u8]) -> RangeRequest {
    RangeRequest {
        key: beginning.to_vec(),
        range_end: end.to_vec(),
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}
