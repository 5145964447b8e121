//! How much is played, on which keys, for how long; and what is looked for when all is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdtight_core::{BootClock, Clock as _, DistributedLock, ErrorKind, Moment};

use super::moves::Move;
use super::record::Recorder;

/// How long those who still wait at the end have until they are served, and the store until it is
/// empty.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Keys for moves that take as long as a lease.
const SLOW: &[&str] = &["turn", "expire", "kept", "long"];

/// A load of random calls of the public interface, from a seed.
///
/// What each task does follows from the seed alone; how the tasks meet does not. A seed that found
/// something finds it again soon, but not at the same place.
#[derive(Clone, Debug)]
pub struct Load {
    pub(super) seed: u64,
    pub(super) moves: &'static [(Move, u32)],
    pub(super) tasks: usize,
    pub(super) keys: usize,
    pub(super) prefix: String,
    pub(super) grants: u64,
    pub(super) limit: Duration,
    pub(super) ttl: Duration,
    pub(super) brief: Duration,
    pub(super) pace: Duration,
    pub(super) long: usize,
    more: Arc<AtomicBool>,
    /// How many are letting a lease run out: one after the other of them would make a queue of
    /// minutes.
    pub(super) slow: Arc<AtomicUsize>,
}

impl Load {
    /// Fifty tasks want one key, wait for at most 20 ms, and hold it for half a millisecond:
    /// hand-overs and deadlines meet all the time.
    pub fn rush(seed: u64) -> Self {
        Self::new(seed, Move::RUSH, 50, 1)
    }

    /// All that the library offers, on three keys: waits of all lengths, tries, work, sets,
    /// elections, turns, cooldowns, tokens, cancellations of all of these, force, leases that run
    /// out.
    pub fn mixed(seed: u64) -> Self {
        Self::new(seed, Move::MIXED, 24, 3)
    }

    /// Locks as tokens: detached, resumed by several at once, extended, released behind their
    /// holder's back.
    pub fn tokens(seed: u64) -> Self {
        Self::new(seed, Move::TOKENS, 8, 2)
    }

    fn new(seed: u64, moves: &'static [(Move, u32)], tasks: usize, keys: usize) -> Self {
        Self {
            seed,
            moves,
            tasks,
            keys,
            prefix: "load".to_owned(),
            grants: 500,
            limit: Duration::from_secs(10),
            ttl: Duration::from_secs(5),
            brief: Duration::from_secs(1),
            pace: Duration::ZERO,
            long: 0,
            more: Arc::default(),
            slow: Arc::default(),
        }
    }

    /// How many tasks play at once.
    pub fn tasks(mut self, tasks: usize) -> Self {
        self.tasks = tasks.max(1);
        self
    }

    /// How many keys they want.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys.max(1);
        self
    }

    /// With what all keys begin; `load` unless said otherwise.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// After so many grants in the whole history nobody begins anything new; 500 unless said
    /// otherwise.
    pub fn grants(mut self, grants: u64) -> Self {
        self.grants = grants;
        self
    }

    /// After this long nobody begins anything new, however few grants there were; ten seconds
    /// unless said otherwise.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The lease of all locks but those that are meant to run out; five seconds unless said
    /// otherwise.
    ///
    /// Where nothing is hurt, minutes say more: a lock that is forgotten then keeps everybody
    /// waiting, and is still there when all is over, instead of ending by itself.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The lease of locks that are meant to run out, at least the shortest that the store can; a
    /// second unless said otherwise.
    pub fn brief(mut self, brief: Duration) -> Self {
        self.brief = brief;
        self
    }

    /// Each task rests for a random time up to this after each move, so that a history of minutes,
    /// through faults that take seconds each, stays small; not at all unless said otherwise.
    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// So many further tasks hold one more key for seconds each, in turn: for as long as the store
    /// needs to fail. None unless said otherwise.
    pub fn long_holders(mut self, tasks: usize) -> Self {
        self.long = tasks;
        self
    }

    /// Goes on while this is set, even after enough grants: until all faults of a plan were there.
    pub fn while_set(mut self, more: &Arc<AtomicBool>) -> Self {
        self.more = Arc::clone(more);
        self
    }

    /// Whether nobody begins anything new.
    pub(super) fn is_over(&self, recorder: &Recorder, until: Moment) -> bool {
        let enough = recorder.grants() >= self.grants && !self.more.load(Ordering::SeqCst);
        enough || BootClock.now() >= until
    }

    /// Ends the history: when everybody has let go and every lease is over, the store must show no
    /// holder. If leases are of minutes, they are not waited for: then all must have been given
    /// back.
    pub async fn settle(&self, lock: &DistributedLock, recorder: &Recorder) {
        let leases = self.ttl.max(self.brief) * 2;
        // The end of long ones is not waited for: nobody may need it.
        let patience = if leases < PATIENCE { PATIENCE + leases } else { PATIENCE / 2 };
        let deadline = BootClock.now().after(patience);
        for key in self.all_keys() {
            let mut held = false;
            while BootClock.now() < deadline {
                match lock.is_locked(&key).await {
                    Ok(false) => {
                        held = false;
                        break;
                    }
                    Ok(true) => held = true,
                    // A store that cannot be asked has shown nothing.
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if held {
                recorder.left(&key);
            }
        }
        match lock.list(&self.prefix).await {
            Ok(left) => left.iter().for_each(|info| recorder.left(info.key.as_str())),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            // As above.
            Err(_) => {}
        }
        recorder.over();
    }

    fn all_keys(&self) -> Vec<String> {
        let hot = (0..self.keys).map(|number| self.key(number));
        let slow = SLOW.iter().map(|name| format!("{}:{name}", self.prefix));
        hot.chain(slow).collect()
    }

    pub(super) fn key(&self, number: usize) -> String {
        format!("{}:{number}", self.prefix)
    }
}
