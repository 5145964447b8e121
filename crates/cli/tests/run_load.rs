//! `holdtight run` and programs that use the library want the same keys: one history, and nothing
//! in it that cannot be.

#![cfg(target_os = "linux")]

mod run_harness;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdtight_testkit::history::{Load, Recorder, Rules, check};
use run_harness::{Bench, code, stderr};

/// Says when it has the lock, under which fence, and when it is about to end.
const SCRIPT: &str = "echo \"$(cut -d' ' -f1 /proc/uptime) $HOLDTIGHT_FENCE\"; sleep 0.05; \
                      cut -d' ' -f1 /proc/uptime";

/// Between two ticks of `/proc/uptime`, which is the boot clock in hundredths of seconds, rounded
/// down.
const TICK: u64 = 10_000_000;

fn nanos(uptime: &str) -> u64 {
    let (seconds, hundredths) = uptime.trim().split_once('.').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000_000 + hundredths.parse::<u64>().unwrap() * TICK
}

fn uptime() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    nanos(text.split(' ').next().unwrap())
}

/// The history of one call: rounded so that the child certainly held whenever it says so.
fn call(bench: &Bench, claim: u64, key: &str, wait: Option<&str>) -> String {
    let patience = if wait.is_some() { "limited" } else { "endless" };
    let mut lines = format!("{} {claim} asked other {patience} {key}\n", uptime());
    let mut arguments = vec!["run"];
    arguments.extend(wait.iter().flat_map(|wait| ["--wait", wait]));
    arguments.extend([key, "--", "sh", "-c", SCRIPT]);
    let output = bench.output(&arguments);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let said: Vec<&str> = said.lines().collect();
    match (code(&output), &said[..]) {
        (0, [begin, end]) => {
            let (begin, fence) = begin.split_once(' ').unwrap();
            let (begin, end) = (nanos(begin) + TICK, nanos(end));
            lines.extend([
                format!("{begin} {claim} granted {fence} 1\n{end} {claim} seen 1\n"),
                format!("{end} {claim} letting-go work\n{} {claim} worked done\n", uptime()),
            ]);
        }
        (75, []) => lines.extend([format!("{} {claim} refused timeout\n", uptime() + TICK)]),
        (code, said) => panic!("exit {code}, {said:?}: {}", stderr(&output)),
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_and_the_library_share_keys_without_two_holders() {
    let (bench, seed) = (Bench::new(), fastrand::u64(..));
    let lock = holdtight::connect(bench.store_url()).await.unwrap();
    // Force would end the command's lock as it ends any: those who share keys here only wait.
    let load = Load::rush(seed).tasks(8).keys(2).grants(u64::MAX).limit(Duration::from_secs(4));
    let recorder = Recorder::new(format!("run and library, seed {seed}"));
    let (written, claims) = (Mutex::new(String::new()), AtomicU64::new(7 << 32));
    let calls = |worker: usize| {
        for n in 0..6 {
            let claim = claims.fetch_add(1, Ordering::Relaxed);
            let wait = (n % 3 == 0).then_some("20ms");
            let lines = call(&bench, claim, &format!("load:{}", (worker + n) % 2), wait);
            *written.lock().unwrap() += &lines;
        }
    };
    let command = async {
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                for worker in 0..4 {
                    let calls = &calls;
                    scope.spawn(move || calls(worker));
                }
            });
        });
    };
    tokio::join!(load.run(std::slice::from_ref(&lock), &recorder), command);
    load.settle(&lock, &recorder).await;
    let mut history = recorder.history();
    let written = written.into_inner().unwrap();
    history.merge(&written).unwrap();
    let report = check(&history, Rules::CALM);
    let granted = written.lines().filter(|line| line.contains(" granted ")).count();
    report.assert_clean(&[
        ("grants", report.counts.grants),
        ("grants to the command", granted as u64),
        ("hand-overs", report.counts.hand_overs),
    ]);
}
