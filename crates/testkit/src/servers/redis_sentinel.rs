//! A Redis primary with a replica, watched by three sentinels that agree on a failover.

use std::time::{Duration, Instant};

use super::process::{Process, Recipe};
use super::program::Program;
use super::redis::{self, Redis};

/// The name under which the sentinels know the primary.
const NAME: &str = "main";

/// Two Redis servers and three sentinels.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [Redis; 2],
    sentinels: Vec<(Process, u16)>,
}

impl RedisSentinel {
    /// Starts all five and waits until the replica is in sync and every sentinel knows all the
    /// others.
    ///
    /// # Panics
    /// When that takes longer than a minute; the message says why.
    pub async fn start() -> Self {
        let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]).await;
        let port = primary.port().to_string();
        let following = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let replica = Redis::start_with(&following).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(sentinel(primary.port()).await);
        }
        let group = Self { servers: [primary, replica], sentinels };
        group.wait_until_agreed().await;
        group
    }

    shared!(RedisSentinel);

    /// Both servers: the first was the primary at the start.
    pub fn servers(&self) -> &[Redis; 2] {
        &self.servers
    }

    /// The ports of the sentinels on 127.0.0.1.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(|(_, port)| *port).collect()
    }

    /// The processes of the sentinels.
    pub fn sentinels(&self) -> impl Iterator<Item = &Process> {
        self.sentinels.iter().map(|(process, _)| process)
    }

    /// The name under which the sentinels know the primary.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// `redis+sentinel://` with all sentinels and the name of the primary.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinel_ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The port of the server that the first sentinel which answers calls the primary.
    pub async fn primary_port(&self) -> Option<u16> {
        for (_, port) in &self.sentinels {
            let question = format!("SENTINEL get-master-addr-by-name {NAME}");
            let answer = redis::command(*port, None, &question).await.unwrap_or_default();
            if let Some(port) = answer.trim().lines().last().and_then(|line| line.parse().ok()) {
                return Some(port);
            }
        }
        None
    }

    /// The server that the sentinels call the primary, if one is named.
    pub async fn primary(&self) -> Option<&Redis> {
        let port = self.primary_port().await?;
        self.servers.iter().find(|server| server.port() == port)
    }

    /// Asks a sentinel for a failover as an administrator would; whether it began one.
    pub async fn fail_over(&self) -> bool {
        for (_, port) in &self.sentinels {
            let answer = redis::command(*port, None, &format!("SENTINEL FAILOVER {NAME}")).await;
            if answer.is_ok_and(|answer| answer.starts_with("+OK")) {
                return true;
            }
        }
        false
    }

    /// Waits until every sentinel sees two others and one replica that could take over.
    ///
    /// # Panics
    /// When that takes longer than a minute.
    pub async fn wait_until_agreed(&self) {
        let started = Instant::now();
        while !self.is_agreed().await {
            assert!(started.elapsed() < Duration::from_secs(60), "the sentinels do not agree");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_agreed(&self) -> bool {
        for (_, port) in &self.sentinels {
            let info = redis::command(*port, None, "INFO sentinel").await.unwrap_or_default();
            if !info.contains("status=ok") || !info.contains("slaves=1,sentinels=3") {
                return false;
            }
        }
        let (mut primaries, mut replicas) = (0, 0);
        for server in &self.servers {
            let role = server.command("INFO replication").await.unwrap_or_default();
            primaries += usize::from(role.contains("role:master"));
            replicas += usize::from(role.contains("master_link_status:up"));
        }
        primaries == 1 && replicas == 1
    }
}

async fn sentinel(primary: u16) -> (Process, u16) {
    Recipe::new("redis-server --sentinel", Program::REDIS.path())
        .start(
            |directory, port| {
                let file = directory.path().join("sentinel.conf");
                let lines = format!(
                    "port {port}\nbind 127.0.0.1\nsentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
                     sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 3000\n"
                );
                std::fs::write(&file, lines)?;
                Ok(vec![file.to_string_lossy().into_owned(), "--sentinel".to_owned()])
            },
            async |process, port| {
                let info = redis::command(port, None, "INFO server").await.unwrap_or_default();
                info.lines().any(|line| line == format!("process_id:{}", process.pid()))
            },
        )
        .await
}
