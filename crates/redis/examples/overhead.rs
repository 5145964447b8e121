//! What the library costs on top of its own scripts, and what those cost on top of the smallest lock there is.
//!
//! `cargo run --release -p holdtight-redis --example overhead -- redis://127.0.0.1:6379`
//!
//! One round of each, interleaved, medians of the rounds; only the ratios mean anything on a shared machine. With
//! `library`, `raw` or `bare` and a number of pairs after the URL it does just that, for a profiler to count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{AcquireRequest, Attempt, Backend, Intent, Key, Release, Secret};
use holdtight_redis::RedisStore;
use redis::aio::MultiplexedConnection;

const TTL: Duration = Duration::from_secs(30);
const ROUNDS: usize = 15;
const TASKS: usize = 256;
const EACH: usize = 60;
/// All pairs of one crowd: `TASKS` times `EACH`.
const PAIRS: u32 = 256 * 60;

/// The native scripts, put together as the store does.
fn scripts() -> (redis::Script, redis::Script) {
    macro_rules! part {
        ($name:literal) => {
            include_str!(concat!("../src/scripts/", $name, ".lua"))
        };
    }
    let acquire = [
        part!("native/acquire_free"),
        part!("lib/decimal"),
        part!("lib/mint"),
        part!("lib/read"),
        part!("lib/record"),
        part!("lib/lease"),
        part!("lib/queue"),
        part!("native/acquire"),
    ];
    let release = [
        part!("native/release_quiet"),
        part!("lib/read"),
        "local PUBLISH = 'PUBLISH'\n",
        part!("lib/wake"),
        part!("native/release"),
    ];
    (redis::Script::new(&acquire.concat()), redis::Script::new(&release.concat()))
}

#[derive(Clone)]
enum Way {
    Library(Arc<RedisStore>),
    Raw(MultiplexedConnection, Arc<(redis::Script, redis::Script)>),
    Bare(MultiplexedConnection),
}

impl Way {
    async fn pair(&mut self, n: usize) {
        match self {
            Self::Library(store) => {
                let (key, me) =
                    (Key::new(&format!("bench:{n}")).unwrap(), Secret::generate().unwrap());
                // As the engine does for a call that would wait.
                let _hint = Arc::clone(store).subscribe(key.clone()).await.unwrap();
                let request =
                    AcquireRequest::new(key.clone(), me.clone(), TTL).intent(Intent::Queue);
                let granted = Arc::clone(store).acquire(request).await.unwrap();
                assert!(matches!(granted, Attempt::Granted(_)));
                assert_eq!(Arc::clone(store).release(key, me).await.unwrap(), Release::Released);
            }
            Self::Raw(connection, scripts) => {
                let lock = format!("holdtight:bench:{n}");
                let (fence, waiters) =
                    ("holdtight:\u{1}fence", format!("holdtight:\u{1}wait:bench:{n}"));
                let me = Secret::generate().unwrap();
                let (id, claim) =
                    (format!("{}:{n}", "c".repeat(22)), format!("ht1 {} ", me.expose()));
                let mut acquire = redis::cmd("EVALSHA");
                acquire.arg(scripts.0.get_hash()).arg(3).arg(&lock).arg(fence).arg(&waiters);
                acquire.arg(&id).arg(&claim).arg(30_000);
                acquire.arg("host=bench pid=1 user=bench command=overhead");
                let granted: String = acquire.query_async(connection).await.unwrap();
                assert!(granted.starts_with('G'));
                let mut release = redis::cmd("EVALSHA");
                release.arg(scripts.1.get_hash()).arg(2).arg(&lock).arg(&waiters);
                release.arg(&id).arg(&claim);
                let released: String = release.query_async(connection).await.unwrap();
                assert!(released.starts_with('R'));
            }
            Self::Bare(connection) => {
                let (lock, me) = (format!("bare:{n}"), Secret::generate().unwrap());
                let mut set = redis::cmd("SET");
                set.arg(&lock).arg(me.expose()).arg("NX").arg("PX").arg(30_000);
                let taken: Option<String> = set.query_async(connection).await.unwrap();
                assert!(taken.is_some());
                redis::cmd("DEL").arg(&lock).exec_async(connection).await.unwrap();
            }
        }
    }

    /// One task: microseconds per pair, the median.
    async fn alone(&mut self) -> f64 {
        let mut times = Vec::new();
        for n in 0..1_000 {
            let start = Instant::now();
            self.pair(n).await;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        median(times)
    }

    /// Many tasks: pairs per second.
    async fn crowd(&self) -> f64 {
        let start = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let mut way = self.clone();
                tokio::spawn(async move {
                    for n in 0..EACH {
                        way.pair(task * EACH + n).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        f64::from(PAIRS) / start.elapsed().as_secs_f64()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of CPU that the server used so far, and requests that it served.
async fn server(connection: &mut MultiplexedConnection) -> (f64, f64) {
    let info: String = redis::cmd("INFO").query_async(connection).await.unwrap();
    let of = |name: &str| -> f64 {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    ((of("used_cpu_sys:") + of("used_cpu_user:")) * 1e6, of("total_commands_processed:"))
}

fn main() {
    // A profiler counts the same again only without threads.
    let mut runtime = if std::env::args().len() > 2 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build().unwrap().block_on(measure());
}

async fn measure() {
    let url = std::env::args().nth(1).expect("give the URL of a Redis to measure with");
    let info = redis::Client::open(url.as_str()).unwrap();
    let settings = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = info.get_connection_info().clone().set_tcp_settings(settings);
    let client = redis::Client::open(info).unwrap();
    let open = async || {
        let settings = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_pipeline_buffer_size(4096);
        client.get_multiplexed_async_connection_with_config(&settings).await.unwrap()
    };
    let mut observer = open().await;
    let scripts = Arc::new(scripts());
    for script in [&scripts.0, &scripts.1] {
        script.load_async(&mut observer).await.unwrap();
    }
    let mut ways = [
        Way::Library(Arc::new(RedisStore::connect(&url).await.unwrap())),
        Way::Raw(open().await, scripts),
        Way::Bare(open().await),
    ];
    if let Some(only) = std::env::args().nth(2) {
        let names = ["library", "raw", "bare"];
        let way = names.iter().position(|name| *name == only).expect("library, raw or bare");
        let pairs: usize = std::env::args().nth(3).expect("how many pairs").parse().unwrap();
        for n in 0..pairs {
            ways[way].pair(n).await;
        }
        return;
    }
    let (mut alone, mut crowd, mut cpu) =
        ([const { Vec::new() }; 3], [const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for round in 0..ROUNDS + 2 {
        for (n, way) in ways.iter_mut().enumerate() {
            let latency = way.alone().await;
            let before = server(&mut observer).await;
            let rate = way.crowd().await;
            let after = server(&mut observer).await;
            // The first rounds warm everything up.
            if round >= 2 {
                alone[n].push(latency);
                crowd[n].push(rate);
                cpu[n].push((after.0 - before.0) / f64::from(PAIRS));
            }
        }
    }
    let [alone, crowd, cpu] = [alone, crowd, cpu].map(|of| of.map(median));
    for (n, name) in ["library", "raw scripts", "bare SET+DEL"].iter().enumerate() {
        println!(
            "{name:12}  alone p50 {:7.1} µs   256 tasks {:8.0} pairs/s   server {:5.2} µs CPU per pair",
            alone[n], crowd[n], cpu[n]
        );
    }
    println!("P1 library/raw p50        {:.3}", alone[0] / alone[1]);
    println!(
        "P2 library/raw pairs/s    {:.3}   library/bare {:.3}",
        crowd[0] / crowd[1],
        crowd[0] / crowd[2]
    );
    println!(
        "P3 library/raw server CPU {:.3}   library/bare {:.3}",
        cpu[0] / cpu[1],
        cpu[0] / cpu[2]
    );
}
