//! Random sequences of operations, compared step by step with a model of the contract that fits on
//! one page.
//!
//! With a clock that can be moved, time passes too, and leases end. Sequences that fail are made
//! shorter before they are shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, ExtendBy, Extension, Fence, Key, Lease, ManyAttempt, Release, Secret,
    Transfer, TransferRequest,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::case::{Case, cases};
use super::stage::{Stage, secret};

pub(super) const CASES: &[Case] = cases![random_operations_agree_with_the_model];

/// All times are whole steps, so that the little real time that goes by during a run decides
/// nothing.
const STEP: Duration = Duration::from_secs(60);

/// Who acts: few, so that they meet.
const OWNERS: usize = 3;
const KEYS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire { key: usize, who: usize, steps: u32 },
    AcquireAll { who: usize, steps: u32 },
    Release { key: usize, who: usize },
    ReleaseNow { key: usize, who: usize },
    Extend { key: usize, who: usize, steps: u32 },
    Add { key: usize, who: usize, steps: u32 },
    Transfer { key: usize, from: usize, to: usize, steps: u32 },
    Force { key: usize, right: bool },
    Pass { steps: u32 },
}

fn op(can_pass: bool) -> BoxedStrategy<Op> {
    let (key, who, steps) = (0..KEYS, 0..OWNERS, 1..6_u32);
    let step = (key, who, steps);
    let plain = prop_oneof![
        4 => step.clone().prop_map(|(key, who, steps)| Op::Acquire { key, who, steps }),
        1 => step.clone().prop_map(|(_, who, steps)| Op::AcquireAll { who, steps }),
        2 => step.clone().prop_map(|(key, who, _)| Op::Release { key, who }),
        1 => step.clone().prop_map(|(key, who, _)| Op::ReleaseNow { key, who }),
        2 => step.clone().prop_map(|(key, who, steps)| Op::Extend { key, who, steps }),
        1 => step.clone().prop_map(|(key, who, steps)| Op::Add { key, who, steps }),
        1 => (step, 0..OWNERS).prop_map(|((key, from, steps), to)| Op::Transfer { key, from, to, steps }),
        1 => (0..KEYS, any::<bool>()).prop_map(|(key, right)| Op::Force { key, right }),
    ];
    if can_pass {
        prop_oneof![3 => plain, 1 => (1..4_u32).prop_map(|steps| Op::Pass { steps })].boxed()
    } else {
        plain.boxed()
    }
}

/// What the contract says, and nothing else.
#[derive(Default)]
struct Model {
    now: u32,
    held: BTreeMap<usize, Grant>,
    last: BTreeMap<usize, Fence>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    who: usize,
    fence: Fence,
    ends: u32,
}

impl Model {
    fn live(&self, key: usize) -> Option<Grant> {
        self.held.get(&key).copied().filter(|grant| grant.ends > self.now)
    }

    fn owned(&self, key: usize, who: usize) -> Option<Grant> {
        self.live(key).filter(|grant| grant.who == who)
    }
}

/// One run of one sequence on keys of its own.
struct Run<'a> {
    stage: &'a Stage,
    keys: Vec<Key>,
    owners: Vec<Secret>,
    model: Model,
}

impl<'a> Run<'a> {
    fn new(stage: &'a Stage) -> Self {
        let run = fastrand::u64(..);
        let keys = (0..KEYS).map(|n| stage.key(&format!("model:{run:016x}:{n}"))).collect();
        Self {
            stage,
            keys,
            owners: (0..OWNERS).map(|_| secret()).collect(),
            model: Model::default(),
        }
    }

    fn request(&self, key: usize, who: usize, steps: u32) -> AcquireRequest {
        AcquireRequest::new(self.keys[key].clone(), self.owners[who].clone(), STEP * steps)
    }

    /// A lease must last as long as the model says, give or take what is measured badly.
    fn check_lease(&self, lease: Lease, ends: u32) {
        let wanted = STEP * (ends - self.model.now);
        let most = wanted + self.stage.capabilities.ttl_slack + STEP / 2;
        assert!(lease.ttl <= most, "{wanted:?} are left, and not {:?}", lease.ttl);
        assert!(lease.ttl + STEP / 2 >= wanted, "{wanted:?} are left, and not {:?}", lease.ttl);
    }

    /// A new grant in the model, with the fence that the store gave.
    fn grant(&mut self, key: usize, who: usize, steps: u32, lease: Lease) {
        let last = self.model.last.insert(key, lease.fence);
        assert!(last < Some(lease.fence), "fence {:?} after {last:?}", lease.fence);
        let ends = self.model.now + steps;
        self.model.held.insert(key, Grant { who, fence: lease.fence, ends });
        self.check_lease(lease, ends);
    }

    /// Granted to somebody who had it, or to somebody new.
    fn granted(&mut self, key: usize, who: usize, steps: u32, lease: Lease) {
        match self.model.owned(key, who) {
            Some(mut grant) => {
                assert_eq!(lease.fence, grant.fence, "asking again is not a new grant");
                grant.ends = grant.ends.max(self.model.now + steps);
                self.model.held.insert(key, grant);
                self.check_lease(lease, grant.ends);
            }
            None => self.grant(key, who, steps, lease),
        }
    }

    fn extended(&mut self, key: usize, who: usize, ends: impl Fn(Grant) -> u32, answer: Extension) {
        match (self.model.owned(key, who), answer) {
            (None, Extension::NotHeld) => {}
            (Some(mut grant), Extension::Extended(lease)) => {
                assert_eq!(lease.fence, grant.fence);
                grant.ends = grant.ends.max(ends(grant));
                self.model.held.insert(key, grant);
                self.check_lease(lease, grant.ends);
            }
            (grant, answer) => panic!("the model has {grant:?}, the store says {answer:?}"),
        }
    }

    fn released(&mut self, key: usize, who: usize, answer: Release) {
        let ours = self.model.owned(key, who).is_some();
        assert_eq!(answer == Release::Released, ours, "the model has {:?}", self.model.live(key));
        if ours {
            self.model.held.remove(&key);
        }
    }

    async fn step(&mut self, op: Op) {
        let (stage, store) = (self.stage, Arc::clone(&self.stage.store));
        let now = self.model.now;
        match op {
            Op::Acquire { key, who, steps } => {
                let free = self.model.live(key).is_none_or(|grant| grant.who == who);
                match store.acquire(self.request(key, who, steps)).await.unwrap() {
                    Attempt::Granted(lease) if free => self.granted(key, who, steps, lease),
                    Attempt::Busy(_) if !free => {}
                    other => panic!("the model has {:?}: {other:?}", self.model.live(key)),
                }
            }
            Op::AcquireAll { who, steps } if stage.capabilities.acquire_many => {
                let requests = (0..KEYS).map(|key| self.request(key, who, steps)).collect();
                let busy =
                    |key: &usize| self.model.live(*key).is_some_and(|grant| grant.who != who);
                let busy = (0..KEYS).any(|key| busy(&key));
                match store.acquire_many(requests).await.unwrap() {
                    ManyAttempt::Granted(leases) if !busy => {
                        for (key, lease) in leases.into_iter().enumerate() {
                            self.granted(key, who, steps, lease);
                        }
                    }
                    ManyAttempt::Busy(..) if busy => {}
                    other => panic!("the model has {:?}: {other:?}", self.model.held),
                }
            }
            Op::Release { key, who } => {
                let answer = stage.release(&self.keys[key], &self.owners[who]).await;
                self.released(key, who, answer);
            }
            Op::ReleaseNow { key, who } => {
                if let Some(answer) = store.release_now(&self.keys[key], &self.owners[who]) {
                    self.released(key, who, answer.unwrap());
                }
            }
            Op::Extend { key, who, steps } => {
                let by = ExtendBy::AtLeast(STEP * steps);
                let answer = stage.extend(&self.keys[key], &self.owners[who], by).await;
                self.extended(key, who, |_| now + steps, answer);
            }
            Op::Add { key, who, steps } => {
                let by = ExtendBy::Add(STEP * steps);
                let answer = stage.extend(&self.keys[key], &self.owners[who], by).await;
                self.extended(key, who, |grant| grant.ends + steps, answer);
            }
            Op::Transfer { key, from, to, steps } if stage.capabilities.transfer && from != to => {
                let to_whom = self.request(key, to, steps);
                let request = TransferRequest::new(self.owners[from].clone(), to_whom);
                let answer = store.transfer(request).await.unwrap();
                match (self.model.live(key).filter(|grant| [from, to].contains(&grant.who)), answer)
                {
                    (None, Transfer::NotHeld) => {}
                    // It had been done before.
                    (Some(grant), Transfer::Transferred(lease)) if grant.who == to => {
                        self.granted(key, to, steps, lease);
                    }
                    (Some(_), Transfer::Transferred(lease)) => self.grant(key, to, steps, lease),
                    (grant, answer) => panic!("the model has {grant:?}, the store says {answer:?}"),
                }
            }
            Op::Force { key, right } if stage.capabilities.force_release => {
                let live = self.model.live(key);
                let fence = live.map_or(1, |grant| grant.fence.get() + u64::from(!right));
                let answer = store.force_release(self.keys[key].clone(), Fence::new(fence)).await;
                let freed = live.is_some() && right;
                assert_eq!(answer.unwrap() == Release::Released, freed, "the model has {live:?}");
                if freed {
                    self.model.held.remove(&key);
                }
            }
            Op::Pass { steps } => {
                stage.pass(STEP * steps).await;
                self.model.now += steps;
            }
            Op::AcquireAll { .. } | Op::Transfer { .. } | Op::Force { .. } => {}
        }
    }

    /// Whatever was done, everybody can see who holds what.
    async fn compare(&self) {
        for (key, name) in self.keys.iter().enumerate() {
            match (self.model.live(key), self.stage.lookup(name).await) {
                (None, None) => {}
                (Some(grant), Some(shown)) => self.stage.must_show(&shown, grant.fence),
                (grant, shown) => panic!("the model has {grant:?}, the store shows {shown:?}"),
            }
        }
    }
}

async fn random_operations_agree_with_the_model(stage: &Stage) {
    let can_pass = stage.can_jump();
    // In real time, behind a real server, each sequence costs something.
    let (cases, longest) = if can_pass { (300, 40) } else { (20, 30) };
    let config =
        Config { cases, max_shrink_iters: 300, failure_persistence: None, ..Config::default() };
    let sequences = proptest::collection::vec(op(can_pass), 1..longest);
    let check = |ops: Vec<Op>| {
        let run = async {
            let mut run = Run::new(stage);
            for op in ops {
                run.step(op).await;
                run.compare().await;
            }
        };
        // The runner is not async; this thread may block, for it does nothing but wait for this
        // trial.
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
        Ok(())
    };
    match TestRunner::new(config).run(&sequences, check) {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => {
            panic!("the store and the model part after {ops:#?}: {why}")
        }
        Err(TestError::Abort(why)) => panic!("no sequences could be made: {why}"),
    }
}
