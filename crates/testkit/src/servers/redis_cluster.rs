//! A Redis Cluster of three primaries with a replica each, formed and in sync.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::program::Program;
use super::redis::Redis;

/// Six Redis servers as one cluster.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts six servers, forms a cluster, and waits until every replica follows its primary.
    ///
    /// A primary that is silent for less than 20 s stays primary, so that a slow machine fails
    /// nothing over in the middle of a test that counts on the roles.
    ///
    /// # Panics
    /// When it cannot be formed within a minute; the message says why.
    pub async fn start() -> Self {
        Self::with_node_timeout(Duration::from_secs(20)).await
    }

    /// The same, but a primary that is silent for 1.5 s is replaced by its replica.
    ///
    /// # Panics
    /// When it cannot be formed within a minute; the message says why.
    pub async fn start_quick_to_fail_over() -> Self {
        Self::with_node_timeout(Duration::from_millis(1500)).await
    }

    async fn with_node_timeout(timeout: Duration) -> Self {
        let timeout = timeout.as_millis().to_string();
        let mut nodes = Vec::new();
        for _ in 0..6 {
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                &timeout,
                "--repl-diskless-sync-delay",
                "0",
            ];
            nodes.push(Redis::start_with(&arguments).await);
        }
        let cluster = Self { nodes };
        cluster.form();
        cluster.wait_until_whole().await;
        cluster
    }

    shared!(RedisCluster);

    /// The servers, primaries first as they were formed.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// `redis+cluster://` with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Waits until every node says that all slots are served and every replica is in sync.
    ///
    /// # Panics
    /// When that takes longer than a minute.
    pub async fn wait_until_whole(&self) {
        let started = Instant::now();
        while !self.is_whole().await {
            assert!(started.elapsed() < Duration::from_secs(60), "the Redis Cluster does not form");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_whole(&self) -> bool {
        let (mut primaries, mut replicas) = (0, 0);
        for node in self.nodes.iter().filter(|node| node.process().is_alive()) {
            let state = node.command("CLUSTER INFO").await.unwrap_or_default();
            let role = node.command("INFO replication").await.unwrap_or_default();
            if !state.contains("cluster_state:ok") {
                return false;
            }
            primaries += usize::from(role.contains("role:master"));
            replicas += usize::from(role.contains("master_link_status:up"));
        }
        primaries == 3 && primaries + replicas == self.alive()
    }

    fn alive(&self) -> usize {
        self.nodes.iter().filter(|node| node.process().is_alive()).count()
    }

    fn form(&self) {
        let hosts = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let formed = Command::new(Program::REDIS_CLI.path())
            .args(["--cluster", "create"])
            .args(hosts)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("cannot run redis-cli: {error}"));
        let said = String::from_utf8_lossy(&formed.stdout);
        assert!(formed.status.success(), "redis-cli could not form a cluster:\n{said}");
    }
}
