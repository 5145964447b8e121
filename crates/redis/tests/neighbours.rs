//! What others leave beside our locks: bytes that are no text, names longer than any of ours,
//! waiters that died.

mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use holdtight_core::{Backend, Intent, Release};
use holdtight_testkit::servers::Redis;
use support::{
    LONG, PATIENCE, admin, busy, connect, extend, granted, info, key, lookup, release, secret,
};

on_redis! {
    async fn bytes_that_are_no_text_are_somebody_elses_lock_and_hide_no_other(server: &Redis) {
        for layout in ["native", "token", "syncguard"] {
            let store = connect(&format!("{}?prefix={layout}&layout={layout}", server.url())).await;
            let colon = if layout == "syncguard" { ":" } else { "" };
            for (n, value) in [
                "ht1 abc 1 2 host=\\xff\\xfe",
                "\\xff\\xfe",
                "ht1 \\xff 1 2 x",
                "{\\\"lockId\\\":\\\"\\xff\\\",\\\"key\\\":\\\"\\xfe\\\",\\\"fence\\\":\\\"1\\\",\\\"acquiredAtMs\\\":1,\\\"expiresAtMs\\\":9e15}",
            ].iter().enumerate() {
                let line = format!("SET {layout}{colon}bad{n} \"{value}\" PX 60000");
                assert_eq!(admin(server, &line).await, "+OK\r\n");
            }
            let (good, me) = (key("good"), secret());
            granted(&store, &good, &me).await;
            for n in 0..4 {
                let bad = key(&format!("bad{n}"));
                assert!(lookup(&store, &bad).await.is_some(), "{layout} {n}");
                let shown = busy(&store, &bad, &me, Intent::Queue).await.holder.unwrap();
                assert!(shown.remaining.is_some_and(|left| left <= LONG), "{layout} {n}: {shown:?}");
                assert_eq!(release(&store, &bad, &me).await, Release::NotHeld);
            }
            let all = Arc::clone(&store).list(String::new(), 100).await.unwrap();
            assert_eq!(all.len(), 5, "{layout}: {all:?}");
        }
    }
}

on_redis! {
    async fn a_name_longer_than_any_lock_has_is_passed_over_and_disturbs_nobody(server: &Redis) {
        let store = connect(&server.url()).await;
        let me = secret();
        for n in 0..300 {
            granted(&store, &key(&format!("k{n}")), &me).await;
        }
        let client = redis::Client::open(server.url()).unwrap();
        let mut other = client.get_connection().unwrap();
        let name = format!("holdtight:{}", "x".repeat(2 << 20));
        redis::cmd("SET").arg(&name).arg(1).exec(&mut other).unwrap();
        let before = info(server, "total_connections_received").await;
        let found = Arc::clone(&store).list(String::new(), 1000).await.unwrap();
        assert_eq!(found.len(), 300);
        extend(&store, &key("k0"), &me, LONG).await.unwrap();
        let after = info(server, "total_connections_received").await;
        assert_eq!(after - before, 1, "the connection that all share stayed open");
    }
}

on_redis! {
    async fn a_release_wakes_whoever_listens_however_many_died_before(server: &Redis) {
        let (store, key, me) = (connect(&server.url()).await, key("k"), secret());
        granted(&store, &key, &me).await;
        let mut dead = r#"ZADD "holdtight:\x01wait:k""#.to_owned();
        for n in 0..500 {
            write!(dead, " 1 {n:022}:gone").unwrap();
        }
        assert_eq!(admin(server, &dead).await, ":500\r\n");
        let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
        busy(&store, &key, &secret(), Intent::Queue).await;
        release(&store, &key, &me).await;
        tokio::time::timeout(PATIENCE, hint.heard()).await.expect("woken");
    }
}
