//! TLS: verified against the system's certificates, or against a file that the user names; with a
//! certificate of our own, if the server asks for one.

use std::sync::Arc;

use holdtight_core::LockError;
use holdtight_kit::tls;
use redis::{ErrorKind, RedisError};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::RedisConfig;

/// TLS over `stream`, with a server that proves to be `host`.
pub(crate) async fn over(
    stream: TcpStream,
    host: &str,
    config: &RedisConfig,
) -> Result<TlsStream<TcpStream>, RedisError> {
    let settings = settings(config).map_err(|error| {
        let what = "TLS cannot be set up";
        RedisError::from((ErrorKind::InvalidClientConfig, what, error.to_string()))
    })?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        let what = "the host of the store URL is no name for TLS";
        RedisError::from((ErrorKind::InvalidClientConfig, what, error.to_string()))
    })?;
    Ok(TlsConnector::from(Arc::new(settings)).connect(name, stream).await?)
}

/// The files are read for each connection: they may have been renewed.
fn settings(config: &RedisConfig) -> Result<rustls::ClientConfig, LockError> {
    let identity = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            Some((tls::certificates("tls_cert", cert)?, tls::private_key("tls_key", key)?))
        }
        _ => None,
    };
    tls::client_config(tls::roots("tls_ca", config.tls_ca.as_deref())?, identity)
}
