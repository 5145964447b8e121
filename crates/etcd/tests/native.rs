//! What only etcd does: the line, the leases behind extensions, the layout, fences over rebuilt
//! clusters.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    Attempt, Backend, ErrorKind, ExtendBy, Extension, Fence, Intent, Level, Release,
};
use holdtight_etcd::{EtcdConfig, EtcdStore};
use holdtight_testkit::servers::Etcd;
use support::{
    LONG, admin, attempt, attempt_for, base64, behind, busy, compact, connect, entries, extend,
    field, granted, granted_for, key, leases, left, lookup, must_hear, proxied, recovers, release,
    secret, subscribe, taken_in_turn, until,
};

on_etcd! {
    async fn waiters_are_served_in_the_order_they_came_and_nobody_barges_in(server: &Etcd) {
        let (key, owner) = (key("k"), secret());
        let stores = [connect(&server.url()).await, connect(&server.url()).await, connect(&server.url()).await];
        let mut last = granted(&stores[0], &key, &owner).await.fence;
        let mut line = Vec::new();
        for store in &stores {
            let bell = subscribe(store, &key).await;
            let me = secret();
            busy(store, &key, &me, Intent::Queue).await;
            line.push((store, me, bell));
        }
        assert_eq!(release(&stores[0], &key, &owner).await, Release::Released);
        for (store, me, bell) in &mut line {
            must_hear(bell, "the turn of the next in line").await;
            // Nobody holds it knowingly now, but it is taken all the same.
            busy(&stores[1], &key, &secret(), Intent::Try).await;
            let lease = taken_in_turn(store, &key, me).await;
            assert!(lease.fence > last, "{} after {last}", lease.fence);
            assert!(lease.ttl >= LONG, "a waiter's short lease became a full one: {lease:?}");
            last = lease.fence;
            assert_eq!(release(store, &key, me).await, Release::Released);
        }
        assert!(lookup(&stores[0], &key).await.is_none());
        assert_eq!(entries(server).await, 0, "nothing stays behind");
        until("all leases are ended", async || leases(server).await == 0).await;
    }
}

on_etcd! {
    async fn a_waiter_watches_nobody_but_its_predecessor(server: &Etcd) {
        let (key, owner, store) = (key("k"), secret(), connect(&server.url()).await);
        let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
        granted(&store, &key, &owner).await;
        let (first, second) = (secret(), secret());
        let mut first_bell = subscribe(&one, &key).await;
        busy(&one, &key, &first, Intent::Queue).await;
        let mut second_bell = subscribe(&two, &key).await;
        busy(&two, &key, &second, Intent::Queue).await;
        assert_eq!(release(&store, &key, &owner).await, Release::Released);
        must_hear(&mut first_bell, "the release").await;
        let heard = tokio::time::timeout(Duration::from_millis(300), second_bell.heard()).await;
        assert!(heard.is_err(), "a release wakes one waiter, not all");
        // The first leaves without taking its turn: now it is the second's.
        assert_eq!(release(&one, &key, &first).await, Release::Released, "it held the lock unknowingly");
        must_hear(&mut second_bell, "the first waiter's leaving").await;
        taken_in_turn(&two, &key, &second).await;
    }
}

on_etcd! {
    async fn a_waiter_behind_one_that_leaves_moves_up_and_waits_on(server: &Etcd) {
        let (key, owner, store) = (key("k"), secret(), connect(&server.url()).await);
        let other = connect(&server.url()).await;
        granted(&store, &key, &owner).await;
        let (first, second) = (secret(), secret());
        let _bell = subscribe(&store, &key).await;
        busy(&store, &key, &first, Intent::Queue).await;
        let mut bell = subscribe(&other, &key).await;
        busy(&other, &key, &second, Intent::Queue).await;
        assert_eq!(release(&store, &key, &first).await, Release::NotHeld, "withdrawn, not released");
        must_hear(&mut bell, "the predecessor's leaving").await;
        busy(&other, &key, &second, Intent::Queue).await;
        assert_eq!(release(&store, &key, &owner).await, Release::Released);
        must_hear(&mut bell, "the release by the holder").await;
        taken_in_turn(&other, &key, &second).await;
    }
}

on_etcd! {
    async fn a_watch_survives_a_cut_and_a_compaction(server: &Etcd) {
        let (key, owner, store) = (key("k"), secret(), connect(&server.url()).await);
        let proxy = proxied(server).await;
        let other = behind(&proxy).await;
        granted(&store, &key, &owner).await;
        let (me, mut bell) = (secret(), subscribe(&other, &key).await);
        busy(&other, &key, &me, Intent::Queue).await;
        // Cut off, resumed, and then the release.
        proxy.cut();
        assert_eq!(release(&store, &key, &owner).await, Release::Released);
        must_hear(&mut bell, "a release after a cut").await;
        taken_in_turn(&other, &key, &me).await;
        // The same again, but what happened meanwhile is no longer in etcd's history.
        let next = secret();
        let mut next_bell = subscribe(&other, &key).await;
        busy(&other, &key, &next, Intent::Queue).await;
        proxy.down();
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        compact(server).await;
        proxy.heal();
        must_hear(&mut next_bell, "a release that was compacted").await;
        taken_in_turn(&other, &key, &next).await;
    }
}

on_etcd! {
    /// Keys that are made without a lease of the client's are dropped by etcd after a minute.
    async fn every_lock_hangs_on_a_lease_as_long_as_was_asked_for(server: &Etcd) {
        let (store, all) = (connect(&server.url()).await, format!(
            r#"{{"key":"{}","range_end":"{}"}}"#, base64(b"holdtight/"), base64(b"holdtight0"),
        ));
        let (key, first, second) = (key("k"), secret(), secret());
        let ttl = Duration::from_secs(3700);
        let length = async || {
            let entry = admin(server, "kv/range", &all).await;
            let lease = format!(r#"{{"ID":"{}"}}"#, field(&entry, "lease").unwrap());
            let lease = admin(server, "lease/timetolive", &lease).await;
            field(&lease, "grantedTTL").unwrap().to_owned()
        };
        granted_for(&store, &key, &first, ttl).await;
        assert_eq!(length().await, "3700");
        // Also for one who stood in line before.
        let _bell = subscribe(&store, &key).await;
        let ask = async || attempt_for(&store, &key, &second, Intent::Queue, ttl).await.unwrap();
        assert!(matches!(ask().await, Attempt::Busy(_)));
        assert_eq!(release(&store, &key, &first).await, Release::Released);
        assert!(matches!(ask().await, Attempt::Granted(_)));
        assert_eq!(length().await, "3700");
    }
}

on_etcd! {
    async fn a_place_in_the_line_outlives_a_short_lease_and_then_becomes_one(server: &Etcd) {
        let (key, owner, me, store) = (key("k"), secret(), secret(), connect(&server.url()).await);
        let (short, other) = (Duration::from_secs(1), connect(&server.url()).await);
        granted(&store, &key, &owner).await;
        let _bell = subscribe(&other, &key).await;
        let ask = async || attempt_for(&other, &key, &me, Intent::Queue, short).await.unwrap();
        assert!(matches!(ask().await, Attempt::Busy(_)));
        let range = || format!(r#"{{"key":"{}","range_end":"{}","sort_order":"DESCEND","sort_target":"CREATE","limit":"1"}}"#,
            base64(b"holdtight/"), base64(b"holdtight0"));
        let place = admin(server, "kv/range", &range()).await;
        // Three times the lease that was asked for, asking as rarely as a waiter may.
        for _ in 0..2 {
            tokio::time::sleep(short * 3).await;
            assert!(matches!(ask().await, Attempt::Busy(_)));
        }
        let still = admin(server, "kv/range", &range()).await;
        assert_eq!(field(&place, "create_revision"), field(&still, "create_revision"), "the same place");
        assert_eq!(release(&store, &key, &owner).await, Release::Released);
        let Attempt::Granted(lease) = ask().await else { panic!("it is this one's turn") };
        assert_eq!(lease.ttl, short, "the lease of the lock, not that of the place");
        let made: u64 = field(&place, "create_revision").unwrap().parse().unwrap();
        assert!(lease.fence.get() > made, "of its grant, not of its place: {} and {made}", lease.fence);
        assert_eq!(lookup(&other, &key).await.unwrap().fence, Some(lease.fence));
        until("the lock of a silent holder passes on", async || lookup(&other, &key).await.is_none()).await;
    }
}

on_etcd! {
    async fn a_lease_is_as_long_as_the_server_says(server: &Etcd) {
        let store = connect(&server.url()).await;
        assert_eq!(store.capabilities().min_ttl, Duration::from_secs(1), "election timeout 250 ms");
        for (asked, got) in [(1000, 1), (1001, 2), (1500, 2), (2000, 2), (59_001, 60)] {
            let lease = granted_for(&store, &key(&format!("k{asked}")), &secret(), Duration::from_millis(asked)).await;
            assert_eq!(lease.ttl, Duration::from_secs(got), "asked for {asked} ms");
        }
    }
}

on_etcd! {
    async fn a_longer_lease_replaces_the_old_one_and_keeps_the_fence(server: &Etcd) {
        let (key, me, store) = (key("k"), secret(), connect(&server.url()).await);
        let first = granted_for(&store, &key, &me, Duration::from_secs(5)).await;
        for seconds in [10, 20, 40] {
            let by = ExtendBy::AtLeast(Duration::from_secs(seconds));
            let Extension::Extended(lease) = extend(&store, &key, &me, by).await.unwrap() else {
                panic!("held")
            };
            assert_eq!((lease.fence, lease.ttl.as_secs()), (first.fence, seconds));
        }
        // Shorter than it is: restarted, not replaced.
        let by = ExtendBy::AtLeast(Duration::from_secs(2));
        let Extension::Extended(lease) = extend(&store, &key, &me, by).await.unwrap() else { panic!("held") };
        assert_eq!(lease.ttl.as_secs(), 40);
        let by = ExtendBy::Add(Duration::from_secs(10));
        let Extension::Extended(lease) = extend(&store, &key, &me, by).await.unwrap() else { panic!("held") };
        assert!((45..=51).contains(&lease.ttl.as_secs()), "{lease:?}");
        until("only the last lease is left", async || leases(server).await == 1).await;
        assert_eq!(left(&store, &key, &me).await.fence, first.fence);
    }
}

on_etcd! {
    async fn extensions_at_the_same_time_never_shorten(server: &Etcd) {
        let (key, me) = (key("k"), secret());
        let stores = [connect(&server.url()).await, connect(&server.url()).await];
        let fence = granted_for(&stores[0], &key, &me, Duration::from_secs(5)).await.fence;
        for round in 1..=15_u64 {
            let least = Duration::from_secs(40 * round);
            let mut calls = tokio::task::JoinSet::new();
            for by in [
                ExtendBy::AtLeast(least),
                ExtendBy::AtLeast(Duration::from_secs(3)),
                ExtendBy::Add(Duration::from_secs(1)),
                ExtendBy::AtLeast(least / 2),
                ExtendBy::Add(Duration::from_secs(2)),
            ] {
                let (store, key, me) = (Arc::clone(&stores[calls.len() % 2]), key.clone(), me.clone());
                calls.spawn(async move { extend(&store, &key, &me, by).await });
            }
            while let Some(answer) = calls.join_next().await {
                match answer.unwrap() {
                    Ok(Extension::Extended(now)) => assert_eq!(now.fence, fence),
                    // Too many at once on one lock is an answer; a lost lock is not.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    Ok(other) => panic!("{other:?}"),
                }
            }
            let now = left(&stores[0], &key, &me).await;
            assert!(now.ttl + Duration::from_secs(10) >= least, "round {round}: {now:?}");
        }
    }
}

on_etcd! {
    async fn an_entry_whose_lease_is_gone_is_not_ours_any_more(server: &Etcd) {
        let (key, me, store) = (key("k"), secret(), connect(&server.url()).await);
        granted(&store, &key, &me).await;
        let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(b"holdtight/"), base64(b"holdtight0"));
        let found = admin(server, "kv/range", &range).await;
        let (name, lease) = (field(&found, "key").unwrap(), field(&found, "lease").unwrap());
        // What faulty servers do: the key stays, the lease does not.
        admin(server, "kv/put", &format!(r#"{{"key":"{name}","value":""}}"#)).await;
        admin(server, "lease/revoke", &format!(r#"{{"ID":"{lease}"}}"#)).await;
        for by in [ExtendBy::AtLeast(LONG), ExtendBy::Add(LONG), ExtendBy::AtLeast(Duration::ZERO)] {
            assert_eq!(extend(&store, &key, &me, by).await.unwrap(), Extension::NotHeld, "{by:?}");
        }
        assert_eq!(entries(server).await, 1);
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_etcd! {
    async fn a_foreign_entry_holds_the_lock_and_is_never_overwritten(server: &Etcd) {
        let (key, me, store) = (key("k"), secret(), connect(&server.url()).await);
        let foreign = base64(b"holdtight/k\x1fsomebody");
        admin(server, "kv/put", &format!(r#"{{"key":"{foreign}","value":"{}"}}"#, base64(b"\xff\xfe"))).await;
        let refused = busy(&store, &key, &me, Intent::Try).await;
        let holder = refused.holder.unwrap();
        assert_eq!((holder.remaining, refused.retry_after), (None, None), "it never ends");
        let bell = subscribe(&store, &key).await;
        assert!(busy(&store, &key, &me, Intent::Queue).await.retry_after.is_some(), "to keep its place");
        assert_eq!(extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap(), Extension::NotHeld);
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
        let freed = Arc::clone(&store).force_release(key.clone(), holder.fence.unwrap()).await.unwrap();
        assert_eq!(freed, Release::Released);
        drop(bell);
        granted(&store, &key, &me).await;
    }
}

on_etcd! {
    async fn stores_with_different_prefixes_do_not_meet(server: &Etcd) {
        let (key, one) = (key("k"), connect(&format!("{}/shop", server.url())).await);
        let two = connect(&format!("{}/shop/k", server.url())).await;
        granted(&one, &key, &secret()).await;
        assert!(lookup(&two, &key).await.is_none());
        granted(&two, &key, &secret()).await;
        assert_eq!(Arc::clone(&two).list(String::new(), 10).await.unwrap().len(), 1);
    }
}

on_etcd! {
    async fn a_listing_shows_holders_and_not_those_who_wait(server: &Etcd) {
        let store = connect(&server.url()).await;
        for n in 0..30 {
            let (key, holder) = (key(&format!("k{n:02}")), secret());
            let lease = granted(&store, &key, &holder).await;
            for _ in 0..20 {
                assert!(matches!(attempt(&store, &key, &secret(), Intent::Queue).await, Ok(Attempt::Busy(_))));
            }
            assert_eq!(lookup(&store, &key).await.unwrap().fence, Some(lease.fence));
        }
        // 630 entries: more than one page.
        let listed = Arc::clone(&store).list("k".to_owned(), 1000).await.unwrap();
        assert_eq!(listed.len(), 30);
        for holder in listed {
            assert_eq!(lookup(&store, &holder.key).await.unwrap().fence, holder.fence);
        }
    }
}

on_etcd! {
    async fn a_higher_epoch_means_higher_fences(server: &Etcd) {
        let (key, me) = (key("k"), secret());
        let before = granted(&connect(&server.url()).await, &key, &me).await.fence;
        let store = connect(&format!("{}?epoch=2", server.url())).await;
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        let after = granted(&store, &key, &me).await.fence;
        assert!(after > before && after.get() >> 48 == 2, "{after}");
        let wrong = Fence::new(after.get() - (1 << 48));
        let force = |fence| Arc::clone(&store).force_release(key.clone(), fence);
        assert_eq!(force(wrong).await.unwrap(), Release::NotHeld);
        assert_eq!(force(after).await.unwrap(), Release::Released);
    }
}

on_etcd! {
    async fn a_crash_keeps_locks_and_a_restart_begins_their_leases_anew(server: &Etcd) {
        let (key, me, store) = (key("k"), secret(), connect(&server.url()).await);
        let lease = granted_for(&store, &key, &me, Duration::from_secs(20)).await;
        server.process().kill();
        let error = attempt(&store, &key, &me, Intent::Try).await.unwrap_err();
        assert!(error.kind().is_transient(), "{error}");
        server.restart().await;
        recovers(&store).await;
        busy(&store, &key, &secret(), Intent::Try).await;
        assert_eq!(left(&store, &key, &me).await.fence, lease.fence);
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        assert!(granted(&store, &key, &secret()).await.fence > lease.fence);
    }
}

on_etcd! {
    async fn a_restored_snapshot_is_refused_and_a_new_epoch_mends_it(server: &Etcd) {
        let (key, store) = (key("k"), connect(&server.url()).await);
        let data = server.process().directory().path().join("data");
        let copy = server.process().directory().path().join("copy");
        server.process().terminate();
        copy_all(&data, &copy);
        server.restart().await;
        recovers(&store).await;
        let mut last = Fence::new(0);
        for _ in 0..5 {
            let me = secret();
            last = granted(&store, &key, &me).await.fence;
            assert_eq!(release(&store, &key, &me).await, Release::Released);
        }
        server.process().terminate();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&copy, &data).unwrap();
        server.restart().await;
        // Its own memory tells this store that the cluster went back.
        let mut refusal = None;
        until("the store notices", async || {
            match attempt(&store, &key, &secret(), Intent::Try).await {
                Ok(other) => panic!("fences would repeat: {other:?}"),
                Err(error) if error.kind().is_transient() => false,
                Err(error) => {
                    refusal = Some(error);
                    true
                }
            }
        }).await;
        let refusal = refusal.unwrap();
        assert!(refusal.to_string().contains("epoch"), "{refusal}");
        let raised = EtcdConfig::from_url(&server.url()).unwrap().epoch(1);
        let raised = Arc::new(EtcdStore::open(raised).await.unwrap());
        let lease = granted(&raised, &support::key("other"), &secret()).await;
        assert!(lease.fence > last, "{} after {last}", lease.fence);
    }
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Does what a short program does; nothing that it started goes on after it.
fn program(work: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(work);
    runtime.shutdown_background();
}

on_etcd! {
    /// As a command does: everything that it started ends with it.
    async fn a_program_that_ends_right_after_its_release_leaves_no_lease_behind(server: &Etcd) {
        let url = server.url();
        let programs = tokio::task::spawn_blocking(move || {
            for _ in 0..5 {
                program(async {
                    let (store, key, me) = (connect(&url).await, key("k"), secret());
                    granted(&store, &key, &me).await;
                    assert_eq!(release(&store, &key, &me).await, Release::Released);
                });
            }
            program(async {
                granted(&connect(&url).await, &key("busy"), &secret()).await;
            });
            // Nor does one that tries in vain.
            for _ in 0..5 {
                program(async {
                    let tried = attempt(&connect(&url).await, &key("busy"), &secret(), Intent::Try).await;
                    assert!(matches!(tried.unwrap(), Attempt::Busy(_)));
                });
            }
        });
        programs.await.unwrap();
        // Those by which each of them learned how short a lease may be end by themselves, after
        // seconds.
        until("only the lease of the held lock is left", async || leases(server).await == 1).await;
    }
}

on_etcd! {
    async fn members_of_two_clusters_are_no_store(server: &Etcd) {
        let other = Etcd::start().await;
        let url = format!("{},127.0.0.1:{}?timeout=2s", server.url(), other.port());
        for _ in 0..5 {
            let error = EtcdStore::connect(&url).await.expect_err("each would grant every lock");
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("different etcd clusters"), "{error}");
        }
        // One of them is away at first: when it comes back, it is found out, and granted nothing
        // before.
        other.process().pause();
        let store = connect(&url).await;
        other.process().resume();
        let found = Arc::clone(&store).probe().await.unwrap();
        assert_eq!(found.level(), Level::Unsafe, "{found}");
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        for member in [server, &other] {
            member.process().pause();
            let answer = attempt_for(&store, &key, &secret(), Intent::Try, LONG).await;
            let second = attempt_for(&store, &key, &secret(), Intent::Try, LONG).await;
            for answer in [answer, second] {
                assert!(!matches!(answer, Ok(Attempt::Granted(_))), "two clusters, two owners");
            }
            member.process().resume();
        }
    }
}

on_etcd! {
    async fn the_probe_tells_version_size_and_lease(server: &Etcd) {
        let store = connect(&server.url()).await;
        let found = Arc::clone(&store).probe().await.unwrap();
        assert!(found.store.starts_with("etcd 3."), "{found}");
        for subject in ["version", "redundancy", "lease", "fence"] {
            assert!(found.findings.iter().any(|finding| finding.subject == subject), "{found}");
        }
        let redundancy = found.findings.iter().find(|finding| finding.subject == "redundancy").unwrap();
        assert_eq!(redundancy.level, Level::Warning, "one member is no cluster");
        let dead = connect(&format!("{},127.0.0.1:1", server.url())).await;
        let found = Arc::clone(&dead).probe().await.unwrap();
        assert!(found.findings.iter().any(|finding| finding.subject == "members"), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_the_address_is_unavailable() {
    let error = EtcdStore::connect("etcd://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
