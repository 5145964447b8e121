//! Several servers: failover, replicas that lag or are gone, slots that move. What is kept, and
//! what is said.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use holdtight_core::{Attempt, Backend, ErrorKind, Extension, Fence, Intent, Release};
use holdtight_redis::RedisStore;
use holdtight_testkit::Flow;
use holdtight_testkit::servers::{Program, Redis, RedisCluster, RedisSentinel, SlotMove};
use support::{
    LONG, admin, attempt, connect, count, extend, extended, granted, key, lookup, proxied, release,
    secret, until,
};

/// Takes `name` as somebody new, however long a failover takes; errors on the way must be honest
/// ones.
async fn taken(store: &Arc<RedisStore>, name: &str) -> (holdtight_core::Secret, Fence) {
    let (key, me) = (key(name), secret());
    let mut fence = None;
    until("the key can be taken", async || match attempt(store, &key, &me, Intent::Try).await {
        Ok(Attempt::Granted(lease)) => {
            fence = Some(lease.fence);
            true
        }
        Ok(_) => false,
        Err(error) => {
            assert!(error.kind().is_transient(), "{error}");
            false
        }
    })
    .await;
    (me, fence.unwrap())
}

fn short(url: &str) -> String {
    format!("{url}?timeout=1s&connect_timeout=3s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_failover_is_followed_after_a_crash() {
    if support::redis_is_missing() {
        return;
    }
    let group = RedisSentinel::start().await;
    let store = connect(&short(&group.url())).await;
    let (_, before) = taken(&store, "k").await;
    group.servers()[0].process().kill();
    let (me, after) = taken(&store, "other").await;
    assert!(after > before, "fences rise across the failover");
    assert_eq!(group.primary_port().await, Some(group.servers()[1].port()));
    assert_eq!(release(&store, &key("other"), &me).await, Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_left_and_not_believed_again() {
    if support::redis_is_missing() {
        return;
    }
    let group = RedisSentinel::start().await;
    let store = connect(&short(&group.url())).await;
    let (_, before) = taken(&store, "k").await;
    group.servers()[0].process().pause();
    let (me, after) = taken(&store, "other").await;
    assert!(after > before);
    // It wakes up and still calls itself primary for a while. We stay where the sentinels sent us.
    group.servers()[0].process().resume();
    let (again, later) = taken(&store, "third").await;
    assert!(later > after);
    assert_eq!(count(&group.servers()[1], "EXISTS holdtight:third").await, 1);
    release(&store, &key("third"), &again).await;
    assert!(matches!(extended(&store, &key("other"), &me, LONG).await, Extension::Extended(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_replica_forgets_locks_and_never_repeats_a_fence() {
    if support::redis_is_missing() {
        return;
    }
    let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]).await;
    let lane = proxied(&primary).await;
    let following = ["--replicaof", "127.0.0.1", &lane.port().to_string()].map(str::to_owned);
    let replica = Redis::start_with(&following.each_ref().map(String::as_str)).await;
    until("the replica is in sync", async || {
        admin(&replica, "INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let door = proxied(&primary).await;
    let store = connect(&short(&format!("redis://{}", door.address()))).await;
    let early = secret();
    granted(&store, &key("early"), &early).await;
    until("the replica has it", async || count(&replica, "EXISTS holdtight:early").await == 1)
        .await;
    // From here on the replica hears nothing.
    lane.replies(Flow::Drop);
    let me = secret();
    let before = granted(&store, &key("k"), &me).await.fence;
    primary.process().kill();
    admin(&replica, "REPLICAOF NO ONE").await;
    door.redirect(SocketAddr::from(([127, 0, 0, 1], replica.port())));
    door.cut();
    let (next, after) = taken(&store, "k").await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(
        extended(&store, &key("k"), &me, LONG).await,
        Extension::NotHeld,
        "its loss is told"
    );
    assert!(matches!(extended(&store, &key("early"), &early, LONG).await, Extension::Extended(_)));
    assert_eq!(release(&store, &key("k"), &next).await, Release::Released);
}

fn cluster_is_missing() -> bool {
    !(Program::REDIS.available() && Program::REDIS_CLI.available())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_loses_a_primary_and_the_rest_goes_on() {
    if cluster_is_missing() {
        return;
    }
    let cluster = RedisCluster::start_quick_to_fail_over().await;
    let store = connect(&short(&cluster.url())).await;
    let mut held = Vec::new();
    for n in 0..30 {
        let (me, fence) = taken(&store, &format!("k{n}")).await;
        held.push((format!("k{n}"), me, fence));
    }
    assert_eq!(Arc::clone(&store).list("k".to_owned(), 100).await.unwrap().len(), 30);
    for node in &cluster.nodes()[..3] {
        until("every replica has what its primary has", async || {
            admin(node, "WAIT 1 1000").await.trim() == ":1"
        })
        .await;
    }
    cluster.nodes()[0].process().kill();
    for (name, me, before) in &held {
        until("every lock can be given back", async || {
            match Arc::clone(&store).release(key(name), me.clone()).await {
                Ok(_) => true,
                Err(error) => {
                    assert!(error.kind().is_transient(), "{error}");
                    false
                }
            }
        })
        .await;
        let (me, after) = taken(&store, name).await;
        assert!(after > *before, "{name}: {after} after {before}");
        assert_eq!(release(&store, &key(name), &me).await, Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_its_locks_and_waiters_along() {
    if cluster_is_missing() {
        return;
    }
    let cluster = RedisCluster::start().await;
    let (store, other) =
        (connect(&short(&cluster.url())).await, connect(&short(&cluster.url())).await);
    let (key, me, waiter) = (key("k"), secret(), secret());
    let lease = granted(&store, &key, &me).await;
    let mut hint = Arc::clone(&other).subscribe(key.clone()).await.unwrap();
    support::busy(&other, &key, &waiter, Intent::Queue).await;

    let moving = SlotMove::of("holdtight:k", &cluster).await;
    moving.begin().await;
    // While it moves everything either works or says "try again".
    let half = extend(&store, &key, &me, LONG).await;
    assert!(half.as_ref().err().is_none_or(|error| error.kind().is_transient()), "{half:?}");
    moving.keys(1).await;
    // All keys are there, but the slot is not yet: answered by a question to the other node.
    let kept = extended(&store, &key, &me, LONG).await;
    assert!(matches!(kept, Extension::Extended(now) if now.fence == lease.fence));
    moving.end().await;
    let kept = extended(&store, &key, &me, LONG).await;
    assert!(matches!(kept, Extension::Extended(now) if now.fence == lease.fence));
    assert!(lookup(&other, &key).await.is_some());
    tokio::time::timeout(support::PATIENCE, hint.heard())
        .await
        .expect("a channel that moved makes waiters recheck");
    assert_eq!(release(&store, &key, &me).await, Release::Released);
    let next = attempt(&other, &key, &waiter, Intent::Queue).await.unwrap();
    assert!(matches!(next, Attempt::Granted(next) if next.fence > lease.fence));
}

/// As docs/stores/redis.md says.
const MINIMAL: &str = "ACL SETUSER ann on >pw resetkeys ~holdtight:* resetchannels &holdtight:* -@all \
    +hello +info +eval +evalsha +time +get +mget +exists +set +del +append +pttl +pexpire +zadd +zrem +zcard +zpopmin +scan \
    +cluster|nodes +asking +ssubscribe +spublish";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_minimal_rights_suffice_on_a_cluster() {
    if cluster_is_missing() {
        return;
    }
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        assert_eq!(admin(node, MINIMAL).await, "+OK\r\n");
    }
    let url = cluster.url().replace("://", "://ann:pw@");
    let (store, other) = (connect(&url).await, connect(&url).await);
    for n in 0..10 {
        let (key, me, waiter) = (key(&format!("k{n}")), secret(), secret());
        granted(&store, &key, &me).await;
        let mut hint = Arc::clone(&other).subscribe(key.clone()).await.unwrap();
        support::busy(&other, &key, &waiter, Intent::Queue).await;
        extended(&store, &key, &me, LONG * 2).await;
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        tokio::time::timeout(support::PATIENCE, hint.heard()).await.unwrap();
        assert!(attempt(&other, &key, &waiter, Intent::Queue).await.is_ok());
    }
    assert_eq!(Arc::clone(&store).list("k".to_owned(), 100).await.unwrap().len(), 10);
    for node in cluster.nodes() {
        assert!(admin(node, "ACL LOG").await.starts_with("*0"), "nothing was refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_node_named_as_a_single_server_says_so() {
    if cluster_is_missing() {
        return;
    }
    let node = Redis::start_with(&["--cluster-enabled", "yes"]).await;
    let error = RedisStore::connect(&node.url()).await.unwrap_err();
    let honest = [ErrorKind::InvalidConfig, ErrorKind::Unavailable];
    assert!(honest.contains(&error.kind()), "{error}");
    let error = RedisStore::connect(&short(&format!("redis+cluster://127.0.0.1:{}", node.port())))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
