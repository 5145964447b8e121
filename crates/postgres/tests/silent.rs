//! Hosts and connections that fall silent without being closed: nobody is told, and nothing may be
//! lost by it.
#![cfg(target_os = "linux")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use holdtight_core::{Attempt, DistributedLock};
use holdtight_postgres::{PostgresStore, migrate};
use holdtight_testkit::Proxy;
use holdtight_testkit::servers::Postgres;
use support::{LONG, attempt, available, key, open, secret};

/// The server by two addresses, the first of which can fall silent.
async fn two_ways(server: &Postgres, schema: &str) -> (Proxy, String) {
    let direct = format!("{}?schema={schema}", server.url());
    migrate(&direct).await.unwrap();
    let proxy = Proxy::to(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).await.unwrap();
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?schema={schema}",
        proxy.port(),
        server.port()
    );
    (proxy, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_leases_outlive_connections_that_fall_silent() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    let (proxy, url) = two_ways(&server, "silent").await;
    let store = PostgresStore::connect(&url).await.unwrap();
    let ttl = Duration::from_secs(6);
    let lock = DistributedLock::builder(store).ttl(ttl).build().unwrap();
    let mut handles = Vec::new();
    for n in 0..20 {
        handles.push(lock.acquire(format!("k{n}")).await.unwrap());
    }
    proxy.black_hole();
    // Until every lease that was not renewed is over.
    tokio::time::sleep(ttl + ttl / 2).await;
    let lost = handles.iter().filter(|handle| !handle.is_held()).count();
    assert_eq!(lost, 0, "of {} locks", handles.len());
    for handle in handles {
        handle.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_first_host_keeps_nobody_from_the_second() {
    if !available() {
        return;
    }
    let server = Postgres::shared().await;
    let (proxy, url) = two_ways(&server, "silent_first").await;
    proxy.black_hole();
    let started = tokio::time::Instant::now();
    let store = open(&url).await;
    // On all connections of the store.
    for n in 0..8 {
        let (key, owner) = (key(&format!("k{n}")), secret());
        let answer = attempt(&store, &key, &owner, LONG).await;
        assert!(matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    }
    // Each of the four connections would wait for five seconds.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
