//! How a lock is given back: handed to the next waiter of this process, or released in the store.
//!
//! One future does it all and owns all it needs, so that it can be driven by the holder or, when
//! the holder has gone away, in the background. A step whose outcome is unknown is repeated until
//! it is known or the lease is over.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::{Instrument as _, Span};

use crate::engine::event::{EventKind, spans_are_on, watched};
use crate::engine::grant::{Delivery, End, GiveBack, Grant, LockFront, LockRequest};
use crate::engine::held::{Held, lost_error};
use crate::engine::instance::Engine;
use crate::engine::queue::{HandOver, Next, Why};
use crate::engine::settle::{PAUSES, Unsettled, drive_on, release_once};
use crate::engine::timeout::within;
use crate::model::clock::Moment;
use crate::model::error::{ErrorKind, LockError};
use crate::model::loss::Loss;
use crate::store::{Intent, Release, Reply, Transfer, TransferRequest};

/// How long `release` keeps a caller when the store does not answer; it goes on in the background
/// after that.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a grant on its holder's side: from here on it is not held, whatever the store still says.
pub(crate) fn stop(engine: &Engine, grant: &Grant) -> Stopped {
    let now = engine.clock.now();
    let lost = grant.loss(now);
    // A deadline that passed unnoticed is news as well.
    if grant.end(lost.map_or(End::Released, End::from)) {
        engine.events.ended(grant, now, lost);
    }
    engine.keeper.dismiss(grant);
    Stopped { at: now, lost }
}

/// The end of a hold.
#[derive(Clone, Copy)]
pub(crate) struct Stopped {
    at: Moment,
    /// How it was lost before, if it was.
    lost: Option<Loss>,
}

/// Gives back a lock whose holder has [stopped](stop). `begun` is the first step, if it was taken
/// already.
async fn give_back(
    engine: Arc<Engine>,
    grant: Arc<Grant>,
    stopped: Stopped,
    begun: Option<Step>,
) -> Result<(), LockError> {
    let span = watched(
        || tracing::debug_span!("release", key = %grant.key, store = engine.store.name, fence = %grant.fence),
    );
    // As in `acquire`: only a watched span is worth a box.
    let step = begun.unwrap_or_else(|| {
        let _in = span.as_deref().map(Span::enter);
        next_step(&engine, &grant, stopped.lost, stopped.at)
    });
    let given = give(&engine, &grant, stopped, step);
    let given = match &span {
        None => given.await,
        Some(span) => Box::pin(given).instrument(Span::clone(span)).await,
    };
    let _in = span.as_deref().map(Span::enter);
    tell(&engine, &grant, &given);
    given
}

/// The lock is given back, or will not be: tells whoever wants to know.
fn tell(engine: &Arc<Engine>, grant: &Arc<Grant>, given: &Result<(), LockError>) {
    if grant.is_unresolved() {
        Unsettled::watch(engine, &grant.key, &grant.secret);
    }
    if !grant.is_taken() {
        return;
    }
    match given {
        Ok(()) => {
            tracing::debug!(outcome = "released", "released");
            engine.events.emit(EventKind::Released, &grant.key, Some(grant.fence), None);
        }
        Err(error) => {
            tracing::warn!(outcome = "failed", %error, "not released as ours");
            engine.events.emit(
                EventKind::ReleaseFailed,
                &grant.key,
                Some(grant.fence),
                Some(error),
            );
        }
    }
}

async fn give(
    engine: &Arc<Engine>,
    grant: &Arc<Grant>,
    stopped: Stopped,
    mut step: Step,
) -> Result<(), LockError> {
    let lost = stopped.lost;
    let mut giving = Arc::clone(grant);
    // The holder's own answer; locks of waiters who left meanwhile are only passed along.
    let mut answer = None;
    loop {
        let mut uncertain = false;
        let mut yielding = None;
        let handed = match step {
            Step::HandOver(handing) => Some(handing.finish(engine, &giving).await),
            Step::Handed(handed) => Some(handed),
            Step::Release(front) => {
                yielding = front;
                None
            }
        };
        match handed {
            Some(Handed::Delivered) => return answer.unwrap_or(Ok(())),
            Some(Handed::Returned(next)) => {
                answer.get_or_insert(Ok(()));
                giving = next;
                step = next_step(engine, &giving, lost, engine.clock.now());
                continue;
            }
            Some(Handed::NotHeld) => {
                return answer.unwrap_or_else(|| Err(gone(engine, grant, stopped)));
            }
            Some(Handed::Unknown) => uncertain = true,
            None => {}
        }
        let released = release(engine, &giving, uncertain).await;
        owe_courtesy(engine, &giving);
        match yielding {
            Some((front, true)) => front.yield_on(),
            other => drop(other),
        }
        return answer.unwrap_or(match (released, lost) {
            (_, Some(before)) => Err(lost_error(engine, grant, before)),
            (Ok(Release::Released), None) => Ok(()),
            (Ok(Release::NotHeld), None) => Err(gone(engine, grant, stopped)),
            (Err(error), None) => Err(error.with_key(&engine.user_key(&grant.key))),
        });
    }
}

/// The store says that it is not ours. If its answer took longer than the lease, that may be all
/// there is to it: whoever stopped in time has not worked without the lock, as far as anybody can
/// know.
fn gone(engine: &Engine, grant: &Grant, stopped: Stopped) -> LockError {
    let end = grant.valid_until();
    if stopped.at < end && end <= engine.clock.now() {
        let text = "the lease ended before the store answered the release; nobody else had the lock \
                    until then, unless it was forced";
        return LockError::ambiguous(text).with_key(&engine.user_key(&grant.key));
    }
    lost_error(engine, grant, Loss::TakenAway)
}

/// The lock went back to the store while other processes wait. Where waiters are served in order
/// nobody can outrun them.
fn owe_courtesy(engine: &Engine, grant: &Grant) {
    if grant.is_awaited() && !engine.store.fifo {
        engine.courtesy.owe(&grant.key, engine.clock.now());
    }
}

enum Step {
    /// It is being handed over.
    HandOver(Handing),
    /// It was handed over, or not.
    Handed(Handed),
    /// Release; then the front goes on, as a yield if the flag says so.
    Release(Option<(LockFront, bool)>),
}

/// What is to be done with a lock at `now`. A request that this makes counts from then.
fn next_step(engine: &Arc<Engine>, grant: &Grant, lost: Option<Loss>, now: Moment) -> Step {
    let Some(front) = grant.take_front() else { return Step::Release(None) };
    if lost.is_some() {
        return Step::Release(Some((front, false)));
    }
    // A store that serves waiters in order needs nobody to step back, and nobody may be put before
    // them.
    let contended = grant.is_contended() && !engine.store.fifo;
    match front.next(now, contended, engine.store.transfer && !engine.store.fifo) {
        Next::HandOver(over) => Step::HandOver(Handing::new(engine, grant, over, now)),
        Next::Release(front) => Step::Release(Some((front, false))),
        Next::Yield(front) => Step::Release(Some((front, true))),
    }
}

/// A hand-over on its way to the store.
struct Handing {
    over: HandOver<LockRequest>,
    sent_at: Moment,
    call: Reply<Transfer>,
}

enum Handed {
    Delivered,
    /// The waiter left: this grant, in its name, is ours to give back.
    Returned(Arc<Grant>),
    NotHeld,
    /// Perhaps the waiter has it. It is told, and asks the store under its own secret.
    Unknown,
}

impl Handing {
    fn new(engine: &Engine, grant: &Grant, over: HandOver<LockRequest>, sent_at: Moment) -> Self {
        let to = over.waiter().to_store(Intent::Try);
        let request = TransferRequest::new(grant.secret.clone(), to);
        Self { over, sent_at, call: Arc::clone(&engine.backend).transfer(request) }
    }

    async fn finish(self, engine: &Arc<Engine>, grant: &Grant) -> Handed {
        let Self { over, sent_at, mut call } = self;
        let mut unanswered = Unanswered { engine, over: Some(over), sent_at };
        let answer = within(engine.step_timeout, &mut call).await;
        let Some(over) = unanswered.over.take() else { return Handed::Unknown };
        match answer {
            Some(answer) => Self { over, sent_at, call }.answered(engine, grant, answer),
            None => unknown(engine, over, sent_at, Some(call)),
        }
    }

    fn answered(
        self,
        engine: &Arc<Engine>,
        grant: &Grant,
        answer: Result<Transfer, LockError>,
    ) -> Handed {
        let Self { over, sent_at, .. } = self;
        match answer {
            Ok(Transfer::Transferred(lease)) => {
                let deliver = |waiter: &LockRequest, front| {
                    let grant = engine.lay_ready(waiter.clone(), lease, sent_at, front);
                    Delivery::new(grant, Arc::clone(engine) as Arc<dyn GiveBack>)
                };
                match over.deliver(deliver).map_err(Delivery::accept) {
                    Err(Some(grant)) => {
                        stop(engine, &grant);
                        Handed::Returned(grant)
                    }
                    Ok(()) | Err(None) => Handed::Delivered,
                }
            }
            Ok(Transfer::NotHeld) => {
                // Nothing happened, so the waiter's secret owns nothing.
                let _ = over.contend(Why::Vacant);
                Handed::NotHeld
            }
            Err(error) => {
                tracing::warn!(key = %grant.key, %error, "handing the lock over failed; it is released instead");
                unknown(engine, over, sent_at, None)
            }
        }
    }
}

/// A hand-over that waits for its answer. If its runtime ends meanwhile, nobody will ever know the
/// outcome.
struct Unanswered<'a> {
    engine: &'a Arc<Engine>,
    over: Option<HandOver<LockRequest>>,
    sent_at: Moment,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(over) = self.over.take() {
            unknown(self.engine, over, self.sent_at, None);
        }
    }
}

/// The waiter goes to the front and asks the store itself. If it has left, its secret is released
/// for it.
fn unknown(
    engine: &Arc<Engine>,
    over: HandOver<LockRequest>,
    sent_at: Moment,
    call: Option<Reply<Transfer>>,
) -> Handed {
    let waiter = over.waiter().clone();
    let left = over.contend(Why::Uncertain).is_err();
    if let Some(call) = call {
        drop(drive_on(call, waiter.options.ttl));
    }
    if left {
        let until = sent_at.after(waiter.options.ttl);
        Unsettled::new(engine, &waiter.key, &waiter.secret, until, true).spawn();
    }
    Handed::Unknown
}

/// Releases in the store; patient for the holder's sake, and settled in the background when that is
/// not enough.
async fn release(
    engine: &Arc<Engine>,
    grant: &Arc<Grant>,
    mut uncertain: bool,
) -> Result<Release, LockError> {
    let started = engine.clock.now();
    let until = grant.valid_until().max(started.after(PATIENCE));
    let mut tries = 0;
    loop {
        match release_once(engine, &grant.key, &grant.secret).await {
            // Only we knew the secret and the lease is not over: an earlier try of ours did it.
            Ok(Release::NotHeld) if uncertain && engine.clock.now() < grant.valid_until() => {
                return Ok(Release::Released);
            }
            Ok(outcome) => return Ok(outcome),
            Err(error) => {
                uncertain |= !error.kind().is_definite();
                if !error.kind().is_transient() || engine.clock.now().since(started) >= PATIENCE {
                    Unsettled::new(engine, &grant.key, &grant.secret, until, false).spawn();
                    // The last try may have failed for sure; an earlier one may have done it all
                    // the same.
                    let unsure = uncertain && error.kind().is_definite();
                    return Err(if unsure { may_be_done(error) } else { error });
                }
                tracing::debug!(key = %grant.key, %error, "a release failed; trying again");
            }
        }
        tokio::time::sleep(PAUSES().delay(tries, fastrand::f64())).await;
        tries += 1;
    }
}

fn may_be_done(error: LockError) -> LockError {
    LockError::ambiguous(
        "the lock may be released or not: an answer was lost, and the store could not be asked again; \
         the release goes on in the background",
    )
    .with_source(error)
}

/// Gives back a lock whose holder has [stopped](stop), on the spot: without waiters, and in a store
/// that needs no I/O worth waiting for. `false` if it takes more than that.
fn give_back_now(engine: &Engine, grant: &Grant) -> bool {
    if grant.has_waiters()
        || grant.is_unresolved()
        || !matches!(
            engine.backend.release_now(&grant.key, &grant.secret),
            Some(Ok(Release::Released))
        )
    {
        return false;
    }
    owe_courtesy(engine, grant);
    drop(grant.take_front());
    if grant.is_taken() {
        tracing::debug!(key = %grant.key, store = engine.store.name, fence = %grant.fence, outcome = "released", "released");
        engine.events.emit(EventKind::Released, &grant.key, Some(grant.fence), None);
    }
    true
}

/// Gives back a grant whose holder does not wait for it.
fn drop_grant(engine: &Arc<Engine>, grant: Arc<Grant>) {
    // A forked child has a copy of its parent's lock, and nothing to give back.
    if engine.runtime.is_inherited() {
        return;
    }
    let stopped = stop(engine, &grant);
    if stopped.lost.is_none() && give_back_now(engine, &grant) {
        return;
    }
    let work = give_back(Arc::clone(engine), grant, stopped, None);
    engine.background.submit(Box::pin(async move {
        if let Err(error) = work.await
            && error.kind() != ErrorKind::Lost
        {
            tracing::warn!(%error, "a dropped lock could not be released; it ends with its lease");
        }
    }));
}

/// A held lock and the duty to give it back: dropping it does.
pub(crate) struct Hold {
    held: Held,
    /// Whether the lock is still this holder's to give back.
    owned: bool,
}

impl Hold {
    pub(crate) fn new(engine: Arc<Engine>, grant: Arc<Grant>) -> Self {
        Self { held: Held { engine, grant }, owned: true }
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.held.grant
    }

    /// From here on the lock is given back by other means, or not at all. Returns whether it was
    /// this holder's.
    pub(crate) fn disown(&mut self) -> bool {
        std::mem::replace(&mut self.owned, false)
    }

    pub(crate) async fn release(self) -> Result<(), LockError> {
        Finishing { hold: self, work: Work::Fresh }.await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.disown() {
            drop_grant(&self.held.engine, Arc::clone(&self.held.grant));
        }
    }
}

impl GiveBack for Engine {
    fn give_back(self: Arc<Self>, grant: Arc<Grant>) {
        drop_grant(&self, grant);
    }
}

/// A release that is finished even if its caller stops waiting for it.
///
/// A hand-over that the store does at once is over after the first look, and needs no memory.
/// Everything else goes into a box, which goes on in the background if need be.
struct Finishing {
    /// Owns its lock until the release has begun.
    hold: Hold,
    work: Work,
}

enum Work {
    Fresh,
    UnderWay(Reply<()>),
    Done,
}

impl Finishing {
    /// Stops the hold and takes the first step.
    fn start(&mut self, cx: &mut Context<'_>) -> Result<(), Reply<()>> {
        self.hold.disown();
        let Held { engine, grant } = &self.hold.held;
        if engine.runtime.is_inherited() {
            let error = lost_error(engine, grant, Loss::Forked);
            return Err(Box::pin(async move { Err(error) }));
        }
        let stopped = stop(engine, grant);
        if Engine::check_runtime().is_err() {
            // The client of a store would panic here. At home it does not.
            let work = give_back(Arc::clone(engine), Arc::clone(grant), stopped, None);
            let cut_off = || Err(LockError::ambiguous("the release was cut off"));
            return Err(match engine.runtime.spawn(work) {
                Some(task) => Box::pin(async move { task.await.unwrap_or_else(|_| cut_off()) }),
                None => Box::pin(async move { cut_off() }),
            });
        }
        // A watched release happens inside its span, all of it.
        let begun =
            (!spans_are_on()).then(|| match next_step(engine, grant, stopped.lost, stopped.at) {
                Step::HandOver(mut handing) => match handing.call.as_mut().poll(cx) {
                    Poll::Ready(answer) => Step::Handed(handing.answered(engine, grant, answer)),
                    Poll::Pending => Step::HandOver(handing),
                },
                other => other,
            });
        if let Some(Step::Handed(Handed::Delivered)) = begun {
            tell(engine, grant, &Ok(()));
            return Ok(());
        }
        Err(Box::pin(give_back(Arc::clone(engine), Arc::clone(grant), stopped, begun)))
    }
}

impl Future for Finishing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Work::Fresh = self.work {
            self.work = match self.start(cx) {
                Ok(()) => {
                    self.work = Work::Done;
                    return Poll::Ready(Ok(()));
                }
                Err(work) => Work::UnderWay(work),
            };
        }
        let Work::UnderWay(work) = &mut self.work else { return Poll::Pending };
        let answer = work.as_mut().poll(cx);
        if answer.is_ready() {
            self.work = Work::Done;
        }
        answer
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        if let Work::UnderWay(work) = std::mem::replace(&mut self.work, Work::Done) {
            let Held { engine, grant } = &self.hold.held;
            let begun = Box::pin(async move { drop(work.await) });
            Unsettled::new(engine, &grant.key, &grant.secret, grant.valid_until(), true)
                .spawn_after(begun, PATIENCE + engine.step_timeout);
        }
    }
}
