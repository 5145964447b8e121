//! What becomes of locks when the server forgets: restart, `flush_all`, eviction, full memory, late
//! ticks.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{
    Attempt, Backend as _, DistributedLock, ErrorKind, Extension, Level, Release,
};
use holdtight_memcached::MemcachedStore;
use holdtight_testkit::Proxy;
use support::*;

/// As little memory as memcached accepts.
const TINY: [&str; 4] = ["-m", "2", "-I", "512k"];

on_memcached! {
    async fn an_old_holder_cannot_touch_the_lock_of_its_successor_after_a_restart(server: [] as [&str; 0]) {
        let (old, new) = (connect(&server.url()).await, connect(&server.url()).await);
        let (key, first, second) = (key("restart"), secret(), secret());
        let mut last = granted(&old, &key, &first).await;
        for _ in 0..2 {
            server.restart().await;
            // Both grants are the first write of their server process, so their items have the same
            // CAS number.
            let lease = until_answered(async || match attempt(&new, &key, &second, LONG).await? {
                Attempt::Granted(lease) => Ok(lease),
                other => panic!("a server that forgot grants: {other:?}"),
            })
            .await;
            assert!(lease.fence > last.fence, "{} after {}", lease.fence, last.fence);
            assert_eq!(lease.fence.get() & 0xffff_ffff, 1, "the same CAS number as before");
            let moved = until_answered(async || extend(&old, &key, &first, LONG).await).await;
            assert_eq!(moved, Extension::NotHeld);
            assert_eq!(release(&old, &key, &first).await, Release::NotHeld);
            let shown = lookup(&new, &key).await.expect("the new holder has it");
            assert_eq!(shown.fence, Some(lease.fence));
            last = lease;
        }
    }
}

on_memcached! {
    async fn a_server_restarted_at_once_never_repeats_a_fence(server: [] as [&str; 0]) {
        let store = connect(&server.url()).await;
        let mut fences = Vec::new();
        for round in 0..4 {
            let (key, me) = (key("young"), secret());
            let lease = until_answered(async || match attempt(&store, &key, &me, LONG).await? {
                Attempt::Granted(lease) => Ok(lease),
                other => panic!("round {round}: {other:?}"),
            })
            .await;
            fences.push(lease.fence);
            server.restart().await;
        }
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }
}

on_memcached! {
    async fn flush_all_takes_every_lock_and_the_next_holder_is_safe_from_the_last(server: [] as [&str; 0]) {
        let store = connect(&server.url()).await;
        let (key, first, second) = (key("flush"), secret(), secret());
        let before = granted(&store, &key, &first).await;
        assert_eq!(Admin::on(server.port()).await.ask("flush_all\r\n").await, "OK");
        assert!(lookup(&store, &key).await.is_none());
        assert_eq!(extend(&store, &key, &first, LONG).await.unwrap(), Extension::NotHeld);
        let after = granted(&store, &key, &second).await;
        assert!(after.fence > before.fence);
        assert_eq!(release(&store, &key, &first).await, Release::NotHeld);
        assert_eq!(release(&store, &key, &second).await, Release::Released);
    }
}

on_memcached! {
    async fn an_evicted_lock_is_lost_and_its_successor_has_a_higher_fence(server: TINY) {
        let store = connect(&server.url()).await;
        let (key, first, second) = (key("evicted"), secret(), secret());
        let before = granted(&store, &key, &first).await;
        let mut admin = Admin::on(server.port()).await;
        let length = admin.get("holdtight:evicted").await.unwrap().len();
        let started = Instant::now();
        while lookup(&store, &key).await.is_some() {
            assert!(started.elapsed() < PATIENCE, "a tiny server must evict");
            admin.fill(length, 3000).await;
        }
        assert_eq!(extend(&store, &key, &first, LONG).await.unwrap(), Extension::NotHeld);
        let after = granted(&store, &key, &second).await;
        assert!(after.fence > before.fence);
        assert_eq!(release(&store, &key, &first).await, Release::NotHeld);
        assert_eq!(release(&store, &key, &second).await, Release::Released);
    }
}

on_memcached! {
    /// Memcached answers an add that finds no memory by deleting the item that was there.
    async fn asking_for_a_held_lock_on_a_full_server_does_not_take_it_away(server: [&["-M"][..], &TINY].concat()) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("full"), secret());
        let lease = granted(&store, &key, &me).await;
        let mut admin = Admin::on(server.port()).await;
        let value = admin.get("holdtight:full").await.unwrap();
        admin.fill(value.len(), usize::MAX).await;
        for _ in 0..3 {
            busy(&store, &key).await;
        }
        assert_eq!(lookup(&store, &key).await.expect("held").fence, Some(lease.fence));
        let refused = attempt(&store, &support::key("full:2"), &secret(), LONG).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::RateLimited, "{refused}");
        // Proof that the danger is real: the same question asked bluntly.
        let value = String::from_utf8(value).unwrap();
        let blunt = admin.set("holdtight:full", &value, "ME T100").await;
        assert!(blunt.starts_with("SERVER_ERROR"), "{blunt}");
        assert!(lookup(&store, &key).await.is_none(), "this server keeps what it has: look whether the look is needed");
    }
}

on_memcached! {
    async fn a_renewal_that_finds_no_memory_is_told_that_the_lock_is_gone(server: [&["-M"][..], &TINY].concat()) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("renewed"), secret());
        granted(&store, &key, &me).await;
        let mut admin = Admin::on(server.port()).await;
        let length = admin.get("holdtight:renewed").await.unwrap().len();
        admin.fill(length, usize::MAX).await;
        match extend(&store, &key, &me, LONG * 2).await {
            Ok(Extension::NotHeld) => assert!(lookup(&store, &key).await.is_none()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
                assert!(lookup(&store, &key).await.is_some());
            }
            Ok(other) => panic!("there is no memory for {other:?}"),
        }
    }
}

on_memcached! {
    /// One-sided: however the ticks fall, nobody is told that the key is free before the lease is
    /// over.
    async fn a_lease_is_not_shortened_by_a_server_whose_clock_ticks_late(server: [] as [&str; 0]) {
        let store = connect(&server.url()).await;
        let ttl = Duration::from_millis(1500);
        for round in 0u32..4 {
            let key = key(&format!("ticks:{round}"));
            // Another place between two ticks each time.
            tokio::time::sleep(Duration::from_millis(230)).await;
            let sent_at = Instant::now();
            assert!(matches!(attempt(&store, &key, &secret(), ttl).await, Ok(Attempt::Granted(_))));
            server.process().pause();
            tokio::time::sleep(Duration::from_millis(700)).await;
            server.process().resume();
            until_answered(async || {
                while Arc::clone(&store).lookup(key.clone()).await?.is_some() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            })
            .await;
            let lived = sent_at.elapsed();
            assert!(lived >= ttl, "a lease of {ttl:?} was over after {lived:?}");
        }
    }
}

on_memcached! {
    /// What a server that was stopped is asked lies in its socket, and is done by the clock of
    /// before.
    async fn a_lease_written_by_a_server_that_stood_still_is_not_shorter(server: [] as [&str; 0]) {
        let store = connect(&format!("{}?timeout=30s", server.url())).await;
        let (ttl, stopped) = (Duration::from_secs(60), Duration::from_secs(6));
        let (held, me) = (key("held"), secret());
        assert!(matches!(attempt(&store, &held, &me, stopped * 3).await, Ok(Attempt::Granted(_))));
        for round in 0..3 {
            let new = key(&format!("still:{round}"));
            server.process().pause();
            let (taking, renewing) = (Arc::clone(&store), Arc::clone(&store));
            let (name, renewed, mine) = (new.clone(), held.clone(), me.clone());
            let taken = tokio::spawn(async move { attempt(&taking, &name, &secret(), ttl).await });
            let kept = tokio::spawn(async move { extend(&renewing, &renewed, &mine, ttl).await });
            tokio::time::sleep(stopped).await;
            let resumed = Instant::now();
            server.process().resume();
            assert!(matches!(taken.await.unwrap(), Ok(Attempt::Granted(_))));
            assert!(matches!(kept.await.unwrap(), Ok(Extension::Extended(_))));
            let mut admin = Admin::on(server.port()).await;
            let uptime = admin.uptime().await;
            until_answered(async || {
                while admin.uptime().await < uptime + 2 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(())
            })
            .await;
            for key in [&new, &held] {
                let left = lookup(&store, key).await.expect("held").remaining.unwrap();
                assert!(left + resumed.elapsed() >= ttl, "{key:?} of {ttl:?} has {left:?}");
            }
        }
    }
}

on_memcached! {
    async fn short_leases_outlive_a_connection_that_falls_silent(server: ["-M"]) {
        // What went through both falls silent, what comes later is led past the second.
        let straight = SocketAddr::from(([127, 0, 0, 1], server.port()));
        let silent = Proxy::to(straight).await.unwrap();
        let way = Proxy::to(silent.address()).await.unwrap();
        let url = format!("memcached://{}", way.address());
        let store = MemcachedStore::connect(&url).await.unwrap();
        let ttl = Duration::from_secs(6);
        let lock = DistributedLock::builder(store).ttl(ttl).build().unwrap();
        let mut handles = Vec::new();
        for n in 0..20 {
            handles.push(lock.acquire(format!("k{n}")).await.unwrap());
        }
        silent.black_hole();
        way.redirect(straight);
        // Until every lease that was not renewed is over.
        tokio::time::sleep(ttl * 2).await;
        let lost = handles.iter().filter(|handle| !handle.is_held()).count();
        assert_eq!(lost, 0, "of {} locks", handles.len());
        for handle in handles {
            handle.release().await.unwrap();
        }
    }
}

on_memcached! {
    async fn a_frozen_server_is_an_unknown_outcome_that_the_owner_settles(server: [] as [&str; 0]) {
        let store = connect(&format!("{}?timeout=2s", server.url())).await;
        let (key, me) = (key("frozen"), secret());
        granted(&store, &key, &me).await;
        server.process().pause();
        let lost = Arc::clone(&store).release(key.clone(), me.clone()).await.unwrap_err();
        assert!(lost.kind().is_transient(), "{lost}");
        server.process().resume();
        until_answered(async || Arc::clone(&store).release(key.clone(), me.clone()).await).await;
        assert!(lookup(&store, &key).await.is_none());
    }
}

on_memcached! {
    async fn a_lock_can_be_tried_right_after_the_server_was_started(server: [] as [&str; 0]) {
        let mut tried = Vec::new();
        // On a starved machine a try may take longer than the second that it is given, but not each
        // time.
        for _ in 0..3 {
            server.restart().await;
            let store = MemcachedStore::connect(&server.url()).await.unwrap();
            let lock = DistributedLock::builder(store).build().unwrap();
            tried.push(lock.try_acquire("k").await);
        }
        assert!(tried.iter().any(|handle| matches!(handle, Ok(Some(_)))), "{tried:?}");
    }
}

on_memcached! {
    async fn a_probe_says_advisory_unless_evictions_are_off(server: ["-M", "-F"]) {
        let evicting = holdtight_testkit::servers::Memcached::start().await;
        let (firm, soft) = (connect(&server.url()).await, connect(&evicting.url()).await);
        let (firm, soft) = (firm.probe().await.unwrap(), soft.probe().await.unwrap());
        assert!(firm.store.starts_with("memcached 1."), "{firm}");
        assert_eq!(firm.level(), Level::Warning, "{firm}");
        assert!(!firm.to_string().contains("advisory") && !firm.to_string().contains("flush_all"), "{firm}");
        assert_eq!(soft.level(), Level::Unsafe, "{soft}");
        assert!(soft.to_string().contains("advisory") && soft.to_string().contains("-M"), "{soft}");
        let strict = MemcachedStore::connect(&format!("{}?eviction=refuse", evicting.url())).await;
        assert_eq!(strict.unwrap_err().kind(), ErrorKind::InvalidConfig);
        let strict = MemcachedStore::connect(&format!("{}?eviction=refuse", server.url())).await;
        assert!(strict.is_ok());
    }
}

on_memcached! {
    async fn a_server_without_cas_numbers_is_refused(server: ["-C"]) {
        let refused = MemcachedStore::connect(&server.url()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
        assert!(refused.to_string().contains("-C"), "{refused}");
    }
}
