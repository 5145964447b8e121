//! The layout of syncguard, without Node: what its fences survive, and what is shown of its locks.

mod support;

use std::sync::Arc;
use std::time::Instant;

use holdtight_core::{
    AcquireRequest, Backend as _, ErrorKind, Extension, Fence, Intent, Key, Release, Secret,
    Transfer, TransferRequest,
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
        let Extension::Extended(kept) = kept else { panic!("{kept:?}") };
        assert!(kept.fence == lease.fence && kept.ttl > LONG);
        let refused = support::attempt(&store, &support::key("l"), &me, Intent::Try).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::RateLimited, "{refused}");
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_redis! {
    async fn keys_that_begin_like_an_index_or_a_counter_are_locks_like_others(server: &Redis) {
        let store = store(server).await;
        let mut held = Vec::new();
        for name in ["id:", "id:42", "id:a-name-of-22-characters", "fence:", "fence:north", "fence:syncguard"] {
            let (key, me, next) = (key(name), secret(), secret());
            let lease = granted(&store, &key, &me).await;
            support::busy(&store, &key, &secret(), Intent::Queue).await;
            assert_eq!(lookup(&store, &key).await.unwrap().fence, Some(lease.fence), "{name}");
            let to = AcquireRequest::new(key.clone(), next.clone(), LONG);
            let handed = Arc::clone(&store).transfer(TransferRequest::new(me, to)).await.unwrap();
            assert!(matches!(handed, Transfer::Transferred(_)), "{name}: {handed:?}");
            still_held(&store, &key, &next).await;
            assert_eq!(release(&store, &key, &next).await, Release::Released, "{name}");
            granted(&store, &key, &next).await;
            held.push(key);
        }
        // Their own counters and indexes are not taken for locks.
        let mut listed: Vec<_> = names(&store, "").await;
        listed.sort();
        held.sort();
        assert_eq!(listed, held);
        assert_eq!(names(&store, "id:4").await, [key("id:42")]);
    }
}

async fn names(store: &Arc<RedisStore>, beginning: &str) -> Vec<Key> {
    let found = Arc::clone(store).list(beginning.to_owned(), 100).await.unwrap();
    found.into_iter().map(|holder| holder.key).collect()
}

async fn still_held(store: &Arc<RedisStore>, key: &Key, secret: &Secret) {
    let kept = support::extended(store, key, secret, 2 * LONG).await;
    assert!(matches!(kept, Extension::Extended(_)), "{key}: {kept:?}");
}

async fn refused(store: &Arc<RedisStore>, name: &Key, secret: &Secret) {
    let error = support::attempt(store, name, secret, Intent::Queue).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey, "{name}: {error}");
    assert!(error.to_string().contains("choose another key"), "{error}");
}

on_redis! {
    async fn a_key_that_meets_a_counter_is_refused_and_so_is_a_lock_whose_counter_is_a_lock(server: &Redis) {
        let store = store(server).await;
        let (k, counter, me, other) = (key("k"), key("fence:syncguard:k"), secret(), secret());
        // First a lock, then a counter.
        granted(&store, &counter, &other).await;
        refused(&store, &k, &me).await;
        still_held(&store, &counter, &other).await;
        assert_eq!(release(&store, &counter, &other).await, Release::Released);
        // First a counter, then a lock.
        let fence = granted(&store, &k, &me).await.fence;
        refused(&store, &counter, &other).await;
        assert_eq!(count(server, &format!("INCRBY {COUNTER} 0")).await, i64::try_from(fence.get()).unwrap());
        assert_eq!(release(&store, &k, &me).await, Release::Released);
        assert!(granted(&store, &k, &me).await.fence > fence);
        assert_eq!(names(&store, "").await, [k]);
    }
}

on_redis! {
    async fn a_key_that_meets_an_index_is_busy_and_no_index_overwrites_a_lock(server: &Redis) {
        let store = store(server).await;
        let (k, me, other) = (key("k"), secret(), secret());
        let index = key(&format!("id:{}", me.expose()));
        // First an index, then a lock.
        granted(&store, &k, &me).await;
        support::busy(&store, &index, &other, Intent::Try).await;
        assert_eq!(release(&store, &k, &me).await, Release::Released);
        // First a lock, then an index: that of another lock, its own, and that of a lock which
        // changes hands.
        granted(&store, &index, &other).await;
        refused(&store, &k, &me).await;
        let first = secret();
        granted(&store, &k, &first).await;
        let to = AcquireRequest::new(k.clone(), me.clone(), LONG);
        let to = TransferRequest::new(first.clone(), to);
        let error = Arc::clone(&store).transfer(to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{error}");
        still_held(&store, &k, &first).await;
        still_held(&store, &index, &other).await;
        assert_eq!(release(&store, &index, &other).await, Release::Released);
        refused(&store, &index, &me).await;
        // An index that was lost, and a lock in its place: neither renewal nor release of the first
        // touches it.
        let lost = key(&format!("id:{}", first.expose()));
        admin(server, &format!("DEL syncguard:{lost}")).await;
        granted(&store, &lost, &other).await;
        still_held(&store, &k, &first).await;
        still_held(&store, &lost, &other).await;
        assert_eq!(release(&store, &k, &first).await, Release::Released);
        still_held(&store, &lost, &other).await;
    }
}
