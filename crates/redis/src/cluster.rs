//! A Redis Cluster: which node serves which slot, one connection per node, and redirections.
//!
//! Only what a node refused without doing it (`MOVED`, `ASK`, a connection that could not be
//! opened) is sent again, and only to nodes that the cluster itself lists; a lost answer is never
//! repeated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use holdtight_core::{LockError, spawn_lasting};
use holdtight_kit::lock;
use redis::{Cmd, ConnectionAddr, Pipeline, RedisError, Value};

use crate::config::RedisConfig;
use crate::connection::{Fault, Link, Target};
use crate::error::code;
use crate::slots::SLOTS;
use crate::wake::Ears;

/// How often one request may be sent on to another node.
const REDIRECTIONS: usize = 5;

/// No cluster says more about its nodes.
const NODES_BYTES: usize = 1 << 20;

/// All nodes of a cluster.
pub(crate) struct Cluster {
    config: Arc<RedisConfig>,
    ears: Arc<Ears>,
    seeds: Vec<ConnectionAddr>,
    links: Mutex<HashMap<String, Arc<Link>>>,
    map: Mutex<Arc<Map>>,
    /// Held while the map is being read anew: one at a time.
    gate: tokio::sync::Mutex<()>,
    reads: AtomicU64,
    stale: AtomicBool,
}

/// Who serves what, as one node told it.
#[derive(Debug, Default)]
struct Map {
    nodes: Vec<Node>,
    /// For each slot the place of its primary in `nodes`.
    owners: Vec<Option<u16>>,
}

/// One node.
#[derive(Clone, Debug)]
struct Node {
    /// `host:port`.
    name: String,
    address: ConnectionAddr,
    /// The same with the name of the host, if the cluster knows one.
    alias: Option<String>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<&Node> {
        let place = self.owners.get(usize::from(slot)).copied().flatten()?;
        self.nodes.get(usize::from(place))
    }

    /// The node that a redirection calls `address`. Nodes that do not tell a host mean that of the
    /// one who was asked.
    fn find(&self, address: &str, asked: Option<&str>) -> Option<&Node> {
        let whole = match (address.strip_prefix('?').unwrap_or(address), asked) {
            (port, Some(host)) if port.starts_with(':') => format!("{host}{port}"),
            (whole, _) => whole.to_owned(),
        };
        let is_it = |node: &&Node| node.name == whole || node.alias.as_ref() == Some(&whole);
        self.nodes.iter().find(is_it)
    }

    /// Whether some slot has another owner than in `before`.
    fn differs(&self, before: &Self) -> bool {
        let name = |map: &Self, slot| map.owner(slot).map(|node| node.name.clone());
        (0..16384).any(|slot| name(self, slot) != name(before, slot))
    }
}

/// What is sent: one command, or several at once.
pub(crate) enum Load<'a> {
    One(&'a Cmd),
    Several(&'a Pipeline),
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<ConnectionAddr>,
        config: Arc<RedisConfig>,
        ears: Arc<Ears>,
    ) -> Self {
        Self {
            config,
            ears,
            seeds,
            links: Mutex::default(),
            map: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
            reads: AtomicU64::new(0),
            stale: AtomicBool::new(true),
        }
    }

    /// Sends `load` to the node that serves `slot`, wherever that is now. Answers stand in the
    /// order of commands.
    pub(crate) async fn send(
        self: &Arc<Self>,
        slot: u16,
        load: Load<'_>,
    ) -> Result<Vec<Value>, Fault> {
        let mut link = self.owner(slot).await.map_err(Fault::Unsent)?;
        let mut asking = false;
        for _ in 0..REDIRECTIONS {
            let fault = match send_to(&link, &load, asking).await {
                Ok(answers) => return Ok(answers),
                Err(fault) => fault,
            };
            asking = false;
            match fault {
                Fault::Sent(error) => match code(&error) {
                    Some("MOVED") => {
                        self.stale.store(true, Ordering::Release);
                        let moved = self.owner(slot).await.map_err(Fault::Unsent)?;
                        // A node that lags behind in the news of the cluster: the answer itself
                        // says where to go.
                        link = match self.named(&error, &link) {
                            Some(named) if Arc::ptr_eq(&moved, &link) => named,
                            _ => moved,
                        };
                    }
                    Some("ASK") => {
                        let Some(importing) = self.named(&error, &link) else {
                            self.stale.store(true, Ordering::Release);
                            return Err(unserved());
                        };
                        (link, asking) = (importing, true);
                    }
                    Some("READONLY" | "CLUSTERDOWN" | "MASTERDOWN") | None => {
                        self.stale.store(true, Ordering::Release);
                        return Err(Fault::Sent(error));
                    }
                    Some(_) => return Err(Fault::Sent(error)),
                },
                Fault::Unsent(error) => {
                    self.stale.store(true, Ordering::Release);
                    match self.owner(slot).await {
                        Ok(other) if !Arc::ptr_eq(&other, &link) => link = other,
                        _ => return Err(Fault::Unsent(error)),
                    }
                }
            }
        }
        Err(unserved())
    }

    /// Makes sure that messages of the shard that serves `slot` arrive, if this user may listen.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        slot: u16,
        channel: &str,
    ) -> Result<bool, LockError> {
        let mut last = None;
        for _ in 0..REDIRECTIONS {
            let link = self.owner(slot).await?;
            if last.as_ref().is_some_and(|(tried, _)| Arc::ptr_eq(tried, &link)) {
                break;
            }
            match link.listen_to_shard(channel).await {
                Err(fault) if fault.is_elsewhere() => {
                    self.stale.store(true, Ordering::Release);
                    last = Some((link, fault));
                }
                answer => return answer.map_err(Fault::explain),
            }
        }
        Err(match last {
            Some((_, Fault::Unsent(error))) => error,
            _ => unserved().explain(),
        })
    }

    /// Whether messages of the shard that serves `slot`, as far as is known here, arrive now.
    pub(crate) fn hears(&self, slot: u16, channel: &str) -> bool {
        let map = self.current();
        map.owner(slot).is_some_and(|node| self.link(node).hears_shard(channel))
    }

    /// Closes the connection to the node that serves `slot`.
    pub(crate) fn distrust(&self, slot: u16) {
        if let Some(node) = self.current().owner(slot) {
            self.link(node).distrust();
        }
    }

    /// The connections to all primaries.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Arc<Link>>, LockError> {
        self.stale.store(true, Ordering::Release);
        let map = self.map().await?;
        let mut places: Vec<u16> = map.owners.iter().flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        Ok(places
            .into_iter()
            .filter_map(|place| map.nodes.get(usize::from(place)))
            .map(|node| self.link(node))
            .collect())
    }

    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Link>, LockError> {
        let map = self.map().await?;
        map.owner(slot).map(|node| self.link(node)).ok_or_else(|| {
            self.stale.store(true, Ordering::Release);
            LockError::unavailable("no node of the Redis Cluster serves this key right now")
        })
    }

    /// The connection to the node that a redirection names, if the cluster lists it.
    fn named(&self, error: &RedisError, asked: &Link) -> Option<Arc<Link>> {
        let (address, _) = error.redirect_node()?;
        self.current().find(address, asked.host()).map(|node| self.link(node))
    }

    fn link(&self, node: &Node) -> Arc<Link> {
        let mut links = lock(&self.links);
        Arc::clone(links.entry(node.name.clone()).or_insert_with(|| {
            let target = Target::Node(node.address.clone());
            Arc::new(Link::new(target, Arc::clone(&self.config), Arc::clone(&self.ears), None))
        }))
    }

    /// Who serves what; read anew if there is reason to doubt it.
    async fn map(self: &Arc<Self>) -> Result<Arc<Map>, LockError> {
        if !self.stale.load(Ordering::Acquire) {
            return Ok(self.current());
        }
        // In a task of its own: a caller whose future is not polled must not keep the gate from all
        // others.
        let cluster = Arc::clone(self);
        spawn_lasting(async move { cluster.read_map().await }).await.unwrap_or_else(|error| {
            Err(LockError::unavailable("the map of the Redis Cluster could not be read")
                .with_source(error))
        })
    }

    fn current(&self) -> Arc<Map> {
        Arc::clone(&lock(&self.map))
    }

    async fn read_map(&self) -> Result<Arc<Map>, LockError> {
        let before = self.reads.load(Ordering::Acquire);
        let _one = self.gate.lock().await;
        // Somebody else read it while this one waited.
        if self.reads.load(Ordering::Acquire) != before && !self.current().nodes.is_empty() {
            return Ok(self.current());
        }
        let mut places = self.current().nodes.clone();
        places.extend(self.seeds.iter().map(|seed| Node {
            name: seed.to_string(),
            address: seed.clone(),
            alias: None,
        }));
        // Where the last map came from first, but not always the same node.
        let known = self.current().nodes.len();
        if known > 1 {
            places[..known].rotate_left(fastrand::usize(..known));
        }
        let mut last = None;
        for place in places {
            match read(&self.link(&place), &place.address, self.config.tls).await {
                Ok(map) => {
                    let map = Arc::new(map);
                    let before = std::mem::replace(&mut *lock(&self.map), Arc::clone(&map));
                    // Whoever listens at a node that serves its slot no more has to listen at
                    // another.
                    if !before.nodes.is_empty() && map.differs(&before) {
                        self.ears.ring_all();
                    }
                    lock(&self.links)
                        .retain(|name, _| map.nodes.iter().any(|node| node.name == *name));
                    self.stale.store(false, Ordering::Release);
                    self.reads.fetch_add(1, Ordering::AcqRel);
                    return Ok(map);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| LockError::unavailable("no node of the Redis Cluster is known")))
    }
}

fn unserved() -> Fault {
    Fault::Unsent(LockError::unavailable(
        "the nodes of the Redis Cluster send each other's keys around; it may be moving slots, try again",
    ))
}

async fn send_to(link: &Arc<Link>, load: &Load<'_>, asking: bool) -> Result<Vec<Value>, Fault> {
    let mut several = Pipeline::new();
    let mut answers = match load {
        Load::One(command) if !asking => return Ok(vec![link.send(command).await?]),
        Load::Several(commands) if !asking => link.send_all(commands).await?,
        Load::One(command) => {
            several.cmd("ASKING").add_command((*command).clone());
            link.send_all(&several).await?
        }
        Load::Several(commands) => {
            several.cmd("ASKING");
            for command in commands.cmd_iter() {
                several.add_command(command.clone());
            }
            link.send_all(&several).await?
        }
    };
    if asking {
        answers.remove(0);
    }
    // The first command decides; an error in a later one is for whoever reads the answers.
    match answers.first() {
        Some(Value::ServerError(error)) => Err(Fault::Sent(error.clone().into())),
        _ => Ok(answers),
    }
}

async fn read(link: &Arc<Link>, asked: &ConnectionAddr, tls: bool) -> Result<Map, LockError> {
    let mut nodes = redis::cmd("CLUSTER");
    nodes.arg("NODES");
    let text = match link.send(&nodes).await.map_err(Fault::explain)? {
        Value::BulkString(bytes) if bytes.len() <= NODES_BYTES => {
            String::from_utf8(bytes).unwrap_or_default()
        }
        Value::VerbatimString { text, .. } if text.len() <= NODES_BYTES => text,
        _ => String::new(),
    };
    parse(&text, asked, tls).ok_or_else(|| {
        LockError::unavailable(
            "a node of the Redis Cluster does not know the others; is it part of one?",
        )
    })
}

/// Reads the lines of `CLUSTER NODES`; `None` if they name no primary with a slot.
///
/// With TLS a node is reached by the name of its host, if it tells one: that is what stands in
/// certificates.
fn parse(text: &str, asked: &ConnectionAddr, tls: bool) -> Option<Map> {
    let mut map = Map { nodes: Vec::new(), owners: vec![None; SLOTS] };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, address, flags, _, _, _, _, _, slots @ ..] = fields.as_slice() else { continue };
        let flags: Vec<&str> = flags.split(',').collect();
        if ["fail", "noaddr", "handshake"].iter().any(|bad| flags.contains(bad)) {
            continue;
        }
        // `ip:port@bus,hostname,field=value,…`; Redis before 7 ends at the port of the bus.
        let (address, more) = address.split_once('@').unwrap_or((address, ""));
        let hostname =
            more.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
        let Some((host, port)) = address.rsplit_once(':') else { continue };
        let Ok(port) = port.parse::<u16>() else { continue };
        // A node that does not know its own address yet is the one that was asked.
        let host = match (host, asked) {
            ("", ConnectionAddr::Tcp(host, _)) => host.as_str(),
            (host, _) => host,
        };
        let place = u16::try_from(map.nodes.len()).ok()?;
        let reached = hostname.filter(|_| tls).unwrap_or(host);
        map.nodes.push(Node {
            name: format!("{host}:{port}"),
            address: ConnectionAddr::Tcp(reached.to_owned(), port),
            alias: hostname.map(|hostname| format!("{hostname}:{port}")),
        });
        if !flags.contains(&"master") {
            continue;
        }
        // Slots on their way elsewhere stand in brackets; they are still served here.
        for range in slots.iter().filter(|range| !range.starts_with('[')) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
                && first <= last
                && let Some(owned) = map.owners.get_mut(first..=last)
            {
                owned.fill(Some(place));
            }
        }
    }
    map.owners.iter().any(Option::is_some).then_some(map)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked() -> ConnectionAddr {
        ConnectionAddr::Tcp("seed".to_owned(), 7000)
    }

    #[test]
    fn owners_are_read_and_failed_nodes_left_out() {
        let text = "\
a 10.0.0.1:7001@17001,host.example master - 0 1 1 connected 0-5460 5462 [5461->-b]\n\
b :7002@17002 myself,master - 0 1 2 connected 5461-10922\n\
c 10.0.0.3:7003@17003 master,fail - 0 1 3 disconnected 10923-16383\n\
d 10.0.0.4:7004@17004 slave a 0 1 1 connected\n\
e [::1]:7005@17005 master - 0 1 9 connected 16383\n\
f :0@0 master,noaddr - 0 1 9 disconnected\n\
junk\n";
        let map = parse(text, &asked(), false).unwrap();
        let name =
            |slot: usize| map.owners[slot].map(|place| map.nodes[usize::from(place)].name.as_str());
        assert_eq!(
            (name(0), name(5460), name(5461)),
            (Some("10.0.0.1:7001"), Some("10.0.0.1:7001"), Some("seed:7002"))
        );
        assert_eq!((name(10922), name(10923)), (Some("seed:7002"), None));
        assert_eq!(name(16383), Some("[::1]:7005"));
        assert_eq!(map.nodes.len(), 4);
        let found = |address, asked| map.find(address, asked).map(|node| node.name.as_str());
        assert_eq!(found("host.example:7001", None), Some("10.0.0.1:7001"));
        assert_eq!(found("10.0.0.1:7001", None), Some("10.0.0.1:7001"));
        assert_eq!(found(":7004", Some("10.0.0.4")), Some("10.0.0.4:7004"), "no host is told");
        assert_eq!(found("?:7004", Some("10.0.0.4")), Some("10.0.0.4:7004"));
        assert_eq!((found("host.example:7002", None), found(":7004", None)), (None, None));
        let by_name = parse(text, &asked(), true).unwrap();
        assert_eq!(by_name.nodes[0].address.to_string(), "host.example:7001", "as in certificates");
        assert_eq!(map.nodes[0].address.to_string(), "10.0.0.1:7001");
        assert!(!map.differs(&by_name) && map.differs(&Map::default()));
        assert!(parse("", &asked(), false).is_none());
        assert!(
            parse("a 1.1.1.1:1@1 master - 0 0 0 connected 9-3 99999 0-99999 x-y", &asked(), false)
                .is_none()
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_without_panic(text: String) {
            let _ = parse(&text, &asked(), true);
        }
    }
}
