//! The steps of a lock: what each sends to its script, and what the answer means.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, ExtendRequest, Extension, Fence, Holder, Intent, Key,
    Lease, LockError, ManyAttempt, Release, Secret, Transfer, TransferRequest, WakeUps,
};

use redis::{RedisWrite, ToRedisArgs};

use crate::config::Layout;
use crate::connection::{Fault, Link};
use crate::error::{concerns_one, is_split};
use crate::names::{Names, Place};
use crate::reply::{Answer, Left, granted, holder, millis, refused};
use crate::slots::slot;
use crate::store::{MAX_BATCH, RedisStore};

/// How many names one step of a listing asks for.
const LIST_STEP: usize = 128;

/// Leases of one server, each with its place in the caller's list.
type Batch = Vec<(usize, Place, ExtendRequest)>;

/// What a script compares to know whose a lock is.
pub(crate) struct Claim<'a> {
    /// As in a record: `ht1 SECRET `.
    in_record: bool,
    secret: &'a Secret,
}

impl ToRedisArgs for Claim<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        if self.in_record {
            out.write_arg_fmt(format_args!("ht1 {} ", self.secret.expose()));
        } else {
            out.write_arg(self.secret.expose().as_bytes());
        }
    }
}

impl RedisStore {
    /// What a script compares to know that a lock is `secret`'s: the beginning of a record, or the
    /// bare secret.
    pub(crate) fn claim<'a>(&self, secret: &'a Secret) -> Claim<'a> {
        Claim { in_record: self.config.layout == Layout::Native, secret }
    }

    pub(crate) async fn attempt(
        self: &Arc<Self>,
        request: AcquireRequest,
    ) -> Result<Attempt, LockError> {
        let place = self.names.place(&request.key)?;
        let queue = self.queues(&request).then(|| place.lock.clone());
        let again = queue.as_ref().is_some_and(|lock| self.ears.may_be_queued(lock));
        let attempt = match &self.batches {
            Some(batches) if !again => batches.acquire(Arc::clone(self), place, request).await,
            _ => self.attempt_at(&place, &request).await,
        };
        match (attempt, &queue) {
            (Ok(Attempt::Busy(busy)), Some(lock)) => {
                self.ears.queued(lock);
                Ok(Attempt::Busy(self.still_heard(lock, busy).await))
            }
            (attempt, queue) => {
                // The refusal that was lost may have left an entry all the same.
                if let (Err(error), Some(lock)) = (&attempt, queue)
                    && !error.kind().is_definite()
                {
                    self.ears.queued(lock);
                }
                attempt
            }
        }
    }

    /// On a cluster the slot of a lock may have moved since its waiter subscribed: then it
    /// subscribes anew, and asks once more, because a release meanwhile has passed it over.
    async fn still_heard(&self, lock: &str, busy: Busy) -> Busy {
        if self.wake_up_kind() != WakeUps::PerKey || !self.ears.awaits(lock) {
            return busy;
        }
        let channel = self.names.shard_channel(lock, self.ears.client());
        if self.fabric.hears(lock, &channel) {
            return busy;
        }
        match self.fabric.listens(lock, &channel).await {
            Ok(true) => busy.retry_after(Duration::ZERO),
            _ => busy,
        }
    }

    /// Whether the one who asks gets a place among the waiters if the lock is busy.
    pub(crate) fn queues(&self, request: &AcquireRequest) -> bool {
        request.intent == Intent::Queue && self.config.pubsub
    }

    pub(crate) async fn attempt_at(
        &self,
        place: &Place,
        request: &AcquireRequest,
    ) -> Result<Attempt, LockError> {
        let id = self.id();
        let text = match self.config.layout {
            Layout::Native | Layout::Token => self.owner_text(&request.owner),
            Layout::Syncguard => request.key.as_str().into(),
        };
        let queues = self.queues(request);
        let again = (queues && self.ears.may_be_queued(&place.lock)).then_some("again");
        let beside = self.names.beside(place, &request.secret)?;
        let keys = 2 + usize::from(beside.is_some()) + usize::from(queues);
        let (mut answer, doubt) = self
            .run_durably(&self.scripts.acquire, &place.lock, keys, id, request.ttl, |command| {
                command.arg(&place.lock).arg(&*place.fence).arg(&beside);
                command.arg(queues.then_some(&place.waiters));
                command.arg(id).arg(self.claim(&request.secret)).arg(millis(request.ttl));
                command.arg(&*text).arg(again);
            })
            .await?;
        match answer.tag {
            b'G' => {
                let lease = granted(&mut answer)?;
                answer.end()?;
                doubt.map_or(Ok(Attempt::Granted(lease)), Err)
            }
            b'B' => {
                let busy = refused(&mut answer, &request.key, queues)?;
                answer.end()?;
                Ok(Attempt::Busy(busy))
            }
            _ => answer.unexpected(),
        }
    }

    pub(crate) async fn give_back(
        self: &Arc<Self>,
        key: &Key,
        secret: Secret,
    ) -> Result<Release, LockError> {
        let place = self.names.place(key)?;
        match &self.batches {
            Some(batches) => batches.release(Arc::clone(self), place, secret).await,
            None => self.give_back_at(&place, &secret).await,
        }
    }

    pub(crate) async fn give_back_at(
        &self,
        place: &Place,
        secret: &Secret,
    ) -> Result<Release, LockError> {
        let beside = self.names.beside(place, secret)?;
        let side = [place.waiters.as_str(), beside.as_deref().unwrap_or_default()];
        let side = &side[..=usize::from(beside.is_some())];
        match self.give_back_with(place, side, secret).await {
            // While a slot moves, the lock and its waiters may be on two nodes. Nothing was done,
            // and the lock can be given back alone; its waiters find it free by their timers.
            Err(error) if is_split(&error) && self.config.layout == Layout::Native => {
                self.give_back_with(place, &[], secret).await
            }
            given => given,
        }
    }

    async fn give_back_with(
        &self,
        place: &Place,
        side: &[&str],
        secret: &Secret,
    ) -> Result<Release, LockError> {
        let id = self.id();
        let answer = self
            .run(&self.scripts.release, &place.lock, 1 + side.len(), id, |command| {
                command.arg(&place.lock).arg(side).arg(id).arg(self.claim(secret));
            })
            .await?;
        released(answer)
    }

    pub(crate) async fn force_free(&self, key: &Key, fence: Fence) -> Result<Release, LockError> {
        let (place, id) = (self.names.place(key)?, self.id());
        let beside = match self.config.layout {
            Layout::Native | Layout::Syncguard => None,
            Layout::Token => Some(self.names.record(&place.lock)),
        };
        let answer = self
            .run(
                &self.scripts.force_release,
                &place.lock,
                2 + usize::from(beside.is_some()),
                id,
                |command| {
                    command.arg(&place.lock).arg(&place.waiters).arg(&beside);
                    command.arg(id).arg(fence.get());
                },
            )
            .await?;
        released(answer)
    }

    /// Extends batch by batch: all at once on one server, on a cluster slot by slot, side by side.
    pub(crate) async fn prolong(
        self: Arc<Self>,
        leases: Vec<ExtendRequest>,
    ) -> Result<Vec<Result<Extension, LockError>>, LockError> {
        let mut answers: Vec<_> = (0..leases.len()).map(|_| Ok(Extension::NotHeld)).collect();
        let mut batches: BTreeMap<u16, Batch> = BTreeMap::new();
        for (n, lease) in leases.into_iter().enumerate() {
            match self.names.place(&lease.key) {
                Ok(place) => {
                    let slot = if self.fabric.is_cluster() { slot(&place.lock) } else { 0 };
                    batches.entry(slot).or_default().push((n, place, lease));
                }
                Err(error) => answers[n] = Err(error.with_key(&lease.key)),
            }
        }
        if batches.len() <= 1 {
            for batch in batches.into_values() {
                let extended = self.prolong_batch(&batch).await?;
                for ((n, ..), answer) in batch.into_iter().zip(extended) {
                    answers[n] = answer;
                }
            }
            return Ok(answers);
        }
        // Whoever waits for all of this has no more patience than a part of the shortest lease.
        let shortest = batches.values().flatten().map(|(_, _, lease)| match lease.by {
            ExtendBy::AtLeast(ttl) if !ttl.is_zero() => ttl / 4,
            _ => self.config.timeout,
        });
        let limit = shortest.min().unwrap_or_default().min(self.config.timeout);
        let mut steps = tokio::task::JoinSet::new();
        for batch in batches.into_values() {
            let store = Arc::clone(&self);
            steps.spawn(async move {
                let extended = tokio::time::timeout(limit, store.prolong_batch(&batch)).await;
                let late = |_| Err(LockError::ambiguous("a node did not answer in time"));
                (extended.unwrap_or_else(late), batch)
            });
        }
        while let Some(done) = steps.join_next().await {
            let (extended, batch) = done.map_err(|error| {
                LockError::internal("a step of a batch ended without an answer").with_source(error)
            })?;
            match extended {
                Ok(extended) => {
                    for ((n, ..), answer) in batch.into_iter().zip(extended) {
                        answers[n] = answer;
                    }
                }
                // One node in trouble is no trouble for leases on the others.
                Err(error) => {
                    for (n, _, lease) in batch {
                        answers[n] = Err(error.clone().with_key(&lease.key));
                    }
                }
            }
        }
        Ok(answers)
    }

    /// Extends what is on one server. An error that one lease may have caused is no error of the
    /// others: the batch is halved until it is alone.
    async fn prolong_batch(
        &self,
        batch: &Batch,
    ) -> Result<Vec<Result<Extension, LockError>>, LockError> {
        let mut answers = Vec::with_capacity(batch.len());
        // The next part is the last.
        let mut parts: Vec<_> = batch.chunks(MAX_BATCH).rev().collect();
        while let Some(part) = parts.pop() {
            let (places, leases): (Vec<_>, Vec<_>) =
                part.iter().map(|(_, place, lease)| (place.clone(), lease.clone())).unzip();
            let mut extended = Vec::with_capacity(part.len());
            match self.prolong_at(&places, &leases, &mut extended).await {
                Ok(()) => answers.extend(extended.into_iter().map(Ok)),
                Err(error) if !concerns_one(&error) => return Err(error),
                Err(error) => {
                    if let [(_, _, lease)] = part {
                        answers.push(Err(error.with_key(&lease.key)));
                    } else {
                        let (front, back) = part.split_at(part.len() / 2);
                        parts.extend([back, front]);
                    }
                }
            }
        }
        Ok(answers)
    }

    async fn prolong_at(
        &self,
        places: &[Place],
        leases: &[ExtendRequest],
        answers: &mut Vec<Extension>,
    ) -> Result<(), LockError> {
        let id = self.id();
        let mut keys = Vec::with_capacity(2 * places.len() + 1);
        if self.config.layout == Layout::Token {
            keys.extend(places.first().map(|place| place.fence.to_string()));
        }
        for (place, lease) in places.iter().zip(leases) {
            keys.push(place.lock.clone());
            keys.extend(self.names.beside(place, &lease.secret)?);
        }
        let Some(first) = places.first() else { return Ok(()) };
        let spans = leases.iter().filter_map(|lease| match lease.by {
            ExtendBy::AtLeast(span) => Some(span),
            _ => None,
        });
        let shortest = spans.min().unwrap_or(self.config.timeout);
        let (mut answer, doubt) = self
            .run_durably(&self.scripts.extend, &first.lock, keys.len(), id, shortest, |command| {
                command.arg(&keys);
                command.arg(id);
                for lease in leases {
                    let (how, span) = match lease.by {
                        ExtendBy::Add(span) => ("A", span),
                        ExtendBy::AtLeast(span) => ("L", span),
                        _ => ("L", Duration::ZERO),
                    };
                    command.arg(self.claim(&lease.secret)).arg(format!("{how}{}", millis(span)));
                }
            })
            .await?;
        if answer.tag != b'E' {
            return answer.unexpected();
        }
        for _ in places {
            let (fence, left) = (answer.fence()?, answer.lease()?);
            answers.push(match fence {
                Some(fence) => Extension::Extended(Lease::new(fence, left)),
                None => Extension::NotHeld,
            });
        }
        answer.end()?;
        // The ends have moved here, but a failover could move them back: the caller's deadline
        // stays where it is.
        doubt.map_or(Ok(()), Err)
    }

    pub(crate) async fn hand_over(&self, request: &TransferRequest) -> Result<Transfer, LockError> {
        let to = &request.to;
        let (place, id) = (self.names.place(&to.key)?, self.id());
        let mut beside = Vec::from_iter(self.names.beside(&place, &request.from)?);
        if self.config.layout == Layout::Syncguard {
            beside.extend(self.names.beside(&place, &to.secret)?);
        }
        // In a native record a mark tells of waiters.
        let waiters = (self.config.layout != Layout::Native).then_some(&place.waiters);
        let keys = 2 + beside.len() + usize::from(waiters.is_some());
        let (mut answer, doubt) = self
            .run_durably(&self.scripts.transfer, &place.lock, keys, id, to.ttl, |command| {
                command.arg(&place.lock).arg(&*place.fence).arg(&beside).arg(waiters);
                command.arg(id).arg(self.claim(&request.from)).arg(self.claim(&to.secret));
                command.arg(millis(to.ttl));
                if self.config.layout != Layout::Syncguard {
                    command.arg(&*self.owner_text(&to.owner));
                }
            })
            .await?;
        match answer.tag {
            b'T' => {
                let lease = Lease::new(answer.some_fence()?, answer.lease()?);
                let lease = lease.contended(answer.integer()? > 0);
                answer.end()?;
                doubt.map_or(Ok(Transfer::Transferred(lease)), Err)
            }
            b'N' => answer.end().map(|()| Transfer::NotHeld),
            _ => answer.unexpected(),
        }
    }

    pub(crate) async fn attempt_all(
        &self,
        requests: &[AcquireRequest],
    ) -> Result<ManyAttempt, LockError> {
        let Some(script) = &self.scripts.acquire_many else {
            return Err(LockError::unsupported("this layout cannot take several keys in one step"));
        };
        let mut seen = HashSet::new();
        if let Some(twice) = requests.iter().find(|request| !seen.insert(&request.key)) {
            return Err(LockError::invalid_config("a key was named twice in one acquire")
                .with_key(&twice.key));
        }
        let Some(first) = requests.first() else { return Ok(ManyAttempt::Granted(Vec::new())) };
        let places = requests
            .iter()
            .map(|request| self.names.place(&request.key))
            .collect::<Result<Vec<_>, _>>()?;
        let id = self.id();
        let mut keys = vec![places[0].fence.to_string()];
        for (place, request) in places.iter().zip(requests) {
            keys.push(place.lock.clone());
            keys.extend(self.names.beside(place, &request.secret)?);
        }
        let (mut answer, doubt) = self
            .run_durably(script, &places[0].lock, keys.len(), id, first.ttl, |command| {
                command.arg(&keys).arg(id);
                for request in requests {
                    command.arg(self.claim(&request.secret)).arg(millis(request.ttl));
                    command.arg(&*self.owner_text(&request.owner));
                }
            })
            .await
            .map_err(|error| error.with_key(&first.key))?;
        match answer.tag {
            b'M' => {
                let mut leases = Vec::with_capacity(requests.len());
                for _ in requests {
                    leases.push(Lease::new(answer.some_fence()?, answer.lease()?));
                }
                answer.end()?;
                doubt.map_or(Ok(ManyAttempt::Granted(leases)), Err)
            }
            b'B' => {
                let busy = usize::try_from(answer.integer()?).ok().and_then(|n| n.checked_sub(1));
                let (left, now) = (answer.left()?, answer.clock()?);
                let Some(request) = busy.and_then(|n| requests.get(n)) else {
                    return answer.unexpected();
                };
                let holder = holder(request.key.clone(), answer.text()?, left, now);
                answer.end()?;
                Ok(ManyAttempt::Busy(request.key.clone(), Busy::held_by(holder)))
            }
            _ => answer.unexpected(),
        }
    }

    /// Who holds `keys`, all of one server; those that are free are left out.
    pub(crate) async fn holders(&self, keys: &[Key]) -> Result<Vec<Holder>, LockError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut names = Vec::with_capacity(2 * keys.len());
        for key in keys {
            let lock = self.names.lock(key)?;
            let record = (self.config.layout == Layout::Token).then(|| self.names.record(&lock));
            names.push(lock);
            names.extend(record);
        }
        let id = self.id();
        let mut answer = self
            .run(&self.scripts.lookup, &names[0], names.len(), id, |command| {
                command.arg(&names).arg(id);
            })
            .await?;
        if answer.tag != b'L' {
            return answer.unexpected();
        }
        let now = answer.clock()?;
        let mut holders = Vec::new();
        for key in keys {
            let description = answer.text()?.to_owned();
            let left = answer.left()?;
            if left != Left::Gone {
                holders.push(holder(key.clone(), &description, left, now));
            }
        }
        answer.end()?;
        Ok(holders)
    }

    /// Walks over the names that begin like `beginning`. Reads the whole key space of the server,
    /// in small steps.
    pub(crate) async fn find(
        &self,
        beginning: &str,
        limit: usize,
    ) -> Result<Vec<Holder>, LockError> {
        let pattern = self.names.pattern(beginning);
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        for server in self.fabric.primaries().await? {
            let mut cursor = 0;
            while found.len() < limit {
                let (next, keys) = scan(&server, cursor, &pattern, &self.names).await?;
                let fresh: Vec<Key> =
                    keys.into_iter().filter(|key| seen.insert(key.clone())).collect();
                // A script on a cluster may name keys of one slot only.
                let step = if self.names.together() { LIST_STEP } else { 1 };
                for keys in fresh.chunks(step) {
                    let holders = self.holders(keys).await?;
                    found.extend(holders.into_iter().filter(|holder| {
                        holder.fence.is_some() || !self.names.may_be_side_key(&holder.key)
                    }));
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Takes, extends and gives back a lock of its own: a missing right shows now and not under
    /// load.
    pub(crate) async fn rehearse(&self) -> Result<(), LockError> {
        let secret = Secret::generate()?;
        let place = self.names.rehearsal(self.ears.client())?;
        let key = Key::new("rehearsal")?;
        let request = AcquireRequest::new(key.clone(), secret.clone(), Duration::from_secs(5));
        self.attempt_at(&place, &request).await?;
        // Adding needs the rights of all ways to extend.
        let again = ExtendRequest::new(key, secret.clone(), ExtendBy::Add(Duration::from_secs(1)));
        self.prolong_at(std::slice::from_ref(&place), &[again], &mut Vec::new()).await?;
        match self.give_back_at(&place, &secret).await? {
            Release::Released => Ok(()),
            _ => Err(LockError::internal(
                "a lock taken for a rehearsal was gone at once; does something else delete keys there?",
            )),
        }
    }
}

/// One step through the names of a server: where to go on, and the locks that were found.
async fn scan(
    server: &Arc<Link>,
    cursor: u64,
    pattern: &str,
    names: &Names,
) -> Result<(u64, Vec<Key>), LockError> {
    let script = &*crate::scripts::SCAN;
    let step = |verb, code| {
        let mut step = redis::cmd(verb);
        step.arg(code).arg(0).arg(cursor).arg(pattern).arg(LIST_STEP).arg(names.longest());
        step
    };
    let page = match server.send(&step("EVALSHA", &script.sha)).await {
        Err(fault) if fault.is_noscript() => server.send(&step("EVAL", &script.source)).await,
        page => page,
    };
    let strange = || LockError::internal("the server's answer to a step of a listing is not one");
    let page: Vec<Vec<u8>> =
        redis::from_redis_value(page.map_err(Fault::explain)?).map_err(|_| strange())?;
    let (next, found) = page.split_first().ok_or_else(strange)?;
    let next = std::str::from_utf8(next).ok().and_then(|next| next.parse().ok());
    let keys = found.iter().filter_map(|name| names.key(std::str::from_utf8(name).ok()?));
    Ok((next.ok_or_else(strange)?, keys.collect()))
}

fn released(answer: Answer) -> Result<Release, LockError> {
    match answer.tag {
        b'R' => answer.end().map(|()| Release::Released),
        b'N' => answer.end().map(|()| Release::NotHeld),
        _ => answer.unexpected(),
    }
}
