//! What is found out at connect: eviction, replicas, missing rights, wrong passwords; and the
//! minimal rights.

mod support;

use std::sync::Arc;

use holdtight_core::{Backend, ErrorKind, Intent, Level, Release, WakeUps};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::Redis;
use support::{LONG, admin, busy, connect, extend, granted, key, lookup, release, secret};

/// The least a user needs, as docs/stores/redis.md says.
const MINIMAL: &str = "ACL SETUSER ann on >pw resetkeys ~holdtight:* resetchannels &holdtight:* -@all \
    +hello +info +subscribe +eval +evalsha +time +get +mget +exists +set +del +append +pttl +pexpire \
    +zadd +zrem +zcard +zpopmin +publish +scan";

async fn refusal(url: &str) -> holdtight_core::LockError {
    match RedisStore::connect(url).await {
        Ok(_) => panic!("{url} must be refused"),
        Err(error) => error,
    }
}

on_redis! {
    async fn a_server_that_evicts_is_refused_unless_overridden(server: &Redis) {
        admin(server, "CONFIG SET maxmemory-policy allkeys-lru").await;
        connect(&server.url()).await;
        admin(server, "CONFIG SET maxmemory 100mb").await;
        let error = refusal(&server.url()).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("noeviction"), "{error}");
        let store = connect(&format!("{}?eviction=allow", server.url())).await;
        assert_eq!(Arc::clone(&store).probe().await.unwrap().level(), Level::Unsafe);
        admin(server, "CONFIG SET maxmemory-policy noeviction").await;
        connect(&server.url()).await;
    }
}

on_redis! {
    async fn a_replica_is_refused(server: &Redis) {
        let port = server.port().to_string();
        let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        let error = refusal(&replica.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("replica"), "{error}");
    }
}

on_redis! {
    async fn the_probe_says_what_is_weak_and_what_to_do(server: &Redis) {
        let store = connect(&server.url()).await;
        let found = Arc::clone(&store).probe().await.unwrap();
        assert!(found.store.starts_with("redis ") || found.store.starts_with("valkey "), "{found}");
        let weak = found.findings.iter().find(|finding| finding.subject == "persistence").unwrap();
        assert!(weak.level == Level::Warning && weak.fix.is_some());
    }
}

on_redis! {
    async fn the_minimal_rights_suffice_and_each_is_needed(server: &Redis) {
        admin(server, MINIMAL).await;
        let url = format!("redis://ann:pw@127.0.0.1:{}", server.port());
        let store = connect(&url).await;
        assert_eq!(store.capabilities().wake_ups, WakeUps::Standing);
        let (key, me, waiter) = (key("k"), secret(), secret());
        granted(&store, &key, &me).await;
        let mut hint = Arc::clone(&store).subscribe(key.clone()).await.unwrap();
        busy(&store, &key, &waiter, Intent::Queue).await;
        extend(&store, &key, &me, LONG * 2).await.unwrap();
        assert!(lookup(&store, &key).await.is_some());
        assert_eq!(Arc::clone(&store).list(String::new(), 10).await.unwrap().len(), 1);
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        tokio::time::timeout(support::PATIENCE, hint.heard()).await.unwrap();
        assert!(support::attempt(&store, &key, &waiter, Intent::Queue).await.is_ok());
        assert!(admin(server, "ACL LOG").await.starts_with("*0"), "nothing was refused");

        for right in ["evalsha", "time", "set", "get", "del", "pttl"] {
            admin(server, MINIMAL).await;
            admin(server, &format!("ACL SETUSER ann -{right}")).await;
            let error = refusal(&url).await;
            assert_eq!(error.kind(), ErrorKind::AuthFailed, "-{right}: {error}");
        }
        // What only makes waiting fast may be missing.
        for right in ["zadd", "append", "publish", "zpopmin", "info", "subscribe"] {
            admin(server, MINIMAL).await;
            admin(server, &format!("ACL SETUSER ann -{right}")).await;
            let (store, key, me) = (connect(&url).await, support::key(right), secret());
            granted(&store, &key, &me).await;
            busy(&store, &key, &secret(), Intent::Queue).await;
            assert_eq!(release(&store, &key, &me).await, Release::Released, "-{right}");
        }
        admin(server, MINIMAL).await;
        let error = refusal(&format!("{url}?prefix=other:")).await;
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_named_and_not_repeated() {
    if support::redis_is_missing() {
        return;
    }
    let server = Redis::start_with(&["--requirepass", "sesame"]).await;
    connect(&server.url()).await;
    for url in ["redis://127.0.0.1", "redis://:hunter2@127.0.0.1", "redis://ann:hunter2@127.0.0.1"]
    {
        let error = refusal(&format!("{url}:{}", server.port())).await;
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let error = refusal("redis://127.0.0.1:1").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_and_the_users_own_client_work() {
    if support::redis_is_missing() {
        return;
    }
    let server = Redis::start_with(&["--unixsocket", "redis.sock"]).await;
    let socket = server.process().directory().path().join("redis.sock");
    let store = connect(&format!("redis+unix://{}?db=1", socket.display())).await;
    let me = secret();
    granted(&store, &key("k"), &me).await;
    let client = redis::Client::open(format!("{}/1", server.url())).unwrap();
    let config = holdtight_redis::RedisConfig::from_client(&client).unwrap();
    let own = Arc::new(RedisStore::open(config).await.unwrap());
    busy(&own, &key("k"), &secret(), Intent::Try).await;
    assert_eq!(release(&own, &key("k"), &me).await, Release::Released);
}

on_redis! {
    async fn waiting_for_the_disk_is_refused_where_the_server_cannot(server: &Redis) {
        let url = format!("{}?wait_aof=1", server.url());
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("wait_aof") && error.to_string().contains("7.2"), "{error}");
        // Who may not ask for the version finds out by the first step.
        admin(server, "CONFIG SET appendonly yes").await;
        admin(server, "ACL SETUSER default -info").await;
        if let Err(error) = RedisStore::connect(&url).await {
            assert!(error.to_string().contains("wait_aof"), "{error}");
        } else {
            assert!(!admin(server, "WAITAOF 0 0 1").await.contains("unknown"), "it cannot have worked");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_gone_is_named_and_a_missing_database_too() {
    if support::redis_is_missing() {
        return;
    }
    let hidden = ["--databases", "4", "--rename-command", "SUBSCRIBE", ""];
    let server = Redis::start_with(&hidden).await;
    let store = connect(&server.url()).await;
    assert_eq!(store.capabilities().wake_ups, WakeUps::None, "as for a user without the right");
    let error = refusal(&format!("{}/4", server.url())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("database"), "{error}");

    let server = Redis::start_with(&["--rename-command", "EVALSHA", ""]).await;
    let error = refusal(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("EVALSHA"), "{error}");
}
