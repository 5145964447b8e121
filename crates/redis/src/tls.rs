//! TLS: verified against the system's certificates, or against a file that the user names; with a certificate of our own,
//! if the server asks for one.

use std::path::Path;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
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
    let roots = roots(config.tls_ca.as_deref())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("TLS cannot be set up", &error))?
        .with_root_certificates(roots);
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => {
            let unusable = "the file of tls_key cannot be used";
            let key =
                PrivateKeyDer::from_pem_file(key).map_err(|error| refused(unusable, &error))?;
            tls.with_client_auth_cert(
                certificates(cert, "the file of tls_cert cannot be used")?,
                key,
            )
            .map_err(|error| refused("tls_cert and tls_key do not fit", &error))?
        }
        _ => tls.with_no_client_auth(),
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| refused("the host of the store URL is no name for TLS", &error))?;
    Ok(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?)
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, RedisError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let advice = "this machine trusts no certificate authority; name one with tls_ca";
            return Err((ErrorKind::InvalidClientConfig, advice).into());
        }
        return Ok(roots);
    };
    let unusable = "the file of tls_ca cannot be used";
    for certificate in certificates(file, unusable)? {
        roots.add(certificate).map_err(|error| refused(unusable, &error))?;
    }
    Ok(roots)
}

fn certificates(
    file: &Path,
    unusable: &'static str,
) -> Result<Vec<CertificateDer<'static>>, RedisError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| refused(unusable, &error))?;
    if found.is_empty() { Err(refused(unusable, &"it holds no certificate")) } else { Ok(found) }
}

fn refused(what: &'static str, error: &dyn std::fmt::Display) -> RedisError {
    (ErrorKind::InvalidClientConfig, what, error.to_string()).into()
}
