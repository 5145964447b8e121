//! Keys that try to be commands, values that others wrote, and the places where a server may
//! listen.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use holdtight_core::{Backend as _, ErrorKind, Key, Release};
use holdtight_testkit::servers::{Directory, Program};
use support::*;

on_memcached! {
    async fn no_key_is_ever_a_command(server: [] as [&str; 0]) {
        let store = connect(&server.url()).await;
        let (canary, me) = (key("canary"), secret());
        let lease = granted(&store, &canary, &me).await;
        for text in [
            "flush_all", "a flush_all", "canary T0", "canary 0 ME T1 c", "a noreply", "%0D%0Aflush_all",
            "\u{2028}flush_all", "a\u{a0}b", "md canary", &"flush_all ".repeat(51), &"🔒".repeat(128),
        ] {
            let (key, me) = (key(text), secret());
            let lease = granted(&store, &key, &me).await;
            let shown = lookup(&store, &key).await.expect("held");
            assert_eq!((shown.key.as_str(), shown.fence), (key.as_str(), Some(lease.fence)));
            busy(&store, &key).await;
            assert_eq!(release(&store, &key, &me).await, Release::Released, "{text:?}");
        }
        for text in ["a\r\nflush_all", "a\nb", "a\0b", &"x".repeat(513)] {
            assert_eq!(Key::new(text).unwrap_err().kind(), ErrorKind::InvalidKey);
        }
        assert_eq!(lookup(&store, &canary).await.expect("unharmed").fence, Some(lease.fence));
    }
}

on_memcached! {
    async fn what_others_wrote_is_held_by_somebody_else_and_never_touched(server: ["-I", "4m"]) {
        let store = connect(&server.url()).await;
        let mut admin = Admin::on(server.port()).await;
        let (key, me) = (key("foreign"), secret());
        let other_key = "ht1 abcdefghijklmnop 5 - 5 5 other host=a".to_owned();
        let huge = "y".repeat(3 << 20);
        for (value, flags, ends) in
            [("1", "", false), ("", "T100", true), (other_key.as_str(), "T100", true), (huge.as_str(), "", false)]
        {
            assert_eq!(admin.set("holdtight:foreign", value, flags).await, "HD");
            let shown = busy(&store, &key).await.holder.expect("somebody has it");
            assert_eq!((shown.fence, shown.remaining.is_some()), (None, ends));
            assert_eq!(release(&store, &key, &me).await, Release::NotHeld);
            let force = Arc::clone(&store).force_release(key.clone(), holdtight_core::Fence::new(5)).await;
            assert_eq!(force.unwrap(), Release::NotHeld);
            assert_eq!(admin.get("holdtight:foreign").await.as_deref(), Some(value.as_bytes()));
        }
        assert_eq!(admin.ask("md holdtight:foreign\r\n").await, "HD");
        granted(&store, &key, &me).await;
    }
}

on_memcached! {
    async fn listing_says_clearly_that_it_cannot(server: [] as [&str; 0]) {
        let store = connect(&server.url()).await;
        assert!(!store.capabilities().list);
        let error = store.list(String::new(), 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("list"), "{error}");
    }
}

on_memcached! {
    async fn a_server_is_reached_over_ipv6(server: ["-l", "::1"]) {
        if tokio::net::TcpListener::bind("[::1]:0").await.is_err() {
            eprintln!("skipped: this machine has no IPv6 loopback");
            return;
        }
        let store = connect(&format!("memcached://[::1]:{}", server.port())).await;
        round_trip(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_over_a_unix_socket() {
    if !Program::MEMCACHED.available() {
        return;
    }
    let directory = Directory::new();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = directory.path().join("s");
    let mut server = Command::new(Program::MEMCACHED.find().unwrap())
        .args(["-u", "nobody", "-a", "0777", "-s"])
        .arg(&socket)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("memcached+unix://{}", socket.display());
    let store =
        until_answered(async || holdtight_memcached::MemcachedStore::connect(&url).await).await;
    round_trip(&Arc::new(store)).await;
    server.kill().unwrap();
    server.wait().unwrap();
}

async fn round_trip(store: &Store) {
    let (key, me) = (key("place"), secret());
    let lease = granted(store, &key, &me).await;
    assert_eq!(lookup(store, &key).await.expect("held").fence, Some(lease.fence));
    assert_eq!(release(store, &key, &me).await, Release::Released);
}
