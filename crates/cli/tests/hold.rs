//! `holdtight hold`: a lock for the rest of a script, in bash and in dash, and the mistakes people
//! make with it.

#![cfg(target_os = "linux")]

mod run_harness;

use std::fs;
use std::process::{Command, Stdio};

use run_harness::{Bench, Started, code, eventually, guardian_of, runs, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};

const HOLD: &str = "eval \"$($H hold k || echo exit 1)\"";

/// Waits for the file `go`, and starts no process while it does.
const UNTIL_GO: &str = "mkfifo go.pipe; echo $$ > up; read -r word < go.pipe";

/// The shells that are here.
fn shells() -> Vec<&'static str> {
    let here = |shell: &&str| Command::new(shell).args(["-c", ":"]).status().is_ok();
    let shells: Vec<_> = ["bash", "dash", "sh"].into_iter().filter(here).collect();
    assert!(!shells.is_empty());
    shells
}

/// `script` as a file that `shell` runs, with `$H` for holdtight on the store of `bench`.
fn script(bench: &Bench, shell: &str, script: &str) -> Command {
    fs::write(bench.path("script"), script).unwrap();
    let holdtight = bench.holdtight(&[]);
    let mut command = Command::new(shell);
    command.arg("script").env("H", holdtight.get_program()).stdin(Stdio::null());
    for (name, value) in holdtight.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(bench.path(""));
    command
}

fn is_free(bench: &Bench, key: &str) -> bool {
    let free = code(&bench.output(&["run", "-n", key, "true"]));
    assert!([0, 75].contains(&free), "{free}");
    free == 0
}

fn go(bench: &Bench) {
    fs::write(bench.path("go.pipe"), "\n").unwrap();
}

/// The keeper of the only hold: the session leader among our processes of this bench.
fn keeper(bench: &Bench) -> i32 {
    let store = bench.path("").display().to_string();
    let mut found = None;
    eventually("the keeper", || {
        found = fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
            let line = fs::read(process.path().join("cmdline")).ok()?;
            let words: Vec<_> = line.split(|&byte| byte == 0).collect();
            let environment = fs::read(process.path().join("environ")).ok()?;
            let ours = String::from_utf8_lossy(&environment).contains(&store);
            let is_keeper = words.get(1) == Some(&&b"__keeper"[..]);
            (ours && is_keeper).then(|| process.file_name().to_str().unwrap().parse().unwrap())
        });
        found.is_some()
    });
    found.unwrap()
}

fn child_of(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn the_rest_of_a_script_is_covered_and_its_end_frees_the_key() {
    for shell in shells() {
        let bench = Bench::new();
        let text = format!(
            "set -eu\n{HOLD}\n$H check\necho \"$HOLDTIGHT_KEY $HOLDTIGHT_FENCE\" > told\n{UNTIL_GO}\nexit 3"
        );
        let running = Started::new(&mut script(&bench, shell, &text));
        bench.line("up");
        let status = bench.output(&["status", "k", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(bench.line("told"), format!("k {}", status["fence"].as_str().unwrap()));
        assert_eq!(status["command"], *shell, "{shell}: the script is shown");
        assert!(!is_free(&bench, "k"));
        go(&bench);
        let output = running.finish();
        assert_eq!((code(&output), stderr(&output).as_str()), (3, ""), "{shell}");
        eventually("a free key", || is_free(&bench, "k"));
    }
}

#[test]
fn a_key_that_stays_busy_ends_the_script_with_or_without_set_e() {
    for shell in shells() {
        for set in ["set -e", ":"] {
            let bench = Bench::new();
            assert_eq!(code(&bench.output(&["acquire", "k", "--ttl", "1h"])), 0);
            // Also without the words for a holdtight that is not there.
            for hold in ["eval \"$($H hold -n k || echo exit 1)\"", "eval \"$($H hold -w 50ms k)\""]
            {
                let text = format!("{set}\n{hold}\necho went on");
                let output = Started::new(&mut script(&bench, shell, &text)).finish();
                assert_eq!((code(&output), stdout(&output).as_str()), (75, ""), "{shell}: {hold}");
                assert!(stderr(&output).contains("\"k\" is busy"), "{}", stderr(&output));
            }
        }
    }
}

#[test]
fn mistakes_end_the_script_too() {
    let bench = Bench::new();
    for shell in shells() {
        for (hold, expected, told) in [
            ("eval \"$($H hold)\"", 64, "<KEY>"),
            ("eval \"$($H hold '' )\"", 65, "empty"),
            ("eval \"$($H hold --tll 5s k)\"", 64, "--ttl"),
            ("eval \"$($H --store nosuch://h hold k)\"", 64, "nosuch"),
            ("eval \"$(HOLDTIGHT_TTL=soon $H hold k)\"", 64, "HOLDTIGHT_TTL"),
            ("eval \"$($H --store memory: hold k)\"", 64, "memory:"),
            ("eval \"$(/nowhere/holdtight hold k || echo exit 1)\"", 1, "nowhere"),
        ] {
            let text = format!("{hold}\necho went on");
            let output = Started::new(&mut script(&bench, shell, &text)).finish();
            assert_eq!(
                (code(&output), stdout(&output).as_str()),
                (expected, ""),
                "{shell}: {hold}"
            );
            assert!(stderr(&output).contains(told), "{shell}: {hold}: {}", stderr(&output));
        }
    }
}

#[test]
fn called_without_eval_it_takes_nothing_or_lets_go_of_it() {
    let bench = Bench::new();
    // Nobody could ever evaluate this.
    let mut command = bench.holdtight(&["hold", "k"]);
    let refused = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(stderr(&refused).contains("eval \"$(holdtight hold KEY"), "{}", stderr(&refused));
    assert!(is_free(&bench, "k"));
    // A check without a hold says what was forgotten.
    let check = bench.output(&["check"]);
    assert_eq!(code(&check), 64);
    assert!(stderr(&check).contains("outside of eval"), "{}", stderr(&check));
    // Somebody reads it, as a pipe would, and does nothing with it: the keeper does not wait for
    // ever.
    let text = "$H hold k > /dev/full; echo \"full: $?\"; $H hold k | true; echo done";
    let output = Started::new(&mut script(&bench, "sh", text)).finish();
    assert!(stdout(&output).contains("done"), "{}", stderr(&output));
    eventually("a free key", || is_free(&bench, "k"));
}

#[test]
fn a_shell_that_is_killed_frees_the_key_at_once() {
    for shell in shells() {
        let bench = Bench::new();
        let running = Started::new(&mut script(&bench, shell, &format!("{HOLD}\n{UNTIL_GO}")));
        bench.line("up");
        assert!(!is_free(&bench, "k"));
        running.signal(Signal::KILL);
        // The lease would last for half a minute; a condition that is waited for tells nothing of
        // that, so: no renewal.
        eventually("a free key", || is_free(&bench, "k"));
        drop(running);
    }
}

#[test]
fn what_a_killed_script_has_started_keeps_the_key_until_it_ends() {
    for shell in shells() {
        let bench = Bench::new();
        let work = "(trap '' TERM; mkfifo go.pipe; echo $$ > up; read -r word < go.pipe) & wait";
        let running = Started::new(&mut script(&bench, shell, &format!("{HOLD}\n{work}")));
        bench.line("up");
        running.signal(Signal::KILL);
        drop(running);
        for _ in 0..5 {
            assert!(!is_free(&bench, "k"), "{shell}: its child is at work");
        }
        go(&bench);
        eventually("a free key", || is_free(&bench, "k"));
    }
}

#[test]
fn whoever_of_the_keepers_is_killed_the_script_is_stopped() {
    for victim in ["wrapper", "guardian", "reader", "wrapper by TERM"] {
        let bench = Bench::new();
        // It would survive TERM.
        let text = format!("trap '' TERM\n{HOLD}\n{UNTIL_GO}\necho went on");
        let mut running = Started::new(&mut script(&bench, "bash", &text));
        let shell = bench.pid("up");
        assert_eq!(shell, running.pid());
        let wrapper = keeper(&bench);
        let guardian = child_of(wrapper).unwrap();
        let (pid, signal) = match victim {
            "wrapper" => (wrapper, Signal::KILL),
            "guardian" => (guardian, Signal::KILL),
            "reader" => (child_of(guardian).unwrap(), Signal::KILL),
            _ => (wrapper, Signal::TERM),
        };
        send(pid, signal);
        eventually(&format!("the end of the script: {victim}"), || running.has_ended());
        let output = running.finish();
        assert!(!stdout(&output).contains("went on"), "{victim}");
        let told = stderr(&output);
        assert!(told.contains("holdtight: ") && told.contains("\"k\""), "{victim}: {told}");
        eventually("a free key", || is_free(&bench, "k"));
        eventually("the end of all", || !runs(wrapper) && !runs(guardian));
    }
}

/// A script that does not end by TERM; the process id of its shell is in `worker`, and that of a
/// child in `child`.
const STUBBORN: &str = "trap '' TERM\n%\n(echo $BASHPID > child; while :; do sleep 0.02; done) &\n\
                        echo $$ > worker\nwhile :; do sleep 0.02; done";

/// Complains if one of the two can still run.
const NOBODY: &str = "for name in worker child; do \
                      case $(sed 's/.*) //; s/ .*//' /proc/$(cat $name)/stat 2>/dev/null) in \
                      ''|Z|X) echo $name gone;; *) echo OVERLAP with $name;; esac; done";

/// Starts the stubborn script under `hold`, and somebody who waits for its key and looks whether it
/// is alone.
fn stubborn(bench: &Bench, hold: &str) -> (Started, Started) {
    let running = Started::new(&mut script(bench, "bash", &STUBBORN.replace('%', hold)));
    bench.pid("child");
    bench.pid("worker");
    let waiter = bench.start(&["run", "k", "--", "bash", "-c", NOBODY]);
    let mut run = None;
    eventually("somebody who waits", || {
        run = guardian_of(&waiter);
        run.is_some()
    });
    (running, waiter)
}

fn is_alone(waiter: Started, how: &str) {
    let output = waiter.finish();
    assert_eq!(stdout(&output), "worker gone\nchild gone\n", "{how}: {}", stderr(&output));
}

#[test]
fn whoever_of_the_keepers_is_killed_the_script_is_dead_before_the_next_one_starts() {
    for victims in ["wrapper", "guardian", "reader", "guardian reader", "wrapper reader"] {
        let bench = Bench::new();
        let (running, waiter) = stubborn(&bench, &HOLD.replace("hold k", "hold k --ttl 3s"));
        let wrapper = keeper(&bench);
        let guardian = child_of(wrapper).unwrap();
        let reader = child_of(guardian).unwrap();
        for victim in victims.split(' ') {
            let pid = match victim {
                "wrapper" => wrapper,
                "guardian" => guardian,
                _ => reader,
            };
            send(pid, Signal::KILL);
        }
        is_alone(waiter, victims);
        assert_eq!(code(&running.finish()), 137, "{victims}");
    }
}

#[test]
fn a_keeper_that_stands_still_leaves_nobody_at_work_when_the_next_one_starts() {
    for victim in ["wrapper", "guardian"] {
        let bench = Bench::new();
        let (running, waiter) = stubborn(&bench, &HOLD.replace("hold k", "hold k --ttl 3s"));
        let wrapper = keeper(&bench);
        let guardian = child_of(wrapper).unwrap();
        if victim == "guardian" {
            send(guardian, Signal::STOP);
        } else {
            // The rest of them is then enough.
            send(wrapper, Signal::STOP);
            send(child_of(guardian).unwrap(), Signal::KILL);
        }
        is_alone(waiter, victim);
        assert_eq!(code(&running.finish()), 137, "{victim}");
        if victim == "wrapper" {
            send(wrapper, Signal::KILL);
        }
    }
}

#[test]
fn a_script_that_uses_the_descriptor_for_itself_keeps_the_lock_until_it_ends() {
    for shell in shells() {
        for reuse in ["exec N>&-", "exec N>other"] {
            for number in ["3", "4", "5", "6", "7", "8", "9"] {
                let bench = Bench::new();
                let reuse = reuse.replace('N', number);
                let text = format!("{HOLD}\n{reuse}\n{UNTIL_GO}\n$H check && echo ours");
                let running = Started::new(&mut script(&bench, shell, &text));
                bench.line("up");
                for _ in 0..3 {
                    assert!(!is_free(&bench, "k"), "{shell}: {reuse}");
                }
                go(&bench);
                let output = running.finish();
                assert_eq!(stdout(&output), "ours\n", "{shell}: {}", stderr(&output));
                eventually("a free key", || is_free(&bench, "k"));
            }
        }
    }
}

#[test]
fn a_script_that_uses_the_descriptor_for_itself_can_be_stopped_and_can_give_the_lock_back() {
    let close = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    let bench = Bench::new();
    let hold = HOLD.replace("hold k", "hold k --ttl 3s");
    let (running, waiter) = stubborn(&bench, &format!("{hold}; {close}"));
    send(keeper(&bench), Signal::KILL);
    is_alone(waiter, "closed");
    assert_eq!(code(&running.finish()), 137);
    let bench = Bench::new();
    let text = format!("{HOLD}\n{close}\n$H release && $H run -n k echo free");
    let output = Started::new(&mut script(&bench, "sh", &text)).finish();
    assert_eq!(stdout(&output), "free\n", "{}", stderr(&output));
}

#[test]
fn a_lock_that_is_forced_away_stops_the_script() {
    let bench = Bench::new();
    let text = format!(
        "trap '' TERM\n{}\n{UNTIL_GO}\necho went on",
        HOLD.replace("hold k", "hold k --ttl 2s")
    );
    let mut running = Started::new(&mut script(&bench, "dash", &text));
    bench.line("up");
    let status = bench.output(&["status", "k", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let fence = status["fence"].as_str().unwrap();
    assert_eq!(code(&bench.output(&["force-release", "k", "--fence", fence])), 0);
    eventually("the end of the script", || running.has_ended());
    let output = running.finish();
    assert!(!stdout(&output).contains("went on"));
    assert!(stderr(&output).contains("lost \"k\""), "{}", stderr(&output));
}

#[test]
fn all_keepers_killed_at_once_is_noticed_by_check() {
    let bench = Bench::new();
    let text = format!("{HOLD}\n{UNTIL_GO}\n$H check; echo \"check: $?\"");
    let running = Started::new(&mut script(&bench, "bash", &text));
    bench.line("up");
    let wrapper = keeper(&bench);
    let guardian = child_of(wrapper).unwrap();
    let reader = child_of(guardian).unwrap();
    for pid in [wrapper, guardian, reader] {
        send(pid, Signal::STOP);
    }
    for pid in [wrapper, guardian, reader] {
        send(pid, Signal::KILL);
    }
    eventually("their end", || ![wrapper, guardian, reader].into_iter().any(runs));
    go(&bench);
    let output = running.finish();
    assert_eq!(stdout(&output), "check: 74\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("\"k\" is not held"), "{}", stderr(&output));
}

#[test]
fn two_holds_are_two_locks_and_the_same_one_twice_is_refused() {
    for shell in shells() {
        let bench = Bench::new();
        let text = "eval \"$($H hold a || echo exit 1)\"\neval \"$($H hold b || echo exit 1)\"\n\
                    $H check --json\n\
                    $H release; echo \"release: $?\"\n\
                    $H release --hold a; echo \"a: $?\"\n\
                    $H status a >/dev/null; echo \"a held: $?\"; $H status b >/dev/null; echo \"b held: $?\"\n\
                    $H check; echo \"check: $?\"; $H check b; echo \"check b: $?\"\n\
                    $H release; echo \"b: $?\"; $H release; echo \"again: $?\"\n\
                    eval \"$($H hold a || echo exit 1)\"\n$H check a; echo \"a again: $?\"\n\
                    eval \"$($H hold a || echo exit 1)\"\necho went on";
        let output = Started::new(&mut script(&bench, shell, text)).finish();
        let told = stdout(&output);
        let (json, rest) = told.split_once('\n').unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json[0]["key"], &json[1]["key"]), (&"a".into(), &"b".into()));
        assert_eq!(
            rest,
            "release: 64\na: 0\na held: 1\nb held: 0\ncheck: 74\ncheck b: 0\nb: 0\nagain: 74\na again: 0\n",
            "{shell}: {}",
            stderr(&output)
        );
        assert_eq!(code(&output), 64, "{}", stderr(&output));
        assert!(stderr(&output).contains("this script holds \"a\" already"), "{}", stderr(&output));
        eventually("free keys", || is_free(&bench, "a") && is_free(&bench, "b"));
    }
}

#[test]
fn a_subshell_holds_for_itself() {
    for shell in shells() {
        let bench = Bench::new();
        let text = format!(
            "for n in 1 2 3; do ({HOLD}; $H check && echo $n); done; $H status k; {UNTIL_GO}"
        );
        let running = Started::new(&mut script(&bench, shell, &text));
        bench.line("up");
        eventually("a key that only the subshells held", || is_free(&bench, "k"));
        go(&bench);
        let output = running.finish();
        assert!(
            stdout(&output).starts_with("1\n2\n3\n"),
            "{shell}: {}{}",
            stdout(&output),
            stderr(&output)
        );
    }
}

#[test]
fn what_reads_the_scripts_output_to_its_end_does_not_wait_for_the_keeper() {
    let bench = Bench::new();
    // A child without these streams keeps the lock, and so the keeper.
    let text = format!(
        "{HOLD}\nmkfifo go.pipe; (read -r word < go.pipe) >/dev/null 2>&1 &\necho out; echo err >&2"
    );
    let output = Started::new(&mut script(&bench, "sh", &text)).finish();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("out\n", "err\n"));
    assert!(!is_free(&bench, "k"));
    go(&bench);
    eventually("a free key", || is_free(&bench, "k"));
}

#[test]
fn a_signal_that_ends_the_wait_ends_the_keeper_too() {
    let bench = Bench::new();
    let held = bench.output(&["acquire", "k", "--ttl", "1h"]);
    let place = bench.path("pipes");
    fs::create_dir(&place).unwrap();
    let mut waiter = bench.holdtight(&["hold", "k"]);
    let mut waiting = Started::new(waiter.env("XDG_RUNTIME_DIR", &place));
    let wrapper = keeper(&bench);
    eventually("its guardian", || child_of(wrapper).is_some());
    waiting.signal(Signal::INT);
    eventually("the end of hold", || waiting.has_ended());
    eventually("the end of the keeper", || !runs(wrapper));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "the pipe is left behind");
    let mut release = bench.holdtight(&["release"]);
    release.env("HOLDTIGHT_TOKEN", stdout(&held).trim());
    assert_eq!(code(&Started::new(&mut release).finish()), 0);
    assert!(is_free(&bench, "k"), "nobody is left who waits");
    assert!(guardian_of(&waiting).is_none());
}

/// A `hold` of the key `k`, which somebody else has, in a script; its keeper is in line. The script
/// ignores TERM, and so do its keepers.
fn waiting_in_line(bench: &Bench) -> (Started, i32) {
    assert_eq!(code(&bench.output(&["acquire", "k", "--ttl", "1h"])), 0);
    fs::create_dir(bench.path("pipes")).unwrap();
    let text = "trap '' TERM\nexec $H hold k | cat > code";
    let mut command = script(bench, "bash", text);
    let waiting = Started::new(command.env("XDG_RUNTIME_DIR", bench.path("pipes")));
    let wrapper = keeper(bench);
    eventually("its guardian", || child_of(wrapper).is_some());
    (waiting, wrapper)
}

/// The keeper has left the line, and has left nothing behind, while the key is still busy.
fn has_left_the_line(bench: &Bench, wrapper: i32) {
    eventually("the end of the keeper", || !runs(wrapper));
    eventually("an empty directory", || fs::read_dir(bench.path("pipes")).unwrap().count() == 0);
    assert!(!is_free(bench, "k"));
}

fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hold_that_is_killed_while_it_waits_leaves_the_line() {
    for signal in [Signal::KILL, Signal::INT] {
        let bench = Bench::new();
        let (_waiting, wrapper) = waiting_in_line(&bench);
        send(parent_of(wrapper), signal);
        has_left_the_line(&bench, wrapper);
    }
}

#[test]
fn a_hold_whose_answer_nobody_would_read_leaves_the_line() {
    let bench = Bench::new();
    let (waiting, wrapper) = waiting_in_line(&bench);
    let hold = parent_of(wrapper);
    let children = format!("/proc/{0}/task/{0}/children", waiting.pid());
    let children = fs::read_to_string(children).unwrap();
    let is_reader = |pid: &&str| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "cat\n")
    };
    let reader = children.split_whitespace().find(is_reader).unwrap();
    // As a shell that is killed: nobody is at the other end any more.
    send(reader.parse().unwrap(), Signal::KILL);
    eventually("the end of hold", || !runs(hold));
    has_left_the_line(&bench, wrapper);
}

#[test]
fn nothing_is_left_in_the_directory_for_pipes() {
    let bench = Bench::new();
    let place = bench.path("pipes");
    fs::create_dir(&place).unwrap();
    let count = || fs::read_dir(&place).unwrap().count();
    for text in [
        format!("{HOLD}\n$H check"),
        HOLD.replace("hold k", "hold -n busy"),
        "$H hold k | true".into(),
    ] {
        let _ = bench.output(&["acquire", "-n", "busy", "--ttl", "1h"]);
        let mut command = script(&bench, "sh", &text);
        Started::new(command.env("XDG_RUNTIME_DIR", &place)).finish();
        eventually("an empty directory", || count() == 0);
    }
}
