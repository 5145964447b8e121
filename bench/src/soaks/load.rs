//! Random load over every store, and a check of its history: without faults in one process, and in
//! processes that are stopped and killed at whatever they are doing.
//!
//! What is played and what is checked is the testkit's, see [`holdtight_testkit::history`].

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{Backend, Builder, DistributedLock, ErrorKind, MemoryStore};
use holdtight_testkit::history::{History, Load, Recorder, Report, Rules, check};
use holdtight_testkit::servers::{Directory, Etcd, Firestore, Memcached, Postgres, Redis};
use holdtight_testkit::{Chaos, Fault};
use rustix::process::{Pid, Signal, kill_process};

use super::share;
use super::under_faults::role;
use crate::Failure;

/// Grants of a full run without faults, for each of two loads.
const CALM: u64 = 10_000;

/// Grants of a full run under faults.
pub(super) const FAULTS: u64 = 5_000;

/// Longer than any run of that many grants on a machine that works at all.
pub(super) const LIMIT: Duration = Duration::from_secs(1800);

/// The lease of locks where nothing is hurt: one that is forgotten does not come back by itself.
const LONG: Duration = Duration::from_secs(600);

/// The lease of locks in processes that are killed: the next one waits for its end.
const TTL: Duration = Duration::from_secs(3);

/// A store for a run, and what keeps it alive.
struct Place {
    url: String,
    _alive: Box<dyn Any>,
    /// The shortest lease that is worth waiting for.
    brief: Duration,
}

impl Place {
    fn new(url: String, alive: impl Any) -> Self {
        Self { url, _alive: Box::new(alive), brief: Duration::from_secs(1) }
    }
}

pub(super) fn file(scale: f64) -> Result<String, Failure> {
    run("load-file", scale, async || {
        let place = Directory::new();
        Ok(Place::new(format!("file:{}", place.path().join("locks").display()), place))
    })
}

pub(super) fn redis(scale: f64) -> Result<String, Failure> {
    run("load-redis", scale, async || {
        let server = Redis::start().await;
        Ok(Place::new(server.url(), server))
    })
}

pub(super) fn postgres(scale: f64) -> Result<String, Failure> {
    run("load-postgres", scale, async || {
        let server = Postgres::start().await;
        holdtight_postgres::migrate(&server.url()).await?;
        Ok(Place::new(server.url(), server))
    })
}

pub(super) fn etcd(scale: f64) -> Result<String, Failure> {
    run("load-etcd", scale, async || {
        let server = Etcd::start().await;
        // etcd counts in seconds, and grants no shorter leases than it can elect a leader in.
        Ok(Place { brief: Duration::from_secs(3), ..Place::new(server.url(), server) })
    })
}

pub(super) fn memcached(scale: f64) -> Result<String, Failure> {
    run("load-memcached", scale, async || {
        let server = Memcached::start_with(&["-M"]).await;
        Ok(Place::new(server.url(), server))
    })
}

pub(super) fn firestore(scale: f64) -> Result<String, Failure> {
    run("load-firestore", scale, async || {
        let server = Firestore::start().await;
        Ok(Place::new(format!("firestore://soak?emulator={}", server.host()), server))
    })
}

/// The store that no other process can join is hurt in the calls instead.
pub(super) fn memory(scale: f64) -> Result<String, Failure> {
    let runtime = crate::load::runtime()?;
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let plain = || Ok(Builder::shared(Arc::clone(&store)).build()?);
    let locks = (0..3).map(|_| plain()).collect::<Result<Vec<_>, Failure>>()?;
    let mut rows = runtime.block_on(calm(&locks, Duration::from_secs(1), scale))?;

    let seed = fastrand::u64(..);
    let clients: Vec<_> = (0..2).map(|_| Chaos::around(Arc::clone(&store))).collect();
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(200));
    let faults = [
        Fault::LostRequest,
        Fault::LostReply,
        Fault::SlowRequest(short),
        Fault::SlowReply(short),
        Fault::SlowRequest(long),
        Fault::SlowReply(long),
        Fault::Error(ErrorKind::Unavailable),
    ];
    for (number, chaos) in (0..).zip(&clients) {
        chaos.random(seed ^ number, 100, &faults);
    }
    let hurt = |chaos: &Arc<Chaos>| Ok(Builder::shared(Arc::clone(chaos) as _).build()?);
    let locks = clients.iter().map(hurt).collect::<Result<Vec<_>, Failure>>()?;
    let recorder = Recorder::new(format!("mixed, lost calls, seed {seed}"));
    let load = Load::mixed(seed).grants(share(FAULTS, scale)).limit(LIMIT);
    runtime.block_on(async {
        load.run(&locks, &recorder).await;
        for chaos in &clients {
            chaos.heal();
        }
        load.settle(&plain()?, &recorder).await;
        Ok::<_, Failure>(())
    })?;
    rows.push(row(&check(&recorder.history(), Rules::FAULTS))?);
    Ok(rows.join("; "))
}

/// Both runs of one store; or the part of a process that was started for the second.
fn run(
    name: &'static str,
    scale: f64,
    start: impl AsyncFnOnce() -> Result<Place, Failure>,
) -> Result<String, Failure> {
    if let Some((place, number)) = role() {
        return play(&place, number);
    }
    let runtime = crate::load::runtime()?;
    let place = runtime.block_on(start())?;
    let locks = runtime.block_on(connect(&place.url, 3))?;
    let mut rows = runtime.block_on(calm(&locks, place.brief, scale))?;
    let killed = killed(name, &place, share(FAULTS, scale))?;
    rows.push(runtime.block_on(killed.settled(&locks[0]))?);
    Ok(rows.join("; "))
}

pub(super) async fn connect(url: &str, count: usize) -> Result<Vec<DistributedLock>, Failure> {
    let mut locks = Vec::new();
    for _ in 0..count {
        let lock = holdtight::connect(url).await?;
        locks.push(DistributedLock::clone(&lock));
    }
    Ok(locks)
}

/// A rush in one object, and everything at once in several.
async fn calm(
    locks: &[DistributedLock],
    brief: Duration,
    scale: f64,
) -> Result<Vec<String>, Failure> {
    let mut rows = Vec::new();
    for (name, clients) in [("rush", 1), ("mixed", locks.len())] {
        let seed = fastrand::u64(..);
        let recorder = Recorder::new(format!("{name}, no faults, seed {seed}"));
        let load = if name == "rush" { Load::rush(seed) } else { Load::mixed(seed) };
        let load = load.grants(share(CALM, scale)).limit(LIMIT).ttl(LONG).brief(brief);
        load.run(&locks[..clients], &recorder).await;
        load.settle(&locks[0], &recorder).await;
        rows.push(row(&check(&recorder.history(), Rules::CALM))?);
    }
    Ok(rows)
}

/// What is said of a run that broke no promise.
pub(super) fn row(report: &Report) -> Result<String, Failure> {
    if !report.is_clean() {
        return Err(report.to_string().into());
    }
    let counts = report.counts;
    let grants = counts.grants;
    if grants == 0 || counts.hand_overs == 0 {
        return Err(format!("a run without hand-overs shows nothing: {report}").into());
    }
    Ok(format!("{}: {grants} grants, 0 violations ({counts})", report.label))
}

/// What processes left that were stopped and killed.
struct Killed {
    load: Load,
    history: History,
}

impl Killed {
    async fn settled(mut self, lock: &DistributedLock) -> Result<String, Failure> {
        let recorder = Recorder::new("");
        self.load.settle(lock, &recorder).await;
        self.history.events.extend(recorder.history().events);
        row(&check(&self.history, Rules::FAULTS))
    }
}

/// Plays in processes that are stopped for longer than a lease, and killed, until there are enough
/// grants.
fn killed(name: &'static str, place: &Place, grants: u64) -> Result<Killed, Failure> {
    let (seed, notes) = (fastrand::u64(..), Directory::new());
    let mut random = fastrand::Rng::with_seed(seed);
    let job = Job { url: place.url.clone(), brief: place.brief };
    std::fs::write(notes.path().join(JOB), job.text())?;
    let mut crew = Vec::new();
    let (mut started, mut kills, mut stops) = (0, 0, 0);
    let begun = Instant::now();
    let mut history = History::default();
    while granted(&history) < grants || kills == 0 || stops == 0 {
        if begun.elapsed() > LIMIT {
            return Err(
                format!("only {} of {grants} grants in {LIMIT:?}", granted(&history)).into()
            );
        }
        while crew.len() < 3 {
            started += 1;
            crew.push(Worker::start(name, notes.path(), started)?);
        }
        std::thread::sleep(Duration::from_millis(random.u64(100..1500)));
        let chosen = random.usize(..crew.len());
        if random.bool() {
            kills += 1;
            crew[chosen].child.kill()?;
        } else {
            stops += 1;
            crew[chosen].stop_for(Duration::from_millis(random.u64(1..6000)))?;
        }
        // Those that came to their end by themselves have done their share.
        for worker in &mut crew {
            worker.ended = worker.ended || worker.child.try_wait()?.is_some();
        }
        crew.retain(|worker| !worker.ended);
        history = written(notes.path(), started)?;
    }
    for mut worker in crew {
        worker.child.wait()?;
    }
    history = written(notes.path(), started)?;
    history.label =
        format!("mixed, {kills} kills and {stops} stops of {started} processes, seed {seed}");
    Ok(Killed { load: job.load(0), history })
}

fn granted(history: &History) -> u64 {
    let grant = |event: &&holdtight_testkit::history::Event| {
        matches!(event.what, holdtight_testkit::history::What::Granted { .. })
    };
    history.events.iter().filter(grant).count() as u64
}

fn note(notes: &Path, number: u64) -> PathBuf {
    notes.join(format!("history-{number}"))
}

/// What all processes wrote so far.
fn written(notes: &Path, started: u64) -> Result<History, Failure> {
    let mut history = History::default();
    for number in 0..started {
        history.merge(&std::fs::read_to_string(note(notes, number)).unwrap_or_default())?;
    }
    Ok(history)
}

const JOB: &str = "job";

/// What a process has to know: it finds it in a file of its directory.
struct Job {
    url: String,
    brief: Duration,
}

impl Job {
    fn text(&self) -> String {
        format!("{}\n{}", self.brief.as_millis(), self.url)
    }

    fn read(place: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(place.join(JOB))?;
        let (brief, url) = text.split_once('\n').ok_or("a job of two lines")?;
        Ok(Self { url: url.to_owned(), brief: Duration::from_millis(brief.parse()?) })
    }

    fn load(&self, seed: u64) -> Load {
        let load = Load::mixed(seed).prefix("killed").tasks(12).grants(400);
        load.ttl(TTL.max(self.brief)).brief(self.brief).limit(Duration::from_secs(20))
    }
}

/// One process, until it has done its share or is killed.
fn play(place: &Path, number: u64) -> Result<String, Failure> {
    let job = Job::read(place)?;
    let runtime = crate::load::runtime()?;
    let out = std::fs::File::options().create(true).append(true).open(note(place, number))?;
    let recorder = Recorder::of_process(u32::try_from(number)? + 1, out);
    runtime.block_on(async {
        let locks = connect(&job.url, 2).await?;
        job.load(fastrand::u64(..)).run(&locks, &recorder).await;
        recorder.over();
        for lock in locks {
            lock.shutdown().await?;
        }
        Ok::<_, Failure>(String::new())
    })
}

struct Worker {
    child: Child,
    ended: bool,
}

impl Worker {
    fn start(run: &str, place: &Path, number: u64) -> Result<Self, Failure> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--only", run])
            .env(super::under_faults::ROLE, format!("{} {}", number - 1, place.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, ended: false })
    }

    fn stop_for(&self, span: Duration) -> Result<(), Failure> {
        // It may be gone already; then there is nothing to stop.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("a process without a number")?;
        if kill_process(pid, Signal::STOP).is_ok() {
            std::thread::sleep(span);
            let _ = kill_process(pid, Signal::CONT);
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that is gone already is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
