//! Requests that come while a connection is busy are sent together, one batch for many callers.
//!
//! Nobody waits in order to be joined: as long as a lane is not busy, each request leaves at once
//! and alone. A server works through its requests one by one, so under load this saves most of what
//! a request costs beside its lock. What is sent, and what the answers mean, is the store's
//! [`BatchOp`].

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use holdtight_core::{LockError, spawn_lasting};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::lock;

/// What is done, for one caller or for many.
pub trait BatchOp: Send + Sync + 'static {
    /// What a caller asks.
    type Request: Send + Sync + 'static;
    /// What it is told.
    type Answer: Send + 'static;

    /// One request for one caller.
    ///
    /// # Errors
    /// Whatever the store says; [`Ambiguous`](holdtight_core::ErrorKind::Ambiguous) if it may have
    /// been done.
    ///
    /// # Cancel safety
    /// It may be dropped at any point, and counts as sent then.
    fn one(
        &self,
        request: &Self::Request,
    ) -> impl Future<Output = Result<Self::Answer, LockError>> + Send;

    /// One request for many callers on one lane, with an answer for each, in order.
    ///
    /// # Errors
    /// One that all of them have: nobody got another answer.
    fn many(
        &self,
        requests: &[&Self::Request],
    ) -> impl Future<Output = Result<Vec<Result<Self::Answer, LockError>>, LockError>> + Send;

    /// Whether the failure of many may have one cause among them, so that each should be tried
    /// alone.
    ///
    /// Trying again must be safe: `many` has done nothing, or what it did is found by the next try.
    fn may_retry_alone(&self, request: &Self::Request, error: &LockError) -> bool;

    /// Whether the two can go out together.
    fn can_share(&self, one: &Self::Request, other: &Self::Request) -> bool {
        let _ = (one, other);
        true
    }
}

/// How much may be on its way at once, and how long a caller waits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Lanes, one for each connection.
    pub lanes: usize,
    /// Requests on their way per lane; what comes meanwhile is batched.
    pub in_flight: usize,
    /// Callers in one request: none of them should wait long for the others.
    pub size: usize,
    /// How long a caller waits for its turn and its answer together.
    pub timeout: Duration,
}

impl BatchConfig {
    /// One lane with one request at a time, 64 callers in it, and ten seconds.
    pub const fn new() -> Self {
        Self { lanes: 1, in_flight: 1, size: 64, timeout: Duration::from_secs(10) }
    }

    /// Sets the number of lanes.
    pub const fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets how many requests may be on their way per lane.
    pub const fn in_flight(mut self, in_flight: usize) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets how many callers one request serves at most.
    pub const fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// Sets how long a caller waits.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Lets requests of many callers go out together while a connection is busy.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdtight_core::LockError> {
/// use holdtight_core::LockError;
/// use holdtight_kit::{BatchConfig, BatchOp, Batcher};
///
/// struct Doubling;
///
/// impl BatchOp for Doubling {
///     type Request = u32;
///     type Answer = u32;
///     async fn one(&self, request: &u32) -> Result<u32, LockError> {
///         Ok(request * 2)
///     }
///     async fn many(&self, requests: &[&u32]) -> Result<Vec<Result<u32, LockError>>, LockError> {
///         Ok(requests.iter().map(|request| Ok(**request * 2)).collect())
///     }
///     fn may_retry_alone(&self, _: &u32, error: &LockError) -> bool {
///         error.kind().is_definite()
///     }
/// }
///
/// let batcher = Batcher::new(Doubling, BatchConfig::new());
/// assert_eq!(batcher.submit(0, 21).await?, 42);
/// # Ok(())
/// # }
/// ```
pub struct Batcher<E: BatchOp> {
    op: E,
    lanes: Vec<Mutex<Lane<E>>>,
    config: BatchConfig,
}

struct Lane<E: BatchOp> {
    /// The numbers of the requests on their way, but not of those that take suspiciously long: the
    /// future of a caller that nobody polls ends nothing, and must not keep its turn from the
    /// others.
    under_way: Vec<u64>,
    /// Requests and callers in line are numbered together, in the order they came.
    numbers: u64,
    waiting: VecDeque<Waiting<E>>,
}

struct Waiting<E: BatchOp> {
    /// By which its caller finds it, as long as it has not left.
    number: u64,
    request: E::Request,
    answer: oneshot::Sender<Result<E::Answer, LockError>>,
}

/// How a request goes on.
enum Entry<E: BatchOp> {
    Alone(E::Request, Turn<E>),
    Waits(InLine<E::Answer>),
}

/// A caller whose request waits for company.
struct InLine<A> {
    number: u64,
    answer: oneshot::Receiver<Result<A, LockError>>,
}

/// The right to have a request on its way. Whoever ends theirs sends what has gathered meanwhile.
struct Turn<E: BatchOp> {
    batcher: Arc<Batcher<E>>,
    lane: usize,
    number: u64,
}

/// A request that takes longer than this loses its turn to those in line: it may be that nobody
/// drives it. If it was only slow, there is one more on its way than planned.
const SUSPICIOUS: Duration = Duration::from_millis(50);

impl<E: BatchOp> Batcher<E> {
    /// For requests on lanes that are numbered from zero.
    pub fn new(op: E, config: BatchConfig) -> Arc<Self> {
        let lane = || {
            let (under_way, waiting) = (Vec::new(), VecDeque::new());
            Mutex::new(Lane { under_way, numbers: 0, waiting })
        };
        let lanes = (0..config.lanes).map(|_| lane()).collect();
        Arc::new(Self { op, lanes, config })
    }

    /// The answer to one request, which leaves alone or with others.
    ///
    /// # Errors
    /// Those of the operation; [`Unavailable`](holdtight_core::ErrorKind::Unavailable) if it could
    /// not leave in time, and [`Ambiguous`](holdtight_core::ErrorKind::Ambiguous) if it left and
    /// was not answered.
    ///
    /// # Panics
    /// If there is no such lane.
    ///
    /// # Cancel safety
    /// A request that waits for others is not sent when this is dropped; one that has left may have
    /// been done.
    pub async fn submit(
        self: &Arc<Self>,
        lane: usize,
        request: E::Request,
    ) -> Result<E::Answer, LockError> {
        let mut queued = match self.enter(lane, request) {
            Entry::Alone(request, _turn) => return self.op.one(&request).await,
            Entry::Waits(queued) => queued,
        };
        let (start, patience) = (Instant::now(), self.config.timeout);
        let mut answer = timeout_at(start + SUSPICIOUS.min(patience), &mut queued.answer).await;
        if answer.is_err() {
            self.overtake(lane, queued.number);
            answer = timeout_at(start + patience, &mut queued.answer).await;
        }
        match answer {
            Ok(Ok(answer)) => answer,
            _ if !self.take_back(lane, queued.number) => Err(unanswered(patience)),
            _ => Err(LockError::unavailable(format!(
                "requests before this one were not answered within {patience:?}; this one was not sent: \
                 check the store, then try again"
            ))),
        }
    }

    /// Whether a request in line is not going to be sent, because it was not yet. Under the lock
    /// under which requests leave: it is one or the other.
    fn take_back(&self, lane: usize, number: u64) -> bool {
        let mut lane = self.lane(lane);
        let at = lane.waiting.iter().position(|waiting| waiting.number == number);
        at.is_some_and(|at| lane.waiting.remove(at).is_some())
    }

    /// The caller with this number has waited for long. Requests that were on their way before it
    /// came lose their turns, unless it has left meanwhile: then there is progress.
    fn overtake(self: &Arc<Self>, lane: usize, number: u64) {
        let mut busy = self.lane(lane);
        if !busy.waiting.iter().any(|waiting| waiting.number == number) {
            return;
        }
        let before = busy.under_way.len();
        busy.under_way.retain(|turn| *turn > number);
        for _ in busy.under_way.len()..before {
            let (batcher, number) = (Arc::clone(self), busy.next_number());
            busy.under_way.push(number);
            drop(busy);
            drop(Turn { batcher, lane, number });
            busy = self.lane(lane);
        }
    }

    fn enter(self: &Arc<Self>, lane: usize, request: E::Request) -> Entry<E> {
        let mut busy = self.lane(lane);
        let number = busy.next_number();
        if busy.under_way.len() < self.config.in_flight {
            busy.under_way.push(number);
            return Entry::Alone(request, Turn { batcher: Arc::clone(self), lane, number });
        }
        let (sender, answer) = oneshot::channel();
        busy.waiting.push_back(Waiting { number, request, answer: sender });
        Entry::Waits(InLine { number, answer })
    }

    /// Takes the first out of those who wait, and who can go with it.
    fn can_share(&self, waiting: &mut VecDeque<Waiting<E>>) -> Vec<Waiting<E>> {
        let most = waiting.len().min(self.config.size);
        let Some(first) = waiting.front() else { return Vec::new() };
        let fits = |other: &Waiting<E>| self.op.can_share(&first.request, &other.request);
        if waiting.iter().take(most).all(fits) {
            return waiting.drain(..most).collect();
        }
        let (mut batch, mut rest) = (Vec::new(), VecDeque::new());
        for next in waiting.drain(..) {
            let fits = batch.first().is_none_or(|first: &Waiting<E>| {
                batch.len() < most && self.op.can_share(&first.request, &next.request)
            });
            if fits {
                batch.push(next);
            } else {
                rest.push_back(next);
            }
        }
        *waiting = rest;
        batch
    }

    fn lane(&self, lane: usize) -> MutexGuard<'_, Lane<E>> {
        lock(&self.lanes[lane])
    }

    async fn send(&self, batch: Vec<Waiting<E>>) {
        let requests: Vec<&E::Request> = batch.iter().map(|waiting| &waiting.request).collect();
        let answer = match requests.as_slice() {
            [only] => self.op.one(only).await.map(|answer| vec![Ok(answer)]),
            many => self.op.many(many).await,
        };
        match answer {
            Ok(answers) => {
                for (waiting, answer) in batch.into_iter().zip(answers) {
                    let _ = waiting.answer.send(answer);
                }
            }
            Err(error) if batch.len() > 1 && self.op.may_retry_alone(requests[0], &error) => {
                let alone = batch.into_iter().map(async |waiting| {
                    let answer = self.op.one(&waiting.request).await;
                    let _ = waiting.answer.send(answer);
                });
                all(alone).await;
            }
            Err(error) => {
                for waiting in batch {
                    let _ = waiting.answer.send(Err(error.clone()));
                }
            }
        }
    }
}

impl<E: BatchOp> Lane<E> {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl<E: BatchOp> std::fmt::Debug for Batcher<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batcher").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<E: BatchOp> Drop for Turn<E> {
    fn drop(&mut self) {
        let mut lane = self.batcher.lane(self.lane);
        // Somebody else may have taken the turn over.
        let Some(at) = lane.under_way.iter().position(|turn| *turn == self.number) else { return };
        // Whoever has gone away meanwhile wants nothing any more, and nothing was sent for them.
        lane.waiting.retain(|waiting| !waiting.answer.is_closed());
        let batch = self.batcher.can_share(&mut lane.waiting);
        if batch.is_empty() {
            lane.under_way.swap_remove(at);
            return;
        }
        let number = lane.next_number();
        lane.under_way[at] = number;
        drop(lane);
        let turn = Self { batcher: Arc::clone(&self.batcher), lane: self.lane, number };
        // Of many callers, who may be anywhere: none of them is asked to drive it.
        drop(spawn_lasting(async move { turn.batcher.send(batch).await }));
    }
}

fn unanswered(patience: Duration) -> LockError {
    LockError::ambiguous(format!("the store did not answer within {patience:?}"))
}

/// Drives all of them at once, in this task.
async fn all<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;
    use holdtight_core::ErrorKind;

    /// Writes down what leaves together; each request waits for a permit. Thirteen spoils all that
    /// leave with it.
    struct Recorder {
        sent: Mutex<Vec<Vec<u32>>>,
        permits: Semaphore,
    }

    impl Recorder {
        async fn run(&self, numbers: Vec<u32>) -> Result<Vec<u32>, LockError> {
            self.sent.lock().unwrap().push(numbers.clone());
            self.permits.acquire().await.unwrap().forget();
            if numbers.contains(&13) {
                return Err(LockError::unavailable("thirteen"));
            }
            Ok(numbers.iter().map(|number| number * 10).collect())
        }
    }

    impl BatchOp for Recorder {
        type Request = u32;
        type Answer = u32;
        async fn one(&self, request: &u32) -> Result<u32, LockError> {
            self.run(vec![*request]).await.map(|answers| answers[0])
        }
        async fn many(&self, requests: &[&u32]) -> Result<Vec<Result<u32, LockError>>, LockError> {
            let answers = self.run(requests.iter().map(|number| **number).collect()).await?;
            Ok(answers.into_iter().map(Ok).collect())
        }
        /// Hundreds do not go with smaller numbers.
        fn can_share(&self, one: &u32, other: &u32) -> bool {
            one / 100 == other / 100
        }
        fn may_retry_alone(&self, _: &u32, error: &LockError) -> bool {
            error.kind().is_definite()
        }
    }

    fn batcher(timeout: Duration) -> Arc<Batcher<Recorder>> {
        let (sent, permits) = (Mutex::default(), Semaphore::new(0));
        Batcher::new(Recorder { sent, permits }, BatchConfig::new().size(5).timeout(timeout))
    }

    /// Asks in order: each request has left or waits before the next comes.
    async fn asked(
        batcher: &Arc<Batcher<Recorder>>,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Vec<tokio::task::JoinHandle<Result<u32, LockError>>> {
        let mut calls = Vec::new();
        for number in numbers {
            let own = Arc::clone(batcher);
            calls.push(tokio::spawn(async move { own.submit(0, number).await }));
            tokio::task::yield_now().await;
        }
        calls
    }

    /// A request has ended when its callers have their answers, and a moment later for the lane.
    async fn all_ended(batcher: &Arc<Batcher<Recorder>>) {
        while !batcher.lane(0).under_way.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_request_is_under_way_leaves_together_and_is_answered_each() {
        let batcher = batcher(Duration::from_secs(60));
        let calls = asked(&batcher, 1..6).await;
        batcher.op.permits.add_permits(9);
        for (call, number) in calls.into_iter().zip(1..) {
            assert_eq!(call.await.unwrap().unwrap(), number * 10);
        }
        assert_eq!(*batcher.op.sent.lock().unwrap(), [vec![1], vec![2, 3, 4, 5]]);
        // Not busy any more: nobody waits for company.
        batcher.submit(0, 7).await.unwrap();
        assert_eq!(batcher.op.sent.lock().unwrap().last(), Some(&vec![7]));
    }

    #[tokio::test]
    async fn those_who_cannot_go_together_go_one_after_the_other_and_no_more_than_allowed() {
        let batcher = batcher(Duration::from_secs(60));
        let calls = asked(&batcher, [1, 2, 100, 3, 101, 4, 5, 6, 7]).await;
        batcher.op.permits.add_permits(9);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let sent = batcher.op.sent.lock().unwrap();
        assert_eq!(*sent, [vec![1], vec![2, 3, 4, 5, 6], vec![100, 101], vec![7]]);
    }

    /// The first caller keeps its future and does not poll it: it has the only turn, and never
    /// ends.
    #[tokio::test]
    async fn a_caller_whose_future_is_not_polled_does_not_stop_the_others() {
        let batcher = batcher(Duration::from_secs(60));
        let mut forgotten = Box::pin(batcher.submit(0, 1));
        std::future::poll_fn(|cx| {
            assert!(forgotten.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        let calls = asked(&batcher, 2..4).await;
        // The first of them is for whoever was forgotten.
        batcher.op.permits.add_permits(5);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(*batcher.op.sent.lock().unwrap(), [vec![1], vec![2, 3]]);
        all_ended(&batcher).await;
        // From now on nobody even has to find out.
        let mut next = Box::pin(batcher.submit(0, 4));
        std::future::poll_fn(|cx| {
            assert!(next.as_mut().poll(cx).is_ready(), "it leaves at once, and alone");
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(forgotten.await.unwrap(), 10);
        all_ended(&batcher).await;
    }

    #[tokio::test]
    async fn one_that_fails_does_not_fail_the_others() {
        let batcher = batcher(Duration::from_secs(60));
        let calls = asked(&batcher, 11..15).await;
        batcher.op.permits.add_permits(9);
        for (call, number) in calls.into_iter().zip(11..) {
            let answer = call.await.unwrap();
            assert_eq!(answer.is_err(), number == 13, "{number}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn callers_that_leave_before_their_request_did_cost_nothing() {
        let batcher = batcher(Duration::from_secs(60));
        let calls = asked(&batcher, 1..4).await;
        calls[1].abort();
        tokio::task::yield_now().await;
        // The one under way leaves too: its turn goes on.
        calls[0].abort();
        batcher.op.permits.add_permits(9);
        let mut calls = calls.into_iter();
        assert!(calls.next().unwrap().await.is_err() && calls.next().unwrap().await.is_err());
        assert_eq!(calls.next().unwrap().await.unwrap().unwrap(), 30);
        assert_eq!(*batcher.op.sent.lock().unwrap(), [vec![1], vec![3]]);
        all_ended(&batcher).await;
    }

    #[tokio::test]
    async fn a_request_that_never_left_is_known_not_to_be_done_and_one_that_did_is_unknown() {
        let batcher = batcher(Duration::from_millis(300));
        let mut calls = asked(&batcher, [1, 100, 2]).await.into_iter();
        let mut next = || calls.next().unwrap();
        let (first, left, waiting) = (next(), next(), next());
        let kind = async |call: tokio::task::JoinHandle<Result<u32, LockError>>| {
            call.await.unwrap().unwrap_err().kind()
        };
        batcher.op.permits.add_permits(1);
        assert_eq!(first.await.unwrap().unwrap(), 10);
        // The turn went on, and is not one of before: the last one waits for it in vain.
        assert_eq!(kind(left).await, ErrorKind::Ambiguous);
        assert_eq!(kind(waiting).await, ErrorKind::Unavailable);
        assert_eq!(*batcher.op.sent.lock().unwrap(), [[1], [100]]);
        // That turn is older than this one: it is overtaken.
        let alone = asked(&batcher, 3..4).await.pop().unwrap();
        assert_eq!(kind(alone).await, ErrorKind::Ambiguous);
        assert_eq!(batcher.op.sent.lock().unwrap().last(), Some(&vec![3]));
    }
}
