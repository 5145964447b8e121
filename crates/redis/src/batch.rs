//! The two steps that many callers may share a script for: acquire and release of the native
//! layout.
//!
//! A script costs the server far more than the lock in it. So what comes while some are on their
//! way goes out together, each caller with its own answer. When to batch is up to [`Batcher`].

use std::sync::Arc;

use holdtight_core::{AcquireRequest, Attempt, LockError, Release, Secret};
use holdtight_kit::{BatchConfig, BatchOp, Batcher};

use crate::error::concerns_one;
use crate::names::Place;
use crate::reply::{granted, millis, refused};
use crate::scripts::EachScripts;
use crate::store::{Acquires, Batches, Given, RedisStore, Releases, Wanted};

/// Scripts on their way at once. Fewer would make a few callers wait for each other, more would
/// leave less to gather.
const AT_ONCE: usize = 8;

/// Callers in one script: the server does nothing else meanwhile.
const MOST: usize = 32;

impl Batches {
    pub(crate) fn new(scripts: &'static EachScripts, timeout: std::time::Duration) -> Self {
        let config = BatchConfig::new().in_flight(AT_ONCE).size(MOST).timeout(timeout);
        Self {
            scripts,
            acquires: Batcher::new(Acquires, config),
            releases: Batcher::new(Releases, config),
        }
    }

    /// As [`RedisStore::attempt_at`], for a caller who has not been queued yet.
    pub(crate) async fn acquire(
        &self,
        store: Arc<RedisStore>,
        place: Place,
        request: AcquireRequest,
    ) -> Result<Attempt, LockError> {
        let scripts = self.scripts;
        self.acquires.submit(0, Wanted { store, scripts, place, request }).await
    }

    /// As [`RedisStore::give_back_at`].
    pub(crate) async fn release(
        &self,
        store: Arc<RedisStore>,
        place: Place,
        secret: Secret,
    ) -> Result<Release, LockError> {
        let scripts = self.scripts;
        self.releases.submit(0, Given { store, scripts, place, secret }).await
    }
}

impl Wanted {
    fn queues(&self) -> bool {
        self.store.queues(&self.request)
    }
}

impl BatchOp for Acquires {
    type Request = Wanted;
    type Answer = Attempt;

    async fn one(&self, wanted: &Wanted) -> Result<Attempt, LockError> {
        wanted.store.attempt_at(&wanted.place, &wanted.request).await
    }

    async fn many(&self, wanted: &[&Wanted]) -> Result<Vec<Result<Attempt, LockError>>, LockError> {
        let Some(Wanted { store, scripts, place, request }) = wanted.first() else {
            return Ok(Vec::new());
        };
        let (id, owner, queues) =
            (store.id(), store.owner_text(&request.owner), wanted[0].queues());
        let keys = 1 + wanted.len() * (1 + usize::from(queues));
        let mut answer = store
            .run(&scripts.acquire, &place.lock, keys, id, |command| {
                command.arg(&*place.fence);
                for wanted in wanted {
                    command.arg(&wanted.place.lock);
                    command.arg(queues.then_some(&wanted.place.waiters));
                }
                command.arg(id).arg(millis(request.ttl)).arg(&*owner);
                for wanted in wanted {
                    command.arg(store.claim(&wanted.request.secret));
                }
            })
            .await?;
        if answer.tag != b'A' {
            return answer.unexpected();
        }
        let mut attempts = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let key = &wanted.request.key;
            attempts.push(match answer.text()? {
                "G" => Some(Attempt::Granted(granted(&mut answer)?)),
                "B" => Some(Attempt::Busy(refused(&mut answer, key, queues)?)),
                "?" => None,
                _ => return answer.unexpected(),
            });
        }
        answer.end()?;
        or_alone(self, attempts, wanted).await
    }

    fn may_retry_alone(&self, _: &Wanted, error: &LockError) -> bool {
        concerns_one(error)
    }

    fn can_share(&self, one: &Wanted, other: &Wanted) -> bool {
        one.request.ttl == other.request.ttl
            && one.request.owner == other.request.owner
            && one.queues() == other.queues()
    }
}

impl BatchOp for Releases {
    type Request = Given;
    type Answer = Release;

    async fn one(&self, given: &Given) -> Result<Release, LockError> {
        given.store.give_back_at(&given.place, &given.secret).await
    }

    async fn many(&self, given: &[&Given]) -> Result<Vec<Result<Release, LockError>>, LockError> {
        let Some(Given { store, scripts, place, .. }) = given.first() else {
            return Ok(Vec::new());
        };
        let id = store.id();
        let mut answer = store
            .run(&scripts.release, &place.lock, 2 * given.len(), id, |command| {
                for given in given {
                    command.arg(&given.place.lock).arg(&given.place.waiters);
                }
                command.arg(id);
                for given in given {
                    command.arg(store.claim(&given.secret));
                }
            })
            .await?;
        if answer.tag != b'A' {
            return answer.unexpected();
        }
        let mut releases = Vec::with_capacity(given.len());
        for _ in given {
            releases.push(match answer.text()? {
                "R" => Some(Release::Released),
                "N" => Some(Release::NotHeld),
                "?" => None,
                _ => return answer.unexpected(),
            });
        }
        answer.end()?;
        or_alone(self, releases, given).await
    }

    fn may_retry_alone(&self, _: &Given, error: &LockError) -> bool {
        concerns_one(error)
    }
}

/// Those who were not answered ask alone, and are told why.
async fn or_alone<E: BatchOp>(
    errand: &E,
    answers: Vec<Option<E::Answer>>,
    requests: &[&E::Request],
) -> Result<Vec<Result<E::Answer, LockError>>, LockError> {
    let mut all = Vec::with_capacity(answers.len());
    for (answer, request) in answers.into_iter().zip(requests) {
        all.push(match answer {
            Some(answer) => Ok(answer),
            None => errand.one(request).await,
        });
    }
    Ok(all)
}
