//! `holdtight run` on a store across a network: a Redis server that dies, hangs, or wants a
//! password.

#![cfg(target_os = "linux")]

mod run_harness;

use holdtight_testkit::Proxy;
use holdtight_testkit::servers::{Program, Redis};
use rustix::process::Signal;

use run_harness::{Bench, INSPECT, STUBBORN, Started, code, runs, stderr, stdout};

/// A server, or `None` with a word about it where there is no Redis.
async fn server(arguments: &[&str]) -> Option<Redis> {
    if !Program::REDIS.available() {
        eprintln!("skipped: there is no redis-server here");
        return None;
    }
    Some(Redis::start_with(arguments).await)
}

fn start(bench: &Bench, server: &Redis, arguments: &[&str]) -> Started {
    Started::new(bench.holdtight(arguments).env("HOLDTIGHT_STORE", server.url()))
}

#[tokio::test]
async fn a_server_that_is_dead_or_hangs_at_the_end_keeps_neither_the_exit_nor_the_code() {
    for hangs in [false, true] {
        let bench = Bench::new();
        let Some(server) = server(&[]).await else { return };
        let script = "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 9";
        let holder = start(&bench, &server, &["run", "k", "--ttl", "1h", "--", "sh", "-c", script]);
        bench.pid("child");
        if hangs {
            server.process().pause();
        } else {
            server.process().kill();
        }
        std::fs::write(bench.path("go"), "").unwrap();
        let output = holder.finish();
        assert_eq!(code(&output), 9, "{}", stderr(&output));
        assert!(stderr(&output).contains("ends with its lease"), "{}", stderr(&output));
        server.process().resume();
    }
}

#[tokio::test]
async fn a_server_that_dies_or_hangs_costs_the_command_its_life_before_the_lease_ends() {
    for hangs in [false, true] {
        let bench = Bench::new();
        let Some(server) = server(&[]).await else { return };
        let arguments = ["run", "k", "--ttl", "3s", "--", "bash", "-c", STUBBORN];
        let holder = start(&bench, &server, &arguments);
        let (child, grandchild) = (bench.pid("child"), bench.pid("grandchild"));
        if hangs {
            server.process().pause();
        } else {
            server.process().kill();
        }
        let output = holder.finish();
        assert_eq!(code(&output), 74, "{}", stderr(&output));
        let told = stderr(&output);
        // One that hangs may not have been given up by the time at which the command has to be
        // dead.
        assert!(told.contains("lost \"k\"") && (hangs || told.contains("last answer")), "{told}");
        assert!(!runs(child) && !runs(grandchild));
        server.process().resume();
    }
}

#[tokio::test]
async fn a_killed_wrapper_leaves_a_lease_and_nobody_who_works_under_it() {
    let bench = Bench::new();
    let Some(server) = server(&[]).await else { return };
    let arguments =
        ["run", "k", "--ttl", "4s", "--kill-after", "500ms", "--", "bash", "-c", STUBBORN];
    let holder = start(&bench, &server, &arguments);
    let (child, grandchild) = (bench.pid("child"), bench.pid("grandchild"));
    let waiter = start(&bench, &server, &["run", "k", "--", "bash", "-c", INSPECT]);
    holder.signal(Signal::KILL);
    let output = waiter.finish();
    assert_eq!(stdout(&output), "child gone\ngrandchild gone\n", "{}", stderr(&output));
    assert!(!runs(child) && !runs(grandchild));
}

#[tokio::test]
async fn a_store_url_with_a_password_is_withheld_from_the_command_unless_it_is_passed() {
    let bench = Bench::new();
    let Some(server) = server(&["--requirepass", "hunter2"]).await else { return };
    assert!(server.url().contains("hunter2"));
    let holdtight = env!("CARGO_BIN_EXE_holdtight");
    let script = format!("env; {holdtight} run inner -- echo nested");
    let output = start(&bench, &server, &["run", "k", "--", "sh", "-c", &script]).finish();
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    assert!(stdout(&output).contains("HOLDTIGHT_STORE=withheld:\n"));
    let (all, told) = (stdout(&output), stderr(&output));
    assert!(!all.contains("hunter2") && !told.contains("hunter2"), "{all}{told}");
    assert!(told.contains("--pass-store"), "{told}");
    let output =
        start(&bench, &server, &["run", "k", "--pass-store", "--", "sh", "-c", &script]).finish();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).ends_with("nested\n"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_69() {
    let bench = Bench::new();
    let Some(server) = server(&[]).await else { return };
    server.process().kill();
    let output = start(&bench, &server, &["run", "-n", "k", "true"]).finish();
    assert_eq!(code(&output), 69, "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_wait_outlasts_a_server_that_is_just_starting() {
    for arguments in [&["run", "k", "echo", "mine"][..], &["acquire", "k", "--ttl", "1s"]] {
        let bench = Bench::new();
        let Some(server) = server(&[]).await else { return };
        let proxy = Proxy::to(([127, 0, 0, 1], server.port()).into()).await.unwrap();
        proxy.down();
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let mut started = Started::new(bench.holdtight(arguments).env("HOLDTIGHT_STORE", url));
        while proxy.traffic().refused == 0 {
            assert!(!started.has_ended(), "it gave up at the first refusal");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        proxy.heal();
        let output = tokio::task::block_in_place(|| started.finish());
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
    }
}
