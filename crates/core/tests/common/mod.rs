//! A memory store that misbehaves on demand, for tests of the engine: each step of each kind can be
//! told to hang, fail, lose its request or lose its reply, and every step takes two await points.

#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Builder, Capabilities, Clock, DistributedLock, ErrorKind,
    ExtendRequest, Extension, Guarantees, Holder, Key, LockError, ManualClock, ManyAttempt,
    MemoryStore, Release, Reply, Secret, Subscription, TokioClock, Transfer, TransferRequest,
    WakeUps,
};

pub const SECOND: Duration = Duration::from_secs(1);

/// What becomes of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing special.
    None,
    /// The step is done; the answer is lost.
    LoseReply,
    /// The request never arrives; nobody can tell.
    LoseRequest,
    /// The store refuses, and says so.
    Refuse(ErrorKind),
    /// Done at once, answered only after so long.
    SlowReply(Duration),
    /// Done only after so long.
    SlowRequest(Duration),
    /// Given up at once, and done all the same after so long: it lay in a proxy.
    Straggle(Duration),
    /// Keeps, for so long, what every step needs for a moment: a connection that is being opened.
    Block(Duration),
    /// The store has a bug.
    Panic,
}

/// The steps that can be told to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Acquire,
    Extend,
    Release,
    Transfer,
}

#[derive(Debug)]
pub struct Scripted {
    pub inner: Arc<MemoryStore>,
    script: Mutex<Vec<(Step, VecDeque<Fault>)>>,
    /// Every step of that kind from now on.
    always: Mutex<Vec<(Step, Fault)>>,
    pub wake_ups: AtomicBool,
    pub transfer: AtomicBool,
    /// Takes several keys in one step, and says that it serves waiters in order.
    pub line: AtomicBool,
    pub calls: [AtomicU32; 4],
    /// How many requests were done after they had been given up.
    pub stragglers: Arc<AtomicU32>,
    /// Released by its holder in the very moment in which somebody subscribes.
    pub release_at_subscribe: Mutex<Option<(Key, Secret)>>,
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl Scripted {
    pub fn new(clock: impl Clock) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(MemoryStore::with_clock(clock)),
            script: Mutex::default(),
            always: Mutex::default(),
            wake_ups: AtomicBool::new(true),
            transfer: AtomicBool::new(true),
            line: AtomicBool::new(false),
            calls: Default::default(),
            stragglers: Arc::default(),
            release_at_subscribe: Mutex::default(),
            gate: Arc::default(),
        })
    }

    /// The next steps of a kind go wrong like this, then all is well again.
    pub fn next(&self, step: Step, faults: &[Fault]) {
        self.script.lock().unwrap().push((step, faults.iter().copied().collect()));
    }

    /// All steps of a kind go wrong like this, until told otherwise.
    pub fn always(&self, step: Step, fault: Fault) {
        let mut always = self.always.lock().unwrap();
        always.retain(|(of, _)| *of != step);
        always.push((step, fault));
    }

    pub fn count(&self, step: Step) -> u32 {
        self.calls[step as usize].load(Ordering::SeqCst)
    }

    /// Whether anybody holds the key in the store.
    pub async fn is_held(&self, key: &str) -> bool {
        Arc::clone(&self.inner).lookup(Key::new(key).unwrap()).await.unwrap().is_some()
    }

    fn fault(&self, step: Step) -> Fault {
        self.calls[step as usize].fetch_add(1, Ordering::SeqCst);
        for (of, faults) in &mut *self.script.lock().unwrap() {
            if *of == step
                && let Some(fault) = faults.pop_front()
            {
                return fault;
            }
        }
        self.always
            .lock()
            .unwrap()
            .iter()
            .find(|(of, _)| *of == step)
            .map_or(Fault::None, |(_, fault)| *fault)
    }

    fn run<T: Send + 'static>(
        self: &Arc<Self>,
        step: Step,
        call: impl FnOnce(Arc<MemoryStore>) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (fault, inner) = (self.fault(step), Arc::clone(&self.inner));
        let (stragglers, gate) = (Arc::clone(&self.stragglers), Arc::clone(&self.gate));
        let lost = || Err(LockError::ambiguous("the answer was lost"));
        Box::pin(async move {
            tokio::task::yield_now().await;
            let gate = gate.lock().await;
            if let Fault::Block(delay) = fault {
                tokio::time::sleep(delay).await;
            }
            drop(gate);
            match fault {
                Fault::Panic => panic!("a bug in the store, as the script says"),
                Fault::LoseRequest => return lost(),
                Fault::Refuse(kind) => return Err(LockError::new(kind, "refused by the script")),
                Fault::SlowRequest(delay) => tokio::time::sleep(delay).await,
                Fault::Straggle(delay) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        drop(call(inner).await);
                        stragglers.fetch_add(1, Ordering::SeqCst);
                    });
                    return lost();
                }
                Fault::None | Fault::LoseReply | Fault::SlowReply(_) | Fault::Block(_) => {}
            }
            let answer = call(inner).await;
            tokio::task::yield_now().await;
            match fault {
                Fault::LoseReply => lost(),
                Fault::SlowReply(delay) => {
                    tokio::time::sleep(delay).await;
                    answer
                }
                _ => answer,
            }
        })
    }
}

impl Backend for Scripted {
    fn capabilities(&self) -> Capabilities {
        let wake_ups =
            if self.wake_ups.load(Ordering::SeqCst) { WakeUps::PerKey } else { WakeUps::None };
        let line = self.line.load(Ordering::SeqCst);
        Capabilities::new("scripted")
            .acquire_many(line)
            .fifo(line)
            .wake_ups(wake_ups)
            .transfer(self.transfer.load(Ordering::SeqCst))
            .force_release(true)
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        self.run(Step::Acquire, |inner| inner.acquire(request))
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        self.run(Step::Release, |inner| inner.release(key, secret))
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        self.run(Step::Extend, |inner| inner.extend(leases))
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        self.run(Step::Transfer, |inner| inner.transfer(request))
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        Arc::clone(&self.inner).acquire_many(requests)
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        Arc::clone(&self.inner).lookup(key)
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        Arc::clone(&self.inner).list(prefix, limit)
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        let inner = Arc::clone(&self.inner);
        let released = self.release_at_subscribe.lock().unwrap().take();
        Box::pin(async move {
            tokio::task::yield_now().await;
            if let Some((key, secret)) = released {
                let _ = Arc::clone(&inner).release(key, secret).await;
            }
            inner.subscribe(key).await
        })
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        Arc::clone(&self.inner).probe()
    }

    fn force_release(self: Arc<Self>, key: Key, fence: holdtight_core::Fence) -> Reply<Release> {
        Arc::clone(&self.inner).force_release(key, fence)
    }
}

/// A clock that follows tokio's (so paused time drives it) and can jump ahead as a suspended
/// machine's does.
pub fn clock() -> ManualClock {
    ManualClock::over(TokioClock::new())
}

/// A lock over a scripted store, both on the same virtual clock.
pub fn scripted() -> (DistributedLock, Arc<Scripted>, ManualClock) {
    let clock = clock();
    let store = Scripted::new(clock.clone());
    (builder(&store, &clock).build().unwrap(), store, clock)
}

pub fn builder(store: &Arc<Scripted>, clock: &ManualClock) -> Builder {
    let backend: Arc<dyn Backend> = Arc::clone(store) as _;
    Builder::shared(backend).clock(clock.clone())
}

/// Waits, in virtual time, until `condition` holds; fails after a virtual hour.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..36_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never happened: {what}");
}
