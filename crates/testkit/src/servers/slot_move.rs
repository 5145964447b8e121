//! A slot of a Redis Cluster on its way from one primary to another, step by step, as `redis-cli
//! --cluster reshard` moves it.

use std::time::{Duration, Instant};

use super::redis::Redis;
use super::redis_cluster::RedisCluster;

/// How long primaries may take to hear of a move.
const AGREEMENT: Duration = Duration::from_secs(30);

/// A slot of a cluster on its way from one primary to the next.
#[derive(Clone, Copy, Debug)]
pub struct SlotMove<'a> {
    /// Which.
    pub slot: u16,
    /// Whose it was.
    pub from: &'a Redis,
    /// Whose it will be.
    pub to: &'a Redis,
    cluster: &'a RedisCluster,
}

impl<'a> SlotMove<'a> {
    /// Moves the slot of the key `name` from whoever owns it to the next primary.
    ///
    /// # Panics
    /// When nobody owns it, or a server does not answer.
    pub async fn of(name: &str, cluster: &'a RedisCluster) -> Self {
        let line = format!("CLUSTER KEYSLOT {}", quoted(name));
        let answer = told(&cluster.nodes()[0], &line).await;
        let slot = answer.trim().trim_start_matches(':').parse();
        Self::of_slot(slot.unwrap_or_else(|_| panic!("{line}: {answer}")), cluster).await
    }

    /// The same for a slot with whatever is in it.
    ///
    /// # Panics
    /// When nobody owns it, or a server does not answer.
    pub async fn of_slot(slot: u16, cluster: &'a RedisCluster) -> Self {
        let primaries = &cluster.nodes()[..3];
        for (number, node) in primaries.iter().enumerate() {
            if owns(node, slot).await {
                return Self { slot, from: node, to: &primaries[(number + 1) % 3], cluster };
            }
        }
        panic!("nobody owns the slot {slot}");
    }

    /// From here on keys may be on both.
    ///
    /// # Panics
    /// When a server does not answer, or refuses.
    pub async fn begin(&self) {
        let (from, to) = (id(self.from).await, id(self.to).await);
        self.set(self.to, &format!("IMPORTING {from}")).await;
        self.set(self.from, &format!("MIGRATING {to}")).await;
    }

    /// Moves one key.
    ///
    /// # Panics
    /// When it cannot be moved.
    pub async fn key(&self, name: &str) {
        let line = format!("MIGRATE 127.0.0.1 {} {} 0 5000", self.to.port(), quoted(name));
        self.moved(&line).await;
    }

    /// Moves all keys, `batch` of them with each request.
    ///
    /// # Panics
    /// When one cannot be moved.
    pub async fn keys(&self, batch: usize) {
        loop {
            let names = self.names(batch).await;
            if names.is_empty() {
                return;
            }
            let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
            let (port, names) = (self.to.port(), names.join(" "));
            self.moved(&format!("MIGRATE 127.0.0.1 {port} \"\" 0 5000 KEYS {names}")).await;
        }
    }

    /// Up to `limit` keys that are still where they were.
    ///
    /// # Panics
    /// When the server does not answer.
    pub async fn names(&self, limit: usize) -> Vec<String> {
        let found = told(self.from, &format!("CLUSTER GETKEYSINSLOT {} {limit}", self.slot)).await;
        let names = found.lines().skip(1).filter(|line| !line.starts_with('$'));
        names.map(str::to_owned).collect()
    }

    /// The slot belongs to the second: it is told first, then the first, then the others. Returns
    /// when all primaries agree on it: a slot that moves on before that can end up with nobody, and
    /// its keys are deleted then.
    ///
    /// # Panics
    /// When a server does not answer, or refuses, or they do not agree.
    pub async fn end(&self) {
        let owner = id(self.to).await;
        self.name(&owner).await;
        let started = Instant::now();
        while !self.agreed(&owner).await {
            if started.elapsed() >= AGREEMENT {
                let mut views = Vec::new();
                for node in &self.cluster.nodes()[..3] {
                    views.push(told(node, "CLUSTER NODES").await);
                }
                let (slot, views) = (self.slot, views.join("\n"));
                panic!("nobody agrees that the slot {slot} is {owner}'s:\n{views}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn name(&self, owner: &str) {
        let owner = format!("NODE {owner}");
        self.set(self.to, &owner).await;
        self.set(self.from, &owner).await;
        let party = [self.to.port(), self.from.port()];
        for node in self.cluster.nodes()[..3].iter().filter(|node| !party.contains(&node.port())) {
            self.set(node, &owner).await;
        }
    }

    /// Whether all primaries say that the slot is `owner`'s, in one and the same epoch.
    async fn agreed(&self, owner: &str) -> bool {
        let mut epochs = Vec::new();
        for node in &self.cluster.nodes()[..3] {
            let nodes = told(node, "CLUSTER NODES").await;
            let line = nodes.lines().find(|line| line.starts_with(owner)).unwrap_or_default();
            if !lists(line, self.slot) {
                return false;
            }
            epochs.push(line.split_whitespace().nth(6).map(str::to_owned));
        }
        epochs.iter().all(|epoch| *epoch == epochs[0])
    }

    /// All of it, one key at a time.
    ///
    /// # Panics
    /// When a server does not answer, or refuses.
    pub async fn whole(&self) {
        self.begin().await;
        self.keys(1).await;
        self.end().await;
    }

    async fn set(&self, node: &Redis, state: &str) {
        let line = format!("CLUSTER SETSLOT {} {state}", self.slot);
        let answer = told(node, &line).await;
        assert!(answer.starts_with("+OK"), "{line}: {answer}");
    }

    async fn moved(&self, line: &str) {
        let answer = told(self.from, line).await;
        assert!(answer.starts_with("+OK") || answer.starts_with("+NOKEY"), "{line}: {answer}");
    }
}

/// As an administrator types it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\u{1}', "\\x01"))
}

async fn told(node: &Redis, line: &str) -> String {
    node.command(line).await.unwrap_or_else(|error| panic!("{line}: {error}"))
}

async fn id(node: &Redis) -> String {
    told(node, "CLUSTER MYID").await.lines().nth(1).unwrap_or_default().to_owned()
}

/// Whether a node says that a slot is its own.
async fn owns(node: &Redis, slot: u16) -> bool {
    let nodes = told(node, "CLUSTER NODES").await;
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    lists(own, slot)
}

/// Whether a line of `CLUSTER NODES` lists a slot.
fn lists(line: &str, slot: u16) -> bool {
    line.split_whitespace().skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // What is on its way stands in brackets, and is no number.
        let number = |text: &str| text.parse::<u16>().ok();
        number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&slot))
    })
}
