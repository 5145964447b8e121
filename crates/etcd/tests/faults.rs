//! Each fault alone, with a real member behind a proxy: what a step answers, and what is true
//! afterwards.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    Attempt, Backend, DistributedLock, ErrorKind, ExtendBy, Extension, Intent, Release,
};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::Flow;
use holdtight_testkit::servers::Etcd;
use support::{
    LONG, PATIENCE, attempt, behind, busy, connect, entries, extend, granted, granted_for, key,
    left, lookup, must_hear, proxied, recovers, release, secret, subscribe, taken_in_turn, until,
};

on_etcd! {
    async fn a_release_whose_answer_was_lost_is_unknown_and_was_done(server: &Etcd) {
        let (proxy, watcher) = (proxied(server).await, connect(&server.url()).await);
        let store = behind(&proxy).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        proxy.replies(Flow::Drop);
        let error = Arc::clone(&store).release(key.clone(), me.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(lookup(&watcher, &key).await.is_none(), "etcd did what it was asked");
        proxy.heal();
        recovers(&store).await;
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
    }
}

on_etcd! {
    async fn a_place_in_the_line_whose_answer_was_lost_is_found_again(server: &Etcd) {
        let (proxy, watcher) = (proxied(server).await, connect(&server.url()).await);
        let store = behind(&proxy).await;
        let (key, owner, me) = (key("k"), secret(), secret());
        granted(&watcher, &key, &owner).await;
        let mut bell = subscribe(&store, &key).await;
        // Cut at every moment of the attempt: whatever was said, there is one place at most.
        for micros in (0..12_000).step_by(800) {
            let cut = async {
                tokio::time::sleep(Duration::from_micros(micros)).await;
                proxy.cut();
            };
            let (answer, ()) = tokio::join!(attempt(&store, &key, &me, Intent::Queue), cut);
            match answer {
                Ok(Attempt::Busy(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert!(error.kind().is_transient(), "{error}"),
            }
            assert!(entries(server).await <= 2, "one place for one secret");
        }
        until("the place is taken", async || attempt(&store, &key, &me, Intent::Queue).await.is_ok()).await;
        assert_eq!(entries(server).await, 2);
        assert_eq!(release(&watcher, &key, &owner).await, Release::Released);
        must_hear(&mut bell, "the release").await;
        taken_in_turn(&store, &key, &me).await;
    }
}

on_etcd! {
    async fn a_lock_survives_extensions_that_are_cut_off_anywhere(server: &Etcd) {
        let proxy = proxied(server).await;
        let (store, watcher) = (behind(&proxy).await, connect(&server.url()).await);
        let (key, me) = (key("k"), secret());
        let fence = granted_for(&store, &key, &me, Duration::from_secs(30)).await.fence;
        let mut unknown = 0;
        for round in 0..60_u64 {
            // Longer each time, so that each must be hung on a new lease.
            let by = match round % 3 {
                0 => ExtendBy::Add(Duration::from_secs(5)),
                _ => ExtendBy::AtLeast(Duration::from_secs(60 + round * 10)),
            };
            let cut = async {
                tokio::time::sleep(Duration::from_micros(round * 150)).await;
                proxy.cut();
            };
            let (answer, ()) = tokio::join!(extend(&store, &key, &me, by), cut);
            match answer {
                Ok(Extension::Extended(lease)) => assert_eq!(lease.fence, fence),
                Ok(other) => panic!("round {round}: {other:?}"),
                Err(error) => {
                    assert!(error.kind().is_transient(), "{error}");
                    unknown += usize::from(error.kind() == ErrorKind::Ambiguous);
                }
            }
            assert_eq!(left(&watcher, &key, &me).await.fence, fence, "round {round}");
        }
        recovers(&store).await;
        busy(&store, &key, &secret(), Intent::Try).await;
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        eprintln!("{unknown} of 60 outcomes were unknown");
    }
}

on_etcd! {
    async fn an_unreachable_member_is_definite_and_bounded(server: &Etcd) {
        let proxy = proxied(server).await;
        let store = behind(&proxy).await;
        proxy.down();
        until("requests fail without having left", async || {
            let error = attempt(&store, &key("k"), &secret(), Intent::Try).await.unwrap_err();
            error.kind() == ErrorKind::Unavailable
        }).await;
        // Many callers share one try to connect and end together.
        let calls: Vec<_> = (0..200)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { attempt(&store, &key("k"), &secret(), Intent::Try).await })
            })
            .collect();
        for call in calls {
            let error = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().unwrap_err();
            assert!(error.kind().is_transient() && error.kind().is_definite(), "{error}");
        }
        proxy.heal();
        recovers(&store).await;
    }
}

on_etcd! {
    async fn a_frozen_member_is_waited_out_and_a_lease_that_ran_out_is_not_revived(server: &Etcd) {
        let store = connect(&format!("{}?timeout=2s&connect_timeout=2s", server.url())).await;
        let (key, me, short) = (key("k"), secret(), support::key("short"));
        let lease = granted(&store, &key, &me).await;
        granted_for(&store, &short, &me, Duration::from_secs(1)).await;
        server.process().pause();
        for _ in 0..2 {
            let error = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap_err();
            assert!(error.kind().is_transient(), "{error}");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.process().resume();
        recovers(&store).await;
        assert_eq!(left(&store, &key, &me).await.fence, lease.fence);
        until("the short lease is over", async || {
            let by = ExtendBy::AtLeast(Duration::ZERO);
            matches!(extend(&store, &short, &me, by).await, Ok(Extension::NotHeld))
        }).await;
        assert_eq!(
            extend(&store, &short, &me, ExtendBy::AtLeast(LONG)).await.unwrap(),
            Extension::NotHeld
        );
    }
}

on_etcd! {
    async fn a_full_database_refuses_grants_and_lets_holders_go(server: &Etcd) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        let member = support::admin(server, "maintenance/status", "{}").await;
        let member = support::field(&member, "member_id").unwrap();
        let alarm = |action: &str| format!(r#"{{"action":"{action}","memberID":"{member}","alarm":"NOSPACE"}}"#);
        support::admin(server, "maintenance/alarm", &alarm("ACTIVATE")).await;
        let error = attempt(&store, &support::key("other"), &secret(), Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
        let found = Arc::clone(&store).probe().await.unwrap();
        assert!(found.findings.iter().any(|finding| finding.subject == "alarm"), "{found}");
        let renewed = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
        assert!(matches!(renewed, Extension::Extended(_)), "renewal writes nothing");
        // A program that starts now can look and let go, too.
        let late = connect(&server.url()).await;
        assert!(lookup(&late, &key).await.is_some());
        let found = Arc::clone(&late).probe().await.unwrap();
        assert!(found.findings.iter().any(|finding| finding.subject == "alarm"), "{found}");
        let renewed = extend(&late, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
        assert!(matches!(renewed, Extension::Extended(_)), "{renewed:?}");
        assert_eq!(release(&late, &key, &me).await, Release::Released);
        support::admin(server, "maintenance/alarm", &alarm("DEACTIVATE")).await;
        recovers(&store).await;
    }
}

on_etcd! {
    async fn short_leases_outlive_a_connection_that_falls_silent(server: &Etcd) {
        // The same member by two addresses.
        let ways = [proxied(server).await, proxied(server).await];
        let url = format!("etcd://{},{}", ways[0].address(), ways[1].address());
        let ttl = Duration::from_secs(4);
        let store = EtcdStore::connect(&url).await.unwrap();
        let lock = DistributedLock::builder(store).ttl(ttl).build().unwrap();
        let mut handles = Vec::new();
        for n in 0..20 {
            handles.push(lock.acquire(format!("k{n}")).await.unwrap());
        }
        ways.iter().max_by_key(|way| way.traffic().sent).unwrap().black_hole();
        // Until every lease that was not renewed is over.
        tokio::time::sleep(ttl * 2).await;
        let lost = handles.iter().filter(|handle| !handle.is_held()).count();
        assert_eq!(lost, 0, "of {} locks", handles.len());
        for handle in handles {
            handle.release().await.unwrap();
        }
    }
}
