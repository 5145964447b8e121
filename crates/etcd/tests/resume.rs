//! A detached lock is resumed under a fresh secret and a fresh fence, before everybody who waits
//! for it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ExtendBy, Extension, Fence, Intent, Key, Lease, LockError,
    Owner, Release, Secret, Transfer, TransferRequest,
};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::Flow;
use holdtight_testkit::servers::Etcd;
use support::{
    LONG, admin, attempt, base64, behind, busy, connect, entries, extend, granted, granted_for,
    key, leases, left, lookup, must_hear, proxied, recovers, release, secret, subscribe,
    taken_in_turn, until,
};

async fn asked(
    store: &Arc<EtcdStore>,
    key: &Key,
    from: &Secret,
    to: &Secret,
) -> Result<Transfer, LockError> {
    let to = AcquireRequest::new(key.clone(), to.clone(), LONG);
    Arc::clone(store).transfer(TransferRequest::new(from.clone(), to)).await
}

async fn resumed(store: &Arc<EtcdStore>, key: &Key, from: &Secret, to: &Secret) -> Lease {
    match asked(store, key, from, to).await.unwrap() {
        Transfer::Transferred(lease) => lease,
        other => panic!("a held lock must be resumed, not {other:?}"),
    }
}

on_etcd! {
    async fn fences_rise_with_time_though_waiters_stood_in_line_before_the_resume(server: &Etcd) {
        let (key, first) = (key("k"), secret());
        let stores = [connect(&server.url()).await, connect(&server.url()).await];
        let mut fences = vec![granted(&stores[0], &key, &first).await.fence];
        let mut line = Vec::new();
        for store in stores.iter().cycle().take(4) {
            let (me, bell) = (secret(), subscribe(store, &key).await);
            busy(store, &key, &me, Intent::Queue).await;
            line.push((store, me, bell));
        }
        let mut holder = first;
        for _ in 0..3 {
            let next = secret();
            fences.push(resumed(&stores[1], &key, &holder, &next).await.fence);
            holder = next;
        }
        // One that comes after the resumes, and one that is resumed after it waited.
        let (late, bell) = (secret(), subscribe(&stores[0], &key).await);
        busy(&stores[0], &key, &late, Intent::Queue).await;
        line.push((&stores[0], late, bell));
        assert_eq!(release(&stores[0], &key, &holder).await, Release::Released);
        for (store, me, _bell) in &line {
            let lease = taken_in_turn(store, &key, me).await;
            fences.push(lease.fence);
            assert_eq!(lookup(store, &key).await.unwrap().fence, Some(lease.fence));
            assert_eq!(left(store, &key, me).await.fence, lease.fence);
            let next = secret();
            fences.push(resumed(store, &key, me, &next).await.fence);
            assert_eq!(release(store, &key, &next).await, Release::Released);
        }
        fences.push(granted(&stores[0], &key, &secret()).await.fence);
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        assert_eq!(entries(server).await, 1, "nothing stays behind");
        until("all other leases are ended", async || leases(server).await == 1).await;
    }
}

on_etcd! {
    async fn one_token_makes_one_holder(server: &Etcd) {
        let (key, token, store) = (key("k"), secret(), connect(&server.url()).await);
        let first = granted(&store, &key, &token).await;
        let mut calls = tokio::task::JoinSet::new();
        for store in [Arc::clone(&store), connect(&server.url()).await, connect(&server.url()).await] {
            for _ in 0..3 {
                let (store, key, token, next) = (Arc::clone(&store), key.clone(), token.clone(), secret());
                calls.spawn(async move {
                    let answer = asked(&store, &key, &token, &next).await;
                    (next, answer)
                });
            }
        }
        let mut holders = Vec::new();
        while let Some(answer) = calls.join_next().await {
            let (next, answer) = answer.unwrap();
            if let Transfer::Transferred(lease) = answer.unwrap() {
                holders.push((next, lease));
            }
        }
        let [(holder, lease)] = holders.as_slice() else { panic!("{} holders", holders.len()) };
        assert!(lease.fence > first.fence);
        assert_eq!(asked(&store, &key, &token, &secret()).await.unwrap(), Transfer::NotHeld);
        // Whatever the first owner still tries, it is out.
        for by in [ExtendBy::AtLeast(LONG), ExtendBy::Add(LONG), ExtendBy::AtLeast(Duration::ZERO)] {
            assert_eq!(extend(&store, &key, &token, by).await.unwrap(), Extension::NotHeld, "{by:?}");
        }
        assert_eq!(release(&store, &key, &token).await, Release::NotHeld);
        busy(&store, &key, &token, Intent::Try).await;
        assert_eq!(left(&store, &key, holder).await.fence, lease.fence);
        assert_eq!(release(&store, &key, holder).await, Release::Released);
        assert_eq!(entries(server).await, 0);
    }
}

on_etcd! {
    async fn a_resume_whose_answer_was_lost_is_repeated_with_the_same_fence(server: &Etcd) {
        let (proxy, watcher) = (proxied(server).await, connect(&server.url()).await);
        let store = behind(&proxy).await;
        let (key, token, next) = (key("k"), secret(), secret());
        let first = granted(&store, &key, &token).await;
        // Cut at every moment: it was done or not, and asking again tells.
        let mut fence = None;
        for micros in (0..20_000).step_by(500) {
            let cut = async {
                tokio::time::sleep(Duration::from_micros(micros)).await;
                proxy.cut();
            };
            let (answer, ()) = tokio::join!(asked(&store, &key, &token, &next), cut);
            match answer {
                Ok(Transfer::Transferred(lease)) => {
                    assert_eq!(*fence.get_or_insert(lease.fence), lease.fence);
                }
                Ok(other) => panic!("after {micros} µs: {other:?}"),
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            }
        }
        let again = resumed(&watcher, &key, &token, &next).await;
        assert_eq!(fence.unwrap_or(again.fence), again.fence);
        assert!(again.fence > first.fence && again.ttl >= LONG, "{again:?}");
        assert_eq!(left(&watcher, &key, &next).await.fence, again.fence);
        // Its answer is lost for sure, and it was done.
        let last = secret();
        recovers(&store).await;
        proxy.replies(Flow::Drop);
        let error = asked(&store, &key, &next, &last).await.unwrap_err();
        assert!(error.kind().is_transient(), "{error}");
        proxy.heal();
        recovers(&store).await;
        let lease = resumed(&store, &key, &next, &last).await;
        assert!(lease.fence > again.fence);
        assert_eq!(release(&store, &key, &last).await, Release::Released);
    }
}

on_etcd! {
    async fn a_resumed_lock_is_extended_shown_and_freed_under_its_fence(server: &Etcd) {
        let (key, token, next, store) = (key("k"), secret(), secret(), connect(&server.url()).await);
        let first = granted_for(&store, &key, &token, Duration::from_secs(20)).await;
        let owner = Arc::new(Owner::from_text("host=there reason=resumed"));
        let to = AcquireRequest::new(key.clone(), next.clone(), LONG).owner(owner);
        let request = TransferRequest::new(token.clone(), to);
        let Transfer::Transferred(lease) = Arc::clone(&store).transfer(request).await.unwrap() else {
            panic!("it is held")
        };
        assert_eq!(lease.ttl, LONG);
        let shown = lookup(&store, &key).await.unwrap();
        assert_eq!(shown.fence, Some(lease.fence));
        assert_eq!(shown.owner.reason.as_deref(), Some("resumed"));
        let listed = Arc::clone(&store).list("k".to_owned(), 10).await.unwrap();
        assert_eq!(listed[0].fence, Some(lease.fence));
        // Restarted, hung on a longer lease, added to.
        for by in [ExtendBy::AtLeast(LONG), ExtendBy::AtLeast(LONG * 2), ExtendBy::Add(LONG)] {
            let Extension::Extended(now) = extend(&store, &key, &next, by).await.unwrap() else {
                panic!("held")
            };
            assert_eq!(now.fence, lease.fence, "{by:?}");
        }
        // Asked for again under the secret that holds it.
        for intent in [Intent::Try, Intent::Queue] {
            let Attempt::Granted(again) = attempt(&store, &key, &next, intent).await.unwrap() else {
                panic!("{intent:?}: it is this one's")
            };
            assert_eq!(again.fence, lease.fence, "{intent:?}");
            assert_eq!(entries(server).await, 1, "{intent:?}");
        }
        let force = |fence: Fence| Arc::clone(&store).force_release(key.clone(), fence);
        assert_eq!(force(first.fence).await.unwrap(), Release::NotHeld);
        assert_eq!(force(lease.fence).await.unwrap(), Release::Released);
        assert_eq!(release(&store, &key, &next).await, Release::NotHeld);
        assert!(granted(&store, &key, &secret()).await.fence > lease.fence);
    }
}

on_etcd! {
    async fn a_release_of_a_resumed_lock_wakes_the_next_in_line(server: &Etcd) {
        let (key, token, next, me) = (key("k"), secret(), secret(), secret());
        let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
        granted(&store, &key, &token).await;
        let mut bell = subscribe(&other, &key).await;
        busy(&other, &key, &me, Intent::Queue).await;
        let lease = resumed(&store, &key, &token, &next).await;
        let shown = busy(&other, &key, &me, Intent::Queue).await.holder.unwrap();
        assert_eq!(shown.fence, Some(lease.fence), "who is in the way");
        assert_eq!(release(&store, &key, &next).await, Release::Released);
        must_hear(&mut bell, "the release").await;
        assert!(taken_in_turn(&other, &key, &me).await.fence > lease.fence);
    }
}

on_etcd! {
    async fn what_is_over_or_never_was_is_not_resumed(server: &Etcd) {
        let (key, token, store) = (key("k"), secret(), connect(&server.url()).await);
        assert_eq!(asked(&store, &key, &token, &secret()).await.unwrap(), Transfer::NotHeld);
        granted_for(&store, &key, &token, Duration::from_secs(1)).await;
        assert_eq!(asked(&store, &key, &secret(), &secret()).await.unwrap(), Transfer::NotHeld);
        until("its lease is over", async || lookup(&store, &key).await.is_none()).await;
        assert_eq!(asked(&store, &key, &token, &secret()).await.unwrap(), Transfer::NotHeld);
        assert_eq!(entries(server).await, 0);
    }
}

on_etcd! {
    async fn an_entry_of_before_resumes_were_marked_is_resumed_like_any_other(server: &Etcd) {
        let (key, token, store) = (key("k"), secret(), connect(&server.url()).await);
        let first = granted(&store, &key, &token).await;
        let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(b"holdtight/"), base64(b"holdtight0"));
        let found = admin(server, "kv/range", &range).await;
        let value = support::field(&found, "value").unwrap().to_owned();
        assert!(value.starts_with(&base64(b"v=1 ho")), "as it always was: {value}");
        let lease = resumed(&store, &key, &token, &secret()).await;
        assert!(lease.fence > first.fence);
        let second = TransferRequest::new(token, AcquireRequest::new(key, secret(), LONG));
        assert_eq!(Arc::clone(&store).transfer(second).await.unwrap(), Transfer::NotHeld, "used up");
    }
}
