//! How to reach one member: its address, TLS, and the pings that notice a dead connection.

use std::time::Duration;

use holdtight_core::LockError;
use tonic::transport::Endpoint;

use crate::config::{EtcdConfig, invalid};

/// Pings on a connection with open streams, so that a watch on a dead one ends. etcd closes
/// connections that ping more often than every 5 s, or ping while nothing is open.
const PING_EVERY: Duration = Duration::from_secs(10);

/// All members that the settings name, in their order.
pub(crate) fn endpoints(config: &EtcdConfig) -> Result<Vec<Endpoint>, LockError> {
    #[cfg(feature = "tls")]
    let security = if config.tls { Some(security(config)?) } else { None };
    let scheme = if config.tls { "https" } else { "http" };
    let endpoint = |(host, port): &(String, u16)| {
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}"))
            .map_err(|_| invalid("a host cannot be part of an address"))?
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(config.timeout);
        #[cfg(feature = "tls")]
        if let Some(security) = &security {
            return endpoint.tls_config(security.clone()).map_err(|error| {
                invalid("the TLS settings cannot be used; check tls_ca, tls_cert and tls_key")
                    .with_source(error.to_string())
            });
        }
        Ok(endpoint)
    };
    config.endpoints.iter().map(endpoint).collect()
}

/// Verified against the system's certificates, or against a file that the user names.
#[cfg(feature = "tls")]
fn security(config: &EtcdConfig) -> Result<tonic::transport::ClientTlsConfig, LockError> {
    use holdtight_kit::tls;
    use tonic::transport::{ClientTlsConfig, Identity};
    let read = |option: &str, path: &std::path::Path| {
        std::fs::read(path).map_err(|error| tls::unusable(option, &error))
    };
    let roots = tls::roots("tls_ca", config.tls_ca.as_deref())?;
    let mut security = ClientTlsConfig::new().trust_anchors(roots.roots);
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        security =
            security.identity(Identity::from_pem(read("tls_cert", cert)?, read("tls_key", key)?));
    }
    if let Some(name) = &config.tls_name {
        security = security.domain_name(name);
    }
    Ok(security)
}
