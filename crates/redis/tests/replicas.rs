//! `wait_replicas`: what counts only when replicas have it, and what becomes of a grant that too
//! few have.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend, Builder, ErrorKind, Intent, Release};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use support::{
    LONG, PATIENCE, admin, attempt, connect, count, extend, granted, key, lookup, release, secret,
    until,
};

/// A replica of `server` that acknowledges what is written there.
async fn replica_of(server: &Redis) -> Redis {
    admin(server, "CONFIG SET repl-diskless-sync-delay 0").await;
    let replica =
        Redis::start_with(&["--replicaof", "127.0.0.1", &server.port().to_string()]).await;
    // What the replica says of its link comes before the primary counts it for WAIT.
    until("the replica acknowledges writes", async || {
        admin(server, "WAIT 1 1000").await.trim() == ":1"
    })
    .await;
    replica
}

/// How many scripts the server has run.
async fn scripts_run(server: &Redis) -> u64 {
    let stats = admin(server, "INFO commandstats").await;
    stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_eval"))
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
        .sum()
}

on_redis! {
    async fn a_late_word_of_too_few_replicas_does_not_release_what_was_granted_since(server: &Redis) {
        let replica = replica_of(server).await;
        let store = connect(&format!("{}?wait_replicas=1&timeout=6s", server.url())).await;
        let started = tokio::time::Instant::now();
        for round in 0.. {
            let (key, me) = (key(&format!("k{round}")), secret());
            let ask = || {
                let request = AcquireRequest::new(key.clone(), me.clone(), LONG);
                tokio::spawn(Arc::clone(&store).acquire(request))
            };
            replica.process().pause();
            let before = scripts_run(server).await;
            // The engine gives up an attempt that takes too long, and asks again under the same
            // secret.
            let first = ask();
            until("the first attempt arrived", async || scripts_run(server).await > before).await;
            let second = ask();
            until("the second one arrived", async || scripts_run(server).await > before + 1).await;
            replica.process().resume();
            let (first, second) = (first.await.unwrap(), second.await.unwrap());
            let error = first.expect_err("no replica had it in time");
            assert!(error.to_string().contains("replicas"), "{error}");
            if let Ok(Attempt::Granted(lease)) = second {
                let holder = lookup(&store, &key).await;
                assert_eq!(
                    holder.and_then(|holder| holder.fence), Some(lease.fence),
                    "the lock of the second attempt was taken away by the first"
                );
                return;
            }
            // The replica came back too late for the second one.
            assert!(started.elapsed() < 3 * PATIENCE);
        }
    }
}

on_redis! {
    async fn a_grant_that_too_few_replicas_have_is_said_to_be_unknown_and_taken_back(server: &Redis) {
        let replica = replica_of(server).await;
        let store = connect(&format!("{}?wait_replicas=1&timeout=2s", server.url())).await;
        replica.process().pause();
        let (own, me) = (key("own"), secret());
        let error = attempt(&store, &own, &me, Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert_eq!(count(server, "EXISTS holdtight:own").await, 1, "undoing it is not the store's affair");

        let lock = Builder::shared(store.clone()).build().unwrap();
        for (name, ttl) in [("long", LONG), ("short", Duration::from_millis(900))] {
            let error = lock.acquire(name).ttl(ttl).wait(Duration::from_millis(100)).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("replicas") && text.contains("connected"), "{text}");
        }
        let error = lock.acquire_all(["one", "two"]).wait(Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("replicas"), "{error}");
        for name in ["long", "one", "two"] {
            until("the engine gave it back", async || {
                count(server, &format!("EXISTS holdtight:{name}")).await == 0
            }).await;
        }
        replica.process().resume();
        lock.shutdown().await.unwrap();
    }
}

on_redis! {
    async fn what_too_few_replicas_have_is_not_granted(server: &Redis) {
        let replica = replica_of(server).await;
        let refused = RedisStore::connect(&format!("{}?wait_replicas=2", server.url())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("only 1"), "{refused}");
        let store = connect(&format!("{}?wait_replicas=1&timeout=6s", server.url())).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        assert_eq!(count(&replica, "EXISTS holdtight:k").await, 1, "a grant is on the replica when it is told");

        replica.process().pause();
        let error = extend(&store, &key, &me, LONG * 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        let error = attempt(&store, &support::key("other"), &secret(), Intent::Try).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        assert!(error.to_string().contains("replicas"), "{error}");
        replica.process().resume();
        until("replicas are heard again", async || extend(&store, &key, &me, LONG).await.is_ok()).await;
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_redis! {
    async fn what_no_replica_has_stays_unsafe_on_a_new_connection(server: &Redis) {
        let replica = replica_of(server).await;
        for layout in ["native", "token", "syncguard"] {
            let url = format!("{}?wait_replicas=1&timeout=2s&layout={layout}&prefix=p", server.url());
            let (store, key, me) = (connect(&url).await, key(layout), secret());
            granted(&store, &key, &me).await;
            replica.process().pause();
            let error = extend(&store, &key, &me, 2 * LONG).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
            // A connection that has written nothing yet would wait for nothing.
            admin(server, "CLIENT KILL TYPE normal").await;
            let mut answer = Ok(());
            until("it is connected again", async || {
                answer = extend(&store, &key, &me, LONG).await.map(drop);
                answer.as_ref().err().is_none_or(|error| error.to_string().contains("replicas"))
            }).await;
            answer.expect_err("no replica has the end that it reports");
            replica.process().resume();
            until("the replica has it", async || extend(&store, &key, &me, LONG).await.is_ok()).await;
        }
    }
}
