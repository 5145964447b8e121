//! Stands for `tls` in a program that was built without: connections are plain, and settings that
//! ask for more are refused.

use holdtight_core::LockError;
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use crate::config::{PostgresConfig, TlsMode};

/// The TLS side of every connection of a store.
pub(crate) type Connect = NoTls;

/// The driver never asks for it.
pub(crate) fn driver_mode(_: TlsMode) -> SslMode {
    SslMode::Disable
}

/// Refuses what cannot be had.
pub(crate) fn connector(config: &PostgresConfig) -> Result<Connect, LockError> {
    let certificates = config.root_cert.is_some() || config.client_cert.is_some();
    match config.tls {
        TlsMode::Disable => Ok(NoTls),
        // As in a `libpq` that was built without it.
        TlsMode::Prefer if !certificates => Ok(NoTls),
        TlsMode::Prefer | TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => {
            Err(LockError::invalid_config(
                "PostgreSQL: these settings ask for TLS, which is what hosts other than this machine get unless the URL \
                 says sslmode=disable, and this program was built without it; enable the feature `tls`",
            ))
        }
    }
}

/// The complaint of the TLS library: there is none.
pub(crate) fn cause(_: &tokio_postgres::Error) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_needs_tls_is_refused_and_says_which_feature_has_it() {
        for url in [
            "postgres://db.example/d",
            "postgres://localhost/d?sslmode=require",
            "postgres://localhost/d?sslcert=/c&sslkey=/k",
            "postgres://localhost/d?sslmode=verify-ca",
            "postgres://localhost/d?sslmode=verify-full",
        ] {
            let refused = connector(&PostgresConfig::from_url(url).unwrap()).unwrap_err();
            assert_eq!(refused.kind(), holdtight_core::ErrorKind::InvalidConfig);
            assert!(refused.to_string().contains("feature `tls`"), "{url}: {refused}");
        }
        for url in ["postgres://localhost/d", "postgres://db.example/d?sslmode=prefer"] {
            assert!(connector(&PostgresConfig::from_url(url).unwrap()).is_ok(), "{url}");
        }
    }
}
