//! Leases: granted with at least what was asked, kept alive, read, and let go.
//!
//! etcd counts in whole seconds, has a minimum of its own (two seconds with default settings), and
//! may always grant more than was asked. What counts is what it says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdtight_core::{LockError, spawn_lasting};
use holdtight_kit::lock;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::error::{Effect, Fault};
use crate::link::{Ending, Link};
use crate::proto::lease_client::LeaseClient;
use crate::proto::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

/// How many leases one stream keeps alive: a member that does not lead passes them on one by one.
const STREAM: usize = 16;

/// A program that ended a lease so long ago is not one that does nothing else.
const BUSY: Duration = Duration::from_millis(100);

/// How long the end of a lease is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// A lease that etcd granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) id: i64,
    pub(crate) seconds: i64,
}

/// What is left of a lease, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Rounded down: at least so much is left.
    pub(crate) least: i64,
    /// Rounded up: no more than so much is left.
    pub(crate) most: i64,
}

/// A span in whole seconds, rounded up: never shorter than asked.
pub(crate) fn seconds(span: Duration) -> i64 {
    let whole = i64::try_from(span.as_secs()).unwrap_or(i64::MAX - 1);
    whole + i64::from(span.subsec_nanos() > 0)
}

/// Whole seconds as a span; nothing if there are none.
pub(crate) fn span(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Link {
    /// A new lease of at least `seconds`.
    pub(crate) async fn grant(self: &Arc<Self>, seconds: i64) -> Result<Granted, LockError> {
        // Random, not counted: whoever can guess a lease's number could end it on servers that
        // don't check.
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| {
            LockError::internal("the operating system gave no random bytes for a lease")
                .with_source(error.to_string())
        })?;
        let id = (i64::from_le_bytes(random) & i64::MAX).max(1);
        let answer: LeaseGrantResponse = self
            .ask(Effect::Harmless, |wire| {
                let question = wire.request(LeaseGrantRequest { ttl: seconds, id });
                async move { LeaseClient::new(wire.channel.clone()).lease_grant(question).await }
            })
            .await?;
        if answer.id != id || answer.ttl < seconds || !answer.error.is_empty() {
            return Err(LockError::internal("etcd granted another lease than was asked for"));
        }
        Ok(Granted { id, seconds: answer.ttl })
    }

    /// Ends a lease that no lock of ours hangs on, in the background. If it fails, the lease ends
    /// by itself.
    pub(crate) fn let_go(self: &Arc<Self>, id: i64) -> JoinHandle<()> {
        let link = Arc::clone(self);
        spawn_lasting(async move {
            let ended: Result<LeaseRevokeResponse, _> = link
                .ask(Effect::Harmless, |wire| {
                    let question = wire.request(LeaseRevokeRequest { id });
                    async move { LeaseClient::new(wire.channel.clone()).lease_revoke(question).await }
                })
                .await;
            if let Err(error) = ended {
                tracing::debug!(%error, "a lease was not ended; it ends by itself");
            }
        })
    }

    /// The same for the last thing that a program may do before it ends: its lease would be left
    /// behind, for as long as it was asked for. So it is waited for; in a program that does this
    /// all the time, the one before it is.
    pub(crate) async fn end(self: &Arc<Self>, id: i64) {
        let (began, task) = (Instant::now(), self.let_go(id));
        let awaited = {
            let mut last = lock(&self.ending);
            let is_busy = last.as_ref().is_some_and(|last| began - last.began < BUSY);
            let before = last.take().and_then(|last| last.task);
            let (task, awaited) = if is_busy { (Some(task), before) } else { (None, Some(task)) };
            *last = Some(Ending { began, task });
            awaited
        };
        // The lock is free already: whether this takes longer is nobody's concern.
        if let Some(task) = awaited {
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
    }

    /// What is left of a lease; `None` if it is gone.
    pub(crate) async fn rest(self: &Arc<Self>, id: i64) -> Result<Option<Rest>, LockError> {
        let answer: LeaseTimeToLiveResponse = self
            .ask(Effect::Reads, |wire| {
                let question = wire.request(LeaseTimeToLiveRequest { id });
                async move { LeaseClient::new(wire.channel.clone()).lease_time_to_live(question).await }
            })
            .await?;
        // A lease that is over but not yet removed still has its granted TTL.
        if answer.granted_ttl <= 0 {
            return Ok(None);
        }
        let least = answer.ttl.clamp(0, answer.granted_ttl);
        Ok(Some(Rest { least, most: (least + 1).min(answer.granted_ttl) }))
    }

    /// Restarts several leases; their full length in seconds each, not positive for one that is
    /// gone.
    ///
    /// Answers stand in the order of `ids`. An error says nothing about its lease.
    pub(crate) async fn keep_alive(self: &Arc<Self>, ids: &[i64]) -> Vec<Result<i64, LockError>> {
        let streams = ids.chunks(STREAM).map(|ids| async move {
            let mut answers = Vec::with_capacity(ids.len());
            let ended = self.stream(ids, &mut answers).await;
            if let Err(error) = ended {
                answers.resize_with(ids.len(), || Err(error.clone()));
            }
            answers
        });
        futures_util::future::join_all(streams).await.into_iter().flatten().collect()
    }

    /// One stream of keep-alives, which the server answers in order.
    async fn stream(
        self: &Arc<Self>,
        ids: &[i64],
        answers: &mut Vec<Result<i64, LockError>>,
    ) -> Result<(), LockError> {
        let mut left = self.members().len();
        loop {
            let wire = self.wire().await?;
            let questions: Vec<_> =
                ids.iter().map(|id| LeaseKeepAliveRequest { id: *id }).collect();
            let questions = wire.request(tokio_stream::iter(questions));
            let mut client = LeaseClient::new(wire.channel.clone());
            let talk = async {
                let mut stream = client.lease_keep_alive(questions).await?.into_inner();
                while answers.len() < ids.len() {
                    let lost = || Status::unavailable("the stream of keep-alives ended");
                    let answer = stream.message().await?.ok_or_else(lost)?;
                    if answer.id != ids[answers.len()] {
                        return Err(Status::data_loss("a keep-alive of another lease"));
                    }
                    answers.push(Ok(answer.ttl));
                }
                Ok(())
            };
            let Err(status) = self.timely_on(&wire, talk).await else {
                self.prove(&wire);
                return Ok(());
            };
            let fault = Fault::read(&status);
            self.blame(&wire, fault);
            if left == 0 || !answers.is_empty() || !fault.may_be_repeated(Effect::Writes) {
                return Err(fault.explain(Effect::Writes, &status));
            }
            left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_never_too_few() {
        for (millis, wanted) in
            [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (86_400_000, 86_400)]
        {
            assert_eq!(seconds(Duration::from_millis(millis)), wanted);
        }
        assert_eq!(seconds(Duration::MAX), i64::MAX);
        assert_eq!(
            (span(-1), span(0), span(2)),
            (Duration::ZERO, Duration::ZERO, Duration::from_secs(2))
        );
    }
}
