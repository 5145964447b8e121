//! One connection that is opened again when it breaks, with the same behaviour in an outage for all
//! stores.
//!
//! While a server is away, one attempt at a time is made for all callers, with pauses between them
//! that grow and differ from process to process. A caller waits for the outcome of one attempt that
//! began after it came: it is served if the server was back by then, and otherwise gets an error
//! that names the server and the cause. What a request that failed means is up to the store;
//! nothing is ever sent twice here.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use holdtight_core::{ErrorKind, LockError, spawn_lasting};
use tokio::time::{Instant, sleep_until};

use crate::lock;

/// The pause before the first attempt of all; each failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause before the next attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection that lived so long was a good one, whether or not it served a request.
const GOOD_AGE: Duration = Duration::from_secs(10);

/// How long to pause after so many failures in a row: 25 ms doubled by each, at most 1 s, and half
/// to all of that at random, so that the clients of a server that comes back do not come at once.
///
/// ```
/// use std::time::Duration;
/// assert!(holdtight_kit::pause(1) >= Duration::from_millis(25));
/// assert!(holdtight_kit::pause(100) <= Duration::from_secs(1));
/// ```
pub fn pause(failures: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// What a caller gets that comes during the pause between two attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DuringPause {
    /// The outcome of the next attempt.
    #[default]
    Wait,
    /// The error of the last attempt, at once: for a store whose callers would rather go without.
    Fail,
}

/// Attempts to reach one server, made one at a time while it is away.
///
/// [`Reconnecting`] uses it; several connections to one server share it. Alone it is for clients
/// that open connections themselves whenever a request needs one, such as those of HTTP:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdtight_core::LockError> {
/// use holdtight_core::LockError;
/// use holdtight_kit::Attempts;
///
/// # async fn send() -> Result<u32, LockError> { Ok(200) }
/// let attempts = Attempts::default();
/// let admission = attempts.admit().await?; // at once, unless there is an outage
/// match send().await {
///     Ok(_status) => admission.succeeded(),
///     Err(error) => admission.failed(&error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Attempts {
    during_pause: DuringPause,
    /// Held by whoever makes an attempt.
    one: tokio::sync::Mutex<()>,
    outage: Mutex<Outage>,
}

/// What failed since a request was served.
#[derive(Default)]
struct Outage {
    failures: u32,
    last: Option<Failure>,
}

struct Failure {
    began: Instant,
    ended: Instant,
    /// Nobody tries before.
    retry_at: Instant,
    /// `None` once a connection could be opened, though it has served nobody yet.
    error: Option<LockError>,
}

/// Keeps everybody else from making an attempt until it is dropped.
#[derive(Debug)]
pub struct Exclusive<'a>(#[expect(dead_code, reason = "held")] tokio::sync::MutexGuard<'a, ()>);

/// Leave to send a request; see [`Attempts::admit`].
#[must_use]
#[derive(Debug)]
pub struct Admission<'a> {
    attempts: &'a Attempts,
    _one: Option<Exclusive<'a>>,
    began: Instant,
}

impl Attempts {
    /// As the default, but for what callers get that come during a pause.
    pub fn new(during_pause: DuringPause) -> Self {
        Self { during_pause, ..Self::default() }
    }

    /// Waits until a request may be sent: at once, unless the last one failed. In an outage
    /// requests are sent one at a time, with the pauses of attempts to connect.
    ///
    /// # Errors
    /// Those of a request that was sent after this was called, and failed.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing has been sent.
    pub async fn admit(&self) -> Result<Admission<'_>, LockError> {
        let came = Instant::now();
        let free = || Admission { attempts: self, _one: None, began: Instant::now() };
        if self.outage().last.is_none() {
            return Ok(free());
        }
        let one = self.exclusive().await;
        if self.outage().last.is_none() {
            return Ok(free());
        }
        self.ready(came).await?;
        Ok(Admission { _one: Some(one), ..free() })
    }

    /// Waits for the attempt that is being made, and keeps others from making one: for a store that
    /// opens a connection for another reason than that it has none.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn exclusive(&self) -> Exclusive<'_> {
        Exclusive(self.one.lock().await)
    }

    /// The same, if no attempt is being made.
    pub fn try_exclusive(&self) -> Option<Exclusive<'_>> {
        self.one.try_lock().ok().map(Exclusive)
    }

    /// Why the last attempt failed; `None` if it did not.
    pub fn last_error(&self) -> Option<LockError> {
        self.outage().last.as_ref()?.error.clone()
    }

    /// Waits until the next attempt may be made by somebody who came at `came`. Only for whoever
    /// makes attempts exclusively.
    async fn ready(&self, came: Instant) -> Result<(), LockError> {
        let retry_at = match &self.outage().last {
            None => return Ok(()),
            Some(Failure { began, retry_at, error: Some(error), .. })
                if *began > came
                    || self.during_pause == DuringPause::Fail && Instant::now() < *retry_at =>
            {
                return Err(error.clone());
            }
            Some(failure) => failure.retry_at,
        };
        sleep_until(retry_at).await;
        Ok(())
    }

    fn failed(&self, began: Instant, error: Option<LockError>) {
        let (mut outage, ended) = (self.outage(), Instant::now());
        // Requests that failed together failed once.
        if outage.last.as_ref().is_none_or(|last| last.ended < began) {
            outage.failures = outage.failures.saturating_add(1);
        }
        let retry_at = ended + pause(outage.failures);
        outage.last = Some(Failure { began, ended, retry_at, error });
    }

    /// How often it failed is forgotten only when a request is served.
    fn opened(&self) {
        if let Some(last) = &mut self.outage().last {
            last.error = None;
        }
    }

    fn served(&self) {
        *self.outage() = Outage::default();
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        lock(&self.outage)
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts")
            .field("during_pause", &self.during_pause)
            .field("failures", &self.outage().failures)
            .finish_non_exhaustive()
    }
}

impl Admission<'_> {
    /// The server has answered, whatever it said: there is no outage.
    pub fn succeeded(self) {
        self.attempts.served();
    }

    /// No answer came. `error` is for those who wait for this: their requests were not sent, so it
    /// must not say that they may have been.
    pub fn failed(self, error: &LockError) {
        self.attempts.failed(self.began, Some(error.clone()));
    }
}

/// A connection that a [`Reconnecting`] keeps.
pub trait Connection: Send + Sync + 'static {
    /// Whether it can be used, as far as is known without asking the server.
    fn is_open(&self) -> bool {
        true
    }
}

/// A connection with what [`Reconnecting`] knows of it.
#[derive(Debug)]
pub struct Connected<C> {
    connection: C,
    opened: Instant,
    served: AtomicBool,
}

impl<C> Connected<C> {
    /// A server that lets everybody in and serves nobody is no better than one that is away.
    fn was_of_no_use(&self) -> bool {
        !self.served.load(Ordering::Relaxed) && self.opened.elapsed() < GOOD_AGE
    }
}

impl<C> Deref for Connected<C> {
    type Target = C;
    fn deref(&self) -> &C {
        &self.connection
    }
}

/// One connection, shared by all callers and opened again when it breaks. Clones are handles on the
/// same one.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), holdtight_core::LockError> {
/// use holdtight_core::LockError;
/// use holdtight_kit::{Connection, Reconnecting};
///
/// struct Wire(u32);
/// impl Connection for Wire {}
/// async fn open() -> Result<Wire, LockError> {
///     Ok(Wire(42))
/// }
///
/// let connection = Reconnecting::new("MyStore at 127.0.0.1:7000", Default::default());
/// let wire = connection.get(open).await?;
/// assert_eq!(wire.0, 42);
/// connection.served(&wire); // it answered a request
/// connection.give_up(&wire); // it did not answer another: the next `get` opens a new one
/// assert!(connection.current().is_none());
/// # Ok(())
/// # }
/// ```
pub struct Reconnecting<C> {
    shared: Arc<Shared<C>>,
}

struct Shared<C> {
    origin: String,
    current: Mutex<Option<Arc<Connected<C>>>>,
    attempts: Arc<Attempts>,
}

impl<C: Connection> Reconnecting<C> {
    /// No connection yet. `origin` is the server as people may see it, such as
    /// `Redis at 10.0.0.1:6379`.
    pub fn new(origin: impl Into<String>, attempts: Arc<Attempts>) -> Self {
        let (origin, current) = (origin.into(), Mutex::default());
        Self { shared: Arc::new(Shared { origin, current, attempts }) }
    }

    /// The connection there is, or a new one that `open` makes, whose errors should say what to do.
    /// `open` is called for one caller at a time.
    ///
    /// # Errors
    /// Those of `open`, for this caller or another; with the origin, if they say
    /// [`Unavailable`](ErrorKind::Unavailable) and do not name it.
    ///
    /// # Cancel safety
    /// Cancel-safe: an attempt that has begun goes on in the background, for those who come next.
    pub async fn get<F>(&self, open: impl FnOnce() -> F) -> Result<Arc<Connected<C>>, LockError>
    where
        F: Future<Output = Result<C, LockError>> + Send + 'static,
    {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let (this, came, open) = (self.clone(), Instant::now(), open());
        // In a task of its own: a caller whose future is not polled must not keep the others
        // waiting.
        let opened = spawn_lasting(async move { this.reopen(came, open).await }).await;
        opened.unwrap_or_else(|error| {
            let message = format!("the connection to {} could not be opened", self.shared.origin);
            Err(LockError::unavailable(message).with_source(error))
        })
    }

    async fn reopen(
        &self,
        came: Instant,
        open: impl Future<Output = Result<C, LockError>>,
    ) -> Result<Arc<Connected<C>>, LockError> {
        let attempts = &*self.shared.attempts;
        let _one = attempts.exclusive().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        self.drop_closed();
        attempts.ready(came).await?;
        let began = Instant::now();
        match open.await {
            Ok(connection) => {
                let current = self.replace(connection);
                attempts.opened();
                Ok(current)
            }
            Err(error) => {
                let error = self.with_origin(error);
                attempts.failed(began, Some(error.clone()));
                Err(error)
            }
        }
    }

    fn with_origin(&self, error: LockError) -> LockError {
        let (origin, text) = (&self.shared.origin, error.to_string());
        if error.kind() != ErrorKind::Unavailable || text.contains(origin) {
            return error;
        }
        let kind = format!("{}: ", error.kind());
        let cause = text.strip_prefix(&kind).unwrap_or(&text);
        let named = LockError::unavailable(format!("{origin}: {cause}"));
        match error.guarantees() {
            Some(guarantees) => named.with_guarantees(guarantees.clone()),
            None => named,
        }
    }

    /// The connection, if there is one that is open.
    pub fn current(&self) -> Option<Arc<Connected<C>>> {
        self.slot().as_ref().filter(|current| current.is_open()).map(Arc::clone)
    }

    /// Puts another connection in use.
    pub fn replace(&self, connection: C) -> Arc<Connected<C>> {
        let (opened, served) = (Instant::now(), AtomicBool::new(false));
        let new = Arc::new(Connected { connection, opened, served });
        *self.slot() = Some(Arc::clone(&new));
        new
    }

    /// The server has served a request on this connection: the outage is over. Returns `true` the
    /// first time.
    pub fn served(&self, connection: &Connected<C>) -> bool {
        let first = !connection.served.load(Ordering::Relaxed)
            && !connection.served.swap(true, Ordering::Relaxed);
        if first {
            self.shared.attempts.served();
        }
        first
    }

    /// Takes `connection` out of use, if it still is in use. Requests on it go on.
    ///
    /// If it has served nobody, and not for long, this counts as a failed attempt.
    pub fn give_up(&self, connection: &Arc<Connected<C>>) -> bool {
        self.take_if(|current| Arc::ptr_eq(current, connection))
    }

    /// The same for the connection in use, if it is not open any more.
    pub fn drop_closed(&self) -> bool {
        self.take_if(|current| !current.is_open())
    }

    fn take_if(&self, condition: impl FnOnce(&Arc<Connected<C>>) -> bool) -> bool {
        let taken = self.slot().take_if(|current| condition(current));
        if taken.as_ref().is_some_and(|taken| taken.was_of_no_use()) {
            self.shared.attempts.failed(Instant::now(), None);
        }
        taken.is_some()
    }

    /// Takes the connection out of use through no fault of its own.
    pub fn forget(&self) -> Option<Arc<Connected<C>>> {
        self.slot().take()
    }

    /// The error for a caller whose time was up before there was a connection.
    pub fn late(&self, limit: Duration) -> LockError {
        let message = format!("no connection to {} within {limit:?}", self.shared.origin);
        let error = LockError::unavailable(message);
        match self.shared.attempts.last_error() {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }

    /// The attempts to open it, to share them or to keep others from making one.
    pub fn attempts(&self) -> &Arc<Attempts> {
        &self.shared.attempts
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Connected<C>>>> {
        lock(&self.shared.current)
    }
}

impl<C> Clone for Reconnecting<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C> fmt::Debug for Reconnecting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting")
            .field("origin", &self.shared.origin)
            .field("attempts", &self.shared.attempts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for failures in 0..40 {
            assert!(pause(failures) <= LONGEST_PAUSE);
        }
        assert!(pause(0) <= FIRST_PAUSE && pause(6) >= LONGEST_PAUSE / 2);
        assert_ne!(pause(9), pause(9));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_failed_together_failed_once() {
        let attempts = Attempts::default();
        let together = [attempts.admit().await.unwrap(), attempts.admit().await.unwrap()];
        for admission in together {
            admission.failed(&LockError::unavailable("gone"));
        }
        assert_eq!(attempts.outage().failures, 1);
        assert!(attempts.last_error().unwrap().to_string().contains("gone"));
        let alone = attempts.admit().await.unwrap();
        assert!(attempts.try_exclusive().is_none(), "one at a time in an outage");
        alone.failed(&LockError::unavailable("gone"));
        assert_eq!(attempts.outage().failures, 2);
        attempts.admit().await.unwrap().succeeded();
        assert!(attempts.last_error().is_none());
        let free = [attempts.admit().await.unwrap(), attempts.admit().await.unwrap()];
        assert!(attempts.try_exclusive().is_some(), "without an outage any number");
        drop(free);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_shares_a_failure_that_began_after_it_came() {
        let gone = |text| LockError::unavailable(text);
        let attempts = Attempts::default();
        attempts.admit().await.unwrap().failed(&gone("first"));
        let second = attempts.admit().await.unwrap();
        let (third, ()) = tokio::join!(attempts.admit(), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            second.failed(&gone("second"));
        });
        // It came while the second was being made, so it has to wait for the third, which is its
        // own.
        third.unwrap().failed(&gone("third"));
        let ((), shared) = tokio::join!(
            async { attempts.admit().await.unwrap().failed(&gone("fourth")) },
            attempts.admit(),
        );
        assert!(shared.unwrap_err().to_string().contains("fourth"));
        let failing = Attempts::new(DuringPause::Fail);
        failing.admit().await.unwrap().failed(&LockError::unavailable("first"));
        let error = failing.admit().await.unwrap_err();
        assert!(error.to_string().contains("first"), "{error}");
    }
}
