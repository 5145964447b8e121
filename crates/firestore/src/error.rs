//! Turns what Firestore and the network say into the kinds of the contract: not done, perhaps done,
//! or nonsense.
//!
//! Messages of the server are not repeated: they may name documents, and are no part of any
//! promise.

use holdtight_core::LockError;
use serde_json::Value;

/// Why a request did not do what it should.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The precondition did not hold: somebody else was first.
    Overtaken,
    /// Others write to the same document at this moment; nothing was done, and asking again may
    /// work.
    Aborted,
    /// All else.
    Failed(LockError),
}

impl From<LockError> for Fault {
    fn from(error: LockError) -> Self {
        Self::Failed(error)
    }
}

/// What an answer that is not 200 means; `writes` says whether the request may have changed
/// something.
pub(crate) fn refused(http: u16, body: &Value, writes: bool) -> Fault {
    // Streams answer with a list, whose first entry is the error.
    let error = body.get(0).unwrap_or(body).get("error");
    let status = error.and_then(|error| error.get("status")?.as_str()).unwrap_or_default();
    Fault::Failed(match (status, http) {
        ("ALREADY_EXISTS" | "FAILED_PRECONDITION", _) if writes => return Fault::Overtaken,
        ("NOT_FOUND", _) if writes && !is_about_the_database(error) => return Fault::Overtaken,
        ("ABORTED", _) => return Fault::Aborted,
        ("UNAUTHENTICATED", _) | ("", 401) => LockError::auth_failed(
            "Firestore does not accept the credentials; check GOOGLE_APPLICATION_CREDENTIALS or the service account",
        ),
        ("PERMISSION_DENIED", _) | ("", 403) => LockError::auth_failed(
            "the credentials may not use this database; grant the role roles/datastore.user",
        ),
        ("RESOURCE_EXHAUSTED", _) | ("", 429) => {
            LockError::rate_limited("Firestore refuses more requests: a quota is used up")
        }
        ("NOT_FOUND", _) | ("", 404) => LockError::invalid_config(
            "there is no such project or database; check the URL, firestore://PROJECT/DATABASE",
        ),
        ("INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "OUT_OF_RANGE" | "UNIMPLEMENTED", _)
        | ("", 400) => LockError::internal(
            "Firestore finds fault with a request of ours; is the database in native mode?",
        ),
        _ if writes => {
            LockError::ambiguous(format!("Firestore failed while writing (HTTP {http})"))
        }
        _ => LockError::unavailable(format!("Firestore failed (HTTP {http}); nothing was changed")),
    })
}

/// A document that is not there and a database that is not there have the same status.
fn is_about_the_database(error: Option<&Value>) -> bool {
    let message = error.and_then(|error| error.get("message")?.as_str()).unwrap_or_default();
    message.contains("database") && !message.contains("document")
}

/// The error for an answer that no such request has.
pub(crate) fn nonsense(what: &str) -> LockError {
    LockError::internal(format!("Firestore's answer makes no sense: {what}"))
}

#[cfg(test)]
mod tests {
    use holdtight_core::ErrorKind;
    use serde_json::json;

    use super::*;

    fn kind(http: u16, status: &str, writes: bool) -> Option<ErrorKind> {
        let body = json!({ "error": { "code": http, "message": "No document hunter2", "status": status } });
        for body in [body.clone(), json!([body])] {
            match refused(http, &body, writes) {
                Fault::Failed(error) => {
                    assert!(!error.to_string().contains("hunter2"));
                    return Some(error.kind());
                }
                Fault::Overtaken | Fault::Aborted => {}
            }
        }
        None
    }

    #[test]
    fn each_status_gets_the_kind_that_tells_what_is_known() {
        for (http, status, read, write) in [
            (401, "UNAUTHENTICATED", Some(ErrorKind::AuthFailed), Some(ErrorKind::AuthFailed)),
            (403, "PERMISSION_DENIED", Some(ErrorKind::AuthFailed), Some(ErrorKind::AuthFailed)),
            (429, "RESOURCE_EXHAUSTED", Some(ErrorKind::RateLimited), Some(ErrorKind::RateLimited)),
            (503, "UNAVAILABLE", Some(ErrorKind::Unavailable), Some(ErrorKind::Ambiguous)),
            (504, "DEADLINE_EXCEEDED", Some(ErrorKind::Unavailable), Some(ErrorKind::Ambiguous)),
            (500, "INTERNAL", Some(ErrorKind::Unavailable), Some(ErrorKind::Ambiguous)),
            (502, "", Some(ErrorKind::Unavailable), Some(ErrorKind::Ambiguous)),
            (400, "INVALID_ARGUMENT", Some(ErrorKind::Internal), Some(ErrorKind::Internal)),
            (404, "NOT_FOUND", Some(ErrorKind::InvalidConfig), None),
            (409, "ABORTED", None, None),
            (409, "ALREADY_EXISTS", Some(ErrorKind::Unavailable), None),
            (400, "FAILED_PRECONDITION", Some(ErrorKind::Internal), None),
        ] {
            assert_eq!(kind(http, status, false), read, "{status}, reading");
            assert_eq!(kind(http, status, true), write, "{status}, writing");
        }
    }
}
