//! What runs under faults have in common: bad weather for a store, a clock outside of virtual time,
//! processes that are killed, and the kernel as a witness of who works under a key.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use holdtight_core::{ErrorKind, Fence, Held};
use holdtight_testkit::Fault;

use crate::Failure;

/// Without progress for so long, nothing moves any more: a deadlock, or a busy loop.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many of a thousand calls go wrong under a seed: from a breeze, in which most locks are kept,
/// to a storm, in which many are lost.
pub(super) fn badness(seed: u64) -> u32 {
    fastrand::Rng::with_seed(seed).u32(50..750)
}

/// What goes wrong with a call. Leases last two seconds, so the slow ones decide.
pub(super) const WEATHER: &[Fault] = &[
    Fault::LostRequest,
    Fault::LostReply,
    Fault::Duplicate,
    Fault::SlowRequest(Duration::from_millis(300)),
    Fault::SlowReply(Duration::from_millis(300)),
    Fault::SlowRequest(Duration::from_secs(3)),
    Fault::SlowReply(Duration::from_secs(3)),
    Fault::Error(ErrorKind::Unavailable),
];

/// The lease of locks in bad weather.
pub(super) const TTL: Duration = Duration::from_secs(2);

/// Runs `work` in virtual time. Virtual time stands still in a busy loop, so a clock outside
/// watches the rounds.
pub(super) fn in_virtual_time(
    work: impl AsyncFnOnce(&Rounds) -> Result<String, Failure> + Send + 'static,
) -> Result<String, Failure> {
    let rounds = Arc::new(Rounds(AtomicU64::new(0)));
    let (done, ended) = mpsc::channel();
    let counted = Arc::clone(&rounds);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .map_err(Failure::from);
        let outcome = runtime.and_then(|runtime| runtime.block_on(work(&counted)));
        // Nobody listens any more if we took too long.
        let _ = done.send(outcome);
    });
    loop {
        let before = rounds.count();
        match ended.recv_timeout(PATIENCE) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) if rounds.count() > before => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("nothing moves after {before} rounds").into());
            }
            Err(RecvTimeoutError::Disconnected) => return Err("the run panicked".into()),
        }
    }
}

/// How many rounds were done.
pub(super) struct Rounds(AtomicU64);

impl Rounds {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Who claims to hold one key, in one process: no two claims may be valid at once, and fences rise.
#[derive(Default)]
pub(super) struct Claims(Mutex<Known>);

#[derive(Default)]
struct Known {
    claims: Vec<(u64, Held)>,
    last: Option<Fence>,
}

impl Claims {
    /// Somebody begins to work. Counted as a round if `rounds` is given.
    pub(super) fn begin(&self, held: Held, rounds: Option<&Rounds>) -> Result<u64, Failure> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { claims, last } = &mut *known;
        if let Some((_, other)) = claims.iter().find(|(_, other)| other.is_held())
            && held.is_held()
        {
            return Err(format!("two at once: {held:?} and {other:?}").into());
        }
        if last.is_some_and(|last| held.fence() <= last) {
            return Err(format!("{held:?} comes after {last:?}").into());
        }
        *last = Some(held.fence());
        let id = held.fence().get();
        claims.push((id, held));
        if let Some(rounds) = rounds {
            rounds.0.fetch_add(1, Ordering::SeqCst);
        }
        Ok(id)
    }

    /// Its work is over. To be said before the lock is given back.
    pub(super) fn end(&self, id: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).claims.retain(|(of, _)| *of != id);
    }
}

/// Where a process notes that it works under a key. The kernel locks the note, and unlocks it when
/// the process dies.
pub(super) struct Witness {
    note: File,
}

impl Witness {
    /// Begins to work under `fence`.
    ///
    /// # Errors
    /// Another process that lives is at work, or one with a larger fence was.
    pub(super) fn begin(path: &Path, fence: Fence) -> Result<Self, Failure> {
        let mut note =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        loop {
            match note.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(error.into()),
                // A killed process runs no more code, but what it had locked is unlocked bit by bit
                // while it goes.
                Err(TryLockError::WouldBlock) => match holder(&note)? {
                    Some(pid) if !is_ending(pid) && holder(&note)? == Some(pid) => {
                        let me = std::process::id();
                        return Err(format!("two at once: processes {pid} and {me}").into());
                    }
                    _ => thread::sleep(Duration::from_micros(100)),
                },
            }
        }
        let mut last = String::new();
        note.read_to_string(&mut last)?;
        // A process that was killed here leaves an empty note, or a whole one.
        if let Ok(last) = last.parse::<Fence>()
            && fence <= last
        {
            return Err(format!("fence {fence} comes after {last}").into());
        }
        note.write_all_at(fence.ordered().as_bytes(), 0)?;
        Ok(Self { note })
    }

    /// The work is over. To be said before the lock is given back.
    pub(super) fn end(self) -> Result<(), Failure> {
        Ok(self.note.unlock()?)
    }
}

/// The process that has locked a note, as the kernel knows it.
fn holder(note: &File) -> Result<Option<u32>, Failure> {
    let inode = note.metadata()?.ino().to_string();
    for line in std::fs::read_to_string("/proc/locks")?.lines() {
        // As in `1: FLOCK ADVISORY WRITE 4711 08:01:123456 0 EOF`; waiters have an arrow behind
        // their number.
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "FLOCK", _, _, pid, place, ..] = words[..]
            && place.rsplit(':').next() == Some(&inode)
        {
            return Ok(Some(pid.parse()?));
        }
    }
    Ok(None)
}

/// Whether a process is gone, or on its way out: then no code of it runs any more.
fn is_ending(pid: u32) -> bool {
    const EXITING: u64 = 4; // PF_EXITING of the kernel
    const SIGNAL: u64 = 0x400; // PF_SIGNALED: killed
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // Behind the name, which may hold anything: the state, six numbers, the flags.
    let Some((_, rest)) = stat.rsplit_once(") ") else { return true };
    let words: Vec<&str> = rest.split(' ').collect();
    let flags: u64 = words.get(6).and_then(|word| word.parse().ok()).unwrap_or(EXITING);
    matches!(words.first(), Some(&("Z" | "X"))) || flags & (EXITING | SIGNAL) != 0
}

/// Tells a process what it was started for: its number and its directory.
pub(super) const ROLE: &str = "HOLDTIGHT_SOAK_WORKER";

/// What this process was started for by a [`Crew`]: the directory to work in, and its number.
/// `None` in the soak itself.
pub(super) fn role() -> Option<(PathBuf, u64)> {
    let role = std::env::var(ROLE).ok()?;
    let (number, place) = role.split_once(' ')?;
    // Whoever started us is gone when our standard input ends.
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Some((place.into(), number.parse().ok()?))
}

/// Processes of this program, started as one of its runs, that are killed and replaced.
pub(super) struct Crew {
    run: &'static str,
    place: PathBuf,
    workers: Vec<Child>,
    started: u64,
    say: Sender<Result<String, String>>,
    hear: Receiver<Result<String, String>>,
}

impl Crew {
    /// Starts `count` processes, each as the run `run`, in the directory `place`.
    pub(super) fn start(run: &'static str, place: &Path, count: usize) -> Result<Self, Failure> {
        let (say, hear) = mpsc::channel();
        let mut crew =
            Self { run, place: place.to_owned(), workers: Vec::new(), started: 0, say, hear };
        for _ in 0..count {
            let worker = crew.spawn()?;
            crew.workers.push(worker);
        }
        Ok(crew)
    }

    /// Waits until some process has done a round.
    ///
    /// # Errors
    /// One saw what must not be, or none does anything any more.
    pub(super) fn round(&self) -> Result<(), Failure> {
        match self.hear.recv_timeout(PATIENCE) {
            Ok(Ok(line)) if line == "round" => Ok(()),
            Ok(Ok(other)) => Err(format!("a process ended: {other}").into()),
            Ok(Err(problem)) => Err(problem.into()),
            Err(_) => Err(format!("no process did anything for {PATIENCE:?}").into()),
        }
    }

    /// Kills one, at whatever it is doing, and starts another one in its place.
    pub(super) fn kill_one(&mut self) -> Result<(), Failure> {
        let chosen = fastrand::usize(..self.workers.len());
        self.workers[chosen].kill()?;
        self.workers[chosen].wait()?;
        self.workers[chosen] = self.spawn()?;
        Ok(())
    }

    fn spawn(&mut self) -> Result<Child, Failure> {
        let number = self.started;
        self.started += 1;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--only", self.run])
            .env(ROLE, format!("{number} {}", self.place.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (Some(out), Some(err)) = (out, err) else { return Err("no pipes".into()) };
        for (pipe, bad) in
            [(Box::new(out) as Box<dyn std::io::Read + Send>, false), (Box::new(err), true)]
        {
            let say = self.say.clone();
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let line = if bad { Err(line) } else { Ok(line) };
                    if say.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(child)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // One that is gone already is what we want.
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// A process of a crew says that it has done a round.
pub(super) fn say_round() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(b"round\n")?;
    Ok(out.flush()?)
}
