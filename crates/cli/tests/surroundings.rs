//! The command in strange surroundings: without `/dev/fd`, as the first process of a container,
//! with hardly any descriptors, under a name that is not one's own.

#![cfg(target_os = "linux")]

mod run_harness;
mod support;

use std::process::Command;

use run_harness::{Bench, Started, code, eventually, guardian_of, stderr, stdout};
use rustix::process::Signal;
use support::Home;

/// `script` in namespaces of its own (`flags` of unshare), with `$H` for holdtight on the store of
/// `bench`. `None` where that is not allowed.
fn unshared(bench: &Bench, flags: &[&str], script: &str) -> Option<std::process::Output> {
    let allowed = Command::new("unshare").args(flags).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this process may not unshare namespaces");
        return None;
    }
    let holdtight = bench.holdtight(&[]);
    let mut command = Command::new("unshare");
    command.args(flags).args(["sh", "-c", script]).env("H", holdtight.get_program());
    command.envs(holdtight.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(bench.path("")).stdin(std::process::Stdio::null());
    Some(Started::new(&mut command).finish())
}

#[test]
fn a_command_runs_where_there_is_no_dev_fd() {
    let bench = Bench::new();
    let script = "mkdir dev && mount -t tmpfs none dev && touch dev/null && mount --bind /dev/null dev/null \
                  && mount --move dev /dev && [ ! -e /dev/fd ] && exec $H run k -- echo hello";
    let Some(output) = unshared(&bench, &["--user", "--map-root-user", "--mount"], script) else {
        return;
    };
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "hello\n"), "{}", stderr(&output));
}

#[test]
fn as_the_first_process_of_a_container_orphans_are_reaped() {
    let bench = Bench::new();
    // Each leaves a child behind that ends at once. Whoever is a zombie for long is reaped by
    // nobody.
    let work = r#"
        for n in 1 2 3 4 5; do (setsid sh -c 'sleep 0.05; echo >> ended' & ); done
        while [ "$(wc -l < ended 2>/dev/null || echo 0)" -lt 5 ]; do sleep 0.02; done
        tries=0
        while grep -l '^[0-9]* ([^)]*) Z' /proc/[0-9]*/stat 2>/dev/null; do
            tries=$((tries + 1)); [ $tries -lt 200 ] || exit 9; sleep 0.02
        done >/dev/null
        sed 's/ .*//' /proc/1/stat > first; tr '\0' ' ' < /proc/1/cmdline > first-name
    "#;
    std::fs::write(bench.path("work.sh"), work).unwrap();
    let flags = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let Some(output) = unshared(&bench, &flags, "exec $H run k -- sh work.sh") else { return };
    assert_eq!(code(&output), 0, "zombies are left: {}", stderr(&output));
    assert!(bench.read("first-name").contains(" run k "), "{}", bench.read("first-name"));
}

#[test]
fn too_few_descriptors_are_called_too_few_descriptors() {
    let home = Home::new();
    home.call("status k");
    let mut failed = 0;
    for limit in 4..24 {
        let acquire = format!("acquire -n k-{limit}");
        for line in ["status k", "run -n k true", &acquire, "ls", "doctor"] {
            let command = home.command(line.split(' '));
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
            shell.arg(command.get_program()).args(command.get_args());
            shell.env_clear();
            shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = shell.output().unwrap();
            let told = stderr(&output);
            // With fewer the system cannot even load the program.
            let loaded = !told.contains("shared libraries");
            if code(&output) > 1 && loaded {
                failed += 1;
                let named = told.contains("open files") || told.contains("files are open");
                assert!(named, "{line} with {limit} descriptors: {}: {told}", code(&output));
                assert!(!told.contains("mount it"), "{line} with {limit} descriptors: {told}");
                if told.contains("the store is out of") {
                    assert_eq!(code(&output), 69, "{line} with {limit} descriptors: {told}");
                }
            }
        }
    }
    assert!(failed > 5, "some limits are too low");
}

#[test]
fn a_file_that_may_not_grow_is_an_error_and_not_a_death_without_a_word() {
    let home = Home::new();
    home.call("status k");
    for line in ["acquire -n k", "run -n k true", "fenced-write --fence 7 file"] {
        let command = home.command(line.split(' '));
        let mut shell = Command::new("bash");
        shell.args(["-c", "ulimit -f 0; echo new | \"$0\" \"$@\""]);
        shell.arg(command.get_program()).args(command.get_args()).env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = shell.current_dir(home.path("")).output().unwrap();
        assert_eq!(code(&output), 69, "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains("File too large"), "{line}: {}", stderr(&output));
    }
}

#[test]
fn where_there_is_no_proc_it_is_named() {
    let bench = Bench::new();
    for call in ["run k true", "hold k | cat"] {
        let script = format!("mount -t tmpfs none /proc && $H {call}");
        let flags = ["--user", "--map-root-user", "--mount"];
        let Some(output) = unshared(&bench, &flags, &script) else { return };
        assert!(stderr(&output).contains("is /proc mounted?"), "{call}: {}", stderr(&output));
    }
}

#[test]
fn where_no_threads_can_be_started_it_is_said_and_nothing_is_left_behind() {
    // Limits of processes do not count for root.
    const USER: u32 = 60_124;
    let root = rustix::process::getuid().is_root();
    let home = Home::new();
    if root {
        std::os::unix::fs::chown(home.path(""), Some(USER), Some(USER)).unwrap();
    }
    // Where it was built others may have no business.
    std::fs::copy(env!("CARGO_BIN_EXE_holdtight"), home.path("holdtight")).unwrap();
    let call = |limit: &str, line: &str| {
        let command = home.command(line.split(' '));
        let user = USER.to_string();
        let mut shell = Command::new(if root { "setpriv" } else { "bash" });
        if root {
            shell.args(["--reuid", &user, "--regid", &user, "--clear-groups", "bash"]);
        }
        shell.args(["-c", &format!("ulimit -u {limit} >/dev/null; exec \"$0\" \"$@\"")]);
        shell.arg(home.path("holdtight")).args(command.get_args()).env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(home.path("")).stdin(std::process::Stdio::null());
        Started::new(&mut shell).finish()
    };
    if !call("", "status k").stderr.is_empty() {
        eprintln!("skipped: the command cannot be called as another user");
        return;
    }
    let mut refused = 0;
    for limit in 1..6 {
        for line in ["run -n k true", "--json acquire -n a", "status k", "ls", "wait -w 0 k"] {
            let output = call(&limit.to_string(), line);
            let told = stderr(&output);
            assert!(!told.contains("panicked"), "{line} with {limit} processes: {told}");
            assert_eq!(told.lines().count() > 0, code(&output) > 1, "{line}: {told}");
            if code(&output) > 1 {
                refused += 1;
                assert!([69, 126].contains(&code(&output)), "{line}: {}: {told}", code(&output));
                assert!(told.contains("temporarily unavailable"), "{line}: {told}");
                assert_eq!(told.starts_with('{'), line.contains("--json"), "{told}");
                assert_eq!(code(&call("", "status a")), 1, "{line} with {limit}");
            } else if line.contains("acquire") {
                return;
            }
        }
    }
    assert!(refused > 5, "some limits are too low");
}

#[test]
fn a_holder_under_somebody_elses_name_is_shown_with_its_number() {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let ours = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then_some(name)
    });
    let told = |user: &str| {
        let home = Home::new().with("USER", user);
        home.acquire("k");
        let status = home.call("status k --json").succeeded().json();
        let mut run =
            home.command(["run", "other", "--", "sh", "-c", "exec \"$0\" status other --json"]);
        let run = run.arg(env!("CARGO_BIN_EXE_holdtight")).output().unwrap();
        let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(status["user"], run["user"]);
        status["user"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("ceo"), format!("ceo (uid {uid})"));
    if let Some(ours) = ours {
        assert_eq!(told(ours), ours, "a name that is right needs no number");
    }
}

#[test]
fn what_a_guardian_says_by_itself_is_json_too() {
    let bench = Bench::new();
    let errors = std::fs::File::create(bench.path("errors")).unwrap();
    let arguments = ["run", "--json", "k", "--", "sh", "-c", "echo $$ > child; exec sleep 1000"];
    let mut command = bench.holdtight(&arguments);
    let mut run = Started(command.stderr(errors).spawn().unwrap());
    bench.line("child");
    run.signal(Signal::KILL);
    eventually("the end of the wrapper", || run.has_ended());
    let said = bench.line("errors");
    let json: serde_json::Value = serde_json::from_str(&said).expect(&said);
    assert!(json["warning"].as_str().unwrap().contains("killed"), "{said}");
    assert_eq!(bench.read("errors").lines().count(), 1);
}

#[test]
fn wrapper_and_guardian_are_woken_by_a_clock_that_runs_while_the_machine_sleeps() {
    let bench = Bench::new();
    let arguments =
        ["run", "--ttl", "20s", "k", "--", "sh", "-c", "echo $$ > child; exec sleep 1000"];
    let run = bench.start(&arguments);
    bench.line("child");
    let guardian = guardian_of(&run).unwrap();
    for (who, pid) in [("wrapper", run.pid()), ("guardian", guardian)] {
        eventually(&format!("an alarm of the {who} within the lease"), || {
            alarms(pid).iter().any(|left| (1..20_000_000_000).contains(left))
        });
    }
    run.signal(Signal::TERM);
    run.finish();
}

/// In how many nanoseconds the timers of a process that are on the boot clock ring.
fn alarms(pid: i32) -> Vec<u64> {
    const BOOT_CLOCK: &str = "clockid: 7";
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let infos = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let ours = infos.filter(|info| info.lines().any(|line| line == BOOT_CLOCK));
    ours.filter_map(|info| {
        let value = info.lines().find_map(|line| line.strip_prefix("it_value: ("))?.to_owned();
        let (seconds, nanos) = value.trim_end_matches(')').split_once(", ")?;
        Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + nanos.parse::<u64>().ok()?)
    })
    .collect()
}
