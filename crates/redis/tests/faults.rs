//! Each fault alone, with a real server behind a proxy: what a step answers, and what is true
//! afterwards.

mod support;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    Attempt, Backend, ErrorKind, ExtendBy, ExtendRequest, Extension, Intent, Release,
};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use holdtight_testkit::{Flow, Proxy};
use support::{
    LONG, PATIENCE, admin, attempt, busy, connect, count, extend, extended, granted, granted_for,
    key, lookup, proxied, release, secret, until,
};

async fn behind(proxy: &Proxy) -> Arc<RedisStore> {
    connect(&format!("redis://{}?timeout=1s&connect_timeout=3s", proxy.address())).await
}

/// The error of a step that got no answer must say that its outcome is unknown, or that it never
/// left.
async fn recovers(store: &Arc<RedisStore>) {
    let (key, me) = (key("after"), secret());
    until("the store works again", async || match attempt(store, &key, &me, Intent::Try).await {
        Ok(Attempt::Granted(_)) => true,
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            assert!(error.kind().is_transient(), "{error}");
            false
        }
    })
    .await;
    assert_eq!(release(store, &key, &me).await, Release::Released);
}

on_redis! {
    async fn a_lost_answer_is_unknown_and_the_same_secret_finds_out(server: &Redis) {
        let (proxy, watcher) = (proxied(server).await, connect(&server.url()).await);
        let store = behind(&proxy).await;
        let (key, me) = (key("k"), secret());

        proxy.replies(Flow::Drop);
        let error = attempt(&store, &key, &me, Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        let seen = lookup(&watcher, &key).await.expect("the server did what it was asked");
        proxy.heal();
        recovers(&store).await;
        let lease = granted(&store, &key, &me).await;
        assert_eq!(Some(lease.fence), seen.fence, "a retry finds the grant, with its fence");

        proxy.replies(Flow::Drop);
        let error = extend(&store, &key, &me, LONG * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(count(server, "PTTL holdtight:k").await > 60_000);
        proxy.heal();
        recovers(&store).await;

        proxy.replies(Flow::Drop);
        let error = Arc::clone(&store).release(key.clone(), me.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        proxy.heal();
        recovers(&store).await;
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld, "it had been done");
    }
}

on_redis! {
    async fn a_lost_answer_to_a_crowd_is_unknown_or_never_left_and_nothing_stays_held(server: &Redis) {
        let proxy = proxied(server).await;
        let store = behind(&proxy).await;
        proxy.replies(Flow::Drop);
        let crowd: Vec<_> = (0..60)
            .map(|n| {
                let (store, key, me) = (Arc::clone(&store), key(&format!("k{n}")), secret());
                tokio::spawn(async move { (attempt(&store, &key, &me, Intent::Try).await, key, me) })
            })
            .collect();
        let mut left = Vec::new();
        for one in crowd {
            let (answer, key, me) = one.await.unwrap();
            match answer.unwrap_err().kind() {
                ErrorKind::Ambiguous => left.push((key, me)),
                // Still waiting for those before it: the server has never heard of it.
                kind => {
                    assert_eq!(kind, ErrorKind::Unavailable);
                    assert_eq!(count(server, &format!("EXISTS holdtight:{key}")).await, 0);
                }
            }
        }
        assert!(!left.is_empty());
        proxy.heal();
        recovers(&store).await;
        for (key, me) in left {
            release(&store, &key, &me).await;
        }
        assert_eq!(count(server, "DBSIZE").await, 1, "only the counter");
    }
}

on_redis! {
    async fn a_lost_request_is_unknown_too_and_was_not_done(server: &Redis) {
        let (proxy, watcher) = (proxied(server).await, connect(&server.url()).await);
        let store = behind(&proxy).await;
        proxy.requests(Flow::Drop);
        let error = attempt(&store, &key("k"), &secret(), Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(lookup(&watcher, &key("k")).await.is_none());
        proxy.heal();
        recovers(&store).await;
    }
}

on_redis! {
    async fn a_half_open_connection_is_noticed_and_replaced(server: &Redis) {
        let proxy = proxied(server).await;
        let store = behind(&proxy).await;
        let before = proxy.traffic().connections;
        proxy.black_hole();
        for _ in 0..2 {
            assert!(attempt(&store, &key("k"), &secret(), Intent::Try).await.is_err());
        }
        // Only new connections pass: whoever keeps the old one stays deaf.
        proxy.requests(Flow::Pass);
        proxy.replies(Flow::Pass);
        recovers(&store).await;
        assert!(proxy.traffic().connections > before);
    }
}

on_redis! {
    async fn a_cut_connection_is_replaced_and_held_locks_stay_held(server: &Redis) {
        let proxy = proxied(server).await;
        let store = behind(&proxy).await;
        let (key, me) = (key("k"), secret());
        let lease = granted(&store, &key, &me).await;
        for _ in 0..5 {
            proxy.cut();
            recovers(&store).await;
        }
        let kept = extended(&store, &key, &me, LONG).await;
        assert!(matches!(kept, Extension::Extended(now) if now.fence == lease.fence));
    }
}

on_redis! {
    async fn an_unreachable_server_is_definite_and_bounded(server: &Redis) {
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

on_redis! {
    async fn one_byte_at_a_time_and_late_answers_change_nothing(server: &Redis) {
        let proxy = proxied(server).await;
        let store = connect(&format!("redis://{}", proxy.address())).await;
        proxy.replies(Flow::Trickle);
        proxy.requests(Flow::Trickle);
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        extended(&store, &key, &me, LONG).await;
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_redis! {
    async fn an_answer_that_comes_after_its_timeout_is_nobodys(server: &Redis) {
        let proxy = proxied(server).await;
        let store = behind(&proxy).await;
        proxy.replies(Flow::Hold);
        let (mine, me) = (key("mine"), secret());
        assert_eq!(attempt(&store, &mine, &me, Intent::Try).await.unwrap_err().kind(), ErrorKind::Ambiguous);
        proxy.replies(Flow::Pass);
        // The late answer was a grant of "mine"; these must get their own.
        let other = secret();
        busy(&store, &mine, &other, Intent::Try).await;
        assert_eq!(release(&store, &key("never"), &me).await, Release::NotHeld);
        assert_eq!(release(&store, &mine, &me).await, Release::Released);
    }
}

on_redis! {
    async fn dropped_calls_leave_the_connection_in_step(server: &Redis) {
        let store = connect(&server.url()).await;
        for n in 0..200 {
            let (key, me) = (key(&format!("d{}", n % 3)), secret());
            let call = attempt(&store, &key, &me, Intent::Queue);
            let _ = tokio::time::timeout(Duration::from_micros(n * 3), call).await;
            let own = secret();
            granted(&store, &support::key(&format!("own{n}")), &own).await;
            release(&store, &key, &me).await;
        }
        assert_eq!(Arc::clone(&store).list("d".to_owned(), 10).await.unwrap().len(), 0);
    }
}

on_redis! {
    async fn killed_clients_come_back(server: &Redis) {
        let store = connect(&server.url()).await;
        for _ in 0..5 {
            admin(server, "CLIENT KILL TYPE pubsub").await;
            recovers(&store).await;
        }
    }
}

on_redis! {
    async fn a_frozen_server_is_waited_out(server: &Redis) {
        let store = connect(&format!("{}?timeout=2s&connect_timeout=3s", server.url())).await;
        let (key, me) = (key("k"), secret());
        let lease = granted(&store, &key, &me).await;
        server.process().pause();
        for _ in 0..2 {
            let error = extend(&store, &key, &me, LONG).await.unwrap_err();
            assert!(error.kind().is_transient(), "{error}");
        }
        server.process().resume();
        recovers(&store).await;
        let kept = extended(&store, &key, &me, LONG).await;
        assert!(matches!(kept, Extension::Extended(now) if now.fence == lease.fence));
    }
}

on_redis! {
    async fn a_restart_without_persistence_forgets_locks_and_keeps_fences_rising(server: &Redis) {
        let store = connect(&server.url()).await;
        let (key, me, next) = (key("k"), secret(), secret());
        let before = granted(&store, &key, &me).await.fence;
        server.process().kill();
        server.restart().await;
        recovers(&store).await;
        assert_eq!(extended(&store, &key, &me, LONG).await, Extension::NotHeld, "lost, and said so");
        assert!(granted(&store, &key, &next).await.fence > before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_an_append_only_file_keeps_locks() {
    if support::redis_is_missing() {
        return;
    }
    let server = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = connect(&server.url()).await;
    let (key, me) = (key("k"), secret());
    let lease = granted(&store, &key, &me).await;
    server.process().kill();
    server.restart().await;
    recovers(&store).await;
    support::busy(&store, &key, &secret(), Intent::Try).await;
    let kept = extended(&store, &key, &me, LONG).await;
    assert!(matches!(kept, Extension::Extended(now) if now.fence == lease.fence));
}

on_redis! {
    async fn a_flush_is_noticed_by_the_next_extension(server: &Redis) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("k"), secret());
        let before = granted(&store, &key, &me).await.fence;
        admin(server, "FLUSHALL").await;
        assert_eq!(extended(&store, &key, &me, LONG).await, Extension::NotHeld);
        assert!(granted(&store, &key, &secret()).await.fence > before);
    }
}

on_redis! {
    async fn out_of_memory_refuses_grants_and_lets_holders_go(server: &Redis) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        admin(server, "CONFIG SET maxmemory 1").await;
        let error = attempt(&store, &support::key("other"), &secret(), Intent::Queue).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
        assert!(matches!(extended(&store, &key, &me, LONG).await, Extension::Extended(_)));
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_redis! {
    async fn a_server_that_became_a_replica_takes_nothing_and_says_so(server: &Redis) {
        let store = connect(&server.url()).await;
        granted_for(&store, &key("k"), &secret(), LONG).await;
        admin(server, "REPLICAOF 127.0.0.1 1").await;
        let error = attempt(&store, &key("l"), &secret(), Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        admin(server, "REPLICAOF NO ONE").await;
        recovers(&store).await;
    }
}

on_redis! {
    async fn a_lease_that_cannot_be_renewed_spoils_no_other_of_its_batch(server: &Redis) {
        for layout in ["native", "token", "syncguard"] {
            admin(server, "ACL SETUSER ann on >pw resetkeys ~* &* +@all").await;
            let url = format!("redis://ann:pw@127.0.0.1:{}?prefix=p&layout={layout}", server.port());
            let store = connect(&url).await;
            let keys: Vec<_> = (0..9).map(|n| key(&format!("{layout}{n}"))).collect();
            let secrets: Vec<_> = keys.iter().map(|_| secret()).collect();
            for (key, secret) in keys.iter().zip(&secrets) {
                granted(&store, key, secret).await;
            }
            // All but the fifth.
            let mut acl = "ACL SETUSER ann resetkeys ~*\u{1}* ~*id:*".to_owned();
            for n in (0..9).filter(|n| *n != 4) {
                write!(acl, " ~*{layout}{n}").unwrap();
            }
            assert_eq!(admin(server, &acl).await, "+OK\r\n");
            let batch = keys.iter().zip(&secrets).map(|(key, secret)| {
                ExtendRequest::new(key.clone(), secret.clone(), ExtendBy::AtLeast(LONG))
            });
            let answers = Arc::clone(&store).extend(batch.collect()).await.unwrap();
            for (n, answer) in answers.into_iter().enumerate() {
                match answer {
                    Ok(Extension::Extended(_)) => assert_ne!(n, 4, "{layout}"),
                    Err(error) => {
                        assert_eq!((n, error.kind()), (4, ErrorKind::AuthFailed), "{layout}: {error}");
                        assert!(error.to_string().contains(keys[4].as_str()), "{error}");
                    }
                    other => panic!("{layout} {n}: {other:?}"),
                }
            }
        }
    }
}
