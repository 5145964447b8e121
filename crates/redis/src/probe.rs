//! Reads from the server what decides how safe its locks are, and says what follows from it.

use std::collections::HashMap;

use holdtight_core::{Finding, Guarantees, Level, LockError, WakeUps};

use crate::config::Topology;
use crate::connection::Fault;
use crate::error::{UNKNOWN, code};
use crate::store::RedisStore;

/// The lines `name:value` of an `INFO` answer.
type Facts = HashMap<String, String>;

/// More than any server says about itself.
const INFO_BYTES: usize = 1 << 20;

impl RedisStore {
    /// All that can be found out with the rights there are.
    pub(crate) async fn examine(&self) -> Result<Guarantees, LockError> {
        let mut gathered: Vec<Finding> = Vec::new();
        let mut store = "redis".to_owned();
        let known = match &self.config.topology {
            Topology::Sentinel { sentinels, service } => {
                crate::sentinel::replicas(sentinels, service, &self.config).await
            }
            _ => None,
        };
        for server in self.fabric.primaries().await? {
            let facts = match server.send(&redis::cmd("INFO")).await {
                Ok(value) => read(&value)?,
                Err(Fault::Sent(error)) if matches!(code(&error), Some("NOPERM" | UNKNOWN)) => {
                    let unknown = Finding::new(
                        Level::Warning,
                        "rights",
                        "this user may not run INFO, so eviction, persistence and role are unknown",
                    )
                    .fix("add +info to the user's ACL");
                    gathered = vec![unknown];
                    break;
                }
                Err(fault) => return Err(fault.explain()),
            };
            store = product(&facts);
            let here = [
                version(&facts),
                role(&facts),
                eviction(&facts),
                persistence(&facts, self.config.wait_aof),
                failover(&facts, self.config.wait_replicas, known),
            ];
            // Of several servers the worst decides, subject by subject.
            for finding in here {
                match gathered.iter_mut().find(|known| known.subject == finding.subject) {
                    Some(known) if known.level < finding.level => *known = finding,
                    Some(_) => {}
                    None => gathered.push(finding),
                }
            }
        }
        gathered.push(self.wake_finding());
        Ok(Guarantees::new(store, gathered))
    }

    fn wake_finding(&self) -> Finding {
        match (self.wake_up_kind(), self.config.pubsub) {
            (WakeUps::None, true) => Finding::new(
                Level::Warning,
                "wake-ups",
                "this user may not subscribe; waiters ask again by their timers",
            )
            .fix("add +subscribe and the channels of the prefix to the user's ACL"),
            (WakeUps::None, false) => {
                Finding::new(Level::Good, "wake-ups", "off; waiters ask again by their timers")
            }
            _ => Finding::new(Level::Good, "wake-ups", "a release wakes the first waiter"),
        }
    }
}

fn read(value: &redis::Value) -> Result<Facts, LockError> {
    let text = match value {
        redis::Value::BulkString(bytes) if bytes.len() <= INFO_BYTES => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        redis::Value::VerbatimString { text, .. } if text.len() <= INFO_BYTES => text.clone(),
        _ => return Err(LockError::internal("the server's answer to INFO is not a text")),
    };
    let facts = text.lines().filter_map(|line| line.split_once(':'));
    Ok(facts.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

fn fact<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.get(name).map_or("", String::as_str)
}

fn number(facts: &Facts, name: &str) -> u64 {
    fact(facts, name).parse().unwrap_or(0)
}

fn product(facts: &Facts) -> String {
    match fact(facts, "valkey_version") {
        "" => format!("redis {}", fact(facts, "redis_version")),
        valkey => format!("valkey {valkey}"),
    }
}

/// The first two numbers of the Redis version; Valkey tells one of the Redis that it is like.
fn release(facts: &Facts) -> (u32, u32) {
    let mut parts = fact(facts, "redis_version").split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn version(facts: &Facts) -> Finding {
    if release(facts) < (6, 2) {
        Finding::new(
            Level::Unsafe,
            "version",
            format!("{} is too old: the scripts need commands of Redis 6.2", product(facts)),
        )
        .fix("use Redis 6.2 or newer, or Valkey")
    } else {
        Finding::new(Level::Good, "version", product(facts))
    }
}

fn role(facts: &Facts) -> Finding {
    match fact(facts, "role") {
        "slave" | "replica" => {
            Finding::new(Level::Unsafe, "role", "this server is a replica and takes no locks")
                .fix("name the primary, or use redis+sentinel://")
        }
        _ => Finding::new(Level::Good, "role", "primary"),
    }
}

fn eviction(facts: &Facts) -> Finding {
    let policy = fact(facts, "maxmemory_policy");
    if number(facts, "maxmemory") == 0 || policy == "noeviction" {
        Finding::new(Level::Good, "eviction", "locks are never thrown away for memory")
    } else {
        Finding::new(
            Level::Unsafe,
            "eviction",
            format!("maxmemory-policy is {policy}: when memory runs short the server throws held locks away"),
        )
        .fix("set maxmemory-policy noeviction, or accept it with the option eviction=allow")
    }
}

fn persistence(facts: &Facts, wait_aof: bool) -> Finding {
    let appends = fact(facts, "aof_enabled") == "1";
    if wait_aof && (release(facts) < (7, 2) || !appends) {
        let lacks = if appends { "Redis 7.2 or newer" } else { "an append-only file" };
        return Finding::new(
            Level::Unsafe,
            "persistence",
            format!("wait_aof is set, but {} lacks what it needs: {lacks}", product(facts)),
        )
        .fix("use Redis 7.2 or newer, or Valkey, with appendonly yes; or leave wait_aof out");
    }
    if wait_aof {
        let found = "every grant is in the append-only file on disk before it counts";
        return Finding::new(Level::Good, "persistence", found);
    }
    if appends {
        Finding::new(
            Level::Good,
            "persistence",
            "append-only file; with appendfsync everysec a crash of the machine may forget the last second",
        )
    } else {
        Finding::new(
            Level::Warning,
            "persistence",
            "no append-only file: a restart forgets held locks, so two holders may meet; fences still increase",
        )
        .fix("set appendonly yes (and appendfsync always for no loss at all), or check fences at the resource")
    }
}

/// What a failover may forget; `known` is how many replicas the sentinels know, if there are
/// sentinels.
fn failover(facts: &Facts, wait_replicas: u32, known: Option<u64>) -> Finding {
    let replicas = number(facts, "connected_slaves");
    let away = known.unwrap_or(0).saturating_sub(replicas);
    let wait = u64::from(wait_replicas);
    if wait > replicas {
        Finding::new(
            Level::Unsafe,
            "failover",
            format!("wait_replicas is {wait}, but only {replicas} replicas are connected: nothing can be granted"),
        )
        .fix("connect more replicas or lower wait_replicas")
    } else if away > 0 {
        Finding::new(
            Level::Warning,
            "failover",
            format!(
                "the sentinels know {} replicas, but only {replicas} are connected: if one that is away becomes the \
                 primary, it has forgotten held locks; fences still increase",
                replicas + away
            ),
        )
        .fix("bring it back; or, if it is gone for good, let the sentinels forget it with SENTINEL RESET")
    } else if replicas == 0 {
        Finding::new(Level::Good, "failover", "no replicas, so no failover")
    } else if wait == replicas {
        let found = match known {
            Some(_) => "every grant is on every replica before it counts",
            None => {
                "every grant is on every replica that is connected before it counts; do not promote one that was away"
            }
        };
        Finding::new(Level::Good, "failover", found)
    } else {
        Finding::new(
            Level::Warning,
            "failover",
            format!("{replicas} replicas, grants wait for {wait}: a failover may forget held locks; fences still increase"),
        )
        .fix(format!("set wait_replicas={replicas}, or check fences at the resource"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(lines: &str) -> Facts {
        read(&redis::Value::BulkString(lines.into())).unwrap()
    }

    #[test]
    fn eviction_matters_only_with_a_memory_limit() {
        let level = |lines| eviction(&facts(lines)).level;
        assert_eq!(level("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), Level::Good);
        assert_eq!(level("maxmemory:100\r\nmaxmemory_policy:noeviction\r\n"), Level::Good);
        assert_eq!(level("maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n"), Level::Unsafe);
        assert_eq!(level("maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n"), Level::Unsafe);
    }

    #[test]
    fn old_servers_and_replicas_are_refused() {
        assert_eq!(version(&facts("redis_version:6.0.16\n")).level, Level::Unsafe);
        assert_eq!(version(&facts("redis_version:6.2.0\n")).level, Level::Good);
        assert_eq!(
            version(&facts("redis_version:7.2.4\nvalkey_version:9.1.0\n")).found,
            "valkey 9.1.0"
        );
        assert_eq!(role(&facts("role:slave\n")).level, Level::Unsafe);
        assert_eq!(role(&facts("role:master\n")).level, Level::Good);
    }

    #[test]
    fn waiting_for_a_disk_needs_one_and_a_server_that_can() {
        let level = |lines: &str, wait| persistence(&facts(lines), wait).level;
        let (old, new) = ("redis_version:7.0.15\n", "redis_version:7.2.4\nvalkey_version:9.1.0\n");
        assert_eq!((level(new, true), level(new, false)), (Level::Unsafe, Level::Warning));
        let with = |version: &str| format!("{version}aof_enabled:1\n");
        assert_eq!(
            (level(&with(old), true), level(&with(old), false)),
            (Level::Unsafe, Level::Good)
        );
        assert_eq!(level(&with(new), true), Level::Good);
        assert!(persistence(&facts(&with(old)), true).found.contains("7.2"));
    }

    #[test]
    fn what_failover_may_forget_is_said() {
        let two = facts("connected_slaves:2\n");
        let level = |wait| failover(&two, wait, None).level;
        assert_eq!((level(0), level(1), level(2)), (Level::Warning, Level::Warning, Level::Good));
        assert_eq!(level(3), Level::Unsafe);
        assert_eq!(failover(&facts("connected_slaves:0\n"), 0, None).level, Level::Good);
        // Of sentinels.
        assert_eq!(failover(&two, 2, Some(2)).level, Level::Good);
        assert_eq!(failover(&two, 2, Some(3)).level, Level::Warning);
        assert_eq!(failover(&facts("connected_slaves:0\n"), 0, Some(1)).level, Level::Warning);
        assert!(read(&redis::Value::Okay).is_err());
    }
}
