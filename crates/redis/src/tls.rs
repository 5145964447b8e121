//! TLS: verified against the system's certificates, or against a file that the user names.

use holdtight_core::LockError;
use redis::{ConnectionInfo, TlsCertificates};

use crate::config::RedisConfig;
use crate::error::{Stage, explain};

/// A client that speaks TLS and checks the server's certificate and name.
pub(crate) fn client(
    info: ConnectionInfo,
    config: &RedisConfig,
) -> Result<redis::Client, LockError> {
    // The program may have chosen a provider already; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root_cert = match &config.tls_ca {
        None => None,
        Some(path) => Some(std::fs::read(path).map_err(|error| {
            LockError::invalid_config(format!("cannot read the file of tls_ca, {}", path.display()))
                .with_source(error)
        })?),
    };
    let certificates = TlsCertificates { client_tls: None, root_cert };
    redis::Client::build_with_tls(info, certificates)
        .map_err(|error| explain(&error, Stage::Connecting))
}
