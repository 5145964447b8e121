//! What the lock of `holdtight run` covers: everything that the command started, until the last of
//! it is gone, as with flock, whose descriptor every descendant inherits.

#![cfg(target_os = "linux")]

mod run_harness;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use run_harness::{Bench, Started, code, eventually, guardian_of, runs, stderr, stdout};

/// Works without a pause: each beat is a line in `beats`; its process id is in `worker`. Ignores
/// TERM for as long as the file `stay` is there.
const WORKER: &str = "trap '[ -e stay ] || exit 0' TERM; echo $$ > worker; \
                      while :; do echo beat >> beats; sleep 0.02; done";

/// Complains if the worker can still run.
const NOBODY: &str = "case $(sed 's/.*) //; s/ .*//' /proc/$(cat worker)/stat 2>/dev/null) in \
                      ''|Z|X) echo alone;; *) echo OVERLAP;; esac";

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Starts a run whose worker has left in the way `how` says (`%` is the worker), and returns it
/// with the worker's id.
fn start(bench: &Bench, options: &[&str], how: &str) -> (Started, i32) {
    std::fs::write(bench.path("worker.sh"), WORKER).unwrap();
    let script = how.replace('%', "bash worker.sh");
    let run = bench.start(&[&["run", "k"], options, &["--", "bash", "-c", &script]].concat());
    let worker = bench.pid("worker");
    (run, worker)
}

/// The next holder finds nobody at work.
fn next_is_alone(bench: &Bench, waiter: Started) {
    let output = waiter.finish();
    assert_eq!(stdout(&output), "alone\n", "{}{}", stderr(&output), bench.read("beats").len());
}

fn waiter(bench: &Bench) -> Started {
    bench.start(&["run", "k", "--", "bash", "-c", NOBODY])
}

/// All the ways in which everyday programs leave a process group.
const WAYS: [&str; 5] = [
    "% & wait",
    "timeout 100 %; exit 3",
    "setsid --wait %; exit 3",
    "set -m; % & wait",
    "(setsid % </dev/null >/dev/null 2>&1 &) ; sleep 100",
];

#[test]
fn term_to_the_wrapper_stops_all_of_it_before_the_next_one_starts() {
    for how in WAYS {
        let bench = Bench::new();
        std::fs::write(bench.path("stay"), "").unwrap();
        let (run, worker) = start(&bench, &["--kill-after", "300ms"], how);
        let waiter = waiter(&bench);
        run.signal(Signal::TERM);
        next_is_alone(&bench, waiter);
        assert!(!runs(worker), "{how}");
        assert_ne!(code(&run.finish()), 0, "{how}");
    }
}

#[test]
fn a_worker_that_cleans_up_after_term_has_the_time_to_do_so() {
    let bench = Bench::new();
    let script = "trap 'sleep 1; echo clean > cleaned; exit 0' TERM; echo $$ > worker; \
                  while :; do sleep 0.02; done";
    std::fs::write(bench.path("slow.sh"), script).unwrap();
    // The first process dies of TERM at once, as shells do.
    let run = bench.start(&["run", "k", "--", "sh", "-c", "bash slow.sh & wait"]);
    bench.pid("worker");
    let next = bench.start(&["run", "k", "--", "cat", "cleaned"]);
    run.signal(Signal::TERM);
    assert_eq!(stdout(&next.finish()), "clean\n");
    assert_eq!(code(&run.finish()), 143);
}

#[test]
fn after_max_hold_nobody_is_left_wherever_it_went() {
    for how in WAYS {
        let bench = Bench::new();
        std::fs::write(bench.path("stay"), "").unwrap();
        let (run, worker) = start(&bench, &["--max-hold", "1s", "--kill-after", "300ms"], how);
        next_is_alone(&bench, waiter(&bench));
        assert!(!runs(worker), "{how}");
        let output = run.finish();
        assert_eq!(code(&output), 74, "{how}");
        assert!(stderr(&output).contains("was stopped"), "{}", stderr(&output));
    }
}

#[test]
fn after_kill_9_of_the_wrapper_or_the_guardian_nobody_is_left_wherever_it_went() {
    for how in WAYS {
        for guardian in [false, true] {
            let bench = Bench::new();
            std::fs::write(bench.path("stay"), "").unwrap();
            let (run, worker) = start(&bench, &["--kill-after", "300ms"], how);
            let waiter = waiter(&bench);
            let victim = if guardian { guardian_of(&run).unwrap() } else { run.pid() };
            kill(victim, Signal::KILL);
            next_is_alone(&bench, waiter);
            assert!(!runs(worker), "{how}, guardian: {guardian}");
            if guardian {
                let output = run.finish();
                assert_eq!(code(&output), 74, "{}", stderr(&output));
            }
        }
    }
}

#[test]
fn a_guardian_that_is_killed_before_the_command_runs_is_exit_74() {
    let bench = Bench::new();
    assert_eq!(code(&bench.output(&["acquire", "k", "--ttl", "1h"])), 0);
    let run = bench.start(&["run", "k", "--", "touch", "ran"]);
    eventually("its guardian", || guardian_of(&run).is_some());
    kill(guardian_of(&run).unwrap(), Signal::KILL);
    let output = run.finish();
    assert_eq!(code(&output), 74, "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing was run"), "{}", stderr(&output));
    assert!(!bench.path("ran").exists());
}

#[test]
fn a_nested_run_is_part_of_the_work_of_the_outer_one() {
    let bench = Bench::new();
    std::fs::write(bench.path("stay"), "").unwrap();
    let inner = format!("{} run b -- %; exit 3", env!("CARGO_BIN_EXE_holdtight"));
    let (run, worker) = start(&bench, &["--max-hold", "1s", "--kill-after", "300ms"], &inner);
    next_is_alone(&bench, waiter(&bench));
    assert!(!runs(worker));
    assert_eq!(code(&run.finish()), 74);
    assert_eq!(code(&bench.output(&["run", "b", "true"])), 0);
}

#[test]
fn death_of_the_first_process_by_a_signal_stops_the_rest() {
    let bench = Bench::new();
    let (run, worker) = start(&bench, &[], "echo $$ > first; setsid % & wait");
    let waiter = waiter(&bench);
    kill(bench.pid("first"), Signal::KILL);
    next_is_alone(&bench, waiter);
    assert!(!runs(worker));
    assert_eq!(code(&run.finish()), 137);
}

#[test]
fn what_the_command_leaves_behind_keeps_the_lock_until_it_ends() {
    let bench = Bench::new();
    let script = "(while [ ! -e go ]; do sleep 0.02; done; echo late > late) >/dev/null 2>&1 & \
                  echo $! > worker; exit 5";
    let output = bench.output(&["run", "k", "--ttl", "3s", "--", "bash", "-c", script]);
    // The run itself ends with the first process, says who is left, and how to have it otherwise.
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    let told = stderr(&output);
    assert_eq!(told.lines().count(), 1, "{told}");
    let worker = bench.pid("worker");
    for part in [&format!("pid {worker} (bash)"), "\"k\"", "-o"] {
        assert!(told.contains(part), "{part} is missing in: {told}");
    }
    assert!(runs(worker));
    // It is renewed: otherwise this would be free after 3 s.
    let busy = bench.output(&["run", "-w", "5s", "k", "true"]);
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    let status = stdout(&bench.output(&["status", "k", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let holder = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    assert!(runs(holder), "status names a process that is there: {status}");
    for fd in 0..3 {
        let target = std::fs::read_link(format!("/proc/{holder}/fd/{fd}")).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"), "descriptor {fd} of the guardian");
    }
    let next = bench.start(&["run", "k", "cat", "late"]);
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(stdout(&next.finish()), "late\n");
    eventually("the end of the guardian", || !runs(holder));
}

#[test]
fn term_to_the_guardian_that_stayed_stops_what_was_left_behind() {
    let bench = Bench::new();
    let script = "sleep 100 >/dev/null 2>&1 & echo $! > worker";
    assert_eq!(code(&bench.output(&["run", "k", "--", "bash", "-c", script])), 0);
    let status = stdout(&bench.output(&["status", "k", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    kill(i32::try_from(status["pid"].as_i64().unwrap()).unwrap(), Signal::TERM);
    assert_eq!(code(&bench.output(&["run", "k", "true"])), 0);
    assert!(!runs(bench.pid("worker")));
}

#[test]
fn with_close_the_lock_goes_with_the_first_process_and_nothing_is_killed() {
    for end in ["exit 5", "kill -KILL $$"] {
        let bench = Bench::new();
        let script = format!("sleep 60 >/dev/null 2>&1 & echo $! > pid; {end}");
        let output = bench.output(&["run", "-o", "k", "--", "bash", "-c", &script]);
        assert!([5, 137].contains(&code(&output)));
        assert_eq!(stderr(&output), "");
        let pid = bench.pid("pid");
        assert!(runs(pid), "{end}");
        assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 0);
        kill(pid, Signal::KILL);
    }
}

#[test]
fn a_reader_at_the_other_end_of_the_pipe_does_not_wait_for_the_guardian() {
    let bench = Bench::new();
    let script = "sleep 60 </dev/null >/dev/null 2>&1 & echo $! > pid; echo out; echo err >&2";
    let mut run = bench.start(&["run", "k", "--", "bash", "-c", script]);
    // Both end, although the guardian stays for what was left behind.
    let mut text = String::new();
    run.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "out\n");
    run.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(runs(bench.pid("pid")));
    kill(bench.pid("pid"), Signal::KILL);
}

#[test]
fn a_full_standard_error_does_not_keep_the_guardian_from_stopping_the_work() {
    let bench = Bench::new();
    std::fs::write(bench.path("stay"), "").unwrap();
    std::fs::write(bench.path("worker.sh"), WORKER).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while std::io::Write::write(&mut writer, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut command =
        bench.holdtight(&["run", "k", "--kill-after", "300ms", "--", "bash", "worker.sh"]);
    command.stdout(Stdio::null()).stderr(writer);
    let mut run = command.spawn().unwrap();
    let worker = bench.pid("worker");
    let waiter = waiter(&bench);
    run.kill().unwrap();
    run.wait().unwrap();
    next_is_alone(&bench, waiter);
    assert!(!runs(worker));
    drop(reader);
}

#[test]
fn the_work_keeps_the_lock_of_a_file_store_when_wrapper_and_guardian_are_killed() {
    let bench = Bench::new();
    let script = "echo $$ > worker; while [ ! -e go ]; do sleep 0.02; done";
    let run = bench.start(&["run", "k", "--ttl", "10m", "--", "bash", "-c", script]);
    let worker = bench.pid("worker");
    let guardian = guardian_of(&run).unwrap();
    // Neither sees the end of the other. Not the other way round: the kernel continues a stopped
    // guardian when the wrapper dies, because that leaves its process group orphaned.
    run.signal(Signal::STOP);
    kill(guardian, Signal::KILL);
    run.signal(Signal::KILL);
    eventually("the end of both", || !runs(guardian) && !runs(run.pid()));
    assert!(runs(worker), "nobody is there to stop it");
    let busy = bench.output(&["run", "-n", "k", "true"]);
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    let next = bench.start(&["run", "k", "--", "bash", "-c", NOBODY]);
    std::fs::write(bench.path("go"), "").unwrap();
    next_is_alone(&bench, next);
}

#[test]
fn the_work_keeps_the_lock_of_a_file_store_when_a_guardian_that_is_alone_is_killed() {
    let bench = Bench::new();
    let script = "(echo $BASHPID > worker; while :; do sleep 0.05; done) >/dev/null 2>&1 &";
    let run = bench.start(&["run", "k", "--ttl", "10m", "--", "bash", "-c", script]);
    let worker = bench.pid("worker");
    let guardian = guardian_of(&run).unwrap();
    assert_eq!(code(&run.finish()), 0);
    kill(guardian, Signal::KILL);
    eventually("its end", || !runs(guardian));
    // Nobody renews the lock any more, and nobody else can have it.
    for _ in 0..5 {
        assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 75);
    }
    assert!(runs(worker));
    let next = waiter(&bench);
    kill(worker, Signal::KILL);
    next_is_alone(&bench, next);
}

#[test]
fn a_guardian_that_stands_still_past_the_lease_is_replaced_by_the_wrapper() {
    let bench = Bench::new();
    std::fs::write(bench.path("stay"), "").unwrap();
    let (run, worker) = start(&bench, &["--ttl", "3s"], "setsid --wait %");
    kill(guardian_of(&run).unwrap(), Signal::STOP);
    next_is_alone(&bench, waiter(&bench));
    assert!(!runs(worker));
    let output = run.finish();
    assert_eq!(code(&output), 74, "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
}

#[test]
fn a_killed_process_group_around_the_wrapper_leaves_nobody_at_work() {
    let bench = Bench::new();
    std::fs::write(bench.path("worker.sh"), WORKER).unwrap();
    let mut command = bench.holdtight(&["run", "k", "--", "bash", "worker.sh"]);
    let run = Started::new(command.process_group(0));
    let worker = bench.pid("worker");
    let waiter = waiter(&bench);
    rustix::process::kill_process_group(Pid::from_raw(run.pid()).unwrap(), Signal::KILL).unwrap();
    next_is_alone(&bench, waiter);
    assert!(!runs(worker));
}

#[test]
fn what_cannot_be_killed_keeps_the_lock_and_that_is_what_is_said() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody who may not kill root's processes");
        return;
    }
    let bench = Bench::new();
    // A program that becomes root, as sudo does, and a run of somebody who is not.
    let open = std::os::unix::fs::PermissionsExt::from_mode;
    let here = bench.path("");
    std::fs::set_permissions(&here, open(0o1777)).unwrap();
    let sleep = bench.path("rootsleep");
    std::fs::copy("/usr/bin/python3", &sleep).unwrap();
    std::fs::set_permissions(&sleep, open(0o4755)).unwrap();
    let holdtight = bench.path("holdtight");
    std::fs::copy(env!("CARGO_BIN_EXE_holdtight"), &holdtight).unwrap();
    let script = "import os,time; os.setresuid(0,0,0); open('worker','w').write(f'{os.getpid()}\\n'); \
                  [time.sleep(0.02) for _ in iter(lambda: os.path.exists('go'), True)]";
    let mut command = bench.holdtight(&[]);
    let mut run = std::process::Command::new("setpriv");
    run.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&holdtight);
    run.args(["run", "k", "--max-hold", "1s", "--kill-after", "200ms", "--"]);
    let quiet = "exec \"$0\" -c \"$1\" >/dev/null 2>&1";
    run.args(["sh", "-c", quiet]).arg(&sleep).arg(script).current_dir(&here).stdin(Stdio::null());
    command.stdin(Stdio::null());
    let store = format!("file:{}", bench.path("nobody/store").display());
    std::fs::create_dir(bench.path("nobody")).unwrap();
    std::os::unix::fs::chown(bench.path("nobody"), Some(65534), Some(65534)).unwrap();
    run.env("HOLDTIGHT_STORE", &store).env("HOME", &here);
    let run = Started::new(&mut run);
    let worker = bench.pid("worker");
    let output = run.finish();
    let told = stderr(&output);
    assert_eq!(code(&output), 74, "{told}");
    assert!(
        told.contains(&format!("pid {worker}")) && told.contains("could not be stopped"),
        "{told}"
    );
    assert!(!told.contains("was stopped"), "{told}");
    let next = |options: &[&str]| {
        let mut next = std::process::Command::new("setpriv");
        next.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&holdtight);
        next.arg("run").args(options).args(["k", "true"]).current_dir(&here).stdin(Stdio::null());
        next.env("HOLDTIGHT_STORE", &store).env("HOME", &here);
        code(&Started::new(&mut next).finish())
    };
    assert!(runs(worker));
    assert_eq!(next(&["-n"]), 75, "it works on, so it keeps the lock");
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(next(&["-w", "60s"]), 0);
    // One that ends by itself before we give up was not stopped either.
    let script = "import os,time; os.setresuid(0,0,0); time.sleep(3)";
    let mut run = std::process::Command::new("setpriv");
    run.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&holdtight);
    run.args(["run", "k", "--max-hold", "1s", "--kill-after", "200ms", "--"]);
    run.args(["sh", "-c", quiet]).arg(&sleep).arg(script).current_dir(&here).stdin(Stdio::null());
    run.env("HOLDTIGHT_STORE", &store).env("HOME", &here);
    let output = Started::new(&mut run).finish();
    let told = stderr(&output);
    assert_eq!(code(&output), 74, "{told}");
    assert!(told.contains("could not be stopped") && !told.contains("was stopped"), "{told}");
}

#[test]
fn flock_keeps_its_lock_for_the_same_descendants() {
    let flock = |script: &str| {
        let bench = Bench::new();
        let mut first = std::process::Command::new("flock");
        first.args(["lock", "bash", "-c", script]).current_dir(bench.path(""));
        assert!(first.status().unwrap().success());
        let mut second = std::process::Command::new("flock");
        second.args(["-n", "lock", "true"]).current_dir(bench.path(""));
        let free = second.status().unwrap().success();
        kill(bench.pid("pid"), Signal::KILL);
        free
    };
    let ours = |script: &str| {
        let bench = Bench::new();
        assert_eq!(code(&bench.output(&["run", "k", "--", "bash", "-c", script])), 0);
        let free = code(&bench.output(&["run", "-n", "k", "true"])) == 0;
        kill(bench.pid("pid"), Signal::KILL);
        free
    };
    for script in [
        "sleep 60 >/dev/null 2>&1 & echo $! > pid",
        "setsid sleep 60 >/dev/null 2>&1 & echo $! > pid; sleep 0.2",
        "timeout 60 sleep 60 >/dev/null 2>&1 & echo $! > pid; sleep 0.2",
    ] {
        assert!(!flock(script) && !ours(script), "{script}");
    }
}
