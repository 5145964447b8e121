//! Members that lie, as buggy ones have: keep-alives that say "done" for leases that are gone, or
//! answer for another, leases and transactions that are not what was asked for. Whatever they say,
//! nobody is told that he holds a lock.

mod support;

#[path = "lies/liar.rs"]
mod liar;
#[path = "../src/proto.rs"]
#[rustfmt::skip]
#[allow(dead_code, missing_docs, unreachable_pub, clippy::pedantic, clippy::all, reason = "written by a program")]
mod proto;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Attempt, DistributedLock, ErrorKind, ExtendBy, Extension, Intent, Release};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::servers::Etcd;
use hyper::body::Bytes;
use liar::{GRANT, KEEP_ALIVE, Liar, TXN};
use prost::Message as _;
use proto::{LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, TxnResponse};
use support::{
    LONG, attempt, busy, connect, entries, extend, granted, granted_for, key, left, lookup,
    recovers, release, secret, until,
};

/// Answers each keep-alive with what `lie` makes of its lease.
fn keep_alives(
    lie: impl Fn(i64) -> (i64, i64) + Send + Sync + 'static,
) -> impl Fn(&[Bytes]) -> Vec<Vec<u8>> + Send + Sync + 'static {
    move |asked| {
        let answer = |message: &Bytes| {
            let asked = LeaseKeepAliveRequest::decode(message.clone()).unwrap();
            let (id, ttl) = lie(asked.id);
            LeaseKeepAliveResponse { id, ttl, ..LeaseKeepAliveResponse::default() }.encode_to_vec()
        };
        asked.iter().map(answer).collect()
    }
}

/// Changes the one message of an answer.
fn changed<M: prost::Message + Default>(
    change: impl Fn(&mut M) + Send + Sync + 'static,
) -> impl Fn(&[Bytes]) -> Vec<Vec<u8>> + Send + Sync + 'static {
    move |answer| {
        let change = |message: &Bytes| {
            let mut message = M::decode(message.clone()).unwrap();
            change(&mut message);
            message.encode_to_vec()
        };
        answer.iter().map(change).collect()
    }
}

on_etcd! {
    async fn a_lease_without_time_is_lost_whatever_else_is_said(server: &Etcd) {
        for ttl in [0, -1, i64::MIN] {
            let liar = Liar::before(server.port()).await;
            let (store, key, me) = (connect(&liar.url()).await, key("k"), secret());
            granted(&store, &key, &me).await;
            liar.invent(KEEP_ALIVE, keep_alives(move |id| (id, ttl)));
            let answer = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
            assert_eq!(answer, Extension::NotHeld, "a TTL of {ttl}");
            assert_eq!(release(&store, &key, &me).await, Release::Released, "it was there still");
        }
    }
}

on_etcd! {
    async fn a_holder_learns_from_a_lease_without_time_that_it_lost(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let store = EtcdStore::connect(&liar.url()).await.unwrap();
        let lock = DistributedLock::builder(store).ttl(Duration::from_secs(20)).build().unwrap();
        let handle = lock.acquire("k").await.unwrap();
        liar.invent(KEEP_ALIVE, keep_alives(|id| (id, 0)));
        // At the next renewal: the lease itself would have outlived this.
        tokio::time::timeout(Duration::from_secs(15), handle.lost()).await.unwrap();
        assert_eq!(handle.release().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

on_etcd! {
    async fn a_keep_alive_for_a_lease_that_is_gone_is_not_believed(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let (store, key, me) = (connect(&liar.url()).await, key("k"), secret());
        granted_for(&store, &key, &me, Duration::from_secs(1)).await;
        liar.invent(KEEP_ALIVE, keep_alives(|id| (id, 3600)));
        until("the lease is over", async || entries(server).await == 0).await;
        let again = async || extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
        assert_eq!(again().await, Extension::NotHeld);
        // Nor when there is an entry, but somebody else's.
        let (honest, other) = (connect(&server.url()).await, secret());
        let fence = granted(&honest, &key, &other).await.fence;
        assert_eq!(again().await, Extension::NotHeld);
        assert_eq!(left(&honest, &key, &other).await.fence, fence);
    }
}

on_etcd! {
    async fn a_lease_that_ends_between_keep_alive_and_check_is_lost(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let (store, key, me) = (connect(&liar.url()).await, key("k"), secret());
        granted(&store, &key, &me).await;
        // It says that all is well, and lets the entry go in the same moment.
        let (honest, own) = (connect(&server.url()).await, (key.clone(), me.clone()));
        let runtime = tokio::runtime::Handle::current();
        let all_is_well = keep_alives(|id| (id, 3600));
        liar.invent(KEEP_ALIVE, move |asked| {
            let (honest, (key, me)) = (Arc::clone(&honest), own.clone());
            let gone = runtime.spawn(async move { release(&honest, &key, &me).await });
            let gone = tokio::task::block_in_place(|| runtime.block_on(gone)).unwrap();
            assert_eq!(gone, Release::Released);
            all_is_well(asked)
        });
        let answer = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
        assert_eq!(answer, Extension::NotHeld);
    }
}

on_etcd! {
    async fn a_keep_alive_of_another_lease_or_none_at_all_extends_nothing(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let (store, key, me) = (connect(&liar.url()).await, key("k"), secret());
        let fence = granted(&store, &key, &me).await.fence;
        let silence = |_: &[Bytes]| Vec::new();
        let noise = |_: &[Bytes]| vec![vec![0xff; 40]];
        for lie in 0..3 {
            match lie {
                0 => liar.invent(KEEP_ALIVE, keep_alives(|id| (id ^ 1, 3600))),
                1 => liar.invent(KEEP_ALIVE, silence),
                _ => liar.invent(KEEP_ALIVE, noise),
            }
            let error = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap_err();
            assert!(!error.kind().is_definite(), "lie {lie}: {error}");
        }
        liar.repent();
        recovers(&store).await;
        assert_eq!(left(&store, &key, &me).await.fence, fence, "not lost either");
    }
}

on_etcd! {
    async fn in_a_batch_only_the_lease_that_is_gone_is_lost(server: &Etcd) {
        use holdtight_core::{Backend as _, ExtendRequest};
        let liar = Liar::before(server.port()).await;
        let (store, me) = (connect(&liar.url()).await, secret());
        // More than one stream of keep-alives carries.
        let keys: Vec<_> = (0..20).map(|n| key(&format!("k{n}"))).collect();
        for key in &keys {
            granted(&store, key, &me).await;
        }
        let gone = keys[7].clone();
        let answer = support::admin(server, "kv/range", &format!(
            r#"{{"key":"{}","range_end":"{}"}}"#,
            support::base64(b"holdtight/k7\x1f"), support::base64(b"holdtight/k7\x20"),
        )).await;
        let lease: i64 = support::field(&answer, "lease").unwrap().parse().unwrap();
        liar.invent(KEEP_ALIVE, keep_alives(move |id| (id, if id == lease { 0 } else { 60 })));
        let by = ExtendBy::AtLeast(LONG);
        let batch = keys.iter().map(|key| ExtendRequest::new(key.clone(), me.clone(), by)).collect();
        let answers = Arc::clone(&store).extend(batch).await.unwrap();
        for (key, answer) in keys.iter().zip(answers) {
            let held = matches!(answer.unwrap(), Extension::Extended(_));
            assert_eq!(held, *key != gone, "{key:?}");
        }
    }
}

on_etcd! {
    async fn a_lease_other_than_was_asked_for_carries_no_lock(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let store = connect(&liar.url()).await;
        let lies: [fn(&mut LeaseGrantResponse); 4] = [
            |lease| lease.ttl = 1,
            |lease| lease.ttl = -1,
            |lease| lease.id ^= 1,
            |lease| lease.error = "no".to_owned(),
        ];
        for (n, lie) in lies.into_iter().enumerate() {
            liar.distort(GRANT, changed(lie));
            for intent in [Intent::Try, Intent::Queue] {
                let error = attempt(&store, &key("k"), &secret(), intent).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Internal, "lie {n}: {error}");
            }
            assert_eq!(entries(server).await, 0, "lie {n}");
        }
        liar.repent();
        recovers(&store).await;
    }
}

on_etcd! {
    async fn a_transaction_that_answers_nonsense_grants_nothing(server: &Etcd) {
        let liar = Liar::before(server.port()).await;
        let (store, honest) = (connect(&liar.url()).await, connect(&server.url()).await);
        let (taken, owner) = (key("taken"), secret());
        let fence = granted(&honest, &taken, &owner).await.fence;
        // It has seen where the cluster is.
        busy(&store, &taken, &secret(), Intent::Try).await;
        let lies: [fn(&mut TxnResponse); 6] = [
            |answer| answer.header = None,
            |answer| answer.header.as_mut().unwrap().cluster_id ^= 1,
            |answer| answer.header.as_mut().unwrap().revision = 1,
            |answer| answer.header.as_mut().unwrap().revision = -1,
            |answer| answer.succeeded = !answer.succeeded,
            |answer| answer.responses.clear(),
        ];
        for (n, lie) in lies.into_iter().enumerate() {
            liar.distort(TXN, changed(lie));
            for key in [&taken, &key("free")] {
                let me = secret();
                match attempt(&store, key, &me, Intent::Try).await {
                    Ok(Attempt::Busy(_)) => {}
                    Ok(other) => panic!("lie {n} about {key:?}: {other:?}"),
                    Err(error) => assert!(!error.kind().is_definite(), "lie {n}: {error}"),
                }
                // What was done all the same is undone by the engine, as here.
                release(&honest, key, &me).await;
            }
            busy(&honest, &taken, &secret(), Intent::Try).await;
            assert_eq!(left(&honest, &taken, &owner).await.fence, fence);
            assert!(lookup(&honest, &key("free")).await.is_none());
        }
        liar.repent();
        recovers(&store).await;
        busy(&store, &taken, &secret(), Intent::Try).await;
    }
}
