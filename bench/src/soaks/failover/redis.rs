//! Slots of a Redis Cluster that move all the time, and a Redis that Sentinel moves from server to
//! server.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use holdtight_testkit::servers::{RedisCluster, RedisSentinel, SlotMove};

use super::{PACE, Promised, Run, Servers, pause, until};
use crate::Failure;

const BRIEF: Duration = Duration::from_secs(1);

const KEY_BY_KEY: &str = "slots moved key by key";
const TOGETHER: &str = "resharded ranges";

/// The keys of the load, as they stand in Redis.
const NAMES: [&str; 6] = ["0", "1", "2", "turn", "expire", "long"];

/// How many slots are moved at once, the one in use among them.
const RANGE: u16 = 8;

pub(in super::super) fn moves(scale: f64) -> Result<String, Failure> {
    let cluster = Arc::new(crate::load::runtime()?.block_on(RedisCluster::start()));
    let url = cluster.url();
    Run {
        label: "cluster",
        url,
        faults: 300,
        brief: BRIEF,
        promised: Promised::All,
        pace: PACE,
        scale,
    }
    .play(&cluster)
}

impl Servers for RedisCluster {
    fn kinds(&self) -> Vec<&'static str> {
        vec![KEY_BY_KEY, TOGETHER]
    }

    async fn strike(&self, kind: &'static str, random: &mut Rng) -> Result<(), Failure> {
        let name = format!("holdtight:load:{}", NAMES[random.usize(..NAMES.len())]);
        let moving = SlotMove::of(&name, self).await;
        if kind == KEY_BY_KEY {
            moving.begin().await;
            pause(random, 20).await;
            loop {
                let names = moving.names(1).await;
                let Some(name) = names.first() else { break };
                moving.key(name).await;
                pause(random, 10).await;
            }
            moving.end().await;
            return Ok(());
        }
        let first = (moving.slot - moving.slot % RANGE).min(16_384 - RANGE);
        for slot in first..first + RANGE {
            let moving = SlotMove::of_slot(slot, self).await;
            moving.begin().await;
            moving.keys(10).await;
            moving.end().await;
        }
        Ok(())
    }
}

const CLEAN: &str = "failovers by command";
const FROZEN: &str = "frozen primaries";

pub(in super::super) fn sentinel(scale: f64) -> Result<String, Failure> {
    let group = Arc::new(crate::load::runtime()?.block_on(RedisSentinel::start()));
    let run = Run {
        label: "wait_replicas=1",
        url: format!("{}?wait_replicas=1", group.url()),
        faults: 20,
        brief: BRIEF,
        promised: Promised::All,
        pace: PACE,
        scale,
    };
    let with = run.play(&group)?;
    // Locks are granted all the time there, also by two servers at once.
    let (url, pace, promised) = (group.url(), 10 * PACE, Promised::Fences);
    let run = Run { label: "wait_replicas=0", url, promised, pace, ..run };
    Ok(format!("{with}; {}", run.play(&group)?))
}

impl Servers for RedisSentinel {
    fn kinds(&self) -> Vec<&'static str> {
        vec![CLEAN, FROZEN]
    }

    async fn strike(&self, kind: &'static str, random: &mut Rng) -> Result<(), Failure> {
        let old = self.primary().await.ok_or("the sentinels name no primary")?;
        let moved = async || self.primary_port().await.is_some_and(|port| port != old.port());
        if kind == CLEAN {
            until("a failover begins", async || self.fail_over().await).await?;
            until("the failover is done", moved).await?;
        } else {
            old.process().pause();
            let left = until("the frozen primary is replaced", moved).await;
            pause(random, 3000).await;
            old.process().resume();
            left?;
        }
        self.wait_until_agreed().await;
        Ok(())
    }
}
