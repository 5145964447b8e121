//! Leader election: whoever holds the lock leads, and stops leading before anybody else can.
//!
//! A leader is a holder with a name for it. All safety is the lock's; this file only adds the way
//! of speaking, and a loop that campaigns again after a loss.

use std::fmt;
use std::time::Duration;

use crate::api::acquire::{Acquire, done};
use crate::api::handle::LockHandle;
use crate::api::lock::DistributedLock;
use crate::engine::held::Held;
use crate::model::error::{ErrorKind, LockError};
use crate::model::fence::Fence;
use crate::model::holder::LockInfo;
use crate::model::loss::Loss;

/// How often an observer looks who leads.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl DistributedLock {
    /// An election for the post `post`: one leader at a time.
    pub fn election(&self, post: impl AsRef<str>) -> Election {
        Election::new(self.clone(), post.as_ref())
    }
}

/// An election for one post: see [`DistributedLock::election`](crate::DistributedLock::election).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
/// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
/// let election = lock.election("scheduler").reason("node 7");
/// let leadership = election.campaign().await?;
/// assert_eq!(election.leader().await?.unwrap().fence, Some(leadership.fence()));
/// leadership.step_down().await
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    lock: DistributedLock,
    post: String,
    ttl: Option<Duration>,
    reason: Option<String>,
}

/// The post is ours until [`lost`](Self::lost) resolves. Dropping it steps down.
#[must_use = "a leadership that is dropped steps down at once"]
pub struct Leadership {
    handle: LockHandle,
}

impl Election {
    pub(crate) fn new(lock: DistributedLock, post: &str) -> Self {
        Self { lock, post: post.to_owned(), ttl: None, reason: None }
    }

    /// How long the post stays filled if nothing is heard from its leader. Default: the lock's TTL.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How this candidate calls itself, for those who observe.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Waits until the post is ours.
    ///
    /// # Errors
    /// What the store reports; never `Timeout`.
    ///
    /// # Cancel safety
    /// Cancel-safe: the candidacy is withdrawn.
    pub async fn campaign(&self) -> Result<Leadership, LockError> {
        Ok(Leadership { handle: self.candidacy().wait_forever().await? })
    }

    /// Waits at most `limit` until the post is ours: `Ok(None)` if somebody else led all the time.
    ///
    /// # Errors
    /// What the store reports; never `Timeout`.
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_within(&self, limit: Duration) -> Result<Option<Leadership>, LockError> {
        match self.candidacy().wait(limit).await {
            Ok(handle) => Ok(Some(Leadership { handle })),
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the post if nobody leads: `Ok(None)` if somebody does.
    ///
    /// # Errors
    /// As [`campaign_within`](Self::campaign_within).
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), holdtight_core::LockError> {
    /// # let lock = holdtight_core::DistributedLock::builder(holdtight_core::MemoryStore::new()).build()?;
    /// let election = lock.election("scheduler");
    /// let leadership = election.try_campaign().await?.expect("nobody else leads");
    /// assert!(election.try_campaign().await?.is_none());
    /// leadership.step_down().await
    /// # }
    /// ```
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, LockError> {
        self.campaign_within(Duration::ZERO).await
    }

    fn candidacy(&self) -> Acquire {
        let mut acquire = self.lock.acquire(&self.post).auto_renew(true);
        if let Some(ttl) = self.ttl {
            acquire = acquire.ttl(ttl);
        }
        if let Some(reason) = &self.reason {
            acquire = acquire.reason(reason);
        }
        acquire
    }

    /// Leads whenever it can: campaigns, runs `work(held)` while it leads, and campaigns again if
    /// the post was lost.
    ///
    /// The work is dropped when the post is lost, before anybody else can lead. It ends when the
    /// work ends by itself; then the post is given up. A store that cannot be reached for a while
    /// is no reason to end: it goes on campaigning.
    ///
    /// Work that ended by itself after the post was lost, in whatever way, does not count: it
    /// campaigns again.
    ///
    /// # Errors
    /// What the store reports while campaigning, if it will not pass.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the work, and the post is given up in the background.
    pub async fn lead<W>(&self, mut work: impl FnMut(Held) -> W) -> Result<W::Output, LockError>
    where
        W: Future,
    {
        loop {
            let leadership = match self.campaign().await {
                Ok(leadership) => leadership,
                Err(error) if error.kind().is_transient() => {
                    tracing::warn!(post = %self.post, %error, "cannot campaign; trying again");
                    look_again().await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let held = leadership.handle.held();
            let ended = tokio::select! {
                biased;
                loss = held.lost() => Err(loss),
                out = work(leadership.handle.held()) => Ok(out),
            };
            let lost = match ended {
                Err(loss) => held.lost_error(loss),
                // The loss may have come while the work kept its thread, and nobody could look.
                Ok(out) => match held.check() {
                    Err(error) => error,
                    Ok(()) => match done(leadership.step_down().await) {
                        Err(error) => error,
                        Ok(()) => return Ok(out),
                    },
                },
            };
            tracing::warn!(post = %self.post, error = %lost, "no longer leading; campaigning again");
        }
    }

    /// Who leads now, if anybody does. By the time it is read the answer may be old.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn leader(&self) -> Result<Option<LockInfo>, LockError> {
        self.lock.lookup(&self.post).await
    }

    /// Waits until somebody leads whose fence is not `known`, and says who. Start with `None`.
    ///
    /// A store that cannot be reached for a moment is asked again.
    ///
    /// # Errors
    /// What the store reports, if it will not pass.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn next_leader(&self, known: Option<Fence>) -> Result<LockInfo, LockError> {
        loop {
            match self.leader().await {
                Ok(Some(leader)) if leader.fence != known || leader.fence.is_none() => {
                    return Ok(leader);
                }
                Ok(_) => {}
                Err(error)
                    if error.kind().is_transient() && error.kind() != ErrorKind::RateLimited =>
                {
                    tracing::debug!(post = %self.post, %error, "cannot see who leads; looking again");
                }
                Err(error) => return Err(error),
            }
            look_again().await;
        }
    }
}

async fn look_again() {
    tokio::time::sleep(LOOK_EVERY.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
}

impl Leadership {
    /// Larger than the fence of every earlier leader: pass it to whatever the leader changes.
    pub fn fence(&self) -> Fence {
        self.handle.fence()
    }

    /// Whether we lead. One clock read, to put before every side effect.
    pub fn is_leader(&self) -> bool {
        self.handle.is_held()
    }

    /// Resolves when the post is lost, as [`LockHandle::lost`] says: it aims to come before anybody
    /// else can lead.
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn lost(&self) -> Loss {
        self.handle.lost().await
    }

    /// A view to hand to the work of the leader.
    pub fn held(&self) -> Held {
        self.handle.held()
    }

    /// Gives the post up.
    ///
    /// # Errors
    /// As [`LockHandle::release`].
    ///
    /// # Cancel safety
    /// As [`LockHandle::release`].
    pub async fn step_down(self) -> Result<(), LockError> {
        self.handle.release().await
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("post", &self.post).finish_non_exhaustive()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.handle).finish()
    }
}
