//! Waiting for a lock, giving up, being interrupted, and holding several keys at once.

#![cfg(target_os = "linux")]

mod run_harness;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use run_harness::{Bench, Started, code, eventually, guardian_of, runs, stderr, stdout};

/// Holds `key` until the file `go` is there.
fn hold(bench: &Bench, key: &str) -> Started {
    let up = format!("up-{key}");
    // Of an earlier holder.
    let _ = std::fs::remove_file(bench.path(&up));
    let script = format!("echo $$ > {up}; while [ ! -e go ]; do sleep 0.02; done");
    let holder = bench.start(&["run", key, "--reason", "release 42", "--", "sh", "-c", &script]);
    bench.line(&up);
    holder
}

fn let_go(bench: &Bench, holder: Started) {
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(code(&holder.finish()), 0);
    std::fs::remove_file(bench.path("go")).unwrap();
}

#[test]
fn a_busy_key_is_75_at_once_with_the_facts() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let output = bench.output(&["run", "-n", "k", "--", "sh", "-c", "echo > ran"]);
    assert_eq!(code(&output), 75);
    let text = stderr(&output);
    for fact in [
        "\"k\" is busy",
        &format!("PID:     {}", guardian_of(&holder).unwrap()),
        "Command: sh",
        "release 42",
        "Fence:",
    ] {
        assert!(text.contains(fact), "{fact} is missing in:\n{text}");
    }
    assert!(!bench.path("ran").exists());
    assert_eq!(code(&bench.output(&["run", "-w", "0", "k", "true"])), 75, "-w 0 is -n");
    let_go(&bench, holder);
}

#[test]
fn the_conflict_code_can_be_chosen_or_be_success() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    assert_eq!(code(&bench.output(&["run", "-n", "-E", "3", "k", "true"])), 3);
    let skipped = bench.output(&["run", "-n", "--skip-ok", "k", "true"]);
    assert_eq!((code(&skipped), stderr(&skipped).as_str()), (0, ""));
    let_go(&bench, holder);
}

#[test]
fn a_wait_with_a_limit_ends_and_says_one_line_before_the_facts() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let started = Instant::now();
    let output = bench.output(&["run", "-w", "4s", "k", "true"]);
    assert_eq!(code(&output), 75);
    assert!(started.elapsed() >= Duration::from_secs(4));
    let text = stderr(&output);
    assert!(text.starts_with("holdtight: waiting for \"k\": held by pid "), "{text}");
    assert_eq!(text.matches("waiting for").count(), 1, "one line at most on a pipe:\n{text}");
    assert!(
        !text.contains('\r') && !text.contains('\x1b'),
        "no terminal, no control codes: {text:?}"
    );
    let_go(&bench, holder);
}

#[test]
fn a_conflict_is_one_line_of_json_if_asked_for() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let output = bench.output(&["--json", "run", "-n", "k", "true"]);
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["error"], &json["key"], &json["exit"]),
        (&"busy".into(), &"k".into(), &75.into())
    );
    let_go(&bench, holder);
}

#[test]
fn a_waiter_gets_the_lock_as_soon_as_it_is_free() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let waiter = bench.start(&["run", "k", "--ttl", "1h", "--", "echo", "mine"]);
    let_go(&bench, holder);
    assert_eq!(stdout(&waiter.finish()), "mine\n");
}

#[test]
fn a_signal_ends_the_wait_at_once_and_nothing_runs() {
    let bench = Bench::new();
    for (signal, number) in
        [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1), (Signal::USR1, 10)]
    {
        let holder = hold(&bench, "k");
        let mut command = bench.holdtight(&["run", "k", "--", "sh", "-c", "echo > ran"]);
        let waiter = Started::new(&mut command);
        // It waits when it has a place in the store: its liveness file beside the holder's.
        eventually("the waiter", || {
            std::fs::read_dir(bench.path("store/live"))
                .unwrap()
                .flatten()
                .filter(|file| !file.file_name().to_string_lossy().contains('.'))
                .count()
                == 2
        });
        waiter.signal(signal);
        assert_eq!(code(&waiter.finish()), 128 + number);
        let_go(&bench, holder);
        assert_eq!(
            code(&bench.output(&["run", "-n", "k", "true"])),
            0,
            "nobody is in line any more"
        );
        assert!(!bench.path("ran").exists());
    }
}

#[test]
fn several_keys_are_held_all_together_or_not_at_all() {
    let bench = Bench::new();
    let holder = hold(&bench, "b");
    let output = bench.output(&["run", "-n", "-k", "a", "-k", "b", "-k", "c", "--", "true"]);
    assert_eq!(code(&output), 75);
    assert!(stderr(&output).contains("\"b\" is busy"), "{}", stderr(&output));
    assert_eq!(code(&bench.output(&["run", "-n", "a", "true"])), 0, "a was given back");
    assert_eq!(code(&bench.output(&["run", "-n", "c", "true"])), 0);
    let_go(&bench, holder);
    let both = bench.start(&[
        "run",
        "-k",
        "b",
        "-k",
        "a",
        "--",
        "sh",
        "-c",
        "echo > both; while [ ! -e go ]; do sleep 0.02; done",
    ]);
    bench.line("both");
    for key in ["a", "b"] {
        assert_eq!(code(&bench.output(&["run", "-n", key, "true"])), 75, "{key}");
    }
    let_go(&bench, both);
    assert_eq!(
        code(&bench.output(&["run", "-k", "a", "-k", "a", "--", "true"])),
        0,
        "twice is once"
    );
}

#[test]
fn callers_with_the_same_keys_in_any_order_do_not_block_each_other_for_ever() {
    let bench = Bench::new();
    let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"], ["c", "a", "b"]];
    let script = "n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count";
    std::thread::scope(|scope| {
        for keys in orders {
            let bench = &bench;
            scope.spawn(move || {
                for _ in 0..10 {
                    let [x, y, z] = keys;
                    let arguments = ["run", "-k", x, "-k", y, "-k", z, "--", "sh", "-c", script];
                    assert_eq!(code(&bench.output(&arguments)), 0);
                }
            });
        }
    });
    assert_eq!(bench.read("count").trim(), "40");
}

#[test]
fn keep_for_keeps_the_lock_after_a_short_command() {
    let bench = Bench::new();
    assert_eq!(code(&bench.output(&["run", "k", "--keep-for", "1h", "--", "true"])), 0);
    assert_eq!(
        code(&bench.output(&["run", "-n", "k", "true"])),
        75,
        "another host's cron comes too late"
    );
    let started = Instant::now();
    assert_eq!(code(&bench.output(&["run", "j", "--keep-for", "5s", "--", "true"])), 0);
    assert_eq!(code(&bench.output(&["run", "j", "true"])), 0, "and then it is free");
    assert!(started.elapsed() >= Duration::from_secs(5));
}

#[test]
fn keep_for_adds_nothing_to_a_command_that_took_longer() {
    let bench = Bench::new();
    assert_eq!(code(&bench.output(&["run", "k", "--keep-for", "300ms", "--", "sleep", "0.5"])), 0);
    assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 0);
}

#[test]
fn an_unusable_store_is_told_apart_from_a_busy_one() {
    let bench = Bench::new();
    std::fs::write(bench.path("store"), "a file, not a directory").unwrap();
    let output = bench.output(&["run", "k", "--", "true"]);
    assert!([64, 69].contains(&code(&output)), "{}: {}", code(&output), stderr(&output));
    assert!((1..=2).contains(&stderr(&output).lines().count()), "{}", stderr(&output));
}

#[test]
fn a_shell_and_cron_of_one_user_share_the_default_store() {
    let bench = Bench::new();
    let call = |arguments: &[&str], xdg: bool| {
        let mut command = bench.holdtight(arguments);
        command.env_remove("HOLDTIGHT_STORE").env_remove("XDG_STATE_HOME");
        if xdg {
            command.env("XDG_STATE_HOME", bench.path("xdg"));
        }
        Started::new(&mut command)
    };
    let script = "echo > up; while [ ! -e go ]; do sleep 0.02; done";
    let shell = call(&["run", "k", "--", "sh", "-c", script], true);
    bench.line("up");
    let cron = call(&["run", "-n", "k", "true"], false).finish();
    assert_eq!(code(&cron), 75, "{}", stderr(&cron));
    let place = bench.path(".local/state/holdtight");
    let place = format!("file:{} (from default)", place.display());
    assert!(stderr(&cron).contains(&place), "{}", stderr(&cron));
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(code(&shell.finish()), 0);
    let config = stdout(&call(&["config"], true).finish());
    assert!(config.contains(".local/state/holdtight"), "{config}");
    // Where an earlier version kept them, there is a word about it.
    std::fs::create_dir_all(bench.path("xdg/holdtight/store")).unwrap();
    let told = stderr(&call(&["status", "k"], true).finish());
    assert!(told.contains("XDG_STATE_HOME"), "{told}");
}

#[test]
fn a_run_that_waits_for_the_run_around_it_says_so() {
    let bench = Bench::new();
    let inner = format!("{} run -w 2s k true", env!("CARGO_BIN_EXE_holdtight"));
    let output = bench.output(&["run", "k", "--", "sh", "-c", &inner]);
    assert_eq!(code(&output), 75);
    let told = stderr(&output);
    assert!(told.contains("so this waits for itself"), "{told}");
    assert!(told.contains("the run around this one") && !told.contains("force-release"), "{told}");
}

#[test]
fn a_kept_key_says_until_when_and_is_kept_for_as_long_as_asked() {
    let bench = Bench::new();
    assert_eq!(code(&bench.output(&["run", "--keep-for", "1h", "k", "true"])), 0);
    let told = stderr(&bench.output(&["run", "-n", "k", "true"]));
    assert!(told.contains("kept until") && !told.contains("force-release"), "{told}");
    // Much less than the shortest lease of 5 s.
    assert_eq!(code(&bench.output(&["run", "--keep-for", "600ms", "short", "true"])), 0);
    let asked = std::time::Instant::now();
    assert_eq!(code(&bench.output(&["run", "-n", "short", "true"])), 75);
    assert_eq!(code(&bench.output(&["run", "short", "true"])), 0);
    let shortest_lease = std::time::Duration::from_secs(4);
    assert!(asked.elapsed() < shortest_lease, "kept for {:?}", asked.elapsed());
}

#[test]
fn a_wait_for_a_server_that_says_nothing_can_be_interrupted() {
    let bench = Bench::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut command = bench.holdtight(&["run", "k", "true"]);
    let run = Started::new(command.env("HOLDTIGHT_STORE", format!("redis://127.0.0.1:{port}")));
    let (_connection, _) = silent.accept().unwrap();
    run.signal(rustix::process::Signal::INT);
    assert_eq!(code(&run.finish()), 130);
}

/// What waits to become the command of `waiter`: the only child of its guardian.
fn launcher_of(waiter: &Started) -> i32 {
    let mut found = None;
    eventually("what will become the command", || {
        let guardian = guardian_of(waiter);
        let children = guardian.and_then(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()
        });
        found = children.and_then(|list| list.split_whitespace().next()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn what_waits_to_become_the_command_is_replaced_if_it_is_killed_and_ends_with_its_guardian() {
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let waiter = bench.start(&["run", "k", "--", "echo", "ran"]);
    let launcher = launcher_of(&waiter);
    kill_process(Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
    eventually("its end", || !runs(launcher));
    let orphan = bench.start(&["run", "k", "--", "echo", "ran"]);
    let launcher = launcher_of(&orphan);
    let guardian = guardian_of(&orphan).unwrap();
    kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    eventually("its end", || !runs(launcher));
    assert_eq!(stdout(&orphan.finish()), "");
    let_go(&bench, holder);
    let output = waiter.finish();
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "ran\n"), "{}", stderr(&output));
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came_to_the_line() {
    const WAITERS: usize = 24;
    let bench = Bench::new();
    let holder = hold(&bench, "k");
    let in_line = || {
        let names = std::fs::read_dir(bench.path("store/live")).unwrap().flatten();
        names.filter(|name| name.file_name().to_string_lossy().ends_with(".wake")).count()
    };
    let holders = in_line();
    let mut waiters = Vec::new();
    for waiter in 0..WAITERS {
        let script = format!("echo {waiter} >> served");
        waiters.push(bench.start(&["run", "k", "--", "sh", "-c", &script]));
        // It comes to the line in the step that follows its pipe, and the next one has to be
        // started first.
        eventually("somebody in the line", || in_line() > holders + waiter);
    }
    let_go(&bench, holder);
    for waiter in waiters {
        assert_eq!(code(&waiter.finish()), 0);
    }
    let served: Vec<usize> =
        bench.read("served").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(served.len(), WAITERS);
    // A machine that is starved may let one come too late; most come in turn.
    let in_turn = served.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(in_turn > WAITERS * 3 / 4, "{in_turn} of {WAITERS} in turn: {served:?}");
}
