//! etcd, as one node or as a cluster of three.

use std::time::{Duration, Instant};

use super::port::free_port;
use super::process::{Process, Recipe};
use super::program::Program;
use super::wire;

/// One etcd node.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    name: String,
    port: u16,
}

impl Etcd {
    /// Starts a cluster of one.
    ///
    /// # Panics
    /// When it cannot be started; the message says why.
    pub async fn start() -> Self {
        let name = fresh_name();
        let (process, port) = Recipe::new("etcd", Program::ETCD.path())
            .start(
                |_, port| {
                    // The neighbour is known to be free as well.
                    let peer = port + 10_000;
                    Ok(arguments(&name, port, peer, &format!("{name}={}", url(peer)), 50))
                },
                async |_, port| is_serving(port, &name).await,
            )
            .await;
        Self { process, name, port }
    }

    shared!(Etcd);

    /// The client port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `etcd://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// The process, to pause or kill.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The version of the server, as `3.5.23`.
    ///
    /// # Panics
    /// When it does not say.
    pub async fn version(&self) -> String {
        let status = self.status().await;
        field(&status, "version").expect("etcd says its version").to_owned()
    }

    /// What it says of itself; nothing if it does not answer.
    async fn status(&self) -> String {
        wire::http(self.port, "POST", "/v3/maintenance/status", "{}").await.unwrap_or_default()
    }

    /// Starts it again after it was killed: same port and data.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn restart(&self) {
        self.process.restart(async || is_serving(self.port, &self.name).await).await;
    }
}

/// Three etcd nodes that elected a leader.
#[derive(Debug)]
pub struct EtcdCluster {
    nodes: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts three nodes and waits until each serves clients.
    ///
    /// # Panics
    /// When that takes longer than a minute; the message says why.
    pub async fn start() -> Self {
        for _ in 0..5 {
            if let Some(cluster) = Self::try_start().await {
                return cluster;
            }
        }
        panic!("no etcd cluster could be formed in five attempts");
    }

    /// All ports must be known before the first node starts, so a lost race for one means a new
    /// cluster.
    async fn try_start() -> Option<Self> {
        let plan: Vec<_> = (0..3).map(|_| (fresh_name(), free_port())).collect();
        let peers: Vec<_> =
            plan.iter().map(|(name, port)| format!("{name}={}", url(port + 10_000))).collect();
        let peers = peers.join(",");
        let mut nodes = Vec::new();
        for (name, port) in plan {
            let process = Recipe::new("etcd", Program::ETCD.path())
                .spawn(|_| Ok(arguments(&name, port, port + 10_000, &peers, 120)));
            nodes.push(Etcd { process, name, port });
        }
        let started = Instant::now();
        for node in &nodes {
            while !is_serving(node.port, &node.name).await {
                if !node.process.is_alive() || started.elapsed() > Duration::from_secs(60) {
                    return None;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        nodes.iter().all(|node| node.process.is_alive()).then_some(Self { nodes })
    }

    shared!(EtcdCluster);

    /// The nodes.
    pub fn nodes(&self) -> &[Etcd] {
        &self.nodes
    }

    /// `etcd://` with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// The node that leads now, if one does.
    pub async fn leader(&self) -> Option<&Etcd> {
        for node in self.nodes.iter().filter(|node| node.process.is_alive()) {
            let status = node.status().await;
            if let (Some(member), Some(leader)) =
                (field(&status, "member_id"), field(&status, "leader"))
                && member == leader
            {
                return Some(node);
            }
        }
        None
    }

    /// Lets the leader hand its office to `to`; whether it did.
    pub async fn move_leader(&self, to: &Etcd) -> bool {
        let status = to.status().await;
        let Some((leader, id)) = self.leader().await.zip(field(&status, "member_id")) else {
            return false;
        };
        let (path, body) =
            ("/v3/maintenance/transfer-leadership", format!("{{\"targetID\":\"{id}\"}}"));
        let answer = wire::http(leader.port, "POST", path, &body).await;
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

/// A field of text in an answer of etcd.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// A name that no other node has: it proves who answers.
fn fresh_name() -> String {
    format!("n{:016x}", fastrand::u64(..))
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// `heartbeat` in ms, of which an election waits for five. The shortest lease is one and a half
/// elections, rounded up to a second; a cluster waits for as long as that allows, because a member
/// that stands still for a moment is no reason for an election.
fn arguments(name: &str, client: u16, peer: u16, cluster: &str, heartbeat: u32) -> Vec<String> {
    let options = [
        ("name", name.to_owned()),
        ("data-dir", "data".to_owned()),
        ("listen-client-urls", url(client)),
        ("advertise-client-urls", url(client)),
        ("listen-peer-urls", url(peer)),
        ("initial-advertise-peer-urls", url(peer)),
        ("initial-cluster", cluster.to_owned()),
        ("initial-cluster-token", cluster.chars().take(17).collect()),
        ("heartbeat-interval", heartbeat.to_string()),
        ("election-timeout", (5 * heartbeat).to_string()),
        ("logger", "zap".to_owned()),
    ];
    options.into_iter().flat_map(|(option, value)| [format!("--{option}"), value]).collect()
}

/// A linearizable question that only a node with a leader answers, whose answer names the node.
async fn is_serving(port: u16, name: &str) -> bool {
    let healthy = wire::http(port, "GET", "/health", "").await.unwrap_or_default();
    let members =
        wire::http(port, "POST", "/v3/cluster/member/list", "{}").await.unwrap_or_default();
    healthy.contains("\"health\":\"true\"") && members.contains(name)
}
