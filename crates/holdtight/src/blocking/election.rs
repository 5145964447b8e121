//! Leader election for blocking code: the same words, and work that has to look for itself whether
//! it still leads.

use std::fmt;
use std::time::Duration;

use holdtight_core::{Fence, LockError, LockInfo, Loss};

use super::acquire::done;
use super::background;
use super::handle::Held;

/// An election for one post: see [`DistributedLock::election`](super::DistributedLock::election).
#[derive(Clone, Debug)]
pub struct Election(pub(super) holdtight_core::Election);

/// The post is ours until it is lost. Dropping it steps down.
#[must_use = "a leadership that is dropped steps down at once"]
pub struct Leadership {
    held: Held,
    /// Taken by `step_down`.
    inner: Option<holdtight_core::Leadership>,
}

impl Election {
    /// How long the post stays filled if nothing is heard from its leader. Default: the lock's TTL.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// How this candidate calls itself, for those who observe.
    #[must_use]
    pub fn reason(self, reason: impl Into<String>) -> Self {
        Self(self.0.reason(reason))
    }

    /// Waits until the post is ours.
    ///
    /// # Errors
    /// What the store reports; never `Timeout`.
    pub fn campaign(&self) -> Result<Leadership, LockError> {
        let election = self.0.clone();
        background::wait(async move { election.campaign().await }).map(Leadership::new)
    }

    /// Waits until the post is ours, at most `limit`: `None` if somebody else had it all the time.
    /// The candidacy is then withdrawn.
    ///
    /// # Errors
    /// What the store reports.
    pub fn campaign_within(&self, limit: Duration) -> Result<Option<Leadership>, LockError> {
        let election = self.0.clone();
        let won = background::wait(async move { election.campaign_within(limit).await })?;
        Ok(won.map(Leadership::new))
    }

    /// Leads whenever it can: campaigns, runs `work(held)` on this thread, and campaigns again if
    /// the post was lost before the work ended; what the work made of it is dropped then.
    ///
    /// Nobody can stop the work: it has to call [`check`](Held::check) before every side effect,
    /// and return when it fails. If the work ends while we lead, the post is given up.
    ///
    /// A store that cannot be reached for a while is no reason to end: it goes on campaigning.
    ///
    /// # Errors
    /// What the store reports while campaigning, if it will not pass.
    pub fn lead<T>(&self, mut work: impl FnMut(&Held) -> T) -> Result<T, LockError> {
        loop {
            let leadership = match self.campaign() {
                Ok(leadership) => leadership,
                Err(error) if error.kind().is_transient() => {
                    std::thread::sleep(Duration::from_millis(500));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let out = work(leadership.held());
            if leadership.is_leader() && done(leadership.step_down()).is_ok() {
                return Ok(out);
            }
        }
    }

    /// Who leads now, if anybody does. By the time it is read the answer may be old.
    ///
    /// # Errors
    /// What the store reports.
    pub fn leader(&self) -> Result<Option<LockInfo>, LockError> {
        let election = self.0.clone();
        background::wait(async move { election.leader().await })
    }

    /// Waits until somebody leads whose fence is not `known`, and says who. Start with `None`.
    ///
    /// # Errors
    /// What the store reports, if it will not pass.
    pub fn next_leader(&self, known: Option<Fence>) -> Result<LockInfo, LockError> {
        let election = self.0.clone();
        background::wait(async move { election.next_leader(known).await })
    }

    /// As [`next_leader`](Self::next_leader), waiting at most `limit`: `None` if nothing changed.
    ///
    /// # Errors
    /// As [`next_leader`](Self::next_leader).
    pub fn next_leader_within(
        &self,
        known: Option<Fence>,
        limit: Duration,
    ) -> Result<Option<LockInfo>, LockError> {
        let election = self.0.clone();
        background::wait(async move {
            tokio::time::timeout(limit, election.next_leader(known)).await.ok().transpose()
        })
    }
}

impl Leadership {
    fn new(inner: holdtight_core::Leadership) -> Self {
        Self { held: Held(inner.held()), inner: Some(inner) }
    }

    /// Larger than the fence of every earlier leader: pass it to whatever the leader changes.
    pub fn fence(&self) -> Fence {
        self.held.fence()
    }

    /// Whether we lead. One clock read, to put before every side effect.
    pub fn is_leader(&self) -> bool {
        self.held.is_held()
    }

    /// Waits until the post is lost, at most `limit`: `None` if it was not.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) on the background thread itself.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>, LockError> {
        self.held.lost_within(limit)
    }

    /// A view to hand to the work of the leader.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Gives the post up.
    ///
    /// # Errors
    /// As [`LockHandle::release`](super::LockHandle::release).
    pub fn step_down(mut self) -> Result<(), LockError> {
        let Some(inner) = self.inner.take() else {
            return Err(LockError::internal("the post was given up before"));
        };
        background::wait(async move { inner.step_down().await })
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            // Not on the caller's runtime, which may be shut down before the release is through.
            background::inside(|| drop(inner));
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.held).finish()
    }
}
