//! TLS by rustls: which certificates are trusted, and how much of them is checked.
//!
//! The modes keep the meaning they have in `libpq`, so that a URL means the same here and in
//! `psql`.

use std::error::Error as _;
use std::sync::Arc;

use holdtight_core::LockError;
use holdtight_kit::tls::{certificates, private_key, roots, unusable};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{PostgresConfig, TlsMode};

/// What the driver does with TLS at all.
pub(crate) fn driver_mode(mode: TlsMode) -> SslMode {
    match mode {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    }
}

/// The TLS side of every connection of a store.
pub(crate) type Connect = MakeRustlsConnect;

/// Makes it. Reads certificate files once.
pub(crate) fn connector(config: &PostgresConfig) -> Result<Connect, LockError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| LockError::internal("no usable TLS version").with_source(error))?;
    let builder = match config.tls {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => {
            // It is not needed, as client certificates may not be. A name that leads nowhere is a
            // mistake all the same.
            if let Some(file) = &config.root_cert {
                certificates("sslrootcert", file)?;
            }
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Lenient { trusted: None, provider }))
        }
        TlsMode::VerifyCa => {
            let trusted = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots("sslrootcert", config.root_cert.as_deref())?),
                Arc::clone(&provider),
            )
            .build()
            .map_err(|error| unusable("sslrootcert", &error))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient {
                trusted: Some(trusted),
                provider,
            }))
        }
        TlsMode::VerifyFull => {
            builder.with_root_certificates(roots("sslrootcert", config.root_cert.as_deref())?)
        }
    };
    let tls = match &config.client_cert {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(certificates("sslcert", cert)?, private_key("sslkey", key)?)
            .map_err(|error| unusable("sslcert", &error))?,
    };
    Ok(MakeRustlsConnect::new(tls))
}

/// The complaint of the TLS library, if that is what it was.
pub(crate) fn cause(error: &tokio_postgres::Error) -> Option<String> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
            return Some(tls.to_string());
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && let Some(tls) = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            return Some(tls.to_string());
        }
        cause = inner.source();
    }
    None
}

/// Checks less than everything, because the mode says so: no chain at all, or a chain for any host.
#[derive(Debug)]
struct Lenient {
    trusted: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let verdict =
            trusted.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_cannot_be_read_is_refused_in_every_mode() {
        for mode in ["disable", "prefer", "require", "verify-ca", "verify-full"] {
            for (file, named) in
                [("sslrootcert=/none", "sslrootcert"), ("sslcert=/none&sslkey=/none", "sslcert")]
            {
                let url = format!("postgres://localhost/d?sslmode={mode}&{file}");
                let error = connector(&PostgresConfig::from_url(&url).unwrap()).err();
                let text = error.unwrap_or_else(|| panic!("{url} was taken")).to_string();
                assert!(text.contains(named) || text.contains("authority"), "{url}: {text}");
            }
        }
    }
}
