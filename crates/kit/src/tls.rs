//! Trust roots and certificates for TLS: from PEM files, or the system's.
//!
//! For rustls, which all stores use. What a server must prove with them is up to the store.

use std::fmt::Display;
use std::path::Path;

use holdtight_core::LockError;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The authorities in the PEM file `file`, or those that this system trusts.
///
/// `option` is the option that names the file; stores call it `tls_ca`.
///
/// ```no_run
/// # fn main() -> Result<(), holdtight_core::LockError> {
/// use holdtight_kit::{tls, url::Options};
/// let mut options = Options::parse("MyStore", "tls_ca=/etc/ssl/my-ca.pem")?;
/// let roots = tls::roots("tls_ca", options.path("tls_ca")?.as_deref())?;
/// let config = tls::client_config(roots, None)?;
/// # let _ = config;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option, if the file
/// cannot be used or there is no authority to trust.
pub fn roots(option: &str, file: Option<&Path>) -> Result<RootCertStore, LockError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(LockError::invalid_config(format!(
                "this system trusts no certificate authority; name one with {option}"
            )));
        }
        return Ok(roots);
    };
    for certificate in certificates(option, file)? {
        roots.add(certificate).map_err(|error| unusable(option, &error))?;
    }
    Ok(roots)
}

/// The certificates in a PEM file, of which there must be one at least.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option.
pub fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, LockError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(option, &"it holds no certificate")),
        Err(error) => Err(unusable(option, &error)),
    }
}

/// The first private key in a PEM file.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig), naming the option.
pub fn private_key(option: &str, file: &Path) -> Result<PrivateKeyDer<'static>, LockError> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| unusable(option, &error))
}

/// Settings for a client that verifies its server against `roots`, and shows the certificates of
/// `identity` with their key if the server asks for one.
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) if certificates and key do not
/// match.
pub fn client_config(
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, LockError> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| LockError::internal("no usable TLS version").with_source(error))?
        .with_root_certificates(roots);
    match identity {
        None => Ok(config.with_no_client_auth()),
        Some((certificates, key)) => {
            config.with_client_auth_cert(certificates, key).map_err(|error| {
                LockError::invalid_config("the certificate for TLS and its key do not match")
                    .with_source(error)
            })
        }
    }
}

/// The error for a file that cannot be used.
pub fn unusable(option: &str, error: &dyn Display) -> LockError {
    LockError::invalid_config(format!("the file of the option {option} cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_by_its_option() {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        for file in [here, Path::new("/nowhere")] {
            for error in [
                roots("tls_ca", Some(file)).unwrap_err(),
                certificates("tls_ca", file).unwrap_err(),
                private_key("tls_ca", file).unwrap_err(),
            ] {
                assert_eq!(error.kind(), holdtight_core::ErrorKind::InvalidConfig);
                assert!(error.to_string().contains("tls_ca"), "{error}");
            }
        }
    }
}
