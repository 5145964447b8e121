//! A store that misbehaves the way networks and servers do, around any other store.
//!
//! Faults come from a script ("the reply of the next acquire is lost") or at random from a seed.
//! What each call was asked and how it ended is kept in a history, so that a test can see what the
//! code under test did about it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, Capabilities, ErrorKind, ExtendRequest, Extension, Fence,
    Guarantees, Holder, Key, LockError, ManualClock, ManyAttempt, Release, Reply, Secret,
    Subscription, Transfer, TransferRequest,
};
use tokio::sync::watch;

/// A call that can be hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// [`Backend::acquire`].
    Acquire,
    /// [`Backend::release`].
    Release,
    /// [`Backend::extend`].
    Extend,
    /// [`Backend::lookup`].
    Lookup,
    /// [`Backend::list`].
    List,
    /// [`Backend::subscribe`].
    Subscribe,
    /// [`Backend::probe`].
    Probe,
    /// [`Backend::transfer`].
    Transfer,
    /// [`Backend::acquire_many`].
    AcquireMany,
    /// [`Backend::detach`].
    Detach,
    /// [`Backend::force_release`].
    ForceRelease,
    /// [`Backend::release_now`]. A fault here makes it answer "cannot", so that the caller takes
    /// the long way.
    ReleaseNow,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: the call passes. Useful in a script to let some calls through before a fault.
    None,
    /// The request travels slowly: the step is done after this long.
    SlowRequest(Duration),
    /// The reply travels slowly: the step is done at once, its answer comes after this long.
    SlowReply(Duration),
    /// The request is lost: nothing is done, and nobody knows.
    LostRequest,
    /// The reply is lost: the step is done, and nobody knows.
    LostReply,
    /// The request arrives twice: the step is done twice, and the second answer comes back.
    Duplicate,
    /// The step is refused with an error of this kind, and not done.
    Error(ErrorKind),
    /// The request waits until [`Chaos::let_go`]; then the step is done.
    HeldRequest,
    /// The step is done; its answer waits until [`Chaos::let_go`].
    HeldReply,
    /// The clock given to [`Chaos::clock`] jumps while the step is under way: after it is done,
    /// before its answer is seen.
    ClockJump(Duration),
}

/// One call, as it was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// Which call.
    pub method: Method,
    /// The key it was about; the first one if there were several.
    pub key: Option<Key>,
    /// What was done to it.
    pub fault: Fault,
    /// How it ended: `None` while it is under way, or if its future was dropped.
    pub outcome: Option<CallOutcome>,
}

/// How a call ended, seen by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// With an answer.
    Answered,
    /// With an error of this kind.
    Failed(ErrorKind),
}

/// Any store, made unreliable.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdtight_core::{AcquireRequest, Attempt, Backend, ErrorKind, Key, MemoryStore, Secret};
/// use holdtight_testkit::{Chaos, Fault, Method};
///
/// let chaos = Chaos::around(Arc::new(MemoryStore::new()));
/// chaos.next(Method::Acquire, 1, Fault::LostReply);
///
/// let (key, me) = (Key::new("k")?, Secret::generate()?);
/// let ask = || AcquireRequest::new(key.clone(), me.clone(), Duration::from_secs(60));
/// let lost = Arc::clone(&chaos).acquire(ask()).await.unwrap_err();
/// assert_eq!(lost.kind(), ErrorKind::Ambiguous);
/// // It was done all the same, and asking again finds out.
/// assert!(matches!(Arc::clone(&chaos).acquire(ask()).await?, Attempt::Granted(_)));
/// # Ok(()) }
/// ```
pub struct Chaos {
    inner: Arc<dyn Backend>,
    plan: Mutex<Plan>,
    /// Raised by one at each [`Chaos::let_go`].
    gate: watch::Sender<u64>,
}

#[derive(Default)]
struct Plan {
    script: Vec<(Method, VecDeque<Fault>)>,
    weather: Option<Weather>,
    clock: Option<ManualClock>,
    history: Vec<Call>,
}

struct Weather {
    random: fastrand::Rng,
    /// How many of a thousand calls are hurt.
    permille: u32,
    faults: Vec<Fault>,
}

impl Chaos {
    /// Wraps a store. Nothing is hurt until it is said.
    pub fn around(inner: Arc<dyn Backend>) -> Arc<Self> {
        let (gate, _) = watch::channel(0);
        Arc::new(Self { inner, plan: Mutex::default(), gate })
    }

    /// Puts a fault on the next `calls` calls of `method` that have none yet.
    pub fn next(&self, method: Method, calls: usize, fault: Fault) {
        self.plan().queue(method).extend(std::iter::repeat_n(fault, calls));
    }

    /// Hurts `permille` of a thousand calls at random, each with one of `faults`; the same seed
    /// draws the same.
    ///
    /// Scripted calls go first. Zero ends it.
    pub fn random(&self, seed: u64, permille: u32, faults: &[Fault]) {
        let usable = permille > 0 && !faults.is_empty();
        self.plan().weather = usable.then(|| Weather {
            random: fastrand::Rng::with_seed(seed),
            permille,
            faults: faults.to_vec(),
        });
    }

    /// The clock that [`Fault::ClockJump`] moves.
    pub fn clock(&self, clock: ManualClock) {
        self.plan().clock = Some(clock);
    }

    /// Lets every call go on that is held now.
    pub fn let_go(&self) {
        self.gate.send_modify(|opened| *opened += 1);
    }

    /// Forgets all faults that did not happen yet, and lets every held call go on.
    pub fn heal(&self) {
        let mut plan = self.plan();
        (plan.script, plan.weather) = (Vec::new(), None);
        drop(plan);
        self.let_go();
    }

    /// All calls so far, in the order in which they came.
    pub fn history(&self) -> Vec<Call> {
        self.plan().history.clone()
    }

    /// How many calls of `method` came so far.
    pub fn count(&self, method: Method) -> usize {
        self.plan().history.iter().filter(|call| call.method == method).count()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step with whatever is planned for it.
    fn step<T: Send + 'static>(
        self: Arc<Self>,
        method: Method,
        key: Option<Key>,
        step: impl Fn() -> Reply<T> + Send + Sync + 'static,
    ) -> Reply<T> {
        // Drawn when the call is made, not when it is polled: that is the order a test can control.
        let (fault, at) = self.plan().draw(method, key.clone());
        let gate = self.gate.subscribe();
        Box::pin(async move {
            let answer = self.hurt(fault, gate, key.as_ref(), step).await;
            let outcome = match &answer {
                Ok(_) => CallOutcome::Answered,
                Err(error) => CallOutcome::Failed(error.kind()),
            };
            self.plan().history[at].outcome = Some(outcome);
            answer
        })
    }

    async fn hurt<T: Send + 'static>(
        &self,
        fault: Fault,
        gate: watch::Receiver<u64>,
        key: Option<&Key>,
        step: impl Fn() -> Reply<T> + Send + Sync,
    ) -> Result<T, LockError> {
        let about = |error: LockError| match key {
            Some(key) => error.with_key(key),
            None => error,
        };
        match fault {
            Fault::None => step().await,
            Fault::SlowRequest(delay) => {
                tokio::time::sleep(delay).await;
                step().await
            }
            Fault::SlowReply(delay) => {
                let answer = step().await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::LostRequest => {
                Err(about(LockError::ambiguous("chaos: the request was lost; ask again")))
            }
            Fault::LostReply => {
                // Done or not, its answer is lost either way.
                let _ = step().await;
                Err(about(LockError::ambiguous("chaos: the reply was lost; ask again")))
            }
            Fault::Duplicate => {
                let _ = step().await;
                step().await
            }
            Fault::Error(kind) => {
                Err(about(LockError::new(kind, "chaos: refused as planned; nothing was done")))
            }
            Fault::HeldRequest => {
                opened(gate).await;
                step().await
            }
            Fault::HeldReply => {
                let answer = step().await;
                opened(gate).await;
                answer
            }
            Fault::ClockJump(by) => {
                let answer = step().await;
                if let Some(clock) = &self.plan().clock {
                    clock.jump(by);
                }
                answer
            }
        }
    }
}

/// Waits until the gate was opened since `gate` was taken.
async fn opened(mut gate: watch::Receiver<u64>) {
    // An error means that the wrapper is gone, and with it whoever could open.
    let _ = gate.changed().await;
}

impl Plan {
    fn queue(&mut self, method: Method) -> &mut VecDeque<Fault> {
        let at = self.script.iter().position(|(planned, _)| *planned == method);
        let at = at.unwrap_or_else(|| {
            self.script.push((method, VecDeque::new()));
            self.script.len() - 1
        });
        &mut self.script[at].1
    }

    /// The fault for this call, and where the call stands in the history.
    fn draw(&mut self, method: Method, key: Option<Key>) -> (Fault, usize) {
        let scripted = self.queue(method).pop_front();
        let random = || {
            let weather = self.weather.as_mut()?;
            let struck = weather.random.u32(..1000) < weather.permille;
            struck.then(|| weather.faults[weather.random.usize(..weather.faults.len())])
        };
        let fault = scripted.or_else(random).unwrap_or(Fault::None);
        self.history.push(Call { method, key, fault, outcome: None });
        (fault, self.history.len() - 1)
    }
}

// A new method of the trait must be hurt as well, and not fall back to a default around the wrapped
// store.
#[deny(clippy::missing_trait_methods)]
impl Backend for Chaos {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn acquire(self: Arc<Self>, request: AcquireRequest) -> Reply<Attempt> {
        let (inner, key) = (Arc::clone(&self.inner), request.key.clone());
        self.step(Method::Acquire, Some(key), move || Arc::clone(&inner).acquire(request.clone()))
    }

    fn release(self: Arc<Self>, key: Key, secret: Secret) -> Reply<Release> {
        let (inner, about) = (Arc::clone(&self.inner), key.clone());
        self.step(Method::Release, Some(about), move || {
            Arc::clone(&inner).release(key.clone(), secret.clone())
        })
    }

    fn extend(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Reply<Vec<Result<Extension, LockError>>> {
        let (inner, key) = (Arc::clone(&self.inner), leases.first().map(|lease| lease.key.clone()));
        self.step(Method::Extend, key, move || Arc::clone(&inner).extend(leases.clone()))
    }

    fn lookup(self: Arc<Self>, key: Key) -> Reply<Option<Holder>> {
        let (inner, about) = (Arc::clone(&self.inner), key.clone());
        self.step(Method::Lookup, Some(about), move || Arc::clone(&inner).lookup(key.clone()))
    }

    fn list(self: Arc<Self>, prefix: String, limit: usize) -> Reply<Vec<Holder>> {
        let inner = Arc::clone(&self.inner);
        self.step(Method::List, None, move || Arc::clone(&inner).list(prefix.clone(), limit))
    }

    fn subscribe(self: Arc<Self>, key: Key) -> Reply<Subscription> {
        let (inner, about) = (Arc::clone(&self.inner), key.clone());
        self.step(Method::Subscribe, Some(about), move || Arc::clone(&inner).subscribe(key.clone()))
    }

    fn probe(self: Arc<Self>) -> Reply<Guarantees> {
        let inner = Arc::clone(&self.inner);
        self.step(Method::Probe, None, move || Arc::clone(&inner).probe())
    }

    fn transfer(self: Arc<Self>, request: TransferRequest) -> Reply<Transfer> {
        let (inner, key) = (Arc::clone(&self.inner), request.to.key.clone());
        self.step(Method::Transfer, Some(key), move || Arc::clone(&inner).transfer(request.clone()))
    }

    fn acquire_many(self: Arc<Self>, requests: Vec<AcquireRequest>) -> Reply<ManyAttempt> {
        let (inner, key) =
            (Arc::clone(&self.inner), requests.first().map(|request| request.key.clone()));
        self.step(Method::AcquireMany, key, move || {
            Arc::clone(&inner).acquire_many(requests.clone())
        })
    }

    fn detach(self: Arc<Self>, key: Key, secret: Secret, ttl: Duration) -> Reply<Extension> {
        let (inner, about) = (Arc::clone(&self.inner), key.clone());
        self.step(Method::Detach, Some(about), move || {
            Arc::clone(&inner).detach(key.clone(), secret.clone(), ttl)
        })
    }

    fn force_release(self: Arc<Self>, key: Key, fence: Fence) -> Reply<Release> {
        let (inner, about) = (Arc::clone(&self.inner), key.clone());
        self.step(Method::ForceRelease, Some(about), move || {
            Arc::clone(&inner).force_release(key.clone(), fence)
        })
    }

    fn release_now(&self, key: &Key, secret: &Secret) -> Option<Result<Release, LockError>> {
        let (fault, at) = self.plan().draw(Method::ReleaseNow, Some(key.clone()));
        if fault != Fault::None {
            return None;
        }
        let answer = self.inner.release_now(key, secret)?;
        self.plan().history[at].outcome = Some(match &answer {
            Ok(_) => CallOutcome::Answered,
            Err(error) => CallOutcome::Failed(error.kind()),
        });
        Some(answer)
    }
}

impl fmt::Debug for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan();
        f.debug_struct("Chaos")
            .field("inner", &self.inner)
            .field("planned", &plan.script)
            .field("calls", &plan.history.len())
            .finish_non_exhaustive()
    }
}
