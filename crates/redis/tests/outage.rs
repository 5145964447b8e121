//! Outages as waiting processes live through them: how hard they knock, and whether they hear again
//! afterwards.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Backend, Builder, Intent, Subscription};
use holdtight_testkit::servers::Redis;
use support::{PATIENCE, admin, busy, connect, granted, info, key, release, secret, until};

async fn hears(hint: &mut Subscription) -> bool {
    tokio::time::timeout(PATIENCE, hint.heard()).await.is_ok()
}

/// How many connections the server gets from five waiters of one process until they give up, three
/// seconds later.
async fn knocks(server: &Redis, trouble: &[&str]) -> u64 {
    let (holder, me) = (connect(&server.url()).await, secret());
    let lock = Builder::shared(connect(&server.url()).await).build().unwrap();
    let mut waiters = Vec::new();
    for n in 0..5 {
        let name = format!("k{n}");
        granted(&holder, &key(&name), &me).await;
        let acquire = lock.acquire(&name).wait(Duration::from_secs(3));
        waiters.push(tokio::spawn(async move { acquire.await.map(drop) }));
        until("it waits", async || {
            support::count(server, &format!("EXISTS \"holdtight:\\x01wait:{name}\"")).await == 1
        })
        .await;
    }
    let before = info(server, "total_connections_received").await;
    for line in trouble {
        admin(server, line).await;
    }
    for waiter in waiters {
        waiter.await.unwrap().expect_err("nobody gets a lock there");
    }
    // Those of an administrator count as well.
    info(server, "total_connections_received").await - before - 1 - trouble.len() as u64
}

on_redis! {
    async fn waiters_do_not_storm_a_server_that_became_a_replica(server: &Redis) {
        let knocks = knocks(server, &["REPLICAOF 127.0.0.1 1"]).await;
        assert!(knocks < 40, "{knocks} connections in three seconds");
    }
}

on_redis! {
    async fn waiters_do_not_storm_a_replica_that_has_lost_its_primary(server: &Redis) {
        let trouble = ["CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"];
        let knocks = knocks(server, &trouble).await;
        assert!(knocks < 40, "{knocks} connections in three seconds");
    }
}

on_redis! {
    async fn waiters_who_may_not_ask_for_the_role_do_not_storm_a_replica_either(server: &Redis) {
        admin(server, "ACL SETUSER default -info").await;
        let store = connect(&server.url()).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        let lock = Builder::shared(connect(&server.url()).await).build().unwrap();
        let waiter = tokio::spawn({
            let acquire = lock.acquire("k").wait(Duration::from_secs(3));
            async move { acquire.await.map(drop) }
        });
        until("it waits", async || {
            support::count(server, "EXISTS \"holdtight:\\x01wait:k\"").await == 1
        }).await;
        admin(server, "CONFIG RESETSTAT").await;
        admin(server, "REPLICAOF 127.0.0.1 1").await;
        waiter.await.unwrap().expect_err("nobody gets a lock there");
        admin(server, "ACL SETUSER default +info").await;
        let knocks = info(server, "total_connections_received").await;
        assert!(knocks < 40, "{knocks} connections in three seconds");
    }
}

on_redis! {
    async fn waiters_do_not_storm_a_server_whose_password_changed(server: &Redis) {
        let (holder, me) = (connect(&server.url()).await, secret());
        granted(&holder, &key("k"), &me).await;
        let lock = Builder::shared(connect(&server.url()).await).build().unwrap();
        let waiter = tokio::spawn({
            let acquire = lock.acquire("k").wait(Duration::from_secs(3));
            async move { acquire.await.map(drop) }
        });
        until("it waits", async || {
            support::count(server, "EXISTS \"holdtight:\\x01wait:k\"").await == 1
        }).await;
        admin(server, "ACL SETUSER boss on >pw ~* &* +@all").await;
        admin(server, "CONFIG RESETSTAT").await;
        admin(server, "CONFIG SET requirepass sesame").await;
        let mut boss = redis::Client::open(format!("redis://boss:pw@127.0.0.1:{}", server.port()))
            .unwrap().get_connection().unwrap();
        let _: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut boss).unwrap();
        let _ = waiter.await.unwrap().expect_err("the password is missing");
        let stats: String = redis::cmd("INFO").arg("stats").query(&mut boss).unwrap();
        let knocks = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        let knocks: u64 = knocks.unwrap().trim().parse().unwrap();
        assert!(knocks < 40, "{knocks} connections in three seconds");
    }
}

on_redis! {
    async fn a_waiter_hears_again_after_the_listening_connection_broke(server: &Redis) {
        let port = server.port().to_string();
        admin(server, "CONFIG SET repl-diskless-sync-delay 0").await;
        let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        until("the replica acknowledges writes", async || {
            admin(server, "WAIT 1 1000").await.trim() == ":1"
        }).await;
        for options in ["", "?wait_replicas=1"] {
            let (holder, me) = (connect(&format!("{}?pubsub=off", server.url())).await, secret());
            let store = connect(&format!("{}{options}", server.url())).await;
            let key = key(&format!("k{options}"));
            granted(&holder, &key, &me).await;
            let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
            busy(&store, &key, &secret(), Intent::Queue).await;
            admin(server, "CLIENT KILL TYPE pubsub").await;
            assert!(hears(&mut hint).await, "{options}: a message may have been lost");
            // Nobody asks: the connection is opened again because somebody listens.
            until("it listens again", async || info(server, "pubsub_channels").await == 1).await;
            release(&holder, &key, &me).await;
            assert!(hears(&mut hint).await, "{options}: deaf");
            drop(hint);

            // The same while nobody waits: the next who does finds a connection that listens.
            admin(server, "CLIENT KILL TYPE pubsub").await;
            until("it is noticed", async || info(server, "pubsub_channels").await == 0).await;
            granted(&holder, &key, &me).await;
            let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
            busy(&store, &key, &secret(), Intent::Queue).await;
            until("it listens again", async || info(server, "pubsub_channels").await == 1).await;
            assert!(hears(&mut hint).await, "{options}: a message may have been lost meanwhile");
            busy(&store, &key, &secret(), Intent::Queue).await;
            release(&holder, &key, &me).await;
            assert!(hears(&mut hint).await, "{options}: deaf");
        }
    }
}
