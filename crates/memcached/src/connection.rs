//! One connection to the server: requests go out pipelined, replies come back in order, and a new
//! connection is made when the old one breaks.
//!
//! A caller that goes away leaves its reply to be read and dropped, so nobody else's is ever
//! mistaken. What requests mean is `steps.rs`'s affair.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use holdtight_core::{LockError, OwnerText, spawn_lasting};
use holdtight_kit::{Attempts, Connected, Connection, DuringPause, Reconnecting, lock};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::config::{Address, MemcachedConfig};
use crate::error::{Fault, refused};
use crate::protocol::{Inbox, Refusal, Reply, Request};
use crate::recent::Recent;

/// Requests that may wait for their replies, or for being sent.
const PIPELINE: usize = 1024;

/// So much that has been written is kept at most, where more comes all the time.
const SENT_BYTES: usize = 1 << 16;

/// How long to wait before a clock that stands still is looked at again.
const CLOCK_PAUSE: Duration = Duration::from_millis(50);

/// A server that says it is younger than so many seconds may have been started just now: it starts
/// counting at two.
const YOUNG: u64 = 4;

/// How long a young server is left alone before it grants anything.
const SETTLING: Duration = Duration::from_secs(1);

/// An answer that takes so long may come from a server that stood still, and has not looked at its
/// clock since.
const SLOW: Duration = Duration::from_secs(1);

/// A connection that keeps so long silent that a caller gives up is compared with a new one: its
/// renewal may have no time for many such callers.
const QUIET: Duration = Duration::from_millis(250);

/// How far the server's clock may be behind ours, in whole seconds: [`ticks`](crate::ticks) allows
/// for a tick that is late.
const LATE_TICKS: u64 = 1;

/// The server, connected or not.
pub(crate) struct Link {
    config: Arc<MemcachedConfig>,
    connection: Reconnecting<Session>,
}

impl Link {
    pub(crate) fn new(config: Arc<MemcachedConfig>) -> Self {
        // Callers of a store that keeps nothing would rather be told than wait.
        let attempts = Arc::new(Attempts::new(DuringPause::Fail));
        let connection = Reconnecting::new(config.address.to_string(), attempts);
        Self { config, connection }
    }

    /// The connection there is, or a new one.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Connected<Session>>, LockError> {
        let session = self.connection.get(|| self.open()).await?;
        // To open one it had to answer.
        self.connection.served(&session);
        Ok(session)
    }

    fn open(self: &Arc<Self>) -> impl Future<Output = Result<Session, LockError>> + Send + use<> {
        let (config, link) = (Arc::clone(&self.config), Arc::downgrade(self));
        async move { Session::open(&config, link).await }
    }

    /// Finds out whether the connection in use is dead, or its server stands still: if a new one
    /// works at once, that takes its place. What is under way on the old one goes on.
    fn suspect(self: Arc<Self>) {
        let silent = |session: &Arc<Connected<Session>>| session.silent.load(Ordering::Relaxed);
        let Some(session) = self.connection.current().filter(silent) else { return };
        spawn_lasting(async move {
            // Whoever is at it already does it for all.
            let Some(_one) = self.connection.attempts().try_exclusive() else { return };
            let is_silent = || {
                silent(&session)
                    && self.connection.current().is_some_and(|now| Arc::ptr_eq(&now, &session))
            };
            if !is_silent() {
                return;
            }
            let Ok(new) = self.open().await else { return };
            if is_silent() {
                tracing::debug!("the connection is dead, though nobody closed it");
                self.connection.replace(new);
            }
        });
    }
}

impl Connection for Session {
    fn is_open(&self) -> bool {
        !self.wire.jobs.is_closed()
    }
}

/// A request on its way. If it is dropped before its answer came, after a silence, nobody else may
/// ever notice that the connection is dead.
struct Sent<'a> {
    session: &'a Session,
    at: Instant,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered
            && self.at.elapsed() >= QUIET
            && let Some(link) = self.session.link.upgrade()
        {
            self.session.silent.store(true, Ordering::Relaxed);
            link.suspect();
        }
    }
}

/// A live connection, and what is known of the server process behind it.
pub(crate) struct Session {
    wire: Wire,
    link: Weak<Link>,
    /// Nothing was heard since somebody gave up waiting.
    silent: AtomicBool,
    /// When the server process was started, in seconds: it sets the fences of this process apart
    /// from all others.
    pub(crate) start: u32,
    /// The server's time when it was asked, and when that was.
    time: (u64, Instant),
    /// How long the server ran when this was opened, as far as is known: never less than was ever
    /// seen.
    uptime: AtomicU64,
    /// From when on the server's clock is known to be right; `None` after an answer that was slow.
    sound: Mutex<Option<Instant>>,
    settled_at: Instant,
    /// What was written through it.
    pub(crate) recent: Recent,
    pub(crate) owners: OwnerText,
}

impl Session {
    async fn open(config: &MemcachedConfig, link: Weak<Link>) -> Result<Self, LockError> {
        let server: Arc<str> = config.address.to_string().into();
        let limit = Instant::now() + config.connect_timeout;
        let not_reached = |why: String| {
            LockError::unavailable(format!(
                "cannot reach {server}: {why}; check that it runs there"
            ))
        };
        let connecting = timeout_at(limit, Wire::connect(config, Arc::clone(&server))).await;
        let wire = match connecting {
            Ok(Ok(wire)) => wire,
            Ok(Err(error)) => return Err(not_reached(error.to_string())),
            Err(_) => {
                return Err(not_reached(format!("no connection in {:?}", config.connect_timeout)));
            }
        };
        let greeting = async {
            match wire.ask(Request::NoOp).await? {
                Reply::NoOp => wire.statistics("").await,
                other => Err(wire.refused(&other)),
            }
        };
        let statistics = match timeout_at(limit, greeting).await {
            Ok(statistics) => statistics?,
            Err(_) => {
                return Err(not_reached(format!("no answer in {:?}", config.connect_timeout)));
            }
        };
        let asked_at = Instant::now();
        let number = |name: &str| {
            let found = statistics.iter().find(|(known, _)| known == name);
            found.and_then(|(_, value)| value.parse::<u64>().ok())
        };
        let (Some(time), Some(uptime)) = (number("time"), number("uptime")) else {
            return Err(LockError::internal(format!(
                "{server} does not say its time and uptime, from which fences are made"
            )));
        };
        let start = time.checked_sub(uptime).and_then(|start| u32::try_from(start).ok());
        let Some(start) = start.filter(|start| *start > 0) else {
            return Err(LockError::internal(format!(
                "{server} says a time and uptime that no clock has; fences cannot be made from it"
            )));
        };
        let settling = if uptime < YOUNG { SETTLING } else { Duration::ZERO };
        tracing::debug!(%server, start, uptime, "connected");
        let (time, settled_at) = ((time, asked_at), asked_at + settling);
        Ok(Self {
            wire,
            link,
            silent: AtomicBool::new(false),
            start,
            time,
            uptime: AtomicU64::new(uptime),
            sound: Mutex::new(Some(asked_at)),
            settled_at,
            recent: Recent::default(),
            owners: OwnerText::default(),
        })
    }

    /// Waits until no earlier process of this server can have been started in the same second and
    /// have granted.
    ///
    /// Every grant comes a second or more after the start of its process. A process that follows
    /// starts later than that grant, so in a later second, and its fences are higher. Without this,
    /// a server that is restarted twice in one second would count the same fences again.
    pub(crate) async fn settled(&self) {
        // Nearly always long ago, and then not worth a timer.
        if Instant::now() < self.settled_at {
            sleep_until(self.settled_at).await;
        }
    }

    /// Whether what the server did since `asked` was done by a clock that is right. If it was slow
    /// meanwhile, this waits until its clock is: then the step has to be done again.
    ///
    /// A server that is continued after it was stopped first answers what lies there, by the clock
    /// of before. A lease that it writes then ends earlier, by as long as it was stopped.
    pub(crate) async fn kept_time(&self, asked: Instant) -> Result<bool, LockError> {
        let limit = Instant::now() + self.wire.timeout;
        loop {
            if let Some(from) = *self.sound() {
                return Ok(from <= asked);
            }
            let looked_at = Instant::now();
            if self.is_on_time().await? {
                *self.sound() = Some(looked_at);
                tracing::debug!("memcached was slow; what it wrote meanwhile is written again");
            } else if limit <= looked_at {
                return Err(LockError::unavailable(
                    "memcached answers, but its clock stands still; see what holds the server up",
                ));
            } else {
                tokio::time::sleep(CLOCK_PAUSE).await;
            }
        }
    }

    fn sound(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.sound)
    }

    /// Whether the server's clock has gone on as ours has.
    async fn is_on_time(&self) -> Result<bool, LockError> {
        let asked_at = Instant::now();
        let statistics = self.statistics("").await?;
        let uptime = statistics.iter().find(|(name, _)| name == "uptime");
        let Some(uptime) = uptime.and_then(|(_, value)| value.parse::<u64>().ok()) else {
            return Err(LockError::internal("memcached does not say its uptime any more"));
        };
        let passed = asked_at.saturating_duration_since(self.time.1).as_secs();
        let before = self.uptime.fetch_max(uptime.saturating_sub(passed), Ordering::Relaxed);
        Ok(uptime + LATE_TICKS >= before + passed)
    }

    /// About what the server's clock says now. For display.
    pub(crate) fn server_time(&self) -> u64 {
        self.time.0.saturating_add(self.time.1.elapsed().as_secs())
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn ask(&self, request: Request<'_>) -> Result<Reply, LockError> {
        let mut sent = Sent { session: self, at: Instant::now(), answered: false };
        let reply = self.wire.ask(request).await;
        sent.answered = reply.is_ok();
        if sent.answered {
            self.silent.store(false, Ordering::Relaxed);
        }
        if sent.at.elapsed() >= SLOW {
            *self.sound() = None;
        }
        reply
    }

    pub(crate) async fn statistics(
        &self,
        of: &'static str,
    ) -> Result<Vec<(String, String)>, LockError> {
        self.wire.statistics(of).await
    }

    /// The error for a reply that says no, or makes no sense.
    pub(crate) fn refused(&self, reply: &Reply) -> LockError {
        self.wire.refused(reply)
    }
}

/// The way to the task that has the socket.
struct Wire {
    jobs: mpsc::Sender<Job>,
    timeout: Duration,
    server: Arc<str>,
}

struct Job {
    /// As it is sent: written by its caller, because the task has to do with everybody's.
    request: Vec<u8>,
    reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl Wire {
    async fn connect(config: &MemcachedConfig, server: Arc<str>) -> io::Result<Self> {
        let (jobs, work) = mpsc::channel(PIPELINE);
        match &config.address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                spawn_lasting(Carrier::new(work, config.timeout).carry(stream));
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                spawn_lasting(Carrier::new(work, config.timeout).carry(stream));
            }
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(Self { jobs, timeout: config.timeout, server })
    }

    async fn ask(&self, request: Request<'_>) -> Result<Reply, LockError> {
        let writes = request.writes();
        self.exchange(request.encode()).await.map_err(|fault| fault.explain(&self.server, writes))
    }

    async fn exchange(&self, request: Vec<u8>) -> Result<Reply, Fault> {
        let place = match self.jobs.try_reserve() {
            Ok(place) => Ok(Ok(place)),
            Err(_) => timeout(self.timeout, self.jobs.reserve()).await,
        };
        let place = match place {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(Fault::NotSent("the connection broke".into())),
            Err(_) => return Err(Fault::NotSent("too many requests wait for it".into())),
        };
        let (reply, answer) = oneshot::channel();
        place.send(Job { request, reply });
        // Without a timer of its own: the carrier has one for all.
        answer.await.unwrap_or_else(|_| Err(Fault::Lost("the connection was given up".into())))
    }

    async fn statistics(&self, of: &'static str) -> Result<Vec<(String, String)>, LockError> {
        match self.ask(Request::Statistics { of }).await? {
            Reply::Statistics(statistics) => Ok(statistics),
            other => Err(self.refused(&other)),
        }
    }

    fn refused(&self, reply: &Reply) -> LockError {
        refused(reply, &self.server)
    }
}

/// Has the socket, and knows whose reply comes next and who has waited long enough.
struct Carrier {
    work: mpsc::Receiver<Job>,
    timeout: Duration,
    waiting: VecDeque<Waiting>,
    /// How many of `waiting` have been told that no answer came. They are the first: all wait
    /// equally long.
    told: usize,
    inbox: Inbox,
    out: Vec<u8>,
    sent: usize,
}

/// A request whose reply has not come. The caller is gone once it was told so.
struct Waiting {
    since: Instant,
    caller: Option<oneshot::Sender<Result<Reply, Fault>>>,
}

impl Waiting {
    fn answer(&mut self, answer: Result<Reply, Fault>) {
        // It may have gone away without a word.
        let _ = self.caller.take().map(|caller| caller.send(answer));
    }
}

impl Carrier {
    fn new(work: mpsc::Receiver<Job>, timeout: Duration) -> Self {
        let (waiting, inbox) = (VecDeque::new(), Inbox::default());
        Self { work, timeout, waiting, told: 0, inbox, out: Vec::new(), sent: 0 }
    }

    /// Works until the connection breaks or nobody wants it any more; then says so to all who wait.
    async fn carry(mut self, stream: impl AsyncRead + AsyncWrite) {
        let why: Arc<str> = match self.work_on(stream).await {
            Ok(()) => return,
            Err(why) => why.into(),
        };
        tracing::debug!(%why, waiting = self.waiting.len(), "the connection ends");
        self.work.close();
        for mut waiting in self.waiting {
            waiting.answer(Err(Fault::Lost(Arc::clone(&why))));
        }
        while let Ok(job) = self.work.try_recv() {
            let _ = job.reply.send(Err(Fault::NotSent(Arc::clone(&why))));
        }
    }

    async fn work_on(&mut self, stream: impl AsyncRead + AsyncWrite) -> Result<(), String> {
        let (mut from, mut to) = tokio::io::split(stream);
        let mut wanted = true;
        // One for the whole connection: setting a timer for every request would cost more than
        // writing it.
        let mut alarm = pin!(sleep_until(Instant::now() + self.timeout));
        while wanted || !self.waiting.is_empty() {
            let room = self.waiting.len() < PIPELINE;
            tokio::select! {
                job = self.work.recv(), if wanted && room => match job {
                    Some(job) => self.take(job),
                    None => wanted = false,
                },
                wrote = to.write(&self.out[self.sent..]), if !self.out.is_empty() => match wrote {
                    Ok(0) => return Err("the connection takes nothing more".to_owned()),
                    Ok(count) => self.wrote(count),
                    Err(error) => return Err(format!("the connection broke: {error}")),
                },
                read = from.read_buf(self.inbox.space()) => match read {
                    Ok(0) => return Err("the server closed the connection".to_owned()),
                    // Those who were answered get to write their next requests, which then leave
                    // together.
                    Ok(_) => if self.deliver()? > 1 { yield_now().await },
                    Err(error) => return Err(format!("the connection broke: {error}")),
                },
                () = &mut alarm, if !self.waiting.is_empty() => {
                    let due = self.look_at_the_time(Instant::now())?;
                    alarm.as_mut().reset(due);
                }
            }
        }
        Ok(())
    }

    /// Tells those who have waited for long enough, and says when the next ones will have. It may
    /// be much too early: the alarm is not set back when requests are answered.
    ///
    /// A caller is told after one timeout. The connection stays for one more, so that what follows,
    /// such as the release of a lock that was perhaps granted, comes after it on the same
    /// connection.
    fn look_at_the_time(&mut self, now: Instant) -> Result<Instant, String> {
        let silence = self.waiting.front().map_or(now, |first| first.since) + self.timeout * 2;
        if silence <= now {
            return Err("the server is silent".to_owned());
        }
        while let Some(next) = self.waiting.get_mut(self.told) {
            let due = next.since + self.timeout;
            if due > now {
                return Ok(due.min(silence));
            }
            let why = format!("no answer came in {:?}", self.timeout);
            next.answer(Err(Fault::Lost(why.into())));
            self.told += 1;
        }
        Ok(silence)
    }

    /// Puts a job, and all others that are there already, into one write.
    fn take(&mut self, job: Job) {
        let since = Instant::now();
        let mut next = Some(job);
        while let Some(job) = next {
            // Nobody waits for it and it has not left: it never will.
            if !job.reply.is_closed() {
                self.out.extend_from_slice(&job.request);
                self.waiting.push_back(Waiting { since, caller: Some(job.reply) });
            }
            next = if self.waiting.len() < PIPELINE { self.work.try_recv().ok() } else { None };
        }
    }

    fn wrote(&mut self, count: usize) {
        self.sent += count;
        // What has left is let go of at once if it is all, and now and then if there is always
        // more.
        if self.sent == self.out.len() || self.sent >= SENT_BYTES {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Hands out the replies that are there, and says how many.
    fn deliver(&mut self) -> Result<usize, String> {
        let mut delivered = 0;
        loop {
            let reply = match self.inbox.next() {
                Ok(None) => return Ok(delivered),
                Ok(Some(reply)) => reply,
                Err(malformed) => {
                    let why = malformed.to_string();
                    if let Some(mut waiting) = self.waiting.pop_front() {
                        waiting.answer(Err(Fault::Nonsense(why.as_str().into())));
                    }
                    return Err(why);
                }
            };
            // What the server makes of the bytes after a request that it did not understand, nobody
            // knows.
            let out_of_step =
                matches!(reply, Reply::Refused(Refusal::Command | Refusal::Request, _));
            match self.waiting.pop_front() {
                Some(mut waiting) => waiting.answer(Ok(reply)),
                None => return Err("the server answered a question that nobody asked".to_owned()),
            }
            self.told = self.told.saturating_sub(1);
            delivered += 1;
            if out_of_step {
                return Err("the server did not understand a request".to_owned());
            }
        }
    }
}
