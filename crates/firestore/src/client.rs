//! Requests to Firestore's REST interface: credentials, one bounded answer each, and what went
//! wrong.
//!
//! Only `POST` with names in the body, so that no id is ever part of a path.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{LockError, spawn_lasting};
use holdtight_kit::Attempts;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::config::FirestoreConfig;
use crate::error::{Fault, nonsense, refused};
use crate::google::{self, Connector, Tokens};

/// The longest answer: a page of a list, with room.
const ANSWER_BYTES: usize = 4 << 20;

/// Who we are to the server.
enum Credentials {
    /// Emulators take anybody for the owner.
    Emulator,
    Google(Tokens),
}

/// The way to the server.
pub(crate) struct Client {
    http: HttpClient<Connector, Full<Bytes>>,
    credentials: Credentials,
    /// `https://…/v1/projects/…/documents`.
    base: String,
    timeout: Duration,
    attempts: Arc<Attempts>,
}

impl Client {
    /// With the user's own tokens, or those of the usual chain of Google's tools.
    pub(crate) async fn new(
        config: &FirestoreConfig,
        tokens: Option<Tokens>,
    ) -> Result<Self, LockError> {
        let connector = google::connector(config.emulator.is_some())?;
        let (root, credentials) = if let Some(address) = &config.emulator {
            (format!("http://{address}"), Credentials::Emulator)
        } else {
            let root = "https://firestore.googleapis.com".to_owned();
            (root, Credentials::Google(google::tokens(tokens).await?))
        };
        let mut http = HttpClient::builder(TokioExecutor::new());
        // A request that failed is settled by whoever sent it, and never sent again behind our
        // back.
        http.retry_canceled_requests(false).pool_idle_timeout(Duration::from_secs(30));
        Ok(Self {
            http: http.build(connector),
            credentials,
            base: format!("{root}/v1/{}", config.documents()),
            timeout: config.timeout,
            attempts: Arc::default(),
        })
    }

    /// Asks something that changes nothing.
    pub(crate) async fn read(&self, method: &str, body: &Value) -> Result<Value, Fault> {
        self.post(method, body, false).await
    }

    /// Asks for a change.
    pub(crate) async fn write(&self, method: &str, body: &Value) -> Result<Value, Fault> {
        self.post(method, body, true).await
    }

    async fn post(&self, method: &str, body: &Value, writes: bool) -> Result<Value, Fault> {
        let limit = tokio::time::Instant::now() + self.timeout;
        let bearer = match tokio::time::timeout_at(limit, self.bearer()).await {
            Ok(bearer) => bearer?,
            Err(_) => {
                return Err(LockError::unavailable("no token came from Google in time").into());
            }
        };
        let request = hyper::Request::post(format!("{}:{method}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, bearer)
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| {
                LockError::internal("a request could not be made").with_source(error)
            })?;
        let lost = move |why: String| {
            Fault::Failed(if writes {
                LockError::ambiguous(format!("Firestore was asked to write, but {why}"))
            } else {
                LockError::unavailable(format!(
                    "Firestore was asked, but {why}; nothing was changed"
                ))
            })
        };
        let (http, timeout) = (self.http.clone(), self.timeout);
        let attempts = Arc::clone(&self.attempts);
        let exchange = async move {
            // Every request that finds no open connection opens one: in an outage that would be one
            // for each retry of each caller.
            let unsent = || {
                LockError::unavailable(
                    "Firestore does not answer, as another request has just found; check the network",
                )
            };
            let Ok(admission) = tokio::time::timeout_at(limit, attempts.admit()).await else {
                return Err(attempts.last_error().unwrap_or_else(unsent).into());
            };
            let admission = admission?;
            let asking = async {
                let answer = http.request(request).await.map_err(|error| {
                    if error.is_connect() {
                        let unreached = LockError::unavailable(
                            "Firestore cannot be reached; check the network",
                        );
                        return Fault::Failed(unreached.with_source(error));
                    }
                    lost(format!("the connection broke ({error})"))
                })?;
                let status = answer.status().as_u16();
                let bytes = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
                let broke_off = |error| lost(format!("the answer broke off ({error})"));
                Ok((status, bytes.map_err(broke_off)?.to_bytes()))
            };
            let answer = tokio::time::timeout_at(limit, asking)
                .await
                .unwrap_or_else(|_| Err(lost(format!("no answer came in {timeout:?}"))));
            match &answer {
                Ok(_) => admission.succeeded(),
                Err(Fault::Failed(cause)) => {
                    admission.failed(&unsent().with_source(cause.clone()));
                }
                Err(_) => admission.failed(&unsent()),
            }
            let (status, bytes) = answer?;
            match (status, serde_json::from_slice::<Value>(&bytes)) {
                (200, Ok(answer)) => Ok(answer),
                (200, Err(_)) => Err(nonsense("it is no JSON").into()),
                (status, body) => Err(refused(status, &body.unwrap_or_default(), writes)),
            }
        };
        // In a task of its own: the connections that it opens, or waits for, are everybody's.
        spawn_lasting(exchange)
            .await
            .unwrap_or_else(|error| Err(lost(format!("the request was cut off ({error})"))))
    }

    async fn bearer(&self) -> Result<String, LockError> {
        match &self.credentials {
            Credentials::Emulator => Ok("Bearer owner".to_owned()),
            Credentials::Google(tokens) => google::bearer(tokens).await,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}
