//! Moves in which a lock ends by another hand than its holder's: by its token, or by force.

use std::time::Duration;

use holdtight_core::{DistributedLock, LockToken};

use super::cancel::give_up_after;
use super::event::{Foreign, Form, LetGo, Patience, Refusal};
use super::player::{InHand, Player, taken};
use super::record::{Holding, Parting};

impl Player {
    /// A lock to try it on; whoever waits in vain for so long has bad luck.
    async fn some_lock(&mut self) -> Option<(String, InHand)> {
        let (lock, key) = (self.own(), self.key());
        let wait = Duration::from_secs(5);
        let in_hand = self.acquire(&lock, &key, Some(wait)).await?;
        Some((key, in_hand))
    }

    /// A message that is delivered three times: only one of them may become a holder.
    pub(super) async fn detach(&mut self) {
        let Some((key, in_hand)) = self.some_lock().await else { return };
        let Some((parting, token)) = detached(in_hand).await else { return };
        let (one, two, three) = (self.any(), self.any(), self.any());
        let (one, two, three) = tokio::join!(
            self.resume(&one, &key, &token, &parting),
            self.resume(&two, &key, &token, &parting),
            self.resume(&three, &key, &token, &parting),
        );
        let resumed: Vec<_> = [one, two, three].into_iter().flatten().collect();
        if resumed.is_empty() {
            // The answers were lost, or nothing was done: nobody is to wait for the end of its
            // lease.
            let lock = self.any();
            let _ = parting.ended_by(Foreign::ReleaseToken, lock.release_token(&token)).await;
        }
        for (_, holding) in &resumed {
            holding.look();
        }
        for in_hand in resumed {
            self.hold(in_hand).await;
        }
    }

    async fn resume(
        &self,
        lock: &DistributedLock,
        key: &str,
        token: &LockToken,
        parting: &Parting,
    ) -> Option<InHand> {
        let claim = self.recorder.ask(key, Form::Resume, Patience::Limited);
        let resume = lock.resume_for(token.clone(), self.load.ttl);
        taken(claim, parting.ended_by(Foreign::Resume, resume).await)
    }

    /// The token of a lock that is held: resumed, its handle is worth nothing any more and must do
    /// no harm.
    pub(super) async fn resume_held(&mut self) {
        let Some((key, (handle, holding))) = self.some_lock().await else { return };
        let (lock, token) = (self.any(), handle.token());
        let claim = self.recorder.ask(&key, Form::Resume, Patience::Limited);
        let resume = lock.resume_for(token, self.load.ttl);
        let resumed = taken(claim, holding.ended_by(Foreign::Resume, resume).await);
        holding.look();
        if self.random.bool() {
            drop((holding, handle));
        } else {
            super::player::release(handle, holding).await;
        }
        if let Some(in_hand) = resumed {
            in_hand.1.look();
            self.hold(in_hand).await;
        }
    }

    pub(super) async fn release_held(&mut self) {
        let Some((_, (handle, holding))) = self.some_lock().await else { return };
        let (lock, token) = (self.any(), handle.token());
        let _ = holding.ended_by(Foreign::ReleaseToken, lock.release_token(&token)).await;
        super::player::pause(self.dwell()).await;
        super::player::release(handle, holding).await;
    }

    pub(super) async fn release_detached(&mut self) {
        let Some((_, in_hand)) = self.some_lock().await else { return };
        let Some((parting, token)) = detached(in_hand).await else { return };
        let (lock, other) = (self.any(), self.any());
        // What it says depends on the store's mood under faults; the lock must be there or gone
        // either way.
        let _ = lock.extend_token(&token, self.load.ttl).await;
        let _ = parting.ended_by(Foreign::ReleaseToken, other.release_token(&token)).await;
    }

    /// Detaching or resuming is given up half-way. A lock whose detaching was given up goes back to
    /// all; one whose resuming was goes back to its token, and the same client resumes it again.
    pub(super) async fn cancel_token(&mut self) {
        let Some((key, (handle, holding))) = self.some_lock().await else { return };
        let (polls, limit) = (self.random.u32(1..6), self.micros(0..8000));
        if self.random.bool() {
            let parting = holding.letting_go(LetGo::Detach);
            let Some(result) = give_up_after(handle.detach(), polls, limit).await else { return };
            parting.done(&result);
            if let Ok(token) = result {
                let lock = self.any();
                let _ = parting.ended_by(Foreign::ReleaseToken, lock.release_token(&token)).await;
            }
            return;
        }
        let Some((parting, token)) = detached((handle, holding)).await else { return };
        let lock = self.any();
        let resume = self.resume(&lock, &key, &token, &parting);
        let mut resumed = give_up_after(resume, polls, limit).await.flatten();
        if resumed.is_none() {
            resumed = self.resume(&lock, &key, &token, &parting).await;
        }
        match resumed {
            Some(in_hand) => self.hold(in_hand).await,
            None => {
                let _ = parting.ended_by(Foreign::ReleaseToken, lock.release_token(&token)).await;
            }
        }
    }

    /// A lock is left to itself for a while.
    pub(super) async fn keep(&mut self) {
        let (lock, key) = (self.own(), self.slow("kept"));
        let claim = self.recorder.ask(&key, Form::Try, Patience::Limited);
        // A store that cannot move a lock to another owner keeps it for what is left of the lease.
        let ttl = self.load.ttl.min(self.load.brief * 3);
        match lock.try_acquire(&key).ttl(ttl).await {
            Ok(Some(handle)) => {
                let holding = claim.granted(handle.held());
                let parting = holding.letting_go(LetGo::Detach);
                parting.done(&handle.keep_for(self.load.brief).await);
            }
            Ok(None) => claim.refused(Refusal::Busy),
            Err(error) => claim.failed(&error),
        }
    }

    pub(super) async fn force(&mut self) {
        let Some((key, (handle, holding))) = self.some_lock().await else { return };
        let lock = self.any();
        let force = lock.force_release(&key, handle.fence());
        let _ = holding.ended_by(Foreign::Force, force).await;
        super::player::pause(self.dwell()).await;
        super::player::release(handle, holding).await;
    }
}

/// Detaches a lock: what is left of it is its token.
async fn detached(
    (handle, holding): (holdtight_core::LockHandle, Holding),
) -> Option<(Parting, LockToken)> {
    let parting = holding.letting_go(LetGo::Detach);
    let result = handle.detach().await;
    parting.done(&result);
    Some((parting, result.ok()?))
}
