//! Turns what went wrong on a connection into the kinds of the contract: not done, perhaps done, or
//! nonsense.
//!
//! Texts from the server are not repeated: it knows our secrets and might hand one back.

use std::sync::Arc;

use holdtight_core::LockError;

use crate::protocol::{Refusal, Reply};

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It never left.
    NotSent(Arc<str>),
    /// It left, and no answer came.
    Lost(Arc<str>),
    /// The answer, or one before it on the connection, was not what the protocol allows.
    Nonsense(Arc<str>),
}

impl Fault {
    /// The error of a request; `writes` says whether it may have changed something.
    pub(crate) fn explain(self, server: &str, writes: bool) -> LockError {
        match self {
            Self::NotSent(why) => LockError::unavailable(format!(
                "{server} cannot be asked: {why}; check that memcached runs there"
            )),
            Self::Lost(why) if writes => {
                LockError::ambiguous(format!("{server} was asked, but {why}"))
            }
            Self::Lost(why) => LockError::unavailable(format!(
                "{server} was asked, but {why}; nothing was changed"
            )),
            Self::Nonsense(why) => LockError::internal(format!(
                "{server} does not keep to memcached's meta protocol: {why}; check what listens there"
            )),
        }
    }
}

/// The error of a reply that is a refusal, or none that this request can have.
pub(crate) fn refused(reply: &Reply, server: &str) -> LockError {
    match reply {
        Reply::Refused(Refusal::Server, text) if text.contains("out of memory") => {
            LockError::rate_limited(format!(
                "{server} is out of memory; give it more (-m), or less to keep"
            ))
        }
        Reply::Refused(Refusal::Server, _) => {
            LockError::unavailable(format!("{server} answered SERVER_ERROR; see its log"))
        }
        Reply::Refused(_, text) if text.contains("unauthenticated") => LockError::auth_failed(
            format!("{server} wants a user and a password (-Y), which this store does not have"),
        ),
        Reply::Refused(_, text) if text.contains("Too many open connections") => {
            LockError::rate_limited(format!(
                "{server} has too many connections; raise its limit (-c)"
            ))
        }
        Reply::Refused(Refusal::Command, _) => LockError::unsupported(format!(
            "{server} does not know the meta protocol; memcached 1.6 or newer is needed"
        )),
        Reply::Refused(Refusal::Request, _) => {
            LockError::internal(format!("{server} finds fault with a request of ours"))
        }
        _ => {
            LockError::internal(format!("{server} answered what no such request is answered with"))
        }
    }
}

#[cfg(test)]
mod tests {
    use holdtight_core::ErrorKind;

    use super::*;

    #[test]
    fn a_lost_write_is_unknown_and_a_lost_question_is_not() {
        let lost = || Fault::Lost("no answer came".into());
        assert_eq!(lost().explain("m", true).kind(), ErrorKind::Ambiguous);
        assert_eq!(lost().explain("m", false).kind(), ErrorKind::Unavailable);
        assert_eq!(Fault::NotSent("x".into()).explain("m", true).kind(), ErrorKind::Unavailable);
        assert_eq!(Fault::Nonsense("x".into()).explain("m", true).kind(), ErrorKind::Internal);
    }

    #[test]
    fn refusals_get_the_kind_that_tells_what_to_do_and_repeat_nothing() {
        for (refusal, text, kind) in [
            (Refusal::Server, "out of memory storing object hunter2", ErrorKind::RateLimited),
            (Refusal::Server, "hunter2", ErrorKind::Unavailable),
            (Refusal::Command, "hunter2", ErrorKind::Unsupported),
            (Refusal::Command, "Too many open connections", ErrorKind::RateLimited),
            (Refusal::Request, "unauthenticated", ErrorKind::AuthFailed),
            (Refusal::Request, "bad data chunk hunter2", ErrorKind::Internal),
        ] {
            let error = refused(&Reply::Refused(refusal, text.to_owned()), "m");
            assert_eq!(error.kind(), kind, "{text}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }
}
