//! Many keys over time leave nothing behind. A twentieth of the real thing; all of it is
//! `cargo xtask soak --only redis-keys`.

mod support;

use std::sync::Arc;

use holdtight_core::{AcquireRequest, Attempt, Backend, Intent, Release};
use holdtight_testkit::servers::Redis;
use support::{LONG, admin, connect, count, info, key, secret};

async fn keys_leave_nothing_behind(server: &Redis, options: &str, keys: usize) {
    const TASKS: usize = 64;
    let store = connect(&format!("{}{options}", server.url())).await;
    // What the first keys need, such as scripts and buffers, is no leak.
    let before = loop {
        let before = info(server, "used_memory").await;
        cycle(&store, "warm", 0, 2_000).await;
        admin(server, "MEMORY PURGE").await;
        if info(server, "used_memory").await <= before + 50_000 {
            break info(server, "used_memory").await;
        }
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { cycle(&store, "k", task, keys / TASKS).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admin(server, "MEMORY PURGE").await;
    let after = info(server, "used_memory").await;
    assert!(after < before + (1 << 20), "{before} bytes before {keys} keys, {after} after");
    assert_eq!(count(server, "DBSIZE").await, 1);
}

/// Takes and gives back `each` keys that nobody used before; every hundredth has a waiter that
/// gives up.
async fn cycle(store: &Arc<holdtight_redis::RedisStore>, name: &str, task: usize, each: usize) {
    for n in 0..each {
        let (key, me) = (key(&format!("{name}:{task}:{n}")), secret());
        let request = AcquireRequest::new(key.clone(), me.clone(), LONG).intent(Intent::Queue);
        let granted = Arc::clone(store).acquire(request).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
        if n % 100 == 0 {
            let other = secret();
            support::busy(store, &key, &other, Intent::Queue).await;
            support::release(store, &key, &other).await;
        }
        assert_eq!(Arc::clone(store).release(key, me).await.unwrap(), Release::Released);
    }
}

on_redis! {
    async fn fifty_thousand_keys_leave_nothing_behind(server: &Redis) {
        keys_leave_nothing_behind(server, "", 50_000).await;
    }
}

on_redis! {
    async fn nor_do_they_in_the_token_layout(server: &Redis) {
        keys_leave_nothing_behind(server, "?layout=token", 10_000).await;
    }
}
