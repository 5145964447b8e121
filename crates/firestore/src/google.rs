//! Firestore itself: TLS by rustls, and tokens by the usual chain of Google's tools.

use std::sync::Arc;

use gcp_auth::TokenProvider;
use holdtight_core::LockError;
use holdtight_kit::tls;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;

const SCOPES: &[&str] = &["https://www.googleapis.com/auth/datastore"];

pub(crate) type Connector = HttpsConnector<HttpConnector>;

pub(crate) type Tokens = Arc<dyn TokenProvider>;

/// What opens connections: plain ones to an emulator only.
pub(crate) fn connector(to_emulator: bool) -> Result<Connector, LockError> {
    let roots = tls::roots("SSL_CERT_FILE", None)?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls::client_config(roots, None)?);
    let builder = if to_emulator { builder.https_or_http() } else { builder.https_only() };
    Ok(builder.enable_http1().enable_http2().build())
}

/// The user's own tokens, or those of the usual chain.
pub(crate) async fn tokens(own: Option<Tokens>) -> Result<Tokens, LockError> {
    match own {
        Some(tokens) => Ok(tokens),
        None => gcp_auth::provider().await.map_err(|error| {
            LockError::auth_failed(
                "no Google credentials were found; set GOOGLE_APPLICATION_CREDENTIALS, or run \
                 gcloud auth application-default login",
            )
            .with_source(error)
        }),
    }
}

/// What a request proves itself with.
pub(crate) async fn bearer(tokens: &Tokens) -> Result<String, LockError> {
    match tokens.token(SCOPES).await {
        Ok(token) => Ok(format!("Bearer {}", token.as_str())),
        Err(error) => {
            Err(LockError::auth_failed("Google gives no token for the credentials")
                .with_source(error))
        }
    }
}
