//! The layout of the Node library `syncguard`: documents field by field, and mutual exclusion with
//! a Node program that reads and writes them through Google's own client.
//!
//! The Node part needs npm; its one package is installed once into `target/peers`. Without npm it
//! says so and is skipped, except in CI.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend as _, ErrorKind, ExtendBy, ExtendRequest, Extension, Key,
    Release, Secret,
};
use holdtight_firestore::FirestoreStore;
use holdtight_testkit::servers::{Firestore, Program};

const TTL: Duration = Duration::from_secs(60);

type Store = Arc<FirestoreStore>;

async fn connect(emulator: &Firestore, project: &str) -> Store {
    let url = format!("firestore://{project}?layout=syncguard&emulator={}", emulator.host());
    Arc::new(FirestoreStore::connect(&url).await.unwrap())
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

async fn attempt(store: &Store, key: &Key, secret: &Secret, ttl: Duration) -> Attempt {
    let request = AcquireRequest::new(key.clone(), secret.clone(), ttl);
    Arc::clone(store).acquire(request).await.unwrap()
}

async fn extend(store: &Store, key: &Key, secret: &Secret, by: Duration) -> Extension {
    let request = ExtendRequest::new(key.clone(), secret.clone(), ExtendBy::AtLeast(by));
    Arc::clone(store).extend(vec![request]).await.unwrap().remove(0).unwrap()
}

async fn release(store: &Store, key: &Key, secret: &Secret) -> Release {
    Arc::clone(store).release(key.clone(), secret.clone()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_lives_as_in_every_layout_and_its_fence_counts_from_one() {
    if !Program::HIDANE.available() {
        return;
    }
    let emulator = Firestore::start().await;
    let (store, other) = (connect(&emulator, "life").await, connect(&emulator, "life").await);
    let key = key("job:7");
    for count in 1..=3 {
        let (me, stranger) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let Attempt::Granted(lease) = attempt(&store, &key, &me, TTL).await else { panic!("free") };
        assert_eq!(lease.fence.get(), count);
        let Attempt::Granted(again) = attempt(&other, &key, &me, TTL).await else { panic!("ours") };
        assert_eq!(again.fence, lease.fence, "a retry is the same grant");
        assert!(matches!(attempt(&other, &key, &stranger, TTL).await, Attempt::Busy(_)));
        assert_eq!(extend(&store, &key, &stranger, TTL * 2).await, Extension::NotHeld);
        let Extension::Extended(moved) = extend(&store, &key, &me, TTL * 2).await else {
            panic!("ours")
        };
        assert_eq!((moved.fence, moved.ttl >= TTL * 2), (lease.fence, true));
        assert_eq!(release(&store, &key, &stranger).await, Release::NotHeld);
        assert_eq!(release(&store, &key, &me).await, Release::Released);
        assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
    }
    let me = Secret::generate().unwrap();
    let request = AcquireRequest::new(Key::new("a/b").unwrap(), me, TTL);
    let refused = Arc::clone(&store).acquire(request).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_over_is_taken_over_with_the_next_fence() {
    if !Program::HIDANE.available() {
        return;
    }
    let emulator = Firestore::start().await;
    let store = connect(&emulator, "expiry").await;
    let (key, first, second) =
        (key("job"), Secret::generate().unwrap(), Secret::generate().unwrap());
    let Attempt::Granted(old) = attempt(&store, &key, &first, Duration::from_millis(200)).await
    else {
        panic!("free")
    };
    let started = std::time::Instant::now();
    let new = loop {
        match attempt(&store, &key, &second, TTL).await {
            Attempt::Granted(lease) => break lease,
            _ => assert!(started.elapsed() < Duration::from_secs(20), "it must end"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(started.elapsed() >= Duration::from_millis(200), "not over early");
    assert_eq!(new.fence.get(), old.fence.get() + 1);
    assert_eq!(extend(&store, &key, &first, TTL).await, Extension::NotHeld);
    assert_eq!(release(&store, &key, &first).await, Release::NotHeld);
    assert_eq!(release(&store, &key, &second).await, Release::Released);
}

/// Google's client for Node, installed once.
fn node_modules() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
        PathBuf::from,
    );
    let place = target.join("peers/firestore");
    let package = place.join("node_modules/@google-cloud/firestore/package.json");
    if !package.exists() {
        std::fs::create_dir_all(&place).unwrap();
        let installed = Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--prefix"])
            .arg(&place)
            .arg("@google-cloud/firestore@8")
            .stdout(Stdio::null())
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "npm is needed in CI");
            eprintln!("skipped: npm is not here, or cannot install @google-cloud/firestore");
            return None;
        }
    }
    Some(place.join("node_modules"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_program_and_we_exclude_each_other() {
    if !Program::HIDANE.available() {
        return;
    }
    let Some(modules) = node_modules() else { return };
    let emulator = Firestore::start().await;
    let store = connect(&emulator, "interop").await;
    let peer = |command: &str, key: &str, id: &str| {
        let output = Command::new("node")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/syncguard.cjs"))
            .args([command, key, id, "60000"])
            .env("NODE_PATH", &modules)
            .env("FIRESTORE_EMULATOR_HOST", emulator.host())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (key, me, theirs) =
        (key("café:7"), Secret::generate().unwrap(), Secret::generate().unwrap());
    // Ours first: Node sees it held, understands every field, and cannot release it with another
    // id.
    assert!(matches!(attempt(&store, &key, &me, TTL).await, Attempt::Granted(_)));
    assert_eq!(peer("acquire", key.as_str(), theirs.expose()), "locked");
    assert_eq!(peer("release", key.as_str(), theirs.expose()), "false");
    let shown = peer("show", key.as_str(), "");
    assert!(shown.starts_with("000000000000001 number number string 15 "), "{shown}");
    assert!(shown.ends_with(key.as_str()), "{shown}");
    // Node releases ours by its id, and takes it with the next fence.
    assert_eq!(peer("release", key.as_str(), me.expose()), "true");
    assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
    assert_eq!(peer("acquire", key.as_str(), theirs.expose()), "000000000000002");
    let Attempt::Busy(busy) = attempt(&store, &key, &me, TTL).await else {
        panic!("Node holds it")
    };
    assert_eq!(busy.holder.unwrap().fence.map(holdtight_core::Fence::get), Some(2));
    // With its id we extend and release Node's lock, and go on counting.
    assert!(matches!(extend(&store, &key, &theirs, TTL * 2).await, Extension::Extended(_)));
    assert_eq!(peer("acquire", key.as_str(), me.expose()), "locked");
    assert_eq!(release(&store, &key, &theirs).await, Release::Released);
    let Attempt::Granted(lease) = attempt(&store, &key, &me, TTL).await else { panic!("free") };
    assert_eq!(lease.fence.get(), 3);
}
