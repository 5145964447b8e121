//! Sentinels that are behind the others, dead or slow, and primaries that they have given up.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{Attempt, Backend as _, ErrorKind, Guarantees, Intent, Level};
use holdtight_redis::RedisStore;
use holdtight_testkit::servers::{Redis, RedisSentinel, free_port};
use support::{attempt, connect, count, granted, key, secret, until};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

/// A sentinel that was rebuilt from an old configuration under a new address: it names `port`,
/// whatever the others say. A real one would need a dead server of its own to be wrong about.
async fn stale_sentinel(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut read = BufReader::new(read);
                loop {
                    let mut line = String::new();
                    if read.read_line(&mut line).await? == 0 {
                        return std::io::Result::Ok(());
                    }
                    let mut words = Vec::new();
                    for _ in 0..line[1..].trim().parse::<usize>().unwrap() {
                        line.clear();
                        read.read_line(&mut line).await?;
                        let mut word = vec![0; line[1..].trim().parse::<usize>().unwrap() + 2];
                        read.read_exact(&mut word).await?;
                        words.push(String::from_utf8(word).unwrap().trim().to_owned());
                    }
                    let port = port.to_string();
                    let answer = match words[0].as_str() {
                        "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
                        _ => format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()),
                    };
                    write.write_all(answer.as_bytes()).await?;
                }
            });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_names_a_dead_or_another_server_is_not_believed() {
    if support::redis_is_missing() {
        return;
    }
    let group = RedisSentinel::start().await;
    let name = group.name();
    let ports = group.sentinel_ports();

    // It names a server that is not there: the next sentinel is asked.
    let stale = stale_sentinel(free_port()).await;
    let url = format!("redis+sentinel://127.0.0.1:{stale},127.0.0.1:{}/{name}", ports[0]);
    let store = connect(&url).await;
    granted(&store, &key("dead"), &secret()).await;
    assert_eq!(count(&group.servers()[0], "EXISTS holdtight:dead").await, 1);

    // It names a replica.
    let stale = stale_sentinel(group.servers()[1].port()).await;
    let url = format!("redis+sentinel://127.0.0.1:{stale},127.0.0.1:{}/{name}", ports[0]);
    granted(&connect(&url).await, &key("replica"), &secret()).await;
    assert_eq!(count(&group.servers()[0], "EXISTS holdtight:replica").await, 1);

    // It names an old primary that runs again: the others are more.
    let old = Redis::start().await;
    let stale = stale_sentinel(old.port()).await;
    let url = format!(
        "redis+sentinel://127.0.0.1:{stale},{}",
        group.url().strip_prefix("redis+sentinel://").unwrap()
    );
    granted(&connect(&url).await, &key("old"), &secret()).await;
    assert_eq!(count(&old, "DBSIZE").await, 0);
    assert_eq!(count(&group.servers()[0], "EXISTS holdtight:old").await, 1);

    let nowhere = stale_sentinel(free_port()).await;
    let url = format!("redis+sentinel://127.0.0.1:{nowhere}/{name}");
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_left_after_one_silent_request_if_there_is_another() {
    if support::redis_is_missing() {
        return;
    }
    let group = RedisSentinel::start().await;
    let patience = Duration::from_secs(8);
    let store = connect(&format!("{}?timeout=8s&connect_timeout=8s", group.url())).await;
    granted(&store, &key("before"), &secret()).await;
    group.servers()[0].process().pause();
    until("the sentinels have another", async || {
        group.primary_port().await == Some(group.servers()[1].port())
    })
    .await;
    let started = Instant::now();
    let me = secret();
    // Late by less than the first, so it waits for an answer when the first has none.
    let second = tokio::spawn({
        let store = store.clone();
        async move {
            tokio::time::sleep(patience / 2).await;
            attempt(&store, &key("second"), &secret(), Intent::Try).await
        }
    });
    until("the other is used", async || {
        matches!(attempt(&store, &key("after"), &me, Intent::Try).await, Ok(Attempt::Granted(_)))
    })
    .await;
    assert!(started.elapsed() < 2 * patience, "after {:?}", started.elapsed());
    let _ = second.await.unwrap();
    assert!(
        started.elapsed() < patience * 3 / 2,
        "a request on the old connection was left alone for {:?}",
        started.elapsed()
    );
    group.servers()[0].process().resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_away_is_told_of_and_a_plain_server_is_no_sentinel() {
    if support::redis_is_missing() {
        return;
    }
    let group = RedisSentinel::start().await;
    let store = connect(&format!("{}?wait_replicas=1", group.url())).await;
    let found = Arc::clone(&store).probe().await.unwrap();
    let failover = |found: &Guarantees| {
        found.findings.iter().find(|finding| finding.subject == "failover").unwrap().clone()
    };
    assert_eq!(failover(&found).level, Level::Good, "{found}");
    let plain = connect(&group.url()).await;
    group.servers()[1].process().kill();
    until("the sentinels know more replicas than there are", async || {
        let found = Arc::clone(&plain).probe().await.unwrap();
        failover(&found).level == Level::Warning && failover(&found).found.contains("away")
    })
    .await;
    // Nothing can be granted, but that passes: it is no wrong setting.
    let error = RedisStore::connect(&format!("{}?wait_replicas=1", group.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    let port = group.servers()[0].port();
    let url = format!("redis+sentinel://127.0.0.1:{port}/{}", group.name());
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("redis://"), "{error}");
}
