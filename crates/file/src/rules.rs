//! What each step does to a record: pure functions of the record, the request and the scene.
//!
//! No file is touched here. Every function says in its answer whether the record must be written.

use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Busy, ExtendBy, Extension, Fence, Holder, Lease, Liveness, LockError,
    MAX_TTL, Release, Secret, Transfer,
};

use crate::boot::BootId;
use crate::record::{Grant, MAX_WAITERS, OwnerBytes, ProcessId, Record};

/// How long a key that was freed is kept for the waiter that was called: a waiter that lives comes
/// within a millisecond, on a machine that is busy within some.
const COMING: Duration = Duration::from_millis(100);

/// What a step sees besides the record: taken after the file was locked, so that no time is stale.
pub(crate) struct Scene<'s> {
    /// Nanoseconds since the machine booted.
    pub(crate) now: u64,
    pub(crate) boot: BootId,
    /// Whether a process that uses this store still lives. Says yes when in doubt.
    pub(crate) alive: &'s dyn Fn(&ProcessId) -> bool,
    /// Whether a process hears wake-ups. Says no when in doubt.
    pub(crate) listens: &'s dyn Fn(&ProcessId) -> bool,
    /// The largest fence of all records that were swept away; read only for a key that has none
    /// yet.
    pub(crate) high_water: &'s dyn Fn() -> Result<u64, LockError>,
    /// The least fence that may be minted; asked for only when one is.
    pub(crate) floor: &'s dyn Fn() -> u64,
}

/// Whether a step changed its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Change {
    None,
    Write,
}

impl Record {
    /// The grant that counts now, if there is one.
    pub(crate) fn live(&self, scene: &Scene<'_>) -> Option<&Grant> {
        let grant = self.grant.as_ref()?;
        if self.boot.is_over(scene.boot, self.written_at, scene.now)
            || grant.expires_at <= scene.now
        {
            return None;
        }
        match &grant.process {
            Some(process) if !(scene.alive)(process) => None,
            _ => Some(grant),
        }
    }

    /// One if the grant is bound to `process`, otherwise zero.
    pub(crate) fn bound_to(&self, process: ProcessId) -> i64 {
        i64::from(self.grant.as_ref().is_some_and(|grant| grant.process == Some(process)))
    }

    fn is_owned(&self, secret: &Secret, scene: &Scene<'_>) -> bool {
        // The secret first: whether a foreign holder lives need not be asked.
        self.grant.as_ref().is_some_and(|grant| grant.secret == *secret)
            && self.live(scene).is_some()
    }

    /// Takes the key for `request` if it is free, or says who has it.
    ///
    /// `me` is the process that grants are bound to.
    pub(crate) fn attempt(
        &mut self,
        request: &AcquireRequest,
        me: ProcessId,
        scene: &Scene<'_>,
    ) -> Result<(Attempt, Change), LockError> {
        let contended = self.waiters.iter().any(|waiter| *waiter != me);
        if self.is_owned(&request.secret, scene)
            && let Some(grant) = &mut self.grant
        {
            grant.expires_at = grant.expires_at.max(later(scene.now, request.ttl));
            grant.process = bound(request.liveness, me);
            let lease = lease(self.fence, grant, scene).contended(contended);
            return Ok((Attempt::Granted(lease), Change::Write));
        }
        if let Some(grant) = self.live(scene) {
            return Ok((Attempt::Busy(Busy::held_by(self.holder(grant, scene))), Change::None));
        }
        if let Some(left) = self.comes_first(me, scene) {
            return Ok((Attempt::Busy(Busy::new().retry_after(left)), Change::None));
        }
        let lease = self.grant(request, me, scene)?.contended(contended);
        Ok((Attempt::Granted(lease), Change::Write))
    }

    /// The fence is minted before anything is changed: if it cannot be, nothing happens.
    fn grant(
        &mut self,
        request: &AcquireRequest,
        me: ProcessId,
        scene: &Scene<'_>,
    ) -> Result<Lease, LockError> {
        let last = if self.fence == 0 { (scene.high_water)()? } else { self.fence };
        let fence = Fence::new(last).next((scene.floor)()).ok_or_else(|| {
            LockError::internal("no fence is left: the counter reached its end")
                .with_key(&request.key)
        })?;
        self.fence = fence.get();
        self.called = None;
        let grant = Grant {
            secret: request.secret.clone(),
            process: bound(request.liveness, me),
            granted_at: scene.now,
            expires_at: later(scene.now, request.ttl),
            owner: OwnerBytes::of(&request.owner),
        };
        let lease = lease(self.fence, &grant, scene);
        self.grant = Some(grant);
        Ok(lease)
    }

    /// Moves the end of the lease. `rebind` also changes what it is bound to.
    pub(crate) fn extend(
        &mut self,
        secret: &Secret,
        by: ExtendBy,
        rebind: Option<(Liveness, ProcessId)>,
        scene: &Scene<'_>,
    ) -> (Extension, Change) {
        if !self.is_owned(secret, scene) {
            return (Extension::NotHeld, Change::None);
        }
        let contended = !self.waiters.is_empty();
        let Some(grant) = &mut self.grant else { return (Extension::NotHeld, Change::None) };
        let (end, process) = (grant.expires_at, grant.process);
        grant.expires_at = end.max(match by {
            ExtendBy::AtLeast(ttl) => later(scene.now, ttl),
            ExtendBy::Add(extra) => later(end, extra).min(later(scene.now, MAX_TTL)),
            _ => end,
        });
        if let Some((liveness, me)) = rebind {
            grant.process = bound(liveness, me);
        }
        let unchanged = grant.expires_at == end && grant.process == process;
        let lease = lease(self.fence, grant, scene).contended(contended);
        (Extension::Extended(lease), if unchanged { Change::None } else { Change::Write })
    }

    /// Frees the key if `secret` holds it.
    pub(crate) fn release(&mut self, secret: &Secret, scene: &Scene<'_>) -> (Release, Change) {
        if self.is_owned(secret, scene) { self.free() } else { (Release::NotHeld, Change::None) }
    }

    /// Frees the key, whoever holds it, if its fence is `fence`.
    pub(crate) fn force_release(&mut self, fence: Fence, scene: &Scene<'_>) -> (Release, Change) {
        if self.fence == fence.get() && self.live(scene).is_some() {
            self.free()
        } else {
            (Release::NotHeld, Change::None)
        }
    }

    fn free(&mut self) -> (Release, Change) {
        self.grant = None;
        (Release::Released, Change::Write)
    }

    /// Hands the key from one owner to the next.
    pub(crate) fn transfer(
        &mut self,
        from: &Secret,
        to: &AcquireRequest,
        me: ProcessId,
        scene: &Scene<'_>,
    ) -> Result<(Transfer, Change), LockError> {
        let contended = !self.waiters.is_empty();
        // Done before, by a request whose answer was lost: the same grant, with its fence.
        if self.is_owned(&to.secret, scene)
            && let Some(grant) = &mut self.grant
        {
            grant.expires_at = grant.expires_at.max(later(scene.now, to.ttl));
            grant.process = bound(to.liveness, me);
            let lease = lease(self.fence, grant, scene).contended(contended);
            return Ok((Transfer::Transferred(lease), Change::Write));
        }
        if !self.is_owned(from, scene) {
            return Ok((Transfer::NotHeld, Change::None));
        }
        let lease = self.grant(to, me, scene)?.contended(contended);
        Ok((Transfer::Transferred(lease), Change::Write))
    }

    /// Lists a waiter, if it is not listed and there is room.
    pub(crate) fn enlist(&mut self, waiter: ProcessId, scene: &Scene<'_>) -> Change {
        if self.waiters.contains(&waiter) {
            return Change::None;
        }
        if self.waiters.len() >= MAX_WAITERS {
            self.waiters.retain(scene.listens);
        }
        if self.waiters.len() >= MAX_WAITERS {
            return Change::None;
        }
        self.waiters.push(waiter);
        Change::Write
    }

    /// Takes a waiter off the list.
    pub(crate) fn delist(&mut self, waiter: ProcessId) -> Change {
        let before = self.waiters.len();
        self.waiters.retain(|listed| *listed != waiter);
        let was_called = self.called.take_if(|(called, _)| *called == waiter).is_some();
        if self.waiters.len() == before && !was_called { Change::None } else { Change::Write }
    }

    /// Takes those off the list who do not hear, and notes who was `reached` instead.
    pub(crate) fn delist_deaf(&mut self, deaf: &[ProcessId], reached: Option<ProcessId>) -> Change {
        let before = self.waiters.len();
        self.waiters.retain(|waiter| !deaf.contains(waiter));
        match (&mut self.called, reached) {
            (Some((called, _)), Some(reached)) if deaf.contains(called) => *called = reached,
            (Some((called, _)), None) if deaf.contains(called) => self.called = None,
            _ if self.waiters.len() == before => return Change::None,
            _ => {}
        }
        Change::Write
    }

    /// How long the free key is still kept for a waiter that was called, and that is not `me`.
    fn comes_first(&self, me: ProcessId, scene: &Scene<'_>) -> Option<Duration> {
        let (called, until) = self.called.as_ref()?;
        // What another boot, or a clock that nobody can have had, left is worth nothing.
        let left = Duration::from_nanos(until.saturating_sub(scene.now));
        let counts = !left.is_zero()
            && left <= COMING
            && *called != me
            && !self.boot.is_over(scene.boot, self.written_at, scene.now)
            && (scene.listens)(called);
        counts.then_some(left)
    }

    /// Whom to wake now, best first; the first goes to the end of the line, so that a release wakes
    /// one waiter and the next release another one.
    ///
    /// The key is kept for the first for a moment: whoever comes just now would overtake all that
    /// wait.
    pub(crate) fn call_waiters(&mut self, scene: &Scene<'_>) -> Vec<ProcessId> {
        let called = self.waiters.clone();
        self.called = called.first().map(|first| (*first, later(scene.now, COMING)));
        if !self.waiters.is_empty() {
            self.waiters.rotate_left(1);
        }
        called
    }

    /// Who holds the key now.
    pub(crate) fn current_holder(&self, scene: &Scene<'_>) -> Option<Holder> {
        self.live(scene).map(|grant| self.holder(grant, scene))
    }

    fn holder(&self, grant: &Grant, scene: &Scene<'_>) -> Holder {
        Holder::of(self.key.clone())
            .fence(Fence::new(self.fence))
            .owner(grant.owner.to_owner())
            .age(Duration::from_nanos(scene.now.saturating_sub(grant.granted_at)))
            .remaining(Duration::from_nanos(grant.expires_at.saturating_sub(scene.now)))
    }

    /// Whether the key has been free for `idle`, so that its file may go.
    pub(crate) fn is_idle(&self, idle: Duration, scene: &Scene<'_>) -> bool {
        if self.boot.is_over(scene.boot, self.written_at, scene.now) {
            return true;
        }
        let since = match &self.grant {
            None => self.written_at,
            Some(_) if self.live(scene).is_some() => return false,
            // Its end, or the last sign of a process that died before it.
            Some(grant) => grant.expires_at.min(scene.now).max(self.written_at),
        };
        later(since, idle) <= scene.now && !self.waiters.iter().any(scene.listens)
    }
}

fn bound(liveness: Liveness, me: ProcessId) -> Option<ProcessId> {
    match liveness {
        Liveness::Lease => None,
        // Whatever else may come, a dead process holds nothing.
        _ => Some(me),
    }
}

fn lease(fence: u64, grant: &Grant, scene: &Scene<'_>) -> Lease {
    let left = Duration::from_nanos(grant.expires_at.saturating_sub(scene.now));
    Lease::new(Fence::new(fence), left)
}

fn later(from: u64, by: Duration) -> u64 {
    from.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use holdtight_core::Key;

    use super::*;

    const BOOT: BootId = BootId { id: [1; 16], genuine: true };
    const ME: ProcessId = [2; 16];
    const OTHER: ProcessId = [3; 16];
    const TTL: Duration = Duration::from_secs(30);
    const SECOND: u64 = 1_000_000_000;

    fn scene(now: u64) -> Scene<'static> {
        Scene {
            now,
            boot: BOOT,
            alive: &|_| true,
            listens: &|_| true,
            high_water: &|| Ok(0),
            floor: &|| 100,
        }
    }

    fn record() -> Record {
        Record::fresh(Key::new("k").unwrap(), BOOT, 0)
    }

    fn request() -> AcquireRequest {
        AcquireRequest::new(Key::new("k").unwrap(), Secret::generate().unwrap(), TTL)
    }

    fn granted(record: &mut Record, request: &AcquireRequest, scene: &Scene<'_>) -> Lease {
        match record.attempt(request, ME, scene).unwrap() {
            (Attempt::Granted(lease), Change::Write) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_process_holds_nothing_and_cannot_come_back() {
        let (mut record, first, second) = (record(), request(), request());
        let old = granted(&mut record, &first, &scene(1));
        let dead = Scene { alive: &|_| false, ..scene(2) };
        assert!(record.current_holder(&dead).is_none());
        assert_eq!(
            record.extend(&first.secret, ExtendBy::AtLeast(TTL), None, &dead).0,
            Extension::NotHeld
        );
        assert_eq!(record.release(&first.secret, &dead).0, Release::NotHeld);
        assert!(granted(&mut record, &second, &dead).fence > old.fence);
    }

    #[test]
    fn a_lease_alone_outlives_its_process_until_it_ends() {
        let (mut record, first) = (record(), request().liveness(Liveness::Lease));
        granted(&mut record, &first, &scene(1));
        let dead = |now| Scene { alive: &|_| false, ..scene(now) };
        assert!(record.current_holder(&dead(29 * SECOND)).is_some());
        assert!(record.current_holder(&dead(31 * SECOND)).is_none());
    }

    #[test]
    fn detach_and_resume_rebind_in_one_step() {
        let (mut record, first) = (record(), request());
        granted(&mut record, &first, &scene(1));
        let by = ExtendBy::AtLeast(TTL);
        let loose = record.extend(&first.secret, by, Some((Liveness::Lease, ME)), &scene(2));
        assert!(matches!(loose, (Extension::Extended(_), Change::Write)));
        assert_eq!(record.grant.as_ref().unwrap().process, None);
        let bound = record.extend(&first.secret, by, Some((Liveness::Process, OTHER)), &scene(3));
        assert!(matches!(bound, (Extension::Extended(_), Change::Write)));
        assert_eq!(record.grant.as_ref().unwrap().process, Some(OTHER));
    }

    #[test]
    fn another_boot_voids_the_lease_and_keeps_the_fence_increasing() {
        let (mut record, first, second) = (record(), request(), request());
        let old = granted(&mut record, &first, &scene(5 * SECOND));
        let next = BootId { id: [9; 16], genuine: true };
        let set_back = Scene { boot: next, floor: &|| 1, ..scene(1) };
        assert!(record.current_holder(&set_back).is_none());
        assert!(granted(&mut record, &second, &set_back).fence > old.fence);
    }

    #[test]
    fn a_new_record_begins_above_the_high_water_mark() {
        let (mut record, first) = (record(), request());
        let swept = Scene { high_water: &|| Ok(5000), ..scene(1) };
        assert_eq!(granted(&mut record, &first, &swept).fence.get(), 5001);
        // A mark that cannot be read is no grant, and changes nothing.
        let mut fresh = self::record();
        let broken = Scene { high_water: &|| Err(LockError::unavailable("no ledger")), ..scene(1) };
        assert!(fresh.attempt(&first, ME, &broken).is_err());
        assert_eq!(fresh, self::record());
    }

    #[test]
    fn used_up_fences_are_an_error_and_change_nothing() {
        let mut record = Record { fence: u64::MAX, ..record() };
        let before = record.clone();
        assert!(record.attempt(&request(), ME, &scene(1)).is_err());
        assert_eq!(record, before);
    }

    #[test]
    fn waiters_are_called_in_turn_and_the_list_is_bounded() {
        let mut record = record();
        let all = scene(1);
        assert_eq!(record.enlist(ME, &all), Change::Write);
        assert_eq!(record.enlist(OTHER, &all), Change::Write);
        assert_eq!(record.enlist(ME, &all), Change::None);
        assert_eq!(record.call_waiters(&all), [ME, OTHER]);
        assert_eq!(record.call_waiters(&all), [OTHER, ME]);
        assert_eq!(record.delist(OTHER), Change::Write);
        for n in 0..u32::try_from(2 * MAX_WAITERS).unwrap() {
            let mut id = [1; 16];
            id[..4].copy_from_slice(&n.to_le_bytes());
            if record.waiters.len() < MAX_WAITERS {
                record.waiters.push(id);
            } else {
                assert_eq!(record.enlist(id, &all), Change::None);
                break;
            }
        }
        assert_eq!(record.waiters.len(), MAX_WAITERS);
        assert_eq!(
            record.enlist([200; 16], &Scene { listens: &|id| *id == ME, ..scene(1) }),
            Change::Write
        );
        assert_eq!(record.waiters, [ME, [200; 16]], "the dead make room");
    }

    #[test]
    fn a_freed_key_is_kept_for_the_one_who_was_called_and_for_a_moment() {
        let mut record = record();
        let (now, soon) = (SECOND, SECOND + 50_000_000);
        let call = |record: &mut Record| {
            record.waiters = vec![ME, OTHER];
            assert_eq!(record.call_waiters(&scene(now)), [ME, OTHER]);
        };
        let attempt = |record: &mut Record, me, now| {
            matches!(record.attempt(&request(), me, &scene(now)).unwrap().0, Attempt::Granted(_))
        };
        call(&mut record);
        match record.attempt(&request(), OTHER, &scene(soon)).unwrap() {
            (Attempt::Busy(busy), Change::None) => {
                assert_eq!(busy.retry_after, Some(Duration::from_millis(50)));
            }
            other => panic!("{other:?}"),
        }
        assert!(attempt(&mut record, ME, soon), "it was called");
        assert_eq!(record.called, None);
        for gone in [
            |record: &mut Record| record.delist(ME),
            |record: &mut Record| record.delist_deaf(&[ME], Some(OTHER)),
            |record: &mut Record| record.delist_deaf(&[ME], None),
        ] {
            let mut record = self::record();
            call(&mut record);
            assert_eq!(gone(&mut record), Change::Write);
            assert!(attempt(&mut record, OTHER, soon), "the first one does not come");
        }
        let mut record = self::record();
        call(&mut record);
        assert!(attempt(&mut record, OTHER, now + 2 * SECOND), "nobody waits for ever");
        let mut record = self::record();
        call(&mut record);
        let dead = Scene { listens: &|_| false, ..scene(soon) };
        assert!(matches!(record.attempt(&request(), OTHER, &dead), Ok((Attempt::Granted(_), _))));
        let mut record = self::record();
        record.called = Some((ME, u64::MAX));
        assert!(attempt(&mut record, OTHER, now), "nor by a damaged or hostile record");
    }

    #[test]
    fn only_what_was_free_for_long_and_unwatched_is_idle() {
        let (mut record, first) = (record(), request());
        let idle = Duration::from_secs(60);
        granted(&mut record, &first, &scene(1));
        record.written_at = 1;
        assert!(!record.is_idle(Duration::ZERO, &scene(2)), "held");
        assert!(!record.is_idle(idle, &scene(80 * SECOND)), "ended 50 s ago");
        assert!(record.is_idle(idle, &scene(100 * SECOND)));
        record.waiters.push(OTHER);
        assert!(!record.is_idle(idle, &scene(100 * SECOND)), "somebody listens");
        assert!(record.is_idle(idle, &Scene { listens: &|_| false, ..scene(100 * SECOND) }));
    }
}
