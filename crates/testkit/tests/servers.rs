//! The launchers: every server starts, is ours, survives a restart, and is gone afterwards.
#![cfg(all(unix, feature = "servers"))]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdtight_testkit::servers::{
    Etcd, EtcdCluster, Firestore, Memcached, PgBouncer, Postgres, PostgresPair, Process, Program,
    Redis, RedisCluster, RedisSentinel, SlotMove,
};

/// Runs `body` on a server's process, ends the server, and checks that nothing of it is left.
fn gone_after<T>(server: T, process: impl Fn(&T) -> &Process) {
    let (pid, directory) = (process(&server).pid(), process(&server).directory().path().to_owned());
    assert!(process(&server).is_alive() && directory.is_dir());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the process must be gone");
    assert!(!directory.exists(), "its directory must be gone");
}

#[tokio::test]
async fn redis_starts_restarts_pauses_and_ends() {
    if !Program::REDIS.available() {
        return;
    }
    let server = Redis::start_with(&[
        "--requirepass",
        "sesame",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ])
    .await;
    assert_eq!(server.command("SET k v").await.unwrap(), "+OK\r\n");
    server.process().kill();
    assert!(!server.process().is_alive());
    server.restart().await;
    assert_eq!(server.command("GET k").await.unwrap(), "$1\r\nv\r\n");
    server.process().pause();
    let answer = tokio::time::timeout(Duration::from_millis(200), server.command("PING")).await;
    assert!(answer.is_err(), "a paused server must not answer: {answer:?}");
    server.process().resume();
    assert_eq!(server.command("PING").await.unwrap(), "+PONG\r\n");
    gone_after(server, Redis::process);
}

#[tokio::test]
async fn a_paused_server_is_ended_too() {
    if !Program::REDIS.available() {
        return;
    }
    let server = Redis::start().await;
    server.process().pause();
    gone_after(server, Redis::process);
}

#[tokio::test]
async fn a_server_whose_test_is_killed_is_ended_by_its_leash() {
    const ROLE: &str = "HOLDTIGHT_TESTKIT_TEST_LEASH";
    if !Program::REDIS.available() {
        return;
    }
    if let Some(file) = std::env::var_os(ROLE) {
        // Kept alive by a static: nothing but the leash can end it.
        let server = Redis::shared().await;
        let place = server.process().directory().path().display().to_string();
        std::fs::write(file, format!("{} {place}", server.process().pid())).unwrap();
        std::process::abort();
    }
    let note = holdtight_testkit::servers::Directory::new();
    let file = note.path().join("note");
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_whose_test_is_killed_is_ended_by_its_leash"])
        .env(ROLE, &file)
        .output()
        .unwrap();
    assert!(!status.status.success(), "the child aborts");
    let note = std::fs::read_to_string(&file).unwrap();
    let (pid, place) = note.split_once(' ').unwrap();
    let (process, place) = (PathBuf::from(format!("/proc/{pid}")), PathBuf::from(place));
    let started = Instant::now();
    // A zombie still has an entry but no command line.
    let runs = || std::fs::read(process.join("cmdline")).is_ok_and(|line| !line.is_empty());
    while runs() || place.exists() {
        assert!(started.elapsed() < Duration::from_secs(20), "the server outlived its test");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_shared_server_is_one_for_all() {
    if !Program::MEMCACHED.available() {
        return;
    }
    let (one, two) = tokio::join!(Memcached::shared(), Memcached::shared());
    assert!(std::sync::Arc::ptr_eq(&one, &two));
}

#[tokio::test]
async fn a_redis_cluster_forms_and_replaces_a_dead_primary() {
    if !Program::REDIS.available() || !Program::REDIS_CLI.available() {
        return;
    }
    let cluster = RedisCluster::start_quick_to_fail_over().await;
    assert_eq!(cluster.nodes().len(), 6);
    cluster.nodes()[0].process().kill();
    cluster.wait_until_whole().await;
}

/// Where a primary that is slow for two seconds is replaced, a slot on its way to it ends up
/// nowhere.
#[tokio::test]
async fn a_redis_cluster_has_patience_with_slow_primaries() {
    if !Program::REDIS.available() || !Program::REDIS_CLI.available() {
        return;
    }
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        let timeout = node.command("CONFIG GET cluster-node-timeout").await.unwrap();
        assert!(timeout.contains("20000"), "{timeout}");
    }
    SlotMove::of("k", &cluster).await.whole().await;
}

#[tokio::test]
async fn sentinels_promote_the_replica_of_a_dead_primary() {
    if !Program::REDIS.available() {
        return;
    }
    let group = RedisSentinel::start().await;
    let first = group.primary_port().await.expect("a group that works has a primary");
    let [one, two] = group.servers();
    let (primary, replica) = if one.port() == first { (one, two) } else { (two, one) };
    primary.process().kill();
    let started = Instant::now();
    while group.primary_port().await != Some(replica.port()) {
        assert!(started.elapsed() < Duration::from_secs(30), "no failover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn sentinels_fail_over_when_they_are_told_to() {
    if !Program::REDIS.available() {
        return;
    }
    let group = RedisSentinel::start().await;
    let first = group.primary().await.expect("a group that works has a primary").port();
    assert!(group.fail_over().await);
    let started = Instant::now();
    while group.primary_port().await == Some(first) {
        assert!(started.elapsed() < Duration::from_secs(30), "no failover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The old primary follows the new one.
    group.wait_until_agreed().await;
    let old = group.servers().iter().find(|server| server.port() == first).unwrap();
    assert!(old.command("ROLE").await.unwrap().contains("slave"));
}

#[tokio::test]
async fn postgres_starts_restarts_and_ends() {
    if !Program::POSTGRES.available() {
        return;
    }
    let server = Postgres::start_with(&["work_mem=1234kB"]).await;
    server.sql("CREATE TABLE t AS SELECT 7 AS n").unwrap();
    assert_eq!(server.sql("SHOW work_mem").unwrap(), "1234kB");
    server.process().kill();
    server.restart().await;
    assert_eq!(server.sql("SELECT n FROM t").unwrap(), "7");
    assert!(server.sql("SELECT nonsense").unwrap_err().contains("nonsense"));
    gone_after(server, Postgres::process);
}

#[tokio::test]
async fn two_postgres_servers_share_nothing() {
    if !Program::POSTGRES.available() {
        return;
    }
    let (one, two) = tokio::join!(Postgres::start(), Postgres::start());
    one.sql("CREATE TABLE t (n int)").unwrap();
    assert!(two.sql("SELECT * FROM t").is_err());
}

#[tokio::test]
async fn a_standby_takes_over_with_all_that_was_committed_and_gets_a_standby() {
    if !Program::POSTGRES.available() || !Program::PG_BASEBACKUP.available() {
        return;
    }
    let pair = PostgresPair::start().await;
    pair.primary().sql("CREATE TABLE t (n int)").unwrap();
    for n in 1..=2 {
        pair.primary().sql(&format!("INSERT INTO t VALUES ({n})")).unwrap();
        let (old, heir) = (pair.primary().port(), pair.standby().port());
        pair.fail_over();
        assert_eq!((pair.primary().port(), pair.standby().port()), (heir, old));
        pair.rebuild().await;
        assert_eq!(pair.primary().sql("SELECT count(*) FROM t").unwrap(), n.to_string());
        assert_eq!(pair.standby().sql("SELECT pg_is_in_recovery()").unwrap(), "t");
    }
}

#[tokio::test]
async fn pgbouncer_stands_before_postgres() {
    if !Program::POSTGRES.available() || !Program::PGBOUNCER.available() {
        return;
    }
    let server = Postgres::start().await;
    let pooler = PgBouncer::start(&server).await;
    assert!(pooler.url().contains(&pooler.port().to_string()));
    gone_after(pooler, PgBouncer::process);
}

#[tokio::test]
async fn memcached_starts_restarts_and_ends() {
    if !Program::MEMCACHED.available() {
        return;
    }
    let server = Memcached::start_with(&["-M"]).await;
    server.process().kill();
    server.restart().await;
    gone_after(server, Memcached::process);
}

#[tokio::test]
async fn etcd_starts_restarts_and_ends() {
    if !Program::ETCD.available() {
        return;
    }
    let server = Etcd::start().await;
    server.process().kill();
    server.restart().await;
    gone_after(server, Etcd::process);
}

#[tokio::test]
async fn three_etcd_nodes_move_their_leader_and_replace_a_dead_one() {
    if !Program::ETCD.available() {
        return;
    }
    let cluster = EtcdCluster::start().await;
    let started = Instant::now();
    // The one that leads may change while the members are asked.
    let leader = loop {
        if let Some(leader) = cluster.leader().await {
            break leader;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "no leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let heir = cluster.nodes().iter().find(|node| node.port() != leader.port()).unwrap();
    assert!(cluster.move_leader(heir).await);
    let started = Instant::now();
    while cluster.leader().await.map(Etcd::port) != Some(heir.port()) {
        assert!(started.elapsed() < Duration::from_secs(30), "the leader does not move");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(heir.version().await.starts_with("3."));
    heir.process().kill();
    let started = Instant::now();
    while cluster.leader().await.is_none() {
        assert!(started.elapsed() < Duration::from_secs(30), "no new leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_firestore_emulator_starts_restarts_and_ends() {
    if !Program::HIDANE.available() {
        return;
    }
    let server = Firestore::start().await;
    server.process().kill();
    server.restart().await;
    gone_after(server, Firestore::process);
}
