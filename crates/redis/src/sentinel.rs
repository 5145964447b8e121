//! Asks sentinels which server is the primary now, and asks that server whether it agrees.
//!
//! Called each time a connection is opened, and when an answer is late, so a failover is followed
//! as soon as the old primary answers `READONLY`, is silent once, or is gone.

use std::cmp::Reverse;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use holdtight_core::LockError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, FromRedisValue, RedisError, Value};
use tokio::time::timeout;

use crate::config::RedisConfig;
use crate::dial::connect;
use crate::error::{Stage, UNKNOWN, code, explain};

/// What the sentinels call the primary of `service`, the most likely first. Never empty.
///
/// What more than half of them say is believed, and nothing else: the others are behind. If there
/// is no such majority each of their answers is worth a try.
pub(crate) async fn named(
    sentinels: &[ConnectionAddr],
    service: &str,
    config: &RedisConfig,
) -> Result<Vec<ConnectionAddr>, LockError> {
    // One dead sentinel must not use up the time of the others.
    let patience = (config.connect_timeout / 4).max(Duration::from_millis(50));
    let mut answers: FuturesUnordered<_> = sentinels
        .iter()
        .enumerate()
        .map(|(place, sentinel)| async move {
            (place, timeout(patience, ask(sentinel, service, config)).await)
        })
        .collect();
    let mut votes: Vec<Vote> = Vec::new();
    let (mut last, mut silent) = (None, None);
    while let Some((place, answer)) = answers.next().await {
        match answer {
            Ok(Ok(Some((host, port)))) => {
                let address = ConnectionAddr::Tcp(host, port);
                let known = votes.iter().position(|vote| vote.address == address);
                let known = known.unwrap_or_else(|| {
                    votes.push(Vote { address, count: 0, first: place });
                    votes.len() - 1
                });
                let vote = &mut votes[known];
                (vote.count, vote.first) = (vote.count + 1, vote.first.min(place));
                if 2 * vote.count > sentinels.len() {
                    return Ok(vec![votes.swap_remove(known).address]);
                }
            }
            Ok(Ok(None)) => {
                last = Some(LockError::invalid_config(format!(
                    "the sentinels know no service {service:?}; check the end of the store URL"
                )));
            }
            Ok(Err(error)) => last = Some(error),
            Err(_) => silent = Some(LockError::unavailable("no sentinel answered in time")),
        }
    }
    if votes.is_empty() {
        let unknown = || LockError::unavailable("no sentinel is known");
        return Err(last.or(silent).unwrap_or_else(unknown));
    }
    votes.sort_by_key(|vote| (Reverse(vote.count), vote.first));
    Ok(votes.into_iter().map(|vote| vote.address).collect())
}

/// How many sentinels name an address, and the place of the first of them in the store URL.
struct Vote {
    address: ConnectionAddr,
    count: usize,
    first: usize,
}

async fn ask(
    sentinel: &ConnectionAddr,
    service: &str,
    config: &RedisConfig,
) -> Result<Option<(String, u16)>, LockError> {
    let asked = query(sentinel, "get-master-addr-by-name", service, config).await;
    asked.map_err(|error| match code(&error) {
        Some(UNKNOWN) => LockError::invalid_config(
            "a server named as a sentinel is none; write redis:// for a plain server",
        ),
        _ => explain(&error, Stage::Connecting),
    })
}

/// How many replicas the sentinels know, connected or not; `None` if none of them says so.
pub(crate) async fn replicas(
    sentinels: &[ConnectionAddr],
    service: &str,
    config: &RedisConfig,
) -> Option<u64> {
    let asked = sentinels.iter().map(|sentinel| {
        timeout(config.connect_timeout, query::<Value>(sentinel, "replicas", service, config))
    });
    let counts = futures_util::future::join_all(asked).await.into_iter().filter_map(|answer| {
        match answer.ok()?.ok()? {
            Value::Array(replicas) => u64::try_from(replicas.len()).ok(),
            _ => None,
        }
    });
    counts.max()
}

async fn query<T: FromRedisValue>(
    sentinel: &ConnectionAddr,
    question: &str,
    service: &str,
    config: &RedisConfig,
) -> Result<T, RedisError> {
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(config.timeout));
    let (mut connection, _driver) =
        connect(sentinel, &config.sentinel_credentials, 0, config, settings).await?;
    redis::cmd("SENTINEL").arg(question).arg(service).query_async(&mut connection).await
}

/// Refuses a server that is not, or no longer, the primary.
pub(crate) async fn check_role(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let role: Value = redis::cmd("ROLE").query_async(connection).await?;
    match role {
        Value::Array(items) if items.first() == Some(&Value::BulkString(b"master".to_vec())) => {
            Ok(())
        }
        _ => Err(redis::make_extension_error(
            "READONLY".to_owned(),
            Some("the server that the sentinels named is not the primary".to_owned()),
        )),
    }
}
