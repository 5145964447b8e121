//! Values of the user's own, written under a fence: late writers are refused, whatever store their
//! fence is from.

#[path = "../examples/fenced_value.rs"]
#[allow(dead_code, unreachable_pub, reason = "its main is not ours")]
mod example;
mod support;

use holdtight_core::{ErrorKind, Fence};
use holdtight_testkit::servers::{Program, Redis, RedisCluster};
use support::{admin, connect, count};

on_redis! {
    async fn the_late_write_of_a_paused_holder_is_refused(server: &Redis) {
        let refusal = example::late_write(&server.url()).await.unwrap();
        assert!(refusal.to_string().contains("balance:7"), "{refusal}");
        assert_eq!(admin(server, "GET balance:7").await, "$2\r\n70\r\n");
    }
}

#[test]
fn the_documentation_shows_what_was_run() {
    let between = |text: &str, from: &str, to: &str| -> Vec<String> {
        let begin = text.find(from).unwrap_or_else(|| panic!("no {from:?}")) + from.len();
        let end = text[begin..].find(to).unwrap_or_else(|| panic!("no {to:?}")) + begin;
        text[begin..end]
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|l| !l.is_empty())
            .collect()
    };
    let page = include_str!("../../../docs/stores/redis.md");
    let example = include_str!("../examples/fenced_value.rs");
    assert_eq!(
        between(page, "<!-- fenced_value -->\n```text\n", "```"),
        between(example, "// [shown in the documentation]", "// [end]")
    );
}

on_redis! {
    async fn fences_only_rise_and_the_same_one_may_write_again(server: &Redis) {
        let store = connect(&server.url()).await;
        // Beyond 2^53 Lua's numbers are not exact; other stores mint such fences.
        let fences = [0, 9, 10, 99, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX];
        for (n, fence) in fences.into_iter().enumerate() {
            for again in 0..2 {
                let value = format!("{n}.{again}");
                store.fenced_set("v", &value, Fence::new(fence)).await.unwrap();
                assert!(admin(server, "GET v").await.contains(&value));
            }
            for earlier in &fences[..n] {
                let refused = store.fenced_set("v", "late", Fence::new(*earlier)).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::NotHeld, "{earlier} after {fence}");
                assert!(refused.to_string().contains(&fence.to_string()), "{refused}");
            }
            assert!(!admin(server, "GET v").await.contains("late"));
        }
        store.fenced_set("other", b"\0\xff\r\n", Fence::new(1)).await.unwrap();
        assert_eq!(count(server, "STRLEN other").await, 4, "another value has its own fence");
        // A value that was deleted does not let old writers in again.
        admin(server, "DEL v").await;
        assert!(store.fenced_set("v", "late", Fence::new(5)).await.is_err());
        assert_eq!(count(server, "EXISTS v").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_a_value_and_its_fence_share_a_slot() {
    if !(Program::REDIS.available() && Program::REDIS_CLI.available()) {
        return;
    }
    let cluster = RedisCluster::start().await;
    let store = connect(&cluster.url()).await;
    for name in ["v", "a{b}c", "a}b", "{}x", "balance:7", "{", "holdtight:x"] {
        store.fenced_set(name, "1", Fence::new(7)).await.unwrap();
        let refused = store.fenced_set(name, "2", Fence::new(6)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotHeld, "{name}: {refused}");
    }
    let tagged = connect(&format!("{}?prefix={{x}}", cluster.url())).await;
    tagged.fenced_set("v{x}", "1", Fence::new(7)).await.unwrap();
    let refused = tagged.fenced_set("v", "1", Fence::new(7)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidKey, "{refused}");
}
