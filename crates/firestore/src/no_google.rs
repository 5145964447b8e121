//! Stands for `google` in a program that was built without TLS: there are only emulators.

use std::convert::Infallible;

use holdtight_core::LockError;
use hyper_util::client::legacy::connect::HttpConnector;

pub(crate) type Connector = HttpConnector;

/// Nobody has any.
pub(crate) type Tokens = Infallible;

#[expect(clippy::unnecessary_wraps, reason = "the same signature with TLS")]
pub(crate) fn connector(_to_emulator: bool) -> Result<Connector, LockError> {
    Ok(HttpConnector::new())
}

#[expect(clippy::unused_async, reason = "the same signature with TLS")]
pub(crate) async fn tokens(_own: Option<Tokens>) -> Result<Tokens, LockError> {
    Err(LockError::invalid_config(
        "Firestore: this program was built without TLS, and can reach emulators only; enable the feature `tls`",
    ))
}

#[expect(clippy::unused_async, reason = "the same signature with TLS")]
pub(crate) async fn bearer(tokens: &Tokens) -> Result<String, LockError> {
    match *tokens {}
}

#[cfg(test)]
mod tests {
    use crate::{FirestoreConfig, FirestoreStore};

    #[tokio::test]
    async fn firestore_itself_is_refused_and_the_feature_is_named() {
        let config = FirestoreConfig::from_url("firestore://project").unwrap();
        let refused = FirestoreStore::open(config).await.unwrap_err();
        assert_eq!(refused.kind(), holdtight_core::ErrorKind::InvalidConfig);
        assert!(refused.to_string().contains("feature `tls`"), "{refused}");
    }
}
