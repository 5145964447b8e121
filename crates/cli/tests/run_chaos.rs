//! Kills and stops at random: wrappers, guardians and commands, while many runs want few keys.
//! Nobody ever works beside another, and that is checked by those who work: each creates a mark
//! that must not be there, and removes it.
//!
//! A short round is part of every test run. `HOLDTIGHT_CHAOS_RUNS=2000` makes a long one.

#![cfg(target_os = "linux")]

mod run_harness;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdtight_testkit::servers::{Program, Redis};
use rustix::process::{Pid, Signal, kill_process};

use run_harness::{Bench, Started, code, eventually, stderr};

const KEYS: usize = 2;
const LOOPS: usize = 5;

/// How many runs, unless more are asked for.
const RUNS: usize = 40;

/// The work: it marks itself as the only one, works for a moment, and takes its mark away. A mark
/// that is there belongs to somebody at work, or to one who was killed: `/proc` tells which.
///
/// Not a shell's `set -C`: the mark has to hold who made it from the instant on in which it is
/// there.
const WORK: &str = r#"
import os, random, signal, sys, time
mark = "mark-" + sys.argv[1]
if random.random() < 0.3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
mine = f"{os.getpid()} {started(os.getpid())}"
with open(f"{mark}-{os.getpid()}", "w") as new:
    new.write(mine)
while True:
    try:
        os.link(f"{mark}-{os.getpid()}", mark)
        break
    except FileExistsError:
        pid, since = open(mark).read().split()
        if started(pid) == since:
            with open("overlaps", "a") as log:
                log.write(f"{mine} found {pid} at work under {sys.argv[1]}\n")
            sys.exit(9)
        os.unlink(mark)
end = time.time() + random.choice([0.01, 0.05, 0.3])
while time.time() < end:
    time.sleep(0.005)
os.unlink(mark)
os.unlink(f"{mark}-{os.getpid()}")
with open("done", "a") as log:
    log.write("x\n")
"#;

/// The ways in which a command starts its work.
const WAYS: [&str; 6] = [
    "exec python3 work.py KEY",
    "timeout 20 python3 work.py KEY",
    "setsid --wait python3 work.py KEY",
    "python3 work.py KEY & wait",
    "(setsid python3 work.py KEY </dev/null >/dev/null 2>&1 &); exit 0",
    "HOLDTIGHT run inner-$$ -- python3 work.py KEY",
];

/// What is done to a run.
#[derive(Clone, Copy, Debug)]
enum Fault {
    KillWrapper,
    KillGuardian,
    KillFirst,
    TermWrapper,
    StopGuardian,
    StopWrapper,
    KillBoth,
}

const FAULTS: [Fault; 7] = [
    Fault::KillWrapper,
    Fault::KillGuardian,
    Fault::KillFirst,
    Fault::TermWrapper,
    Fault::StopGuardian,
    Fault::StopWrapper,
    Fault::KillBoth,
];

impl Fault {
    /// The lease of a run that this is done to. With both killed, nobody stops the work, and it has
    /// until then to end by itself.
    fn ttl(self) -> &'static str {
        if let Self::KillBoth = self { "20s" } else { "2s" }
    }
}

/// Numbers that look random, the same in every run of the test.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// The child of `pid`, if it has one.
fn child_of(pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Does `fault` to `run`. What has ended by itself meanwhile is left alone: nobody else is hit,
/// because only children of our own child are asked for.
fn strike(run: &Started, fault: Fault, pause: Duration) {
    let signal = |pid: Option<i32>, signal| {
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    };
    let (wrapper, guardian) = (Some(run.pid()), child_of(run.pid()));
    match fault {
        Fault::KillWrapper => signal(wrapper, Signal::KILL),
        Fault::KillGuardian => signal(guardian, Signal::KILL),
        Fault::KillFirst => signal(guardian.and_then(child_of), Signal::KILL),
        Fault::TermWrapper => signal(wrapper, Signal::TERM),
        Fault::StopGuardian | Fault::StopWrapper => {
            let stopped = if let Fault::StopWrapper = fault { wrapper } else { guardian };
            signal(stopped, Signal::STOP);
            std::thread::sleep(pause);
            signal(stopped, Signal::CONT);
        }
        Fault::KillBoth => {
            // The wrapper must not see the end of the guardian.
            signal(wrapper, Signal::STOP);
            signal(guardian, Signal::KILL);
            signal(wrapper, Signal::KILL);
        }
    }
}

/// `faults` is how many of them may be done, from the first on.
fn chaos(store: &str, seed: u64, faults: usize) {
    let bench = Bench::new();
    fs::write(bench.path("work.py"), WORK).unwrap();
    let wanted = std::env::var("HOLDTIGHT_CHAOS_RUNS").ok().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.unwrap_or(RUNS);
    let runs = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..LOOPS {
            let (bench, runs) = (&bench, &runs);
            scope.spawn(move || {
                let mut dice = Dice(seed ^ (number as u64) << 32);
                while runs.fetch_add(1, Ordering::Relaxed) < wanted {
                    let fault = (dice.roll(3) == 0).then(|| FAULTS[dice.roll(faults)]);
                    let ttl = fault.map_or("2s", Fault::ttl);
                    let key = format!("key-{}", dice.roll(KEYS));
                    let way = WAYS[dice.roll(WAYS.len())]
                        .replace("KEY", &key)
                        .replace("HOLDTIGHT", env!("CARGO_BIN_EXE_holdtight"));
                    let arguments =
                        ["run", &key, "--ttl", ttl, "--kill-after", "300ms", "--", "bash", "-c"];
                    let mut command = bench.holdtight(&[&arguments[..], &[&way]].concat());
                    command.env("HOLDTIGHT_STORE", store);
                    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
                    let mut run = Started(command.spawn().unwrap());
                    if let Some(fault) = fault {
                        std::thread::sleep(Duration::from_millis(dice.roll(300) as u64));
                        let pause = Duration::from_millis(dice.roll(2600) as u64);
                        strike(&run, fault, pause);
                    }
                    eventually("the end of a run", || run.has_ended());
                }
            });
        }
    });
    let overlaps = bench.read("overlaps");
    assert_eq!(overlaps, "", "seed {seed}");
    let done = bench.read("done").lines().count();
    eprintln!("seed {seed}: {wanted} runs, {done} of them did all of their work");
    assert!(done > wanted / 4, "hardly any work was done");
    // Nobody is stuck: every key can be had.
    for key in 0..KEYS {
        let mut command = bench.holdtight(&["run", "-w", "30s", &format!("key-{key}"), "true"]);
        let output = Started::new(command.env("HOLDTIGHT_STORE", store)).finish();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    assert_eq!(bench.read("overlaps"), "", "seed {seed}");
}

#[test]
fn on_a_file_store_nobody_works_beside_another_whoever_is_killed_or_stopped() {
    let directory = tempfile::tempdir().unwrap();
    chaos(&format!("file:{}", directory.path().join("store").display()), 1, FAULTS.len());
}

#[tokio::test]
async fn on_redis_nobody_works_beside_another_whoever_is_killed_or_stopped() {
    if !Program::REDIS.available() {
        eprintln!("skipped: there is no redis-server here");
        return;
    }
    let server = Redis::start_with(&[]).await;
    let url = server.url().clone();
    // Without both of them a lease on a server just runs out, which would only be waited for.
    tokio::task::spawn_blocking(move || chaos(&url, 2, FAULTS.len() - 1)).await.unwrap();
}
