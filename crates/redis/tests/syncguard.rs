//! The layout of syncguard, without Node: what its fences survive, and what is shown of its locks.

mod support;

use std::sync::Arc;
use std::time::Instant;

use holdtight_core::{
    AcquireRequest, Backend as _, ErrorKind, Fence, Intent, Release, Transfer, TransferRequest,
};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use support::{LONG, PATIENCE, admin, connect, count, granted, key, lookup, release, secret};

const COUNTER: &str = "syncguard:fence:syncguard:k";

async fn store(server: &Redis) -> Arc<RedisStore> {
    connect(&format!("{}?layout=syncguard", server.url())).await
}

/// Waits until the server's clock is past this fence, as it is after any fail-over.
async fn passed(server: &Redis, fence: Fence) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let time = admin(server, "TIME").await;
        let words =
            time.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        let [seconds, micros] =
            words.map(|word| word.trim().parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("{time:?}")
        };
        if seconds * 10_000 + micros / 100 > fence.get() {
            return;
        }
        assert!(Instant::now() < deadline, "{time:?} is still before {fence}");
    }
}

on_redis! {
    async fn fences_rise_though_the_counter_is_lost_or_an_old_copy(server: &Redis) {
        let store = store(server).await;
        let mut last = Fence::new(0);
        // As after a fail-over to a stale replica, or after data loss when Node was there first.
        for harm in [String::new(), format!("SET {COUNTER} 2"), "FLUSHALL".to_owned()] {
            if !harm.is_empty() {
                admin(server, &harm).await;
            }
            let (me, next) = (secret(), secret());
            let fence = granted(&store, &key("k"), &me).await.fence;
            assert!(fence > last, "{fence} after {last}, {harm}");
            passed(server, fence).await;
            if harm.starts_with("SET") {
                admin(server, &harm).await;
            }
            let to = AcquireRequest::new(key("k"), next.clone(), LONG);
            let handed = Arc::clone(&store).transfer(TransferRequest::new(me, to)).await.unwrap();
            let Transfer::Transferred(handed) = handed else { panic!("{handed:?}") };
            assert!(handed.fence > fence, "{} after {fence}, {harm}", handed.fence);
            last = handed.fence;
            passed(server, last).await;
            release(&store, &key("k"), &next).await;
        }
        // A counter that is ahead is counted on, as Node does.
        admin(server, &format!("SET {COUNTER} 500000000000000")).await;
        assert_eq!(granted(&store, &key("k"), &secret()).await.fence, Fence::new(500_000_000_000_001));
    }
}

on_redis! {
    async fn the_end_is_shown_as_the_holder_knows_it(server: &Redis) {
        let store = store(server).await;
        granted(&store, &key("k"), &secret()).await;
        let shown = lookup(&store, &key("k")).await.unwrap().remaining.unwrap();
        assert!(shown <= LONG, "{shown:?} includes the second for which others wait longer");
        assert!(shown > LONG / 2, "{shown:?}");
        // Nonsense in one lock is no trouble for those that are listed with it.
        let odd = "{\\\"key\\\":\\\"x\\\",\\\"lockId\\\":\\\"abcdefghijklmnopqrstuv\\\",\\\"fence\\\":\\\"000000000000001\\\",\\\"acquiredAtMs\\\":1,\\\"expiresAtMs\\\":1e300}";
        admin(server, &format!("SET syncguard:x \"{odd}\"")).await;
        assert_eq!(Arc::clone(&store).list(String::new(), 10).await.unwrap().len(), 2);
    }
}

on_redis! {
    async fn the_longest_prefix_of_node_is_taken_and_names_become_hashes(server: &Redis) {
        let url = |length| format!("{}?layout=syncguard&prefix={}", server.url(), "p".repeat(length));
        let error = RedisStore::connect(&url(952)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let store = connect(&url(951)).await;
        let (me, name) = (secret(), key("a name that does not fit any more"));
        granted(&store, &name, &me).await;
        assert_eq!(lookup(&store, &name).await.unwrap().key, name);
        let before = count(server, "DBSIZE").await;
        assert_eq!(release(&store, &name, &me).await, Release::Released);
        assert_eq!(count(server, "DBSIZE").await, before - 2, "lock and index go, the counter stays");
    }
}

on_redis! {
    async fn a_held_lock_is_renewed_though_memory_is_full(server: &Redis) {
        let store = store(server).await;
        let (key, me) = (key("k"), secret());
        let lease = granted(&store, &key, &me).await;
        admin(server, "CONFIG SET maxmemory 1").await;
        let kept = support::extend(&store, &key, &me, 2 * LONG).await.unwrap();
        let holdtight_core::Extension::Extended(kept) = kept else { panic!("{kept:?}") };
        assert!(kept.fence == lease.fence && kept.ttl > LONG);
        let refused = support::attempt(&store, &support::key("l"), &me, Intent::Try).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::RateLimited, "{refused}");
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}
