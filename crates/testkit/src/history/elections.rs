//! Moves of candidates and leaders.

use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{Leadership, LockError};

use super::cancel::give_up_after;
use super::event::{Form, LetGo, Patience, Refusal};
use super::player::{Player, Work, pause};
use super::record::{Claim, Recorder};

impl Player {
    pub(super) async fn campaign(&mut self) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let election = lock.election(&key).ttl(self.load.ttl);
        let claim = self.recorder.ask(&key, Form::Campaign, Patience::Endless);
        reign(claim, election.campaign().await, dwell).await;
    }

    /// Wants the post now, or soon.
    pub(super) async fn campaign_within(&mut self) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let election = lock.election(&key).ttl(self.load.ttl);
        let wait = self.millis(1..=50);
        let claim = self.recorder.ask(&key, Form::Campaign, Patience::Limited);
        let won = if self.random.bool() {
            election.try_campaign().await
        } else {
            election.campaign_within(wait).await
        };
        match won.transpose() {
            Some(won) => reign(claim, won, dwell).await,
            None => claim.refused(Refusal::Busy),
        }
    }

    /// Wants the post, and goes away.
    pub(super) async fn cancel_campaign(&mut self) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let election = lock.election(&key).ttl(self.load.ttl);
        let polls = if self.random.bool() { u32::MAX } else { self.random.u32(1..8) };
        let limit = self.micros(0..8000);
        // Limited, because it is given up.
        let claim = self.recorder.ask(&key, Form::Campaign, Patience::Limited);
        if let Some(won) = give_up_after(election.campaign(), polls, limit).await {
            reign(claim, won, dwell).await;
        }
    }

    /// Leads; goes away after a while, if told so.
    pub(super) async fn lead(&mut self, cancelled_after: Option<Duration>) {
        let (lock, key, dwell) = (self.own(), self.key(), self.dwell());
        let election = lock.election(&key).ttl(self.load.ttl);
        let stays = cancelled_after.is_none();
        let patience = if stays { Patience::Endless } else { Patience::Limited };
        let work = Arc::new(Work::new(self.recorder.ask(&key, Form::Lead, patience)));
        let again = (self.recorder.clone(), key);
        let leading = election.lead(|held| {
            let (work, again) = (Arc::clone(&work), again.clone());
            async move {
                let campaigning = AskAgain { work: Arc::clone(&work), again };
                let holding = work.begin(held);
                pause(dwell).await;
                work.end(holding);
                // If the lock was lost before, the leader campaigns again all the same.
                drop(campaigning);
            }
        });
        let limit = cancelled_after.unwrap_or(Duration::MAX);
        if let Ok(result) = tokio::time::timeout(limit, leading).await {
            work.answered(&result);
        }
    }
}

/// Leads for a moment, if elected.
async fn reign(claim: Claim, won: Result<Leadership, LockError>, dwell: Option<Duration>) {
    match won {
        Ok(leadership) => {
            let holding = claim.granted(leadership.held());
            pause(dwell).await;
            let parting = holding.letting_go(LetGo::Release);
            parting.done(&leadership.step_down().await);
        }
        Err(error) => claim.failed(&error),
    }
}

/// A leader whose work is broken off campaigns again, from this moment on.
struct AskAgain {
    work: Arc<Work>,
    again: (Recorder, String),
}

impl Drop for AskAgain {
    fn drop(&mut self) {
        let (recorder, key) = &self.again;
        // Limited: if the work was done, nobody campaigns, and the claim counts as cancelled.
        let claim = recorder.ask(key, Form::Lead, Patience::Limited);
        self.work.again(claim);
    }
}
