//! One connection to one server: the stream, the login, and the task that drives it.

use holdtight_core::spawn_lasting;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisError};

use crate::bounded::Bounded;
use crate::config::{Credentials, RedisConfig};

/// A connection of the library, over a stream of ours that bounds what it reads.
///
/// It lives until the second half is dropped: the library alone would keep it while answers are
/// due.
pub(crate) async fn connect(
    address: &ConnectionAddr,
    credentials: &Credentials,
    database: i64,
    config: &RedisConfig,
    settings: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Driver), RedisError> {
    let mut login = redis::RedisConnectionInfo::default()
        .set_protocol(redis::ProtocolVersion::RESP3)
        .set_db(database)
        .set_skip_set_lib_name();
    if let Some(user) = &credentials.user {
        login = login.set_username(user);
    }
    if let Some(password) = &credentials.password {
        login = login.set_password(password);
    }
    let stream = Bounded::new(crate::stream::open(address, config).await?);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&login, stream, settings).await?;
    Ok((connection, Driver(spawn_lasting(driver).abort_handle())))
}

/// The task that reads and writes; it ends with this.
pub(crate) struct Driver(tokio::task::AbortHandle);

impl Driver {
    /// Cuts the connection.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}
