//! The command under `holdtight run`: its exit code, streams, signals, environment and descriptors.

#![cfg(target_os = "linux")]

mod run_harness;

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;

use run_harness::{Bench, Started, code, eventually, stderr, stdout};

#[test]
fn the_exit_code_of_the_command_is_the_exit_code() {
    let bench = Bench::new();
    for expected in [0, 1, 7, 255] {
        let script = format!("exit {expected}");
        assert_eq!(code(&bench.output(&["run", "k", "--", "sh", "-c", &script])), expected);
    }
}

#[test]
fn a_command_that_a_signal_ended_is_128_and_the_signal() {
    let bench = Bench::new();
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2)] {
        let script = format!("kill -{name} $$; sleep 60");
        assert_eq!(code(&bench.output(&["run", "k", "--", "sh", "-c", &script])), 128 + number);
    }
}

#[test]
fn a_missing_command_is_127_and_one_that_cannot_run_is_126() {
    let bench = Bench::new();
    let missing = bench.output(&["run", "k", "--keep-for", "1h", "--", "no-such-command-here"]);
    assert_eq!(code(&missing), 127);
    assert!(stderr(&missing).contains("\"no-such-command-here\""), "{}", stderr(&missing));
    assert_eq!(stderr(&missing).lines().count(), 1, "{}", stderr(&missing));
    assert_eq!(code(&bench.output(&["run", "k", "--", "/etc/passwd"])), 126);
    assert_eq!(code(&bench.output(&["run", "k", "--", "/"])), 126);
    assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 0, "nothing ran, nothing is kept");
}

#[test]
fn the_command_gets_its_words_as_they_are_without_a_shell_and_without_dashes() {
    let bench = Bench::new();
    let words = ["run", "k", "printf", "[%s]", "-n", "--", "a b", "$HOME", ";", ""];
    assert_eq!(stdout(&bench.output(&words)), "[-n][--][a b][$HOME][;][]");
}

#[test]
fn standard_input_reaches_the_command() {
    let bench = Bench::new();
    let mut command = bench.holdtight(&["run", "k", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through the pipe").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "through the pipe");
}

#[test]
fn the_command_has_what_shows_that_it_works_and_nothing_else_of_ours() {
    let bench = Bench::new();
    let list = |options: &[&str]| {
        let words = [&["run", "k"], options, &["--", "ls", "-l", "/proc/self/fd"]].concat();
        stdout(&bench.output(&words))
    };
    let mut plain = std::process::Command::new("ls");
    plain.args(["-l", "/proc/self/fd"]).stdin(Stdio::null());
    let without = stdout(&Started::new(&mut plain).finish());
    let count = |list: &str| list.lines().filter(|line| line.contains("->")).count();
    let (inherited, closed) = (list(&[]), list(&["--close"]));
    let live = |list: &str| list.lines().filter(|line| line.contains("store/live/")).count();
    assert_eq!((live(&inherited), live(&closed)), (2, 0), "{inherited}{closed}");
    assert_eq!(count(&inherited), count(&without) + 2, "{inherited}{without}");
    assert_eq!(count(&closed), count(&without), "{closed}{without}");
}

#[test]
fn the_signals_that_are_blocked_in_the_command_are_those_of_whoever_called() {
    let bench = Bench::new();
    let mask = |text: String| text.split_whitespace().last().unwrap_or_default().to_owned();
    let words = ["run", "k", "--", "grep", "SigBlk", "/proc/self/status"];
    assert_eq!(mask(stdout(&bench.output(&words))), "0000000000000000");
    let call = bench.holdtight(&words);
    let block = "import os, signal, sys; \
                 signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1]); \
                 os.execvp(sys.argv[1], sys.argv[1:])";
    let mut blocked = std::process::Command::new("python3");
    blocked.args(["-c", block]).arg(call.get_program()).args(call.get_args());
    blocked.stdin(Stdio::null()).env("HOLDTIGHT_STORE", bench.store_url());
    assert_eq!(mask(stdout(&Started::new(&mut blocked).finish())), "0000000000004200");
}

#[test]
fn what_nohup_ignores_stays_ignored_in_the_command_and_while_waiting() {
    let bench = Bench::new();
    let holder = bench.start(&[
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo > up; while [ ! -e go ]; do sleep 0.02; done",
    ]);
    bench.line("up");
    let mut nohup = std::process::Command::new("nohup");
    let inner = bench.holdtight(&["run", "k", "--", "grep", "SigIgn", "/proc/self/status"]);
    nohup.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    nohup.env("HOLDTIGHT_STORE", bench.store_url());
    let waiter = Started::new(&mut nohup);
    // The signal is harmless before the wait and during it; only `nohup` itself must have come so
    // far.
    eventually("nohup ignores it", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", waiter.pid()));
        let status = status.unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
    });
    waiter.signal(Signal::HUP);
    std::fs::write(bench.path("go"), "").unwrap();
    let output = waiter.finish();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let mask = u64::from_str_radix(stdout(&output).split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "SIGHUP is ignored in the command");
    assert_eq!(code(&holder.finish()), 0);
}

#[test]
fn signals_to_the_wrapper_reach_the_whole_group() {
    let bench = Bench::new();
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::ALARM, "ALRM"),
    ] {
        let script = format!(
            "(trap 'echo {name} >> inner-{name}; exit 0' {name}; echo > inner-up-{name}; while :; do sleep 0.02; done) & \
             trap 'echo {name} >> outer-{name}' {name}; echo > up-{name}; wait; wait; exit 5"
        );
        let run = bench.start(&["run", "k", "--", "bash", "-c", &script]);
        bench.line(&format!("up-{name}"));
        bench.line(&format!("inner-up-{name}"));
        run.signal(signal);
        assert_eq!(bench.line(&format!("inner-{name}")), name);
        assert_eq!(bench.line(&format!("outer-{name}")), name);
        assert_eq!(code(&run.finish()), 5, "{name}");
        assert_eq!(bench.read(&format!("outer-{name}")).lines().count(), 1, "{name} is sent once");
    }
}

#[test]
fn the_command_has_a_process_group_of_its_own_and_leads_it() {
    let bench = Bench::new();
    let run = bench.start(&[
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done",
    ]);
    let pid = bench.pid("pid");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let group = stat.rsplit(')').next().unwrap().split_whitespace().nth(2).unwrap().to_owned();
    assert_eq!(group, pid.to_string());
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(code(&run.finish()), 0);
}

#[test]
fn the_environment_names_the_lock_and_never_the_token() {
    let bench = Bench::new();
    let mut command = bench.holdtight(&["run", "job:7", "--", "env"]);
    command
        .env("HOLDTIGHT_TOKEN", "very-secret")
        .env("HOLDTIGHT_DEADLINE", "1")
        .env("HOLDTIGHT_FENCES", "1 x");
    let environment = stdout(&Started::new(&mut command).finish());
    let ours: Vec<_> = environment.lines().filter(|line| line.starts_with("HOLDTIGHT_")).collect();
    assert_eq!(ours.len(), 3, "{ours:?}");
    assert!(ours.contains(&"HOLDTIGHT_KEY=job:7"));
    assert!(ours.contains(&format!("HOLDTIGHT_STORE={}", bench.store_url()).as_str()));
    let fence = ours.iter().find_map(|line| line.strip_prefix("HOLDTIGHT_FENCE=")).unwrap();
    assert!(fence.parse::<u64>().unwrap() > 0);
}

#[test]
fn nested_runs_see_the_inner_lock() {
    let bench = Bench::new();
    let holdtight = env!("CARGO_BIN_EXE_holdtight");
    let script = format!(
        "echo $HOLDTIGHT_KEY; {holdtight} run inner -- sh -c 'echo $HOLDTIGHT_KEY'; \
         {holdtight} run -k b -k a -- sh -c 'echo \"${{HOLDTIGHT_KEY-none}}\"; echo \"$HOLDTIGHT_FENCES\"'; echo $HOLDTIGHT_KEY"
    );
    let output = bench.output(&["run", "outer", "--", "sh", "-c", &script]);
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}{}", stderr(&output));
    assert_eq!((lines[0], lines[1], lines[2], lines[5]), ("outer", "inner", "none", "outer"));
    assert!(lines[3].ends_with(" a") && lines[4].ends_with(" b"), "{text}");
}

#[test]
fn a_store_that_was_withheld_is_refused_and_the_way_out_is_named() {
    let bench = Bench::new();
    let mut nested = bench.holdtight(&["run", "k", "true"]);
    let output = Started::new(nested.env("HOLDTIGHT_STORE", "withheld:")).finish();
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("--pass-store"), "{}", stderr(&output));
}

#[test]
fn a_file_size_limit_is_told_and_does_not_kill_us_without_a_word() {
    let bench = Bench::new();
    let script = format!("ulimit -f 0; exec {} run k -- true", env!("CARGO_BIN_EXE_holdtight"));
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", &script]).stdin(Stdio::null());
    limited.env("HOLDTIGHT_STORE", bench.store_url());
    let output = Started::new(&mut limited).finish();
    assert_eq!(code(&output), 69, "{}", stderr(&output));
    assert!(stderr(&output).starts_with("holdtight: "), "{}", stderr(&output));
}

#[test]
fn nothing_of_ours_is_left_when_it_is_over() {
    let bench = Bench::new();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done";
    let run = bench.start(&["run", "k", "--", "sh", "-c", script]);
    let wrapper = run.pid();
    bench.pid("pid");
    let guardians = || {
        let mut found = Vec::new();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|&byte| byte == 0).collect();
            if words.get(1) == Some(&&b"__guardian"[..])
                && words.get(2) == Some(&wrapper.to_string().as_bytes())
            {
                found.push(process.file_name().to_string_lossy().parse::<i32>().unwrap());
            }
        }
        found
    };
    assert_eq!(guardians().len(), 1);
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(code(&run.finish()), 0);
    assert_eq!(guardians(), Vec::<i32>::new());
    let live = std::fs::read_dir(bench.path("store/live")).unwrap().count();
    assert_eq!(live, 0, "the liveness file is gone");
}
