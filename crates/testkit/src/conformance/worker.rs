//! The same program once more, as another process that uses the same store: spawned by trials, told
//! by environment.

use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Fence, Key, Lease, Liveness, Release, Secret,
};

use super::stage::{PATIENCE, Stage, attempt, release, secret};
use crate::Fixture;

const ROLE: &str = "HOLDTIGHT_TESTKIT_WORKER";
const ADDRESS: &str = "HOLDTIGHT_TESTKIT_ADDRESS";
const JOB: &str = "HOLDTIGHT_TESTKIT_JOB";
const KEY: &str = "HOLDTIGHT_TESTKIT_KEY";
const PLACE: &str = "HOLDTIGHT_TESTKIT_PLACE";
const NUMBER: &str = "HOLDTIGHT_TESTKIT_NUMBER";

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Adds one to a number in a file, so many times, with nothing but the lock to keep others out.
    Count(u64),
    /// Takes the lock for so many milliseconds, says so, and sleeps until it is killed.
    Hold(u64, Liveness),
    /// Takes the lock, detaches it for so many milliseconds, says so, and sleeps until it is
    /// killed.
    Detach(u64),
    /// Plays a random load from this seed, and writes its history as its note.
    Load(u64),
}

impl Job {
    fn text(self) -> (&'static str, u64) {
        match self {
            Self::Count(rounds) => ("count", rounds),
            Self::Hold(millis, Liveness::Lease) => ("hold-lease", millis),
            Self::Hold(millis, _) => ("hold-process", millis),
            Self::Detach(millis) => ("detach", millis),
            Self::Load(seed) => ("load", seed),
        }
    }

    fn read(name: &str, number: u64) -> Self {
        match name {
            "count" => Self::Count(number),
            "hold-lease" => Self::Hold(number, Liveness::Lease),
            "hold-process" => Self::Hold(number, Liveness::Process),
            "detach" => Self::Detach(number),
            "load" => Self::Load(number),
            other => panic!("no such job for a worker: {other}"),
        }
    }
}

/// A worker, killed at the latest when this is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    note: PathBuf,
}

impl Worker {
    pub(super) fn start(stage: &Stage, key: &Key, place: &Path, job: Job) -> Self {
        let (name, number) = job.text();
        let note = place.join(format!("note-{:016x}", fastrand::u64(..)));
        let child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, stage.fixture_name)
            .env(ADDRESS, stage.address.as_deref().expect("a trial that needs processes"))
            .env(JOB, name)
            .env(KEY, key.as_str())
            .env(PLACE, place.join(&note))
            .env(NUMBER, number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, note }
    }

    /// Waits until the worker holds its lock: its secret and fence.
    pub(super) async fn held(&mut self) -> (Secret, Fence) {
        let started = Instant::now();
        loop {
            let note = std::fs::read_to_string(&self.note).unwrap_or_default();
            if let Some((secret, fence)) =
                note.strip_suffix('\n').and_then(|note| note.split_once(' '))
            {
                return (Secret::parse(secret).unwrap(), fence.parse().unwrap());
            }
            assert!(matches!(self.child.try_wait(), Ok(None)), "the worker ended; see stderr");
            assert!(started.elapsed() < PATIENCE * 2, "the worker did not get its lock");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// All that the worker wrote into its note.
    pub(super) fn wrote(&self) -> String {
        std::fs::read_to_string(&self.note).unwrap_or_default()
    }

    /// Waits until the worker is done.
    pub(super) async fn done(&mut self) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "the worker failed; see stderr");
                return;
            }
            assert!(started.elapsed() < PATIENCE * 4, "the worker does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills it with `SIGKILL`: no code of it runs any more.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// If this process was started as a worker of `F`, does the job and exits; else returns at once.
pub(super) fn serve<F: Fixture>() {
    if std::env::var(ROLE).as_deref() != Ok(F::NAME) {
        return;
    }
    let number = told::<u64>(NUMBER);
    let job = Job::read(&told::<String>(JOB), number);
    let (key, place) = (told::<String>(KEY), PathBuf::from(told::<String>(PLACE)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = F::join(told(ADDRESS)).await;
        let key = Key::with_form(&key, store.capabilities().key_form).unwrap();
        match job {
            Job::Count(rounds) => count(&store, &key, &place, rounds).await,
            Job::Hold(millis, liveness) => {
                let ttl = Duration::from_millis(millis);
                let (me, lease) = wait_for(&store, &key, ttl, liveness).await;
                say_and_sleep(&place, &me, lease).await;
            }
            Job::Load(seed) => {
                let note = std::fs::File::options().create(true).append(true).open(&place).unwrap();
                super::player::play(store, key.as_str(), seed, note).await;
            }
            Job::Detach(millis) => {
                let ttl = Duration::from_millis(millis);
                let (me, lease) = wait_for(&store, &key, ttl, Liveness::Process).await;
                let detached = Arc::clone(&store).detach(key, me.clone(), ttl).await.unwrap();
                assert!(matches!(detached, holdtight_core::Extension::Extended(_)));
                say_and_sleep(&place, &me, lease).await;
            }
        }
    });
    std::process::exit(0);
}

fn told<T: FromStr<Err: Display>>(name: &str) -> T {
    let text = std::env::var(name).unwrap_or_else(|_| panic!("a worker needs {name}"));
    text.parse().unwrap_or_else(|error| panic!("a worker cannot read {name}: {error}"))
}

async fn wait_for(
    store: &Arc<dyn Backend>,
    key: &Key,
    ttl: Duration,
    liveness: Liveness,
) -> (Secret, Lease) {
    let me = secret();
    loop {
        let request = AcquireRequest::new(key.clone(), me.clone(), ttl).liveness(liveness);
        if let Attempt::Granted(lease) = Arc::clone(store).acquire(request).await.unwrap() {
            return (me, lease);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Says in a note who holds the lock, in one write, and waits for the end.
async fn say_and_sleep(note: &Path, me: &Secret, lease: Lease) {
    std::fs::write(note, format!("{} {}\n", me.expose(), lease.fence)).unwrap();
    // A trial whose process died does not kill its workers.
    tokio::time::sleep(PATIENCE * 10).await;
}

/// The files that counting workers share.
pub(super) fn count_files(place: &Path) -> (PathBuf, PathBuf) {
    (place.join("count"), place.join("fences"))
}

async fn count(store: &Arc<dyn Backend>, key: &Key, note: &Path, rounds: u64) {
    let (count, fences) = count_files(note.parent().expect("a note lies in a directory"));
    let ttl = Duration::from_secs(60).min(store.capabilities().max_ttl);
    for _ in 0..rounds {
        let me = secret();
        let lease = loop {
            match attempt(store, key, &me, ttl).await.unwrap() {
                Attempt::Granted(lease) => break lease,
                _ => tokio::time::sleep(Duration::from_micros(fastrand::u64(500..5000))).await,
            }
        };
        let seen: u64 = std::fs::read_to_string(&count).unwrap_or_default().parse().unwrap_or(0);
        let mut log = std::fs::File::options().create(true).append(true).open(&fences).unwrap();
        writeln!(log, "{}", lease.fence).unwrap();
        tokio::task::yield_now().await;
        std::fs::write(&count, (seen + 1).to_string()).unwrap();
        assert_eq!(release(store, key, &me).await, Release::Released);
    }
}
