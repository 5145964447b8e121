//! The commands on servers: what a caller that gave up leaves behind, what `doctor` says of one
//! that is refused, and how a lock of another program is told of.

#![cfg(target_os = "linux")]

mod support;

use holdtight_testkit::servers::{Etcd, Program, Redis};
use support::Home;

#[tokio::test]
async fn a_caller_that_gave_up_is_not_served_later() {
    if !Program::ETCD.available() {
        return;
    }
    let server = Etcd::start().await;
    let home = Home::new().with("HOLDTIGHT_STORE", server.url());
    // On a slow machine these say that they are waiting, for the server's answer.
    let token = home.call("acquire --ttl 1h k");
    assert_eq!(token.code, 0, "{}", token.err);
    // Long enough to stand in line. There the store itself would hand the lock to it.
    let gave_up = home.call("acquire -w 1500ms k");
    assert_eq!(gave_up.code, 75, "{}", gave_up.err);
    home.call_on("release -", token.out.trim()).succeeded();
    let next = home.call("acquire -n --ttl 1h k");
    assert_eq!(next.code, 0, "{}", next.err);
}

#[tokio::test]
async fn doctor_reports_on_a_server_that_is_refused() {
    if !Program::REDIS.available() {
        return;
    }
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Redis::start_with(&evicting).await;
    let home = Home::new().with("HOLDTIGHT_STORE", server.url());
    home.call("status k").refused(64, &["noeviction"]);
    let told = home.call("doctor");
    assert_eq!(told.code, 1, "{}", told.err);
    assert!(told.out.contains("unsafe   eviction") && told.out.contains("fix: "), "{}", told.out);
    let told = home.call("--json doctor");
    assert_eq!((told.code, &told.json()["level"]), (1, &"unsafe".into()));
}

#[tokio::test]
async fn the_lock_of_another_program_is_told_of_with_what_can_be_done() {
    if !Program::REDIS.available() {
        return;
    }
    let server = Redis::start().await;
    server.command("SET holdtight:k another-program").await.unwrap();
    let home = Home::new().with("HOLDTIGHT_STORE", server.url());
    let told = home.call("acquire -n k");
    assert_eq!(told.code, 75, "{}", told.err);
    for part in ["never", "another program took it"] {
        assert!(told.err.contains(part), "{part:?} is missing in: {}", told.err);
    }
}
