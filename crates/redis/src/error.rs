//! From the client's errors to ours, in one place: what is definite, what is unknown, and what to
//! do about it.
//!
//! Texts of the server are repeated only where they cannot hold a secret: an answer to an unknown
//! command repeats its arguments.

use std::fmt;

use holdtight_core::{ErrorKind, LockError};
use redis::{ErrorKind as Kind, RedisError};

/// How far a request had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// While the connection was being opened: the step was not done.
    Connecting,
    /// After it was handed to the connection: a lost answer says nothing about the step.
    Sent,
}

/// What a failure says about the connection it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server answered; the connection is fine.
    Alive,
    /// No answer in time; it may be slow, frozen or cut off.
    Silent,
    /// The connection is of no more use, or leads to the wrong server.
    Broken,
}

/// Our own code for a command that the server does not know: too old, renamed or removed.
pub(crate) const UNKNOWN: &str = "UNKNOWN";

/// The server's code for an error, also of one that happened inside a script, where Redis wraps or
/// rewords it.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    if code == "ERR" && error.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
        return Some(UNKNOWN);
    }
    let Some(detail) = error.detail().filter(|detail| code == "ERR" && detail.contains("script"))
    else {
        return Some(code);
    };
    if detail.contains("The user executing the script can't") {
        return Some("NOPERM");
    }
    // Redis before 7: "Error running script (call to f_…): @user_script:4: -OOM command not allowed
    // …".
    let wrapped = detail.rsplit_once(": -").and_then(|(_, rest)| rest.split(' ').next());
    let is_code = |word: &&str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase());
    Some(wrapped.filter(is_code).unwrap_or(code))
}

/// What a failure says about its connection.
pub(crate) fn verdict(error: &RedisError) -> Verdict {
    match code(error) {
        // A demoted primary: whoever leads here must look for the new one.
        Some("READONLY" | "MASTERDOWN" | "NOAUTH") => Verdict::Broken,
        Some(_) => Verdict::Alive,
        None if error.is_timeout() => Verdict::Silent,
        None => Verdict::Broken,
    }
}

/// Whether the server refused a step for several keys, and the cause may be one of them: no right
/// to it, its slot half moved, or no fence for it. A server that is full or not there is so for
/// everybody. A try alone finds under its secret what was done before.
pub(crate) fn concerns_one(error: &LockError) -> bool {
    ["NOPERM", "TRYAGAIN", "FENCE", "ERR"].contains(&refusal(error))
}

/// Whether a cluster refused a step because its keys are on two nodes while their slot moves.
pub(crate) fn is_split(error: &LockError) -> bool {
    refusal(error) == "TRYAGAIN"
}

/// The code with which the server refused a step; empty if it did not.
fn refusal(error: &LockError) -> &str {
    let source = error.underlying().and_then(|source| source.downcast_ref());
    source.map_or("", |Plain(text)| text.split(' ').next().unwrap_or_default())
}

/// Turns an error of the client into one of ours.
pub(crate) fn explain(error: &RedisError, stage: Stage) -> LockError {
    if let Some(code) = code(error) {
        return from_server(code, error);
    }
    match (error.kind(), stage) {
        (Kind::AuthenticationFailed, _) => LockError::auth_failed(
            "Redis refused the user or the password; check both in the store URL",
        ),
        (Kind::RESP3NotSupported, _) => {
            LockError::unsupported("this server does not speak RESP3; Redis 6.2 or newer is needed")
        }
        (Kind::InvalidClientConfig | Kind::Client, _) => {
            LockError::invalid_config("the Redis client refused its settings")
                .with_source(Plain(error.to_string()))
        }
        (Kind::Parse | Kind::UnexpectedReturnType, Stage::Sent) => {
            LockError::internal("the server sent something that is not the Redis protocol")
        }
        // What TLS says of certificates does not pass by itself.
        (_, Stage::Connecting) if error.to_string().contains("CertificateRequired") => {
            LockError::invalid_config(
                "the server asks for a certificate; name one and its key with tls_cert and tls_key",
            )
        }
        (_, Stage::Connecting) => LockError::unavailable(
            "cannot connect to Redis; check that it runs and that the store URL names it",
        )
        .with_source(Plain(error.to_string())),
        (_, Stage::Sent) if error.is_timeout() => {
            LockError::ambiguous("Redis did not answer in time; the step may have been done")
        }
        (_, Stage::Sent) => LockError::ambiguous(
            "the connection to Redis broke before the answer came; the step may have been done",
        )
        .with_source(Plain(error.to_string())),
    }
}

/// The name of a command that the server does not know, from an answer that may also repeat secret
/// arguments.
fn unknown_command(detail: &str) -> &str {
    let quoted = detail.split(['\'', '`']).nth(1).unwrap_or_default();
    let is_name = |name: &&str| {
        name.len() <= 20 && name.bytes().all(|b| b.is_ascii_alphabetic() || b"|_".contains(&b))
    };
    Some(quoted).filter(is_name).unwrap_or_default()
}

fn from_server(code: &str, error: &RedisError) -> LockError {
    let detail = error.detail().unwrap_or_default();
    if code == UNKNOWN {
        return LockError::unsupported(format!(
            "the server does not know the command {}; it is too old, or the command was renamed or removed there",
            unknown_command(detail)
        ));
    }
    if code == "ERR" && detail.starts_with("DB index is out of range") {
        return LockError::invalid_config(
            "the server has no database of that number; check the store URL, or its setting `databases`",
        );
    }
    let (kind, advice) = match code {
        "NOAUTH" | "WRONGPASS" => {
            (ErrorKind::AuthFailed, "the user or the password is wrong; check the store URL")
        }
        "NOPERM" => (
            ErrorKind::AuthFailed,
            "this user lacks a right; docs/stores/redis.md lists the minimal ACL",
        ),
        "READONLY" => (
            ErrorKind::Unavailable,
            "this server is a replica; name the primary, or use redis+sentinel://",
        ),
        "LOADING" => (ErrorKind::Unavailable, "the server is loading its data; try again"),
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" => {
            (ErrorKind::Unavailable, "the server cannot serve this key right now; try again")
        }
        "BUSY" => (ErrorKind::Unavailable, "the server is busy with somebody's long script"),
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            "fewer replicas are connected than min-replicas-to-write asks for",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "the server cannot save to disk and refuses writes; see its log",
        ),
        "OOM" => (ErrorKind::RateLimited, "the server's memory is full; raise maxmemory"),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (ErrorKind::InvalidConfig, "this server is part of a cluster; use redis+cluster://")
        }
        "FENCE" => (
            ErrorKind::Internal,
            "no fence is left below 2^53; set the server's clock right, then delete the fence counter \
             only if no resource remembers its numbers",
        ),
        "MEETS" => (
            ErrorKind::InvalidKey,
            "in the syncguard layout this is also the name of another lock's counter or index, or the \
             other way round; choose another key",
        ),
        _ => (ErrorKind::Internal, "the server refused the step"),
    };
    let source = match error.detail() {
        // "unknown command, with args beginning with …" repeats what was sent, secrets included.
        Some(detail) if code != "ERR" || !detail.contains("args") => {
            format!("{code} {}", detail.chars().take(200).collect::<String>())
        }
        _ => code.to_owned(),
    };
    LockError::new(kind, advice).with_source(Plain(source))
}

/// A source that is only text: no type of a dependency leaves this crate.
#[derive(Debug)]
struct Plain(String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Plain {}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_wire(reply: &str) -> RedisError {
        redis::parse_redis_value(format!("-{reply}\r\n").as_bytes())
            .unwrap()
            .extract_error()
            .unwrap_err()
    }

    #[test]
    fn every_code_becomes_the_right_kind() {
        for (reply, kind) in [
            ("NOAUTH Authentication required.", ErrorKind::AuthFailed),
            ("WRONGPASS invalid username-password pair", ErrorKind::AuthFailed),
            ("NOPERM this user has no permissions", ErrorKind::AuthFailed),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable),
            ("MASTERDOWN Link with MASTER is down", ErrorKind::Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing", ErrorKind::Unavailable),
            ("BUSY Redis is busy running a script.", ErrorKind::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::RateLimited),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::InvalidConfig),
            ("CROSSSLOT Keys in request don't hash to the same slot", ErrorKind::InvalidConfig),
            ("FENCE no fence is left", ErrorKind::Internal),
            ("MEETS one name", ErrorKind::InvalidKey),
            ("ERR something else", ErrorKind::Internal),
            (
                "ERR Error running script (call to f_x): @user_script:4: @user_script: 4: -OOM command not allowed",
                ErrorKind::RateLimited,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 9b60, on @user_script:3.",
                ErrorKind::AuthFailed,
            ),
            ("ERR user_script:3: attempt to index a nil value script: 9b60", ErrorKind::Internal),
            (
                "ERR Error running script (call to f_x): @user_script:9: -READONLY You can't write",
                ErrorKind::Unavailable,
            ),
        ] {
            assert_eq!(explain(&from_wire(reply), Stage::Sent).kind(), kind, "{reply}");
        }
    }

    #[test]
    fn a_lost_answer_is_unknown_and_a_failed_connect_is_not() {
        for kind in [std::io::ErrorKind::TimedOut, std::io::ErrorKind::BrokenPipe] {
            let error = RedisError::from(std::io::Error::from(kind));
            assert_eq!(explain(&error, Stage::Sent).kind(), ErrorKind::Ambiguous);
            assert_eq!(explain(&error, Stage::Connecting).kind(), ErrorKind::Unavailable);
        }
        let silent = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(verdict(&silent), Verdict::Silent);
        assert_eq!(verdict(&from_wire("READONLY x")), Verdict::Broken);
        assert_eq!(verdict(&from_wire("OOM x")), Verdict::Alive);
    }

    #[test]
    fn what_one_key_may_have_caused_is_told_from_what_concerns_all() {
        let concerns = |error: &RedisError, stage| concerns_one(&explain(error, stage));
        for reply in ["NOPERM no", "TRYAGAIN later", "FENCE none", "ERR something"] {
            assert!(concerns(&from_wire(reply), Stage::Sent), "{reply}");
        }
        for reply in ["READONLY x", "NOAUTH x", "WRONGPASS x", "OOM x", "LOADING x", "BUSY x"] {
            assert!(!concerns(&from_wire(reply), Stage::Sent), "{reply}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(!concerns(&broken, Stage::Sent) && !concerns(&broken, Stage::Connecting));
    }

    #[test]
    fn arguments_that_the_server_repeats_do_not_show() {
        let reply = "ERR unknown command 'EVALSHA', with args beginning with: 'abc' 'hunter2'";
        let error = explain(&from_wire(reply), Stage::Sent);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert!(error.to_string().contains("EVALSHA"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for strange in ["unknown command 'hunter 2'", "unknown command", "unknown command '"] {
            let error = explain(&from_wire(&format!("ERR {strange}")), Stage::Sent);
            assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
        }
        let error = explain(&from_wire("ERR DB index is out of range"), Stage::Connecting);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
}
