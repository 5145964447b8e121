//! A Redis Cluster: which node serves which slot, one connection per node, and redirections.
//!
//! Only what a node refused without doing it (`MOVED`, `ASK`, a connection that could not be opened) is sent again,
//! and only to nodes that the cluster itself lists; a lost answer is never repeated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use holdtight_core::LockError;
use redis::{Cmd, ConnectionAddr, Pipeline, Value};

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
    /// `host:port` of all nodes.
    nodes: Vec<(String, ConnectionAddr)>,
    /// For each slot the place of its primary in `nodes`.
    owners: Vec<Option<u16>>,
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

    /// Sends `load` to the node that serves `slot`, wherever that is now. Answers stand in the order of commands.
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
                        // A node that lags behind in the news of the cluster: the answer itself says where to go.
                        link = match error.redirect_node().and_then(|(node, _)| self.known(node)) {
                            Some(named) if Arc::ptr_eq(&moved, &link) => named,
                            _ => moved,
                        };
                    }
                    Some("ASK") => {
                        let Some(importing) =
                            error.redirect_node().and_then(|(node, _)| self.known(node))
                        else {
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
        self.owner(slot).await?.listen_to_shard(channel).await
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
            .filter_map(|place| self.link(map.nodes.get(usize::from(place))?))
            .collect())
    }

    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Link>, LockError> {
        let map = self.map().await?;
        let place = map.owners.get(usize::from(slot)).copied().flatten();
        place.and_then(|place| self.link(map.nodes.get(usize::from(place))?)).ok_or_else(|| {
            self.stale.store(true, Ordering::Release);
            LockError::unavailable("no node of the Redis Cluster serves this key right now")
        })
    }

    /// The connection to a node that the cluster lists.
    fn known(&self, address: &str) -> Option<Arc<Link>> {
        let map = self.current();
        self.link(map.nodes.iter().find(|(name, _)| name == address)?)
    }

    #[expect(clippy::unnecessary_wraps, reason = "reads better where a node may be missing")]
    fn link(&self, (name, address): &(String, ConnectionAddr)) -> Option<Arc<Link>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(links.entry(name.clone()).or_insert_with(|| {
            let target = Target::Fixed(address.clone());
            Arc::new(Link::new(target, Arc::clone(&self.config), Arc::clone(&self.ears), None))
        })))
    }

    /// Who serves what; read anew if there is reason to doubt it.
    async fn map(self: &Arc<Self>) -> Result<Arc<Map>, LockError> {
        if !self.stale.load(Ordering::Acquire) {
            return Ok(self.current());
        }
        // In a task of its own: a caller whose future is not polled must not keep the gate from all others.
        let cluster = Arc::clone(self);
        tokio::spawn(async move { cluster.read_map().await }).await.unwrap_or_else(|error| {
            Err(LockError::unavailable("the map of the Redis Cluster could not be read")
                .with_source(error))
        })
    }

    fn current(&self) -> Arc<Map> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn read_map(&self) -> Result<Arc<Map>, LockError> {
        let before = self.reads.load(Ordering::Acquire);
        let _one = self.gate.lock().await;
        // Somebody else read it while this one waited.
        if self.reads.load(Ordering::Acquire) != before && !self.current().nodes.is_empty() {
            return Ok(self.current());
        }
        let mut places = self.current().nodes.clone();
        places.extend(self.seeds.iter().map(|seed| (seed.to_string(), seed.clone())));
        // Where the last map came from first, but not always the same node.
        let known = self.current().nodes.len();
        if known > 1 {
            places[..known].rotate_left(fastrand::usize(..known));
        }
        let mut last = None;
        for place in places {
            let Some(link) = self.link(&place) else { continue };
            match read(&link, &place.1).await {
                Ok(map) => {
                    let map = Arc::new(map);
                    *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&map);
                    self.links
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .retain(|name, _| map.nodes.iter().any(|(node, _)| node == name));
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

async fn read(link: &Arc<Link>, asked: &ConnectionAddr) -> Result<Map, LockError> {
    let mut nodes = redis::cmd("CLUSTER");
    nodes.arg("NODES");
    let text = match link.send(&nodes).await.map_err(Fault::explain)? {
        Value::BulkString(bytes) if bytes.len() <= NODES_BYTES => {
            String::from_utf8(bytes).unwrap_or_default()
        }
        Value::VerbatimString { text, .. } if text.len() <= NODES_BYTES => text,
        _ => String::new(),
    };
    parse(&text, asked).ok_or_else(|| {
        LockError::unavailable(
            "a node of the Redis Cluster does not know the others; is it part of one?",
        )
    })
}

/// Reads the lines of `CLUSTER NODES`; `None` if they name no primary with a slot.
fn parse(text: &str, asked: &ConnectionAddr) -> Option<Map> {
    let mut map = Map { nodes: Vec::new(), owners: vec![None; SLOTS] };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, address, flags, _, _, _, _, _, slots @ ..] = fields.as_slice() else { continue };
        let flags: Vec<&str> = flags.split(',').collect();
        if ["fail", "noaddr", "handshake"].iter().any(|bad| flags.contains(bad)) {
            continue;
        }
        let address = address.split_once('@').map_or(*address, |(address, _)| address);
        let Some((host, port)) = address.rsplit_once(':') else { continue };
        let Ok(port) = port.parse::<u16>() else { continue };
        // A node that does not know its own address yet is the one that was asked.
        let host = match (host, asked) {
            ("", ConnectionAddr::Tcp(host, _)) => host.as_str(),
            (host, _) => host,
        };
        let place = u16::try_from(map.nodes.len()).ok()?;
        map.nodes.push((format!("{host}:{port}"), ConnectionAddr::Tcp(host.to_owned(), port)));
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
        let map = parse(text, &asked()).unwrap();
        let name =
            |slot: usize| map.owners[slot].map(|place| map.nodes[usize::from(place)].0.as_str());
        assert_eq!(
            (name(0), name(5460), name(5461)),
            (Some("10.0.0.1:7001"), Some("10.0.0.1:7001"), Some("seed:7002"))
        );
        assert_eq!((name(10922), name(10923)), (Some("seed:7002"), None));
        assert_eq!(name(16383), Some("[::1]:7005"));
        assert_eq!(map.nodes.len(), 4);
        assert!(parse("", &asked()).is_none());
        assert!(
            parse("a 1.1.1.1:1@1 master - 0 0 0 connected 9-3 99999 0-99999 x-y", &asked())
                .is_none()
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_without_panic(text: String) {
            let _ = parse(&text, &asked());
        }
    }
}
