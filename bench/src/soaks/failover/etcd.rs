//! Three etcd members whose leader changes all the time.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use holdtight_testkit::servers::{Etcd, EtcdCluster};

use super::{PACE, Promised, Run, Servers, pause, until};
use crate::Failure;

const LEADER_KILLED: &str = "leaders killed";
const LEADER_MOVED: &str = "leaders moved";
const LEADER_STOPPED: &str = "leaders stopped";
const FOLLOWER_KILLED: &str = "followers killed";
const FOLLOWER_STOPPED: &str = "followers stopped";

/// Members, and whether their version bears a leader that stands still.
struct Members {
    cluster: EtcdCluster,
    bears_stops: bool,
}

pub(in super::super) fn leaders(scale: f64) -> Result<String, Failure> {
    let members = crate::load::runtime()?.block_on(async {
        let cluster = EtcdCluster::start().await;
        let bears_stops = bears_stops(&cluster.nodes()[0].version().await);
        Arc::new(Members { cluster, bears_stops })
    });
    // etcd counts in seconds, and grants no shorter leases than it can elect a leader in.
    let (url, brief) = (members.cluster.url(), Duration::from_secs(3));
    Run {
        label: "three members",
        url,
        faults: 60,
        brief,
        promised: Promised::All,
        pace: PACE,
        scale,
    }
    .play(&members)
}

/// Whether a leader that is stopped and goes on ends no live lease: docs/stores/etcd.md names the
/// versions.
fn bears_stops(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 38,
        (3, 5, patch) => patch >= 23,
        (3, 6, patch) => patch >= 5,
        (major, minor, _) => (major, minor) > (3, 6),
    }
}

impl Members {
    async fn leader(&self) -> Result<&Etcd, Failure> {
        until("there is a leader", async || self.cluster.leader().await.is_some()).await?;
        Ok(self.cluster.leader().await.ok_or("the leader went at once")?)
    }

    async fn follower(&self, random: &mut Rng) -> Result<&Etcd, Failure> {
        let leader = self.leader().await?.port();
        let others: Vec<_> =
            self.cluster.nodes().iter().filter(|node| node.port() != leader).collect();
        Ok(others[random.usize(..others.len())])
    }
}

impl Servers for Members {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![LEADER_KILLED, LEADER_MOVED, FOLLOWER_KILLED, FOLLOWER_STOPPED];
        if self.bears_stops {
            kinds.push(LEADER_STOPPED);
        }
        kinds
    }

    async fn strike(&self, kind: &'static str, random: &mut Rng) -> Result<(), Failure> {
        match kind {
            LEADER_MOVED => {
                let to = self.follower(random).await?;
                until("the leader has changed", async || self.cluster.move_leader(to).await)
                    .await?;
            }
            LEADER_KILLED | FOLLOWER_KILLED => {
                let leads = kind == LEADER_KILLED;
                let member =
                    if leads { self.leader().await? } else { self.follower(random).await? };
                member.process().kill();
                pause(random, 2000).await;
                member.restart().await;
            }
            _ => {
                let leads = kind == LEADER_STOPPED;
                let member =
                    if leads { self.leader().await? } else { self.follower(random).await? };
                member.process().pause();
                pause(random, 3000).await;
                member.process().resume();
            }
        }
        self.leader().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_do_not_bear_a_leader_that_stands_still() {
        for version in ["3.4.23", "3.4.37", "3.5.22", "3.6.4", "3.3.99", "odd"] {
            assert!(!bears_stops(version), "{version}");
        }
        for version in ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "4.0.0"] {
            assert!(bears_stops(version), "{version}");
        }
    }
}
