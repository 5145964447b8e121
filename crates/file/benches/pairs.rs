//! P11 on one machine: acquire and release through this store, against the least that any lock in a
//! file needs.
//!
//! Prints ratios only; rounds are interleaved, so that a busy machine slows all of them. `--test`
//! does one short round.
//!
//! For a tool that counts, such as callgrind or strace, one kind of work can be had alone:
//! `HOLDTIGHT_BENCH_WORK=library HOLDTIGHT_BENCH_PLACE=DIRECTORY HOLDTIGHT_BENCH_PAIRS=2000`. The
//! difference between two numbers of pairs is the work.

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
fn main() {
    unix::main();
}

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use holdtight_core::{
        AcquireRequest, Attempt, Backend, DistributedLock, Intent, Key, Release, Secret,
    };
    use holdtight_file::{Config, FileStore};

    const WORK: &str = "HOLDTIGHT_BENCH_WORK";
    const PLACE: &str = "HOLDTIGHT_BENCH_PLACE";
    const MILLIS: &str = "HOLDTIGHT_BENCH_MILLIS";
    const PAIRS: &str = "HOLDTIGHT_BENCH_PAIRS";

    /// What is compared: `bare` is lock, write, unlock, twice: once to take and once to give back.
    const WORKS: [&str; 5] = ["bare", "store", "library", "store sync", "bare sync"];

    pub(super) fn main() {
        if let Ok(work) = std::env::var(WORK) {
            let place = std::env::var_os(PLACE).unwrap();
            let until = match std::env::var(PAIRS) {
                Ok(pairs) => Until::Done(pairs.parse().unwrap()),
                Err(_) => Until::Over(Duration::from_millis(
                    std::env::var(MILLIS).unwrap().parse().unwrap(),
                )),
            };
            println!("{}", run(&work, Path::new(&place), until));
            return;
        }
        let short = std::env::args().any(|argument| argument == "--test");
        let (rounds, millis) = if short { (1, 20) } else { (9, 300) };
        for processes in [1, 4] {
            let mut rates = vec![Vec::new(); WORKS.len()];
            for _ in 0..rounds {
                for (rates, work) in rates.iter_mut().zip(WORKS) {
                    rates.push(together(work, processes, millis));
                }
            }
            let median = |rates: &mut Vec<f64>| {
                rates.sort_by(f64::total_cmp);
                rates[rates.len() / 2]
            };
            let medians: Vec<f64> = rates.iter_mut().map(median).collect();
            for (rate, work) in medians.iter().zip(WORKS) {
                let against = if work.ends_with("sync") { medians[4] } else { medians[0] };
                println!(
                    "{processes} process(es), {work:10}: {:.2} x bare ({rate:.0} pairs/s here)",
                    rate / against
                );
            }
        }
        println!(
            "release to grant in another process: {:?}",
            hand_off(if short { 10 } else { 500 })
        );
    }

    /// How long a process works.
    #[derive(Clone, Copy)]
    enum Until {
        Over(Duration),
        Done(u32),
    }

    /// Pairs per second of several processes, each with its own keys, in one directory.
    fn together(work: &str, processes: usize, millis: u64) -> f64 {
        let place = tempfile::tempdir().unwrap();
        let children: Vec<_> = (0..processes)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .env(WORK, work)
                    .env(PLACE, place.path())
                    .env(MILLIS, millis.to_string())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        children
            .into_iter()
            .map(|child| {
                let output = child.wait_with_output().unwrap();
                String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap()
            })
            .sum()
    }

    fn run(work: &str, place: &Path, until: Until) -> f64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sync = work.ends_with("sync");
        match work {
            "bare" | "bare sync" => bare(place, until, sync),
            "library" => {
                let lock = DistributedLock::builder(open(place, false)).build().unwrap();
                // A few keys each, so that what a store keeps of a key is both new and old.
                let key = |n| format!("key {n} of {}", std::process::id());
                let keys: Vec<_> = (0..10).map(key).collect();
                rate(until, || {
                    runtime.block_on(async {
                        for key in keys.iter().cycle().take(BATCH as usize) {
                            let held = lock.try_acquire(key).await.unwrap().unwrap();
                            held.release().await.unwrap();
                        }
                    });
                })
            }
            _ => {
                let store = Arc::new(open(place, sync));
                let key = Key::new(&format!("key of {}", std::process::id())).unwrap();
                rate(until, || {
                    runtime.block_on(async {
                        for _ in 0..BATCH {
                            pair(&store, &key).await;
                        }
                    });
                })
            }
        }
    }

    const BATCH: u32 = 20;

    fn rate(until: Until, mut batch: impl FnMut()) -> f64 {
        batch();
        let started = Instant::now();
        let mut done = 0;
        while match until {
            Until::Over(span) => started.elapsed() < span,
            Until::Done(pairs) => done < pairs,
        } {
            batch();
            done += BATCH;
        }
        f64::from(done) / started.elapsed().as_secs_f64()
    }

    fn open(place: &Path, sync: bool) -> FileStore {
        FileStore::open_blocking(Config::new(place).sync(sync)).unwrap()
    }

    async fn pair(store: &Arc<FileStore>, key: &Key) {
        let secret = Secret::generate().unwrap();
        let ttl = Duration::from_secs(30);
        let request = AcquireRequest::new(key.clone(), secret.clone(), ttl);
        let attempt = Arc::clone(store).acquire(request).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)));
        let released = Arc::clone(store).release(key.clone(), secret).await.unwrap();
        assert_eq!(released, Release::Released);
    }

    fn bare(place: &Path, until: Until, sync: bool) -> f64 {
        let path = place.join(format!("bare-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let record = [7; 256];
        rate(until, || {
            for _ in 0..2 * BATCH {
                file.lock().unwrap();
                file.write_all_at(&record, 0).unwrap();
                file.unlock().unwrap();
                if sync {
                    file.sync_data().unwrap();
                }
            }
        })
    }

    /// The median time from a release to the grant of a waiter with a store of its own.
    fn hand_off(rounds: u32) -> Duration {
        let place = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (one, two) = (Arc::new(open(place.path(), false)), Arc::new(open(place.path(), false)));
        let key = Key::new("k").unwrap();
        let mut times: Vec<Duration> = (0..rounds)
            .map(|_| {
                let (one, two, key) = (Arc::clone(&one), Arc::clone(&two), key.clone());
                runtime.block_on(async move {
                    let (first, next) = (Secret::generate().unwrap(), Secret::generate().unwrap());
                    let ttl = Duration::from_secs(30);
                    let request = |secret: &Secret| {
                        AcquireRequest::new(key.clone(), secret.clone(), ttl).intent(Intent::Queue)
                    };
                    Arc::clone(&one).acquire(request(&first)).await.unwrap();
                    let mut waiter = Arc::clone(&two).subscribe(key.clone()).await.unwrap();
                    let busy = Arc::clone(&two).acquire(request(&next)).await.unwrap();
                    assert!(matches!(busy, Attempt::Busy(_)));
                    let released = Instant::now();
                    one.release(key.clone(), first).await.unwrap();
                    loop {
                        waiter.heard().await;
                        let attempt = Arc::clone(&two).acquire(request(&next)).await.unwrap();
                        if matches!(attempt, Attempt::Granted(_)) {
                            break;
                        }
                    }
                    let took = released.elapsed();
                    two.release(key.clone(), next).await.unwrap();
                    took
                })
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    }
}
