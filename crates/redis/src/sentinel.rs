//! Asks sentinels which server is the primary now, and asks that server whether it agrees.
//!
//! Called each time a connection is opened, so a failover is followed as soon as the old primary answers
//! `READONLY`, goes silent, or is gone.

use std::time::Duration;

use holdtight_core::LockError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisError};
use tokio::time::timeout;

use crate::config::RedisConfig;
use crate::connection::connect;
use crate::error::{Stage, explain};

/// The address of the primary of `service`, from the first sentinel that knows it.
pub(crate) async fn primary(
    sentinels: &[ConnectionAddr],
    service: &str,
    config: &RedisConfig,
) -> Result<ConnectionAddr, LockError> {
    // One dead sentinel must not use up the time of the others.
    let patience = (config.connect_timeout / 4).max(Duration::from_millis(50));
    let mut last = None;
    for sentinel in sentinels {
        match timeout(patience, ask(sentinel, service, config)).await {
            Ok(Ok(Some((host, port)))) => return Ok(ConnectionAddr::Tcp(host, port)),
            Ok(Ok(None)) => {
                last = Some(LockError::invalid_config(format!(
                    "the sentinels know no service {service:?}; check the end of the store URL"
                )));
            }
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = last.or(Some(LockError::unavailable("no sentinel answered in time"))),
        }
    }
    Err(last.unwrap_or_else(|| LockError::unavailable("no sentinel is known")))
}

async fn ask(
    sentinel: &ConnectionAddr,
    service: &str,
    config: &RedisConfig,
) -> Result<Option<(String, u16)>, LockError> {
    let fail = |error: RedisError| explain(&error, Stage::Connecting);
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(config.timeout));
    let (mut connection, _driver) =
        connect(sentinel, &config.sentinel_credentials, 0, config, settings).await.map_err(fail)?;
    redis::cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(service)
        .query_async(&mut connection)
        .await
        .map_err(fail)
}

/// Refuses a server that is not, or no longer, the primary.
pub(crate) async fn check_role(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let role: redis::Value = redis::cmd("ROLE").query_async(connection).await?;
    match role {
        redis::Value::Array(items)
            if items.first() == Some(&redis::Value::BulkString(b"master".to_vec())) =>
        {
            Ok(())
        }
        _ => Err(redis::make_extension_error(
            "READONLY".to_owned(),
            Some("the server that the sentinels named is not the primary".to_owned()),
        )),
    }
}
