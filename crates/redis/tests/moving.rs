//! Slots of a cluster that move while locks in them are held, waited for, and renewed.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdtight_core::{
    Attempt, Backend, Builder, ExtendBy, ExtendRequest, Extension, Intent, Release, RetryPolicy,
};
use holdtight_testkit::servers::{Program, Redis, RedisCluster, SlotMove};
use support::{
    LONG, PATIENCE, admin, attempt, busy, connect, count, extend, granted, key, release, secret,
    until,
};

fn is_there() -> bool {
    Program::REDIS.available() && Program::REDIS_CLI.available()
}

async fn cluster() -> Option<RedisCluster> {
    if is_there() { Some(RedisCluster::start().await) } else { None }
}

/// Whether somebody listens there to what becomes of the locks in `slot`.
async fn is_listened_to(node: &Redis, slot: u16) -> bool {
    let channels = admin(node, "PUBSUB SHARDCHANNELS").await.replace('\u{1}', "\\x01");
    for channel in channels.lines().filter(|line| line.contains("wake")) {
        if count(node, &format!("CLUSTER KEYSLOT \"{channel}\"")).await == i64::from(slot) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_others_are_not_mixed_up_when_a_slot_moves() {
    let Some(cluster) = cluster().await else { return };
    let (store, holder) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let (key, me) = (key("k"), secret());
    granted(&holder, &key, &me).await;
    let _hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
    busy(&store, &key, &secret(), Intent::Queue).await;
    let done = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..90)
        .map(|n| {
            let (store, done) = (Arc::clone(&store), Arc::clone(&done));
            let key = support::key(&format!("other{n}"));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let me = secret();
                    let granted = attempt(&store, &key, &me, Intent::Try).await;
                    let released = Arc::clone(&store).release(key.clone(), me.clone()).await;
                    for error in [granted.err(), released.err()].into_iter().flatten() {
                        assert!(error.kind().is_transient(), "{error}");
                    }
                    // What an unknown outcome may have left.
                    release(&store, &key, &me).await;
                }
            })
        })
        .collect();
    for _ in 0..4 {
        SlotMove::of("holdtight:k", &cluster).await.whole().await;
        // Whoever waits subscribes where the slot is now.
        until("the waiter has asked again", async || {
            attempt(&store, &key, &secret(), Intent::Queue).await.is_ok()
        })
        .await;
    }
    done.store(true, Ordering::Relaxed);
    for one in crowd {
        one.await.unwrap();
    }
    assert!(matches!(extend(&holder, &key, &me, LONG).await, Ok(Extension::Extended(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_again_where_its_lock_went() {
    if !is_there() {
        return;
    }
    // A replica that is told to take over asks for votes again only after several times this patience.
    let cluster = RedisCluster::start_quick_to_fail_over().await;
    let (holder, me) = (connect(&cluster.url()).await, secret());
    granted(&holder, &key("k"), &me).await;
    let lock = Builder::shared(connect(&cluster.url()).await).build().unwrap();
    let seldom = RetryPolicy::fixed(Duration::from_secs(8)).tolerate_outage(LONG);
    let waiter = tokio::spawn({
        let acquire = lock.acquire("k").wait(2 * LONG).retry(seldom);
        async move { acquire.await.map(drop) }
    });
    let moving = SlotMove::of("holdtight:k", &cluster).await;
    until("it listens where the lock is", async || is_listened_to(moving.from, moving.slot).await)
        .await;
    moving.whole().await;
    until("it listens where the lock went", async || is_listened_to(moving.to, moving.slot).await)
        .await;

    let port = moving.to.port().to_string();
    let mut heir = None;
    for node in &cluster.nodes()[3..] {
        if admin(node, "INFO replication").await.contains(&format!("master_port:{port}")) {
            heir = Some(node);
        }
    }
    let heir = heir.expect("every primary has a replica");
    assert!(!is_listened_to(heir, moving.slot).await);
    until("the replica takes over", async || {
        admin(heir, "CLUSTER FAILOVER").await;
        admin(heir, "ROLE").await.contains("master")
    })
    .await;
    until("it listens where the lock is now", async || is_listened_to(heir, moving.slot).await)
        .await;
    release(&holder, &key("k"), &me).await;
    tokio::time::timeout(PATIENCE, waiter).await.expect("woken").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirection_to_a_host_name_is_followed() {
    let Some(cluster) = cluster().await else { return };
    for kind in ["hostname", "unknown-endpoint"] {
        for node in cluster.nodes() {
            admin(node, "CONFIG SET cluster-announce-hostname localhost").await;
            admin(node, &format!("CONFIG SET cluster-preferred-endpoint-type {kind}")).await;
        }
        for node in cluster.nodes() {
            until("everybody knows the names", async || {
                let nodes = admin(node, "CLUSTER NODES").await;
                nodes.matches(",localhost").count() == cluster.nodes().len()
            })
            .await;
        }
        let store = connect(&cluster.url()).await;
        let (key, me) = (key(kind), secret());
        let lease = granted(&store, &key, &me).await;
        let moving = SlotMove::of(&format!("holdtight:{kind}"), &cluster).await;
        moving.begin().await;
        moving.key(&format!("holdtight:{kind}")).await;
        let kept = extend(&store, &key, &me, LONG).await;
        assert!(
            matches!(&kept, Ok(Extension::Extended(now)) if now.fence == lease.fence),
            "{kind}: {kept:?}"
        );
        moving.keys(1).await;
        moving.end().await;
        release(&store, &key, &me).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_slot_is_half_moved_spoils_no_other() {
    let Some(cluster) = cluster().await else { return };
    let store = connect(&cluster.url()).await;
    let (gone, stays, me) = (key("{x}gone"), key("{x}stays"), secret());
    for key in [&gone, &stays] {
        granted(&store, key, &me).await;
    }
    let moving = SlotMove::of("holdtight:{x}gone", &cluster).await;
    moving.begin().await;
    moving.key("holdtight:{x}gone").await;
    let batch = [&gone, &stays]
        .map(|key| ExtendRequest::new(key.clone(), me.clone(), ExtendBy::AtLeast(LONG)));
    let answers = Arc::clone(&store).extend(batch.to_vec()).await.unwrap();
    for answer in answers {
        assert!(matches!(answer, Ok(Extension::Extended(_))), "{answer:?}");
    }
    moving.keys(1).await;
    moving.end().await;
    for key in [&gone, &stays] {
        let next = attempt(&store, key, &secret(), Intent::Try).await.unwrap();
        assert!(matches!(next, Attempt::Busy(_)));
        release(&store, key, &me).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_given_back_though_its_waiters_have_not_moved_yet() {
    let Some(cluster) = cluster().await else { return };
    for prefix in ["holdtight:", "{t}"] {
        let store = connect(&format!("{}?prefix={prefix}", cluster.url())).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        busy(&store, &key, &secret(), Intent::Queue).await;
        let moving = SlotMove::of(&format!("{prefix}k"), &cluster).await;
        moving.begin().await;
        moving.key(&format!("{prefix}k")).await;
        let given = Arc::clone(&store).release(key.clone(), me.clone()).await;
        assert!(matches!(given, Ok(Release::Released)), "{given:?}");
        let again = Arc::clone(&store).release(key.clone(), me.clone()).await;
        assert!(matches!(again, Ok(Release::NotHeld)), "{again:?}");
        moving.keys(1).await;
        moving.end().await;
    }
}
