//! Many processes, few keys: no update is lost, and fences increase in the order of the grants.

#![cfg(target_os = "linux")]

mod run_harness;

use run_harness::{Bench, code, stderr};

const KEYS: usize = 4;
const WORKERS: usize = 10;
const CYCLES: usize = 50;

#[test]
fn five_hundred_read_modify_write_cycles_lose_nothing_and_fences_increase() {
    let bench = Bench::new();
    // Read, pause, write: without a lock this loses updates at once.
    let script = "n=$(cat \"$HOLDTIGHT_KEY\" 2>/dev/null || echo 0); echo \"$HOLDTIGHT_FENCE\" >> \"$HOLDTIGHT_KEY.fences\"; \
                  echo $((n + 1)) > \"$HOLDTIGHT_KEY\"";
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let bench = &bench;
            scope.spawn(move || {
                for cycle in 0..CYCLES {
                    let key = format!("key-{}", (worker + cycle) % KEYS);
                    let output = bench.output(&["run", &key, "--", "sh", "-c", script]);
                    assert_eq!(code(&output), 0, "{}", stderr(&output));
                }
            });
        }
    });
    let mut total = 0;
    for key in 0..KEYS {
        total += bench.read(&format!("key-{key}")).trim().parse::<usize>().unwrap();
        let fences: Vec<u64> = bench
            .read(&format!("key-{key}.fences"))
            .lines()
            .map(|line| line.parse().unwrap())
            .collect();
        assert!(fences.is_sorted_by(|earlier, later| earlier < later), "key-{key}: {fences:?}");
    }
    assert_eq!(total, WORKERS * CYCLES);
}
