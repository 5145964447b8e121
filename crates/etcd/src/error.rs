//! From gRPC's errors to ours, in one place: what is definite, what is unknown, and what to do
//! about it.
//!
//! A code alone does not tell whether a step was done: `Unavailable` is said by a member that
//! refused to begin, by one that gave up in the middle, and by our own client when a connection
//! breaks. The text tells.

use std::error::Error as _;

use holdtight_core::{ErrorKind, LockError};
use tonic::{Code, ConnectError, Status};

/// What a request does, and so what a lost answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It only reads: whatever happened, nothing was done, and it may be asked again.
    Reads,
    /// It makes or ends a lease that no lock hangs on: whatever happened, no lock was touched.
    Harmless,
    /// It changes a lock: a lost answer means that nobody knows.
    Writes,
}

/// What a failed request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection: the request never left.
    Unconnected,
    /// The member refused before it did anything, and another one may do it.
    Refused,
    /// The token of this connection is not valid (any more): nothing was done.
    StaleToken,
    /// The answer is lost, or the member gave up on the way.
    Lost,
    /// No answer in time.
    Silent,
    /// The server's last word about this request; nothing was done.
    Final(ErrorKind, &'static str),
}

impl Fault {
    pub(crate) fn read(status: &Status) -> Self {
        let mut source = status.source();
        while let Some(error) = source {
            if error.is::<ConnectError>() {
                return Self::Unconnected;
            }
            source = error.source();
        }
        let text = status.message();
        // Only a server's own words are definite: our side makes statuses too, when it cannot read
        // an answer.
        let said = text.starts_with("etcdserver:")
            || text.starts_with("mvcc:")
            || text.starts_with("auth:");
        match status.code() {
            Code::Unavailable
                if text == "etcdserver: no leader" || text == "etcdserver: not capable" =>
            {
                Self::Refused
            }
            Code::Unauthenticated => Self::StaleToken,
            Code::InvalidArgument if text.contains("revision of auth store is old") => {
                Self::StaleToken
            }
            Code::InvalidArgument if text.contains("authentication failed") => Self::Final(
                ErrorKind::AuthFailed,
                "etcd refused the user or the password; check both in the store URL",
            ),
            // What a member says to a request without a token while authentication is on.
            Code::InvalidArgument if text.contains("user name is empty") => Self::Final(
                ErrorKind::AuthFailed,
                "etcd asks for a user and a password; put both into the store URL",
            ),
            Code::PermissionDenied => Self::Final(
                ErrorKind::AuthFailed,
                "this user lacks the right; grant its role readwrite on the prefix of the store",
            ),
            Code::ResourceExhausted if said && text.contains("space") => Self::Final(
                ErrorKind::RateLimited,
                "etcd's database is full; compact and defragment it, then disarm the alarm",
            ),
            Code::ResourceExhausted if said => {
                Self::Final(ErrorKind::RateLimited, "etcd has too many requests; try again later")
            }
            Code::Unimplemented => Self::Final(
                ErrorKind::Unsupported,
                "this server does not speak etcd's version 3 interface; etcd 3.4 or newer is needed",
            ),
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::NotFound
                if said =>
            {
                Self::Final(ErrorKind::Internal, "etcd refused the request")
            }
            Code::DeadlineExceeded => Self::Silent,
            _ => Self::Lost,
        }
    }

    /// Whether the connection, or the member behind it, should not be asked next.
    pub(crate) fn is_the_members(self) -> bool {
        !matches!(self, Self::Final(..))
    }

    /// Whether the same request may be sent once more: it is known not to have been done, or does
    /// nothing.
    pub(crate) fn may_be_repeated(self, effect: Effect) -> bool {
        match self {
            Self::Unconnected | Self::Refused | Self::StaleToken => true,
            // Waiting for a timeout again and again would take too long.
            Self::Lost => effect == Effect::Reads,
            Self::Silent | Self::Final(..) => false,
        }
    }

    /// As an error of ours.
    pub(crate) fn explain(self, effect: Effect, status: &Status) -> LockError {
        let error = match self {
            Self::Unconnected => LockError::unavailable(
                "cannot connect to etcd; check that it runs and that the store URL names its members",
            ),
            Self::Refused => LockError::unavailable(
                "the members of etcd that were asked have no leader; see whether a majority runs",
            ),
            Self::StaleToken => LockError::auth_failed(
                "etcd did not accept the token that it had just given; check its authentication settings",
            ),
            Self::Final(kind, advice) => LockError::new(kind, advice),
            Self::Lost | Self::Silent if effect == Effect::Writes => {
                LockError::ambiguous("the answer of etcd did not come; the step may have been done")
            }
            Self::Lost | Self::Silent => LockError::unavailable(
                "etcd did not answer; see whether a majority of its members runs",
            ),
        };
        let text: String = status.message().chars().take(200).collect();
        if text.is_empty() { error } else { error.with_source(text) }
    }
}

/// An error after something had already been done: whatever it says, the outcome is unknown.
pub(crate) fn doubtful(error: LockError) -> LockError {
    if !error.kind().is_definite() {
        return error;
    }
    LockError::ambiguous("the step was begun, but etcd could not be asked how it ended")
        .with_source(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_read_as_it_is_meant() {
        let kind = |code, text: &str, effect| {
            let status = Status::new(code, text);
            Fault::read(&status).explain(effect, &status).kind()
        };
        for (code, text, write, read) in [
            (
                Code::Unavailable,
                "etcdserver: no leader",
                ErrorKind::Unavailable,
                ErrorKind::Unavailable,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out",
                ErrorKind::Ambiguous,
                ErrorKind::Unavailable,
            ),
            (
                Code::Unavailable,
                "etcdserver: leader changed",
                ErrorKind::Ambiguous,
                ErrorKind::Unavailable,
            ),
            (
                Code::Unavailable,
                "etcdserver: server stopped",
                ErrorKind::Ambiguous,
                ErrorKind::Unavailable,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                ErrorKind::Ambiguous,
                ErrorKind::Unavailable,
            ),
            (Code::Unknown, "transport error", ErrorKind::Ambiguous, ErrorKind::Unavailable),
            (Code::Cancelled, "", ErrorKind::Ambiguous, ErrorKind::Unavailable),
            (Code::DeadlineExceeded, "", ErrorKind::Ambiguous, ErrorKind::Unavailable),
            // Our own side could not read the answer: the step may have been done.
            (
                Code::OutOfRange,
                "decoded message length too large",
                ErrorKind::Ambiguous,
                ErrorKind::Unavailable,
            ),
            (
                Code::ResourceExhausted,
                "mvcc: database space exceeded",
                ErrorKind::RateLimited,
                ErrorKind::RateLimited,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                ErrorKind::RateLimited,
                ErrorKind::RateLimited,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::AuthFailed,
                ErrorKind::AuthFailed,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                ErrorKind::AuthFailed,
                ErrorKind::AuthFailed,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::AuthFailed,
                ErrorKind::AuthFailed,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                ErrorKind::Internal,
                ErrorKind::Internal,
            ),
            (
                Code::Unimplemented,
                "unknown service",
                ErrorKind::Unsupported,
                ErrorKind::Unsupported,
            ),
        ] {
            assert_eq!(kind(code, text, Effect::Writes), write, "{text}");
            assert_eq!(kind(code, text, Effect::Reads), read, "{text}");
        }
    }

    #[test]
    fn only_what_was_surely_not_done_is_repeated() {
        let read = |code, text: &str| Fault::read(&Status::new(code, text));
        assert!(read(Code::Unavailable, "etcdserver: no leader").may_be_repeated(Effect::Writes));
        assert!(
            read(Code::Unauthenticated, "etcdserver: invalid auth token")
                .may_be_repeated(Effect::Writes)
        );
        for text in
            ["etcdserver: request timed out", "etcdserver: leader changed", "tcp connect error"]
        {
            let fault = read(Code::Unavailable, text);
            assert!(!fault.may_be_repeated(Effect::Writes), "{text}");
            assert!(!fault.may_be_repeated(Effect::Harmless), "{text}");
        }
    }

    #[test]
    fn doubt_is_never_lost() {
        assert_eq!(doubtful(LockError::unavailable("x")).kind(), ErrorKind::Ambiguous);
        assert_eq!(doubtful(LockError::internal("x")).kind(), ErrorKind::Internal);
    }
}
