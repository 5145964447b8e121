//! The native layout on one server: what stands in Redis, whom it respects, and what its fences
//! survive.

mod support;

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Backend, ErrorKind, Fence, Intent, ManyAttempt, Owner, Release, Transfer,
    TransferRequest,
};
use holdtight_testkit::servers::{Program, Redis, RedisCluster};
use support::{
    LONG, admin, attempt, busy, connect, count, extend, granted, granted_for, key, lookup, release,
    secret,
};

const COUNTER: &str = "\"holdtight:\\x01fence\"";

on_redis! {
    async fn the_lock_is_a_plain_string_under_prefix_and_key(server: &Redis) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("user:123"), secret());
        let lease = granted(&store, &key, &me).await;
        let value = admin(server, "GET holdtight:user:123").await;
        assert!(value.contains(&format!("ht1 {} {} ", me.expose(), lease.fence)), "{value}");
        assert!(count(server, "PTTL holdtight:user:123").await <= 60_000);
        // Somebody who locks with SET NX is kept out, and so are we by him.
        assert_eq!(admin(server, "SET holdtight:user:123 x NX PX 1000").await, "$-1\r\n");
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        assert_eq!(admin(server, "SET holdtight:user:123 x NX PX 60000").await, "+OK\r\n");
        let shown = busy(&store, &key, &me, Intent::Queue).await.holder.unwrap();
        assert!(shown.fence.is_none() && shown.remaining.unwrap() <= LONG);
        assert_eq!(admin(server, "GET holdtight:user:123").await, "$1\r\nx\r\n", "never overwritten");
    }
}

on_redis! {
    async fn a_foreign_value_of_any_type_is_somebody_elses_lock(server: &Redis) {
        let store = connect(&server.url()).await;
        for (n, command) in [
            "SET holdtight:f0 whatever",
            "HSET holdtight:f1 a b",
            "RPUSH holdtight:f2 a",
            "SADD holdtight:f3 a",
            "SET holdtight:f4 \"ht1 broken\"",
            "SET holdtight:f5 \"ht1 a b c d\"",
            "SETBIT holdtight:f6 7 1",
        ].into_iter().enumerate() {
            admin(server, command).await;
            let (key, me) = (key(&format!("f{n}")), secret());
            let shown = busy(&store, &key, &me, Intent::Queue).await.holder.unwrap();
            assert!(shown.fence.is_none() && shown.remaining.is_none(), "{command}: {shown:?}");
            assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
            assert_eq!(extend(&store, &key, &me, LONG).await.unwrap(), holdtight_core::Extension::NotHeld);
            assert!(lookup(&store, &key).await.is_some());
            let forced = Arc::clone(&store).force_release(key.clone(), Fence::new(0)).await.unwrap();
            assert_eq!(forced, Release::NotHeld);
            let many = vec![AcquireRequest::new(key.clone(), me, LONG)];
            let many = Arc::clone(&store).acquire_many(many).await.unwrap();
            assert!(matches!(many, ManyAttempt::Busy(..)));
            assert_eq!(count(server, &format!("EXISTS holdtight:f{n}")).await, 1, "{command}");
        }
        assert_eq!(Arc::clone(&store).list("f".to_owned(), 100).await.unwrap().len(), 7);
    }
}

on_redis! {
    async fn nothing_stays_behind_but_one_counter(server: &Redis) {
        let store = connect(&server.url()).await;
        for n in 0..200 {
            let (key, me, other) = (key(&format!("k{n}")), secret(), secret());
            granted(&store, &key, &me).await;
            busy(&store, &key, &other, Intent::Queue).await;
            assert_eq!(release(&store, &key, &other).await, Release::NotHeld, "withdraws the waiter");
            assert_eq!(release(&store, &key, &me).await, Release::Released);
        }
        assert_eq!(count(server, "DBSIZE").await, 1);
        assert_eq!(count(server, &format!("EXISTS {COUNTER}")).await, 1);
        // A waiter that is never heard of again goes with its list.
        granted(&store, &key("left"), &secret()).await;
        busy(&store, &key("left"), &secret(), Intent::Queue).await;
        let left = count(server, "PTTL \"holdtight:\\x01wait:left\"").await;
        assert!((1..=30_000).contains(&left), "{left}");
    }
}

on_redis! {
    async fn who_holds_it_since_when_and_why_is_told(server: &Redis) {
        let store = connect(&server.url()).await;
        let owner = Owner::current().with_reason("nightly backup — «é»");
        let request = AcquireRequest::new(key("k"), secret(), LONG).owner(Arc::new(owner.clone()));
        Arc::clone(&store).acquire(request).await.unwrap();
        for _ in 0..2 {
            let shown = busy(&store, &key("k"), &secret(), Intent::Queue).await.holder.unwrap();
            assert_eq!(shown.owner, owner);
            assert!(shown.age.unwrap() < LONG && shown.remaining.unwrap() <= LONG);
        }
        assert_eq!(lookup(&store, &key("k")).await.unwrap().owner, owner, "also with somebody waiting");
    }
}

on_redis! {
    async fn fences_rise_through_flush_clock_steps_and_a_fast_counter(server: &Redis) {
        let store = connect(&server.url()).await;
        let mut last = Fence::new(0);
        let mut next = async || {
            let me = secret();
            let fence = granted(&store, &key("k"), &me).await.fence;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            release(&store, &key("k"), &me).await;
            fence
        };
        next().await;
        admin(server, "FLUSHALL").await;
        next().await;
        // A counter that somebody set back, or that was kept by a plain INCR: the clock goes on.
        admin(server, &format!("SET {COUNTER} 5")).await;
        next().await;
        admin(server, &format!("SET {COUNTER} 5")).await;
        let before = next().await;
        // The counter is ahead of the clock: as after a step back of an hour.
        let ahead = before.get() + 3_600_000_000;
        admin(server, &format!("SET {COUNTER} {ahead}")).await;
        assert_eq!(next().await, Fence::new(ahead + 1));
        assert_eq!(next().await, Fence::new(ahead + 2));
        busy_attempts_do_not_lower(server, &store).await;
    }
}

on_redis! {
    async fn a_hand_over_mints_by_the_clock_if_the_counter_was_set_back(server: &Redis) {
        let store = connect(&server.url()).await;
        let me = secret();
        let lease = granted(&store, &key("k"), &me).await;
        admin(server, &format!("SET {COUNTER} 5")).await;
        let to = AcquireRequest::new(key("k"), secret(), LONG);
        let handed = Arc::clone(&store).transfer(TransferRequest::new(me, to)).await.unwrap();
        let Transfer::Transferred(handed) = handed else { panic!("{handed:?}") };
        assert!(handed.fence > lease.fence, "{} after {}", handed.fence, lease.fence);
    }
}

async fn busy_attempts_do_not_lower(server: &Redis, store: &Arc<holdtight_redis::RedisStore>) {
    let counter = || async { admin(server, &format!("GET {COUNTER}")).await };
    granted(store, &key("held"), &secret()).await;
    let before = counter().await;
    busy(store, &key("held"), &secret(), Intent::Try).await;
    assert!(counter().await >= before);
}

on_redis! {
    async fn without_a_fence_below_two_to_the_53_nothing_is_granted_and_nothing_written(server: &Redis) {
        let store = connect(&server.url()).await;
        let me = secret();
        for counter in ["9007199254740990", "9007199254740991", "9007199254740993", "99999999999999999999", "nonsense", "-5", "1.5"] {
            admin(server, &format!("SET {COUNTER} {counter}")).await;
            let error = attempt(&store, &key("k"), &me, Intent::Queue).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{counter}: {error}");
            assert!(error.to_string().contains("fence"), "{error}");
            let many = vec![AcquireRequest::new(key("k"), me.clone(), LONG), AcquireRequest::new(key("l"), me.clone(), LONG)];
            assert!(Arc::clone(&store).acquire_many(many).await.is_err());
            let kept = admin(server, &format!("GET {COUNTER}")).await;
            assert!(kept.contains(counter), "{counter} became {kept}");
            assert_eq!(count(server, "DBSIZE").await, 1);
        }
        admin(server, &format!("SET {COUNTER} 9007199254740988")).await;
        assert_eq!(granted(&store, &key("k"), &me).await.fence, Fence::new(9_007_199_254_740_989));
        // The last number: a hand-over is refused, and the lock stays with its holder.
        admin(server, &format!("SET {COUNTER} 9007199254740990")).await;
        let to = AcquireRequest::new(key("k"), secret(), LONG);
        assert!(Arc::clone(&store).transfer(TransferRequest::new(me.clone(), to)).await.is_err());
        assert_eq!(release(&store, &key("k"), &me).await, Release::Released);
    }
}

on_redis! {
    async fn a_waiting_mark_survives_extension_and_handing_over(server: &Redis) {
        let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
        let (key, first, second, waiter) = (key("k"), secret(), secret(), secret());
        let lease = granted(&store, &key, &first).await;
        let mut hint = Arc::clone(&other).subscribe(key.clone()).await.unwrap();
        busy(&other, &key, &waiter, Intent::Queue).await;
        let extended = extend(&store, &key, &first, LONG * 2).await.unwrap();
        assert!(matches!(extended, holdtight_core::Extension::Extended(now) if now.fence == lease.fence));
        let to = AcquireRequest::new(key.clone(), second.clone(), LONG);
        let handed = Arc::clone(&store).transfer(TransferRequest::new(first, to)).await.unwrap();
        let Transfer::Transferred(handed) = handed else { panic!("{handed:?}") };
        assert!(handed.fence > lease.fence && handed.contended == Some(true));
        assert_eq!(release(&store, &key, &second).await, Release::Released);
        tokio::time::timeout(support::PATIENCE, hint.heard()).await.unwrap();
        let lease = attempt(&other, &key, &waiter, Intent::Queue).await.unwrap();
        assert!(matches!(lease, holdtight_core::Attempt::Granted(lease) if lease.contended == Some(false)));
    }
}

on_redis! {
    async fn listing_finds_locks_and_no_side_keys_whatever_characters_they_have(server: &Redis) {
        let store = connect(&server.url()).await;
        let strange = ["a*b", "a?b", "a[b]", "a\\b", "a^b-c", "a{b}", "a b", "a🔒"];
        for name in strange {
            granted(&store, &key(name), &secret()).await;
        }
        for n in 0..600 {
            granted(&store, &key(&format!("n{n}")), &secret()).await;
        }
        busy(&store, &key("n1"), &secret(), Intent::Queue).await;
        let list = |beginning: &str, limit| Arc::clone(&store).list(beginning.to_owned(), limit);
        for name in strange {
            let found = list(name, 10).await.unwrap();
            assert_eq!(found.iter().map(|holder| holder.key.as_str()).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(list("n", 10_000).await.unwrap().len(), 600);
        assert_eq!(list("n", 50).await.unwrap().len(), 50);
        assert_eq!(list("", 10_000).await.unwrap().len(), 608);
        assert!(list("", 0).await.unwrap().is_empty());
    }
}

on_redis! {
    async fn two_requests_and_five_calls_make_an_uncontended_cycle_and_six_for_one_who_would_wait(server: &Redis) {
        let store = connect(&server.url()).await;
        let calls = async || {
            let stats = admin(server, "INFO commandstats").await;
            let of = |name: &str| -> u64 {
                let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
                line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
            };
            let inside = ["time", "set", "get", "del", "pttl", "pexpire", "zadd", "zrem", "zcard", "zpopmin", "publish", "append"];
            (of("evalsha"), of("eval"), inside.iter().map(|name| of(name)).sum::<u64>())
        };
        for (intent, each) in [(Intent::Try, 5), (Intent::Queue, 6)] {
            let (shas, whole, before) = calls().await;
            for n in 0..100 {
                let (key, me) = (key(&format!("k{n}")), secret());
                let request = AcquireRequest::new(key.clone(), me.clone(), LONG).intent(intent);
                let _hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
                Arc::clone(&store).acquire(request).await.unwrap();
                release(&store, &key, &me).await;
            }
            assert_eq!(calls().await, (shas + 200, whole, before + 100 * each));
        }
    }
}

on_redis! {
    async fn many_keys_are_taken_together_or_not_at_all(server: &Redis) {
        for layout in ["native", "token"] {
            admin(server, "FLUSHALL").await;
            let store = connect(&format!("{}?layout={layout}", server.url())).await;
            assert!(store.capabilities().acquire_many);
            many_keys(&store).await;
        }
        // A counter for each lock: syncguard's format has no number that several could share.
        let store = connect(&format!("{}?layout=syncguard", server.url())).await;
        assert!(!store.capabilities().acquire_many);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_a_hash_tag_in_the_prefix_keeps_many_keys_together() {
    if !(Program::REDIS.available() && Program::REDIS_CLI.available()) {
        return;
    }
    let cluster = RedisCluster::start().await;
    let apart = connect(&cluster.url()).await;
    assert!(!apart.capabilities().acquire_many, "keys of several servers are no one step");
    for layout in ["native", "token"] {
        let store =
            connect(&format!("{}?prefix={{{layout}}}&layout={layout}", cluster.url())).await;
        assert!(store.capabilities().acquire_many);
        many_keys(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_programs_that_come_and_go_leave_no_keys_behind() {
    if !(Program::REDIS.available() && Program::REDIS_CLI.available()) {
        return;
    }
    let cluster = RedisCluster::start().await;
    for layout in ["native", "token", "syncguard"] {
        let url = format!("{}?prefix={layout}&layout={layout}", cluster.url());
        let url = url.replace("prefix=syncguard", "prefix={syncguard}");
        let mut first = None;
        for _ in 0..6 {
            drop(connect(&url).await);
            let mut keys = 0;
            for node in cluster.nodes() {
                keys += count(node, "DBSIZE").await;
            }
            assert_eq!(*first.get_or_insert(keys), keys, "{layout}: each leaves some");
        }
    }
}

async fn many_keys(store: &Arc<holdtight_redis::RedisStore>) {
    let me = secret();
    let all = |names: &[&str]| -> Vec<AcquireRequest> {
        names.iter().map(|name| AcquireRequest::new(key(name), me.clone(), LONG)).collect()
    };
    let ManyAttempt::Granted(first) =
        Arc::clone(store).acquire_many(all(&["a", "b"])).await.unwrap()
    else {
        panic!()
    };
    let ManyAttempt::Granted(again) =
        Arc::clone(store).acquire_many(all(&["b", "c"])).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(again[0].fence, first[1].fence, "what is ours keeps its fence");
    assert!(again[1].fence > first[1].fence && first[1].fence > first[0].fence);
    let (other, stranger) = (secret(), key("d"));
    let requests = vec![
        AcquireRequest::new(stranger.clone(), other.clone(), LONG),
        AcquireRequest::new(key("c"), other, LONG),
    ];
    let refused = Arc::clone(store).acquire_many(requests).await.unwrap();
    assert!(matches!(refused, ManyAttempt::Busy(busy, _) if busy == key("c")));
    assert!(lookup(store, &stranger).await.is_none());
    assert!(Arc::clone(store).acquire_many(all(&["x", "x"])).await.is_err());
    // What is ours already and what is free, in one step.
    let mixed = Arc::clone(store).acquire_many(all(&["e", "a"])).await.unwrap();
    assert!(matches!(mixed, ManyAttempt::Granted(_)));
    for name in ["a", "b", "c", "e"] {
        assert_eq!(release(store, &key(name), &me).await, Release::Released, "{name}");
    }
}

on_redis! {
    async fn a_script_that_the_server_forgot_is_sent_again(server: &Redis) {
        let store = connect(&server.url()).await;
        for _ in 0..3 {
            admin(server, "SCRIPT FLUSH").await;
            let me = secret();
            granted(&store, &key("k"), &me).await;
            admin(server, "SCRIPT FLUSH").await;
            extend(&store, &key("k"), &me, LONG).await.unwrap();
            admin(server, "SCRIPT FLUSH").await;
            assert_eq!(release(&store, &key("k"), &me).await, Release::Released);
        }
    }
}

on_redis! {
    async fn a_lease_that_ended_is_not_revived(server: &Redis) {
        let store = connect(&server.url()).await;
        let (key, me) = (key("k"), secret());
        granted_for(&store, &key, &me, Duration::from_millis(50)).await;
        support::until("the lease ends", async || lookup(&store, &key).await.is_none()).await;
        assert_eq!(extend(&store, &key, &me, LONG).await.unwrap(), holdtight_core::Extension::NotHeld);
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
        assert_eq!(count(server, "EXISTS holdtight:k").await, 0);
    }
}
