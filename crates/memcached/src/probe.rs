//! What the server as it is set up now means for locks: eviction, CAS numbers, memory, and who can
//! flush it.

use holdtight_core::{Finding, Guarantees, Level, LockError};

use crate::protocol::{Reply, Request};
use crate::store::MemcachedStore;

/// Names and values, as the server tells them.
type Statistics = Vec<(String, String)>;

impl MemcachedStore {
    pub(crate) async fn examine(&self) -> Result<Guarantees, LockError> {
        let session = self.link.session().await?;
        let (version, general, settings) = tokio::try_join!(
            session.ask(Request::Version),
            session.statistics(""),
            session.statistics("settings"),
        )?;
        let Reply::Version(version) = version else { return Err(session.refused(&version)) };
        // Shown to people, so only what a version can consist of.
        let version: String = version
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c))
            .take(32)
            .collect();
        Ok(Guarantees::new(format!("memcached {version}"), findings(&general, &settings)))
    }
}

fn findings(general: &Statistics, settings: &Statistics) -> Vec<Finding> {
    let mut found = vec![cas(settings), eviction(settings)];
    found.extend(memory(general, settings));
    found.push(
        Finding::new(
            Level::Warning,
            "persistence",
            "a restart forgets every lock; fences go on rising, so a resource that checks them stays safe",
        )
        .fix("let resources check the fence, or keep locks in PostgreSQL or etcd"),
    );
    if get(settings, "flush_enabled") != Some("no") {
        found.push(
            Finding::new(
                Level::Warning,
                "flush_all",
                "anyone who can connect can delete every lock at once",
            )
            .fix("start memcached with -F"),
        );
    }
    if get(settings, "udpport").is_some_and(|port| port != "0") {
        found.push(
            Finding::new(Level::Warning, "udp", "UDP is on, where senders can be forged")
                .fix("start memcached with -U 0"),
        );
    }
    found
}

fn cas(settings: &Statistics) -> Finding {
    match get(settings, "cas_enabled") {
        Some("no") => Finding::new(
            Level::Unsafe,
            "cas",
            "the server counts no CAS numbers (-C), so an owner cannot be checked and no fence can be made",
        )
        .fix("start memcached without -C"),
        _ => Finding::new(Level::Good, "cas", "owners are checked by secret and CAS number"),
    }
}

fn eviction(settings: &Statistics) -> Finding {
    match get(settings, "evictions") {
        Some("off") => Finding::new(
            Level::Good,
            "eviction",
            "off: a full server refuses new locks and keeps those it has",
        ),
        _ => Finding::new(
            Level::Unsafe,
            "eviction",
            "advisory: a full server throws locks away while their holders believe in them",
        )
        .fix("start memcached with -M, only for locks, or let every resource check the fence"),
    }
}

/// Only a server that does not evict can be full.
fn memory(general: &Statistics, settings: &Statistics) -> Option<Finding> {
    let number = |name| get(general, name)?.parse::<u64>().ok();
    let (used, limit) = (number("bytes")?, number("limit_maxbytes").filter(|limit| *limit > 0)?);
    let percent = used.saturating_mul(100) / limit;
    (get(settings, "evictions") == Some("off") && percent >= 70).then(|| {
        Finding::new(
            Level::Warning,
            "memory",
            format!(
                "{percent} % used: when it is full, locks are refused, and renewals may lose theirs"
            ),
        )
        .fix("raise the limit (-m), or use the server for locks only")
    })
}

fn get<'a>(statistics: &'a Statistics, name: &str) -> Option<&'a str> {
    statistics.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pairs: &[(&str, &str)]) -> Statistics {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn level(general: &[(&str, &str)], settings: &[(&str, &str)], subject: &str) -> Option<Level> {
        let found = findings(&table(general), &table(settings));
        found.iter().find(|finding| finding.subject == subject).map(|finding| finding.level)
    }

    #[test]
    fn a_server_that_says_nothing_is_not_trusted() {
        assert_eq!(level(&[], &[], "eviction"), Some(Level::Unsafe));
        assert_eq!(level(&[], &[("evictions", "on")], "eviction"), Some(Level::Unsafe));
        assert_eq!(level(&[], &[("evictions", "off")], "eviction"), Some(Level::Good));
        assert_eq!(level(&[], &[("cas_enabled", "no")], "cas"), Some(Level::Unsafe));
        assert_eq!(level(&[], &[("flush_enabled", "no")], "flush_all"), None);
        assert_eq!(level(&[], &[("udpport", "11211")], "udp"), Some(Level::Warning));
    }

    #[test]
    fn a_full_server_is_told_of_only_if_it_cannot_evict() {
        let full = [("bytes", "80"), ("limit_maxbytes", "100")];
        assert_eq!(level(&full, &[("evictions", "off")], "memory"), Some(Level::Warning));
        assert_eq!(level(&full, &[("evictions", "on")], "memory"), None);
        let empty = [("bytes", "8"), ("limit_maxbytes", "100")];
        assert_eq!(level(&empty, &[("evictions", "off")], "memory"), None);
    }
}
