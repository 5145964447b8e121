//! Requests that come while a connection is busy go out together: one statement and one commit for many callers.
//!
//! Nobody waits in order to be joined: as long as a lane is not busy, each request leaves at once and alone. A connection
//! works through its statements one by one and each grant waits for the disk, so under load this saves most of both.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdtight_core::LockError;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Callers in one statement, at most: none of them should wait long for the others.
const MOST: usize = 64;

/// What is done, for one caller or for many.
pub(crate) trait Errand: Send + Sync + 'static {
    type Request: Send + Sync + 'static;
    type Answer: Send + 'static;

    /// One statement for one caller.
    fn one(
        &self,
        request: &Self::Request,
    ) -> impl Future<Output = Result<Self::Answer, LockError>> + Send;

    /// One statement for many callers on one lane, with their answers in order. All of it is done or nothing.
    fn many(
        &self,
        requests: &[&Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, LockError>> + Send;

    /// Whether the failure of many may have one cause among them, so that each should be tried alone.
    fn may_try_alone(&self, request: &Self::Request, error: &LockError) -> bool;
}

pub(crate) struct Gather<E: Errand> {
    errand: E,
    lanes: Vec<Mutex<Lane<E>>>,
    /// Statements on their way per lane, at most.
    at_once: usize,
    timeout: Duration,
}

struct Lane<E: Errand> {
    under_way: usize,
    waiting: VecDeque<Waiting<E>>,
}

struct Waiting<E: Errand> {
    request: E::Request,
    /// Set before the request leaves: from then on a caller that gives up does not know the outcome.
    left: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<E::Answer, LockError>>,
}

/// How a request goes on.
enum Entry<E: Errand> {
    Alone(E::Request, Turn<E>),
    Waits(Arc<AtomicBool>, oneshot::Receiver<Result<E::Answer, LockError>>),
}

/// The right to have a statement on its way. Whoever ends theirs sends what has gathered meanwhile.
struct Turn<E: Errand> {
    gather: Arc<Gather<E>>,
    lane: usize,
}

impl<E: Errand> Gather<E> {
    pub(crate) fn new(errand: E, lanes: usize, at_once: usize, timeout: Duration) -> Arc<Self> {
        let lane = || Mutex::new(Lane { under_way: 0, waiting: VecDeque::new() });
        let lanes = (0..lanes).map(|_| lane()).collect();
        Arc::new(Self { errand, lanes, at_once, timeout })
    }

    /// The answer to one request, which leaves alone or with others.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        lane: usize,
        request: E::Request,
    ) -> Result<E::Answer, LockError> {
        let deadline = Instant::now() + self.timeout;
        let (left, answer) = match self.enter(lane, request) {
            Entry::Alone(request, _turn) => return self.errand.one(&request).await,
            Entry::Waits(left, answer) => (left, answer),
        };
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            _ if left.load(Ordering::SeqCst) => Err(LockError::ambiguous(format!(
                "PostgreSQL did not answer within {:?}",
                self.timeout
            ))),
            _ => Err(LockError::unavailable(format!(
                "no connection to PostgreSQL was free within {:?}",
                self.timeout
            ))),
        }
    }

    fn enter(self: &Arc<Self>, lane: usize, request: E::Request) -> Entry<E> {
        let mut busy = self.lane(lane);
        if busy.under_way < self.at_once {
            busy.under_way += 1;
            return Entry::Alone(request, Turn { gather: Arc::clone(self), lane });
        }
        let (sender, answer) = oneshot::channel();
        let left = Arc::new(AtomicBool::new(false));
        busy.waiting.push_back(Waiting { request, left: Arc::clone(&left), answer: sender });
        Entry::Waits(left, answer)
    }

    fn lane(&self, lane: usize) -> MutexGuard<'_, Lane<E>> {
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, batch: Vec<Waiting<E>>) {
        let requests: Vec<&E::Request> = batch.iter().map(|waiting| &waiting.request).collect();
        let answer = match requests.as_slice() {
            [only] => self.errand.one(only).await.map(|answer| vec![answer]),
            many => self.errand.many(many).await,
        };
        match answer {
            Ok(answers) => {
                for (waiting, answer) in batch.into_iter().zip(answers) {
                    let _ = waiting.answer.send(Ok(answer));
                }
            }
            Err(error) if batch.len() > 1 && self.errand.may_try_alone(requests[0], &error) => {
                let alone = batch.into_iter().map(async |waiting| {
                    let answer = self.errand.one(&waiting.request).await;
                    let _ = waiting.answer.send(answer);
                });
                all(alone).await;
            }
            Err(error) => {
                for waiting in batch {
                    let _ = waiting.answer.send(Err(error.duplicate()));
                }
            }
        }
    }
}

impl<E: Errand> Drop for Turn<E> {
    fn drop(&mut self) {
        let batch: Vec<Waiting<E>> = {
            let mut lane = self.gather.lane(self.lane);
            // Whoever has gone away meanwhile wants nothing any more, and nothing was sent for them.
            lane.waiting.retain(|waiting| !waiting.answer.is_closed());
            let many = lane.waiting.len().min(MOST);
            let batch: Vec<_> = lane.waiting.drain(..many).collect();
            if batch.is_empty() {
                lane.under_way -= 1;
            }
            for waiting in &batch {
                waiting.left.store(true, Ordering::SeqCst);
            }
            batch
        };
        if batch.is_empty() {
            return;
        }
        let turn = Self { gather: Arc::clone(&self.gather), lane: self.lane };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { turn.gather.send(batch).await });
        }
    }
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
    use holdtight_core::ErrorKind;
    use tokio::sync::Semaphore;

    use super::*;

    /// Writes down what leaves together; each statement waits for a permit. A request of 13 spoils its statement.
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

    impl Errand for Recorder {
        type Request = u32;
        type Answer = u32;
        async fn one(&self, request: &u32) -> Result<u32, LockError> {
            self.run(vec![*request]).await.map(|answers| answers[0])
        }
        async fn many(&self, requests: &[&u32]) -> Result<Vec<u32>, LockError> {
            self.run(requests.iter().map(|number| **number).collect()).await
        }
        fn may_try_alone(&self, _: &u32, error: &LockError) -> bool {
            error.kind().is_definite()
        }
    }

    fn gather(timeout: Duration) -> Arc<Gather<Recorder>> {
        let (sent, permits) = (Mutex::default(), Semaphore::new(0));
        Gather::new(Recorder { sent, permits }, 1, 1, timeout)
    }

    /// Asks in order: each request has left or waits before the next comes.
    async fn asked(
        gather: &Arc<Gather<Recorder>>,
        numbers: std::ops::Range<u32>,
    ) -> Vec<tokio::task::JoinHandle<Result<u32, LockError>>> {
        let mut calls = Vec::new();
        for number in numbers {
            let own = Arc::clone(gather);
            calls.push(tokio::spawn(async move { own.ask(0, number).await }));
            tokio::task::yield_now().await;
        }
        calls
    }

    #[tokio::test]
    async fn what_comes_while_a_statement_is_under_way_leaves_together_and_is_answered_each() {
        let gather = gather(Duration::from_secs(60));
        let calls = asked(&gather, 1..6).await;
        gather.errand.permits.add_permits(9);
        for (call, number) in calls.into_iter().zip(1..) {
            assert_eq!(call.await.unwrap().unwrap(), number * 10);
        }
        assert_eq!(*gather.errand.sent.lock().unwrap(), [vec![1], vec![2, 3, 4, 5]]);
        // Not busy any more: nobody waits for company.
        gather.ask(0, 7).await.unwrap();
        assert_eq!(gather.errand.sent.lock().unwrap().last(), Some(&vec![7]));
    }

    #[tokio::test]
    async fn one_that_fails_does_not_fail_the_others() {
        let gather = gather(Duration::from_secs(60));
        let calls = asked(&gather, 11..15).await;
        gather.errand.permits.add_permits(9);
        for (call, number) in calls.into_iter().zip(11..) {
            let answer = call.await.unwrap();
            assert_eq!(answer.is_err(), number == 13, "{number}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn callers_that_leave_before_their_request_did_cost_nothing() {
        let gather = gather(Duration::from_secs(60));
        let calls = asked(&gather, 1..4).await;
        calls[1].abort();
        tokio::task::yield_now().await;
        // The one under way leaves too: its turn goes on.
        calls[0].abort();
        gather.errand.permits.add_permits(9);
        let mut calls = calls.into_iter();
        assert!(calls.next().unwrap().await.is_err() && calls.next().unwrap().await.is_err());
        assert_eq!(calls.next().unwrap().await.unwrap().unwrap(), 30);
        assert_eq!(*gather.errand.sent.lock().unwrap(), [vec![1], vec![3]]);
        assert_eq!(gather.lane(0).under_way, 0);
    }

    #[tokio::test]
    async fn a_request_that_never_left_is_known_not_to_be_done_and_one_that_did_is_unknown() {
        let gather = gather(Duration::from_millis(30));
        let calls = asked(&gather, 1..3).await;
        let mut calls = calls.into_iter();
        let first = calls.next().unwrap();
        let waiting = calls.next().unwrap().await.unwrap().unwrap_err();
        assert_eq!(waiting.kind(), ErrorKind::Unavailable);
        let later = asked(&gather, 3..4).await.pop().unwrap();
        gather.errand.permits.add_permits(1);
        assert_eq!(first.await.unwrap().unwrap(), 10);
        assert_eq!(later.await.unwrap().unwrap_err().kind(), ErrorKind::Ambiguous);
    }
}
