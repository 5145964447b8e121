//! What happens when the lock, the wrapper, the guardian or the store is lost while the command
//! runs.

#![cfg(target_os = "linux")]

mod run_harness;

use std::time::Duration;

use holdtight::RetryPolicy;
use rustix::process::{Pid, Signal, kill_process_group};

use run_harness::{
    Bench, HANGS, INSPECT, STUBBORN, Started, code, eventually, guardian_of, runs, stderr, stdout,
};

/// Runs under the key `k` what ignores TERM; with the process ids of child and grandchild.
fn stubborn(bench: &Bench, options: &[&str]) -> (Started, [i32; 2]) {
    let holder = bench.start(&[&["run", "k"], options, &["--", "bash", "-c", STUBBORN]].concat());
    (holder, ["child", "grandchild"].map(|name| bench.pid(name)))
}

#[test]
fn after_kill_9_of_the_wrapper_the_whole_group_is_gone_before_the_next_holder_starts() {
    let bench = Bench::new();
    let (holder, [child, grandchild]) =
        stubborn(&bench, &["--ttl", "60s", "--kill-after", "300ms"]);
    let waiter = bench.start(&["run", "k", "--", "bash", "-c", INSPECT]);
    holder.signal(Signal::KILL);
    // Long before the lease of 60 s: otherwise this fails as a hang.
    let output = waiter.finish();
    assert_eq!(stdout(&output), "child gone\ngrandchild gone\n", "{}", stderr(&output));
    assert!(!runs(child) && !runs(grandchild));
    assert!(stderr(&holder.finish()).contains("killed"), "the guardian says what it does");
}

#[test]
fn a_command_that_obeys_is_told_before_it_is_killed() {
    let bench = Bench::new();
    let script =
        "trap 'echo told > told; exit 0' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let holder = bench.start(&["run", "k", "--ttl", "60s", "--", "bash", "-c", script]);
    let child = bench.pid("child");
    holder.signal(Signal::KILL);
    assert_eq!(bench.line("told"), "told");
    eventually("its end", || !runs(child));
    assert_eq!(code(&bench.output(&["run", "k", "true"])), 0);
}

#[test]
fn a_wrapper_that_is_killed_at_any_moment_leaves_no_command_behind() {
    let bench = Bench::new();
    for round in 0..40_u64 {
        let name = format!("pid-{round}");
        let script = format!("echo $$ > {name}; exec sleep 60");
        let holder = bench.start(&["run", "k", "--kill-after", "200ms", "--", "sh", "-c", &script]);
        std::thread::sleep(Duration::from_micros(round * 250));
        holder.signal(Signal::KILL);
        drop(holder);
        // Whoever comes next finds nobody at work.
        let next =
            bench.output(&["run", "k", "--", "sh", "-c", &format!("cat {name} 2>/dev/null; true")]);
        assert_eq!(code(&next), 0, "{}", stderr(&next));
        if let Ok(pid) = stdout(&next).trim().parse() {
            assert!(!runs(pid), "round {round}: the command runs on without its lock");
        }
    }
}

#[test]
fn a_stopped_wrapper_does_not_lose_its_lock() {
    let bench = Bench::new();
    let script = "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 3";
    let holder = bench.start(&["run", "k", "--ttl", "2s", "--", "sh", "-c", script]);
    bench.pid("child");
    holder.signal(Signal::STOP);
    let busy = bench.output(&["run", "-w", "4s", "k", "true"]);
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    holder.signal(Signal::CONT);
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(code(&holder.finish()), 3);
}

#[test]
fn a_stopped_command_does_not_keep_the_lock_from_being_renewed() {
    let bench = Bench::new();
    let holder = bench.start(&[
        "run",
        "k",
        "--ttl",
        "4s",
        "--",
        "sh",
        "-c",
        "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 3",
    ]);
    let child = Pid::from_raw(bench.pid("child")).unwrap();
    kill_process_group(child, Signal::STOP).unwrap();
    let busy = bench.output(&["run", "-w", "5s", "k", "true"]);
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    std::fs::write(bench.path("go"), "").unwrap();
    // A CONT to the wrapper is a CONT to the command.
    holder.signal(Signal::CONT);
    assert_eq!(code(&holder.finish()), 3);
}

#[test]
fn a_lock_that_cannot_be_renewed_stops_the_command_before_the_lease_ends() {
    let bench = Bench::new();
    let (holder, [child, grandchild]) = stubborn(&bench, &["--ttl", "3s", "--kill-after", "1s"]);
    std::fs::rename(bench.path("store"), bench.path("gone")).unwrap();
    std::fs::write(bench.path("store"), "no directory").unwrap();
    let output = holder.finish();
    assert_eq!(code(&output), 74, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("lost \"k\"") && stderr(&output).contains("stopped"),
        "{}",
        stderr(&output)
    );
    assert!(!runs(child) && !runs(grandchild));
}

#[test]
fn a_lock_that_was_taken_away_by_force_stops_the_command() {
    let bench = Bench::new();
    let script = format!("echo $HOLDTIGHT_FENCE > fence; {STUBBORN}");
    let holder = bench.start(&["run", "k", "--ttl", "3s", "--", "bash", "-c", &script]);
    let (child, grandchild) = (bench.pid("child"), bench.pid("grandchild"));
    let forced = bench.output(&["force-release", "k", "--fence", &bench.line("fence")]);
    assert_eq!(code(&forced), 0, "{}", stderr(&forced));
    let output = holder.finish();
    assert_eq!(code(&output), 74);
    assert!(stderr(&output).contains("no longer has it"), "{}", stderr(&output));
    assert!(!runs(child) && !runs(grandchild));
}

#[test]
fn term_comes_before_kill_when_a_lock_cannot_be_renewed() {
    let bench = Bench::new();
    let script =
        "trap 'echo told > told; exit 0' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let holder = bench.start(&[
        "run",
        "k",
        "--ttl",
        "3s",
        "--kill-after",
        "1400ms",
        "--",
        "bash",
        "-c",
        script,
    ]);
    bench.pid("child");
    // As if some other process were frozen in the middle of a step of this key.
    let record = std::fs::File::open(record_in(&bench.path("store/keys"))).unwrap();
    record.lock().unwrap();
    let output = holder.finish();
    assert_eq!(
        code(&output),
        74,
        "a command that obeyed was stopped all the same: {}",
        stderr(&output)
    );
    assert_eq!(bench.line("told"), "told");
}

/// The one record below `directory`.
fn record_in(directory: &std::path::Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.map(|path| if path.is_dir() { record_in(&path) } else { path });
    found.last().unwrap_or_else(|| panic!("nothing in {}", directory.display()))
}

#[test]
fn a_store_that_is_gone_at_the_end_keeps_neither_the_exit_nor_the_code() {
    let bench = Bench::new();
    let script = "echo $$ > child; while [ ! -e go ]; do sleep 0.02; done; exit 9";
    let holder = bench.start(&["run", "k", "--ttl", "10m", "--", "sh", "-c", script]);
    bench.pid("child");
    std::fs::remove_dir_all(bench.path("store")).unwrap();
    std::fs::write(bench.path("go"), "").unwrap();
    let output = holder.finish();
    assert_eq!(code(&output), 9, "{}", stderr(&output));
    assert!(stderr(&output).contains("holdtight: "), "a warning: {}", stderr(&output));
}

#[test]
fn max_hold_stops_the_command_and_says_so() {
    let bench = Bench::new();
    let (holder, [child, grandchild]) = stubborn(&bench, &["--max-hold", "4s"]);
    let output = holder.finish();
    assert_eq!(code(&output), 74);
    assert!(stderr(&output).contains("--max-hold"), "{}", stderr(&output));
    assert!(!runs(child) && !runs(grandchild));
    assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 0, "the lock was given back");
}

#[test]
fn a_deadline_is_in_the_environment_only_with_max_hold() {
    let bench = Bench::new();
    let script = "echo $((HOLDTIGHT_DEADLINE - $(date +%s)))";
    let output = bench.output(&["run", "k", "--max-hold", "100s", "--", "sh", "-c", script]);
    let left: i64 = stdout(&output).trim().parse().unwrap();
    assert!((60..=100).contains(&left), "{left}");
}

/// What the open descriptors of a process lead to.
fn open_files(pid: i32) -> Vec<std::path::PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let leads_to = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).ok();
    descriptors.filter_map(leads_to).collect()
}

#[test]
fn wrapper_and_guardian_share_what_shows_that_the_lock_is_held() {
    let bench = Bench::new();
    let script = "echo $$ > child; exec sleep 60";
    let holder = bench.start(&["run", "-o", "k", "--", "sh", "-c", script]);
    let child = bench.pid("child");
    let guardian = guardian_of(&holder).unwrap();
    let live = bench.path("store/live").canonicalize().unwrap();
    let of_the_store = |pid| {
        let mut files = open_files(pid);
        // The directory itself may be open as well; it shows nobody anything.
        files.retain(|file| file.starts_with(&live) && *file != live);
        files.sort();
        files.dedup();
        files
    };
    let shared = of_the_store(guardian);
    assert_eq!(shared.len(), 2, "the lock and the pipe: {shared:?}");
    assert!(
        shared.iter().any(|file| file.extension().is_some_and(|end| end == "wake")),
        "{shared:?}"
    );
    assert_eq!(of_the_store(holder.pid()), shared);
    assert!(of_the_store(child).is_empty(), "{:?}", of_the_store(child));
}

#[tokio::test]
async fn whoever_waits_is_woken_when_the_guardian_has_done_its_work() {
    let bench = Bench::new();
    let (holder, [child, grandchild]) =
        stubborn(&bench, &["--ttl", "10m", "--kill-after", "300ms"]);
    // Never asks by itself, so that without a wake-up this fails as a hang.
    let seldom = RetryPolicy::fixed(Duration::from_secs(3600));
    let lock = holdtight::builder(bench.store_url().as_str()).retry(seldom);
    let lock = lock.connect().await.unwrap();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire("k").wait_forever().await }
    });
    // It waits by now, or will find the wrapper dead and the guardian at work: both must work.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiter.is_finished());
    holder.signal(Signal::KILL);
    let handle = tokio::time::timeout(HANGS, waiter).await.unwrap().unwrap().unwrap();
    assert!(!runs(child) && !runs(grandchild));
    handle.release().await.unwrap();
}

#[test]
fn max_hold_is_the_time_until_term() {
    let bench = Bench::new();
    let script = "trap 'echo $(($(date +%s%N) / 1000000 - start)) > told; exit 0' TERM; \
                  start=$(($(date +%s%N) / 1000000)); while :; do sleep 0.02; done";
    let arguments = ["run", "k", "--max-hold", "2s", "--kill-after", "1500ms", "--"];
    let output = bench.output(&[&arguments[..], &["bash", "-c", script]].concat());
    assert_eq!(code(&output), 74, "{}", stderr(&output));
    let millis: u64 = bench.line("told").parse().unwrap();
    assert!(millis >= 1900, "TERM came after {millis} ms");
    assert_eq!(code(&bench.output(&["run", "k", "--max-hold", "30s", "--", "sleep", "0.9"])), 0);
}

#[test]
fn a_grace_of_half_the_lease_or_more_is_refused() {
    let bench = Bench::new();
    let output = bench.output(&["run", "k", "--ttl", "10s", "--kill-after", "5s", "--", "true"]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("--kill-after"), "{}", stderr(&output));
}
