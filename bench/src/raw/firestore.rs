//! Firestore's REST interface, on an emulator: make the document if there is none, delete it if it
//! is still the one that was made.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::OWNER;
use crate::Failure;

const DOCUMENTS: &str = "projects/raw/databases/(default)/documents";

#[derive(Clone)]
pub(crate) struct Raw {
    http: Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Raw {
    pub(crate) fn new(host: &str) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { http, base: format!("http://{host}/v1/{DOCUMENTS}") }
    }

    async fn post(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        let request = hyper::Request::post(format!("{}:{method}", self.base))
            .header("content-type", "application/json")
            .header("authorization", "Bearer owner")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let answer = self.http.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("{method}: {status}").into());
        }
        Ok(serde_json::from_slice(&body)?)
    }

    pub(crate) async fn pair(self, key: String) -> Result<(), Failure> {
        let name = format!("{DOCUMENTS}/locks/{key}");
        let fields = json!({
            "secret": {"stringValue": "an owner of 22 characters"},
            "key": {"stringValue": key},
            "owner": {"stringValue": OWNER},
            "leaseMicros": {"integerValue": "30000000"},
            "renewals": {"integerValue": "0"},
            "purgeAfter": {"timestampValue": "2099-01-01T00:00:00Z"},
        });
        let update = json!({"name": name, "fields": fields});
        let write = json!({"update": update, "currentDocument": {"exists": false}});
        let made = self.post("commit", &json!({"writes": [write]})).await?;
        let version =
            made.pointer("/writeResults/0/updateTime").ok_or("a write without its time")?;
        let write = json!({"delete": name, "currentDocument": {"updateTime": version}});
        self.post("commit", &json!({"writes": [write]})).await?;
        Ok(())
    }
}
