//! From what the driver and the server say to the kinds of holdtight, by typed codes only.
//!
//! The one question that matters: was the step done, not done, or is it unknown?

use std::error::Error as _;

use holdtight_core::{ErrorKind, LockError};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::tls;

/// What the failed request was, which decides what a lost answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Opening a connection: nothing was asked yet.
    Connect,
    /// A statement that only reads.
    Read,
    /// A statement that may write.
    Write,
}

impl Phase {
    /// What it means that no answer came.
    pub(crate) fn lost_answer(self) -> ErrorKind {
        if self == Self::Write { ErrorKind::Ambiguous } else { ErrorKind::Unavailable }
    }
}

/// Maps a failure of the driver.
pub(crate) fn from_driver(error: &tokio_postgres::Error, phase: Phase) -> LockError {
    if let Some(told) = error.as_db_error() {
        return from_server(told, phase);
    }
    if let Some(tls) = tls::cause(error) {
        return LockError::invalid_config(format!(
            "the server's TLS is not acceptable ({tls}); check sslmode and sslrootcert in the URL"
        ));
    }
    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    // The driver keeps these two kinds to itself; the first words of its message are all there is.
    let said = error.to_string();
    let own = said.starts_with("invalid configuration") || said.starts_with("authentication error");
    match phase {
        Phase::Connect if own => {
            LockError::auth_failed(format!("{cause}; check user and password in the URL"))
        }
        Phase::Connect => LockError::unavailable(format!("cannot connect: {cause}")),
        _ => LockError::new(
            phase.lost_answer(),
            format!("the connection to PostgreSQL was lost: {cause}"),
        ),
    }
}

/// Maps what the server said. Only the code decides; of the text only the primary message is shown,
/// because details may quote rows and rows hold secrets.
fn from_server(told: &DbError, phase: Phase) -> LockError {
    let (kind, advice) = meaning(told.code(), phase, is_fatal(told));
    LockError::new(
        kind,
        format!("PostgreSQL says: {} (SQLSTATE {}){advice}", told.message(), told.code().code()),
    )
}

/// After a fatal message the session is gone. It may have come after the commit, while waiting for
/// a standby.
fn is_fatal(told: &DbError) -> bool {
    matches!(told.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

fn meaning(code: &SqlState, phase: Phase, fatal: bool) -> (ErrorKind, &'static str) {
    const MIGRATE: &str =
        "; the lock tables are missing or too old: run `holdtight migrate` with this URL";
    match code.code() {
        // At connect, a refusal is a refusal.
        "53300" => {
            (ErrorKind::RateLimited, "; raise max_connections or lower `connections` in the URL")
        }
        "28000" | "28P01" => (ErrorKind::AuthFailed, "; check user, password and pg_hba.conf"),
        "3D000" => (ErrorKind::InvalidConfig, "; check the database in the URL"),
        "40003" => (phase.lost_answer(), ""),
        _ if fatal && phase != Phase::Connect => (phase.lost_answer(), ""),
        code if code.starts_with("08") => (phase.lost_answer(), ""),
        "42501" => (
            ErrorKind::AuthFailed,
            "; grant the role USAGE on the schema and EXECUTE on its functions, see docs/stores/postgres.md",
        ),
        "3F000" | "42P01" | "42883" | "42703" => (ErrorKind::InvalidConfig, MIGRATE),
        "HTOLD" => (ErrorKind::NotHeld, "; acquire the key anew"),
        "HTNEW" => (ErrorKind::InvalidConfig, ""),
        "HTISO" => (
            ErrorKind::InvalidConfig,
            "; set default_transaction_isolation to 'read committed' for this role (ALTER ROLE … SET)",
        ),
        "25006" => (ErrorKind::Unavailable, "; this server is read-only, locks need the primary"),
        "55P03" => (
            ErrorKind::Unavailable,
            "; another transaction keeps the row of this key locked, perhaps a grant that waits for a synchronous standby",
        ),
        // All of these undo the whole statement.
        "40001" | "40P01" | "57014" | "57P01" | "57P02" | "57P03" | "57P05" => {
            (ErrorKind::Unavailable, "")
        }
        code if code.starts_with("53") => {
            (ErrorKind::RateLimited, "; the server is out of a resource")
        }
        "0A000" => (ErrorKind::Unsupported, ""),
        // Only the syncguard layout has a key besides the primary one.
        "23505" => {
            (ErrorKind::Unsupported, "; in the syncguard layout a secret holds one key at a time")
        }
        _ => (ErrorKind::Internal, ""),
    }
}

/// A reply that does not have the shape it must have.
pub(crate) fn malformed(what: &str) -> LockError {
    LockError::internal(format!(
        "PostgreSQL answered {what}; the functions of the schema are not ours: run `holdtight migrate`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, phase: Phase, fatal: bool) -> ErrorKind {
        meaning(&SqlState::from_code(code), phase, fatal).0
    }

    #[test]
    fn a_statement_that_was_undone_is_not_unknown() {
        for code in ["40001", "40P01", "55P03", "57014", "25006"] {
            assert_eq!(kind(code, Phase::Write, false), ErrorKind::Unavailable, "{code}");
        }
    }

    #[test]
    fn a_session_that_was_ended_during_a_write_leaves_the_outcome_unknown() {
        for code in ["57P01", "57P02", "08006", "08P01"] {
            assert_eq!(kind(code, Phase::Write, true), ErrorKind::Ambiguous, "{code}");
            assert_eq!(kind(code, Phase::Read, true), ErrorKind::Unavailable, "{code}");
            assert_eq!(kind(code, Phase::Connect, true), ErrorKind::Unavailable, "{code}");
        }
        assert_eq!(kind("40003", Phase::Write, false), ErrorKind::Ambiguous);
        assert_eq!(kind("57P03", Phase::Connect, true), ErrorKind::Unavailable);
    }

    #[test]
    fn what_an_administrator_must_fix_is_told_apart() {
        assert_eq!(kind("42501", Phase::Write, false), ErrorKind::AuthFailed);
        assert_eq!(kind("28P01", Phase::Connect, true), ErrorKind::AuthFailed);
        assert_eq!(kind("53300", Phase::Connect, true), ErrorKind::RateLimited);
        assert_eq!(kind("53100", Phase::Write, false), ErrorKind::RateLimited);
        for code in ["3F000", "42P01", "42883", "3D000"] {
            assert_eq!(kind(code, Phase::Write, false), ErrorKind::InvalidConfig, "{code}");
        }
        assert_eq!(kind("23505", Phase::Write, false), ErrorKind::Unsupported);
        assert_eq!(kind("XX000", Phase::Write, false), ErrorKind::Internal);
    }
}
