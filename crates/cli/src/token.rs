//! Where a token comes from: standard input, a file, or the environment. Never the command line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use holdtight::LockToken;

use crate::exit::{self, Failure};
use crate::output;

/// The environment variable that holds a token.
pub(crate) const VARIABLE: &str = "HOLDTIGHT_TOKEN";

/// More than any token, or the JSON around one, can be.
const MOST_BYTES: u64 = 16 * 1024;

/// Reads the token from where `source` says: `-`, `@FILE`, or, if nothing is said, the environment.
pub(crate) fn read(
    source: Option<&str>,
    variable: Option<OsString>,
    json: bool,
) -> Result<LockToken, Failure> {
    let text = match source {
        Some("-") => bounded(io::stdin().lock()).map_err(|error| {
            Failure::usage(format!("cannot read the token from standard input: {error}"))
        })?,
        Some(source) => match source.strip_prefix('@') {
            Some(path) => {
                let path = Path::new(path);
                let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
                warn_if_readable_by_others(path, &file, json);
                bounded(file).map_err(|error| Failure::file(path, &error))?
            }
            None => return Err(on_command_line()),
        },
        None => match variable.map(OsString::into_string) {
            Some(Ok(text)) => text,
            Some(Err(_)) => return Err(unreadable()),
            None => {
                return Err(Failure::usage(format!(
                    "no token: set {VARIABLE}, or pass `-` for standard input or `@FILE` for a file"
                )));
            }
        },
    };
    parse(&text)
}

/// Warns of a token that others can read, as of a password.
fn warn_if_readable_by_others(path: &Path, file: &File, json: bool) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = file.metadata().map_or(0, |file| file.permissions().mode());
        if mode & 0o077 != 0 {
            let path = path.display();
            let told = "others can read this token and open the lock with it; write it under umask 077: chmod 600";
            output::warn(json, format_args!("{path}: {told} {path}"));
        }
    }
    #[cfg(not(unix))]
    let _ = (path, file, json);
}

/// The refusal of a token that stands on the command line. It does not repeat it.
pub(crate) fn on_command_line() -> Failure {
    Failure::usage(format!(
        "a token on the command line can be read by everybody on this machine; set {VARIABLE}, or pass `-` for \
         standard input or `@FILE` for a file"
    ))
}

/// A token as `acquire` printed it, as text or as JSON.
fn parse(text: &str) -> Result<LockToken, Failure> {
    if text.trim_start().starts_with('{') {
        let json: serde_json::Value = serde_json::from_str(text).map_err(|_| unreadable())?;
        let token = json.get("token").and_then(serde_json::Value::as_str).ok_or_else(unreadable)?;
        return Ok(token.parse()?);
    }
    Ok(text.parse()?)
}

fn unreadable() -> Failure {
    Failure::new(
        exit::DATA,
        "this is not a lock token; pass what `holdtight acquire` printed, whole",
    )
}

fn bounded(reader: impl Read) -> io::Result<String> {
    let mut text = String::new();
    reader.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use holdtight::Key;
    use holdtight::store::Secret;

    use super::*;

    fn token() -> LockToken {
        LockToken::new(Key::new("k").unwrap(), Secret::generate().unwrap())
    }

    #[test]
    fn text_and_json_of_acquire_are_both_taken() {
        let token = token();
        let json = format!("{{\"key\":\"k\",\"token\":\"{}\"}}\n", token.expose());
        assert_eq!(read(None, Some(json.into()), false).unwrap(), token);
        assert_eq!(read(None, Some(format!("{}\n", token.expose()).into()), false).unwrap(), token);
    }

    #[test]
    fn a_token_on_the_command_line_is_refused_and_not_repeated() {
        let text = token().expose();
        let failure = read(Some(&text), Some(text.clone().into()), false).unwrap_err();
        assert_eq!(failure.code(), exit::USAGE);
        assert!(!failure.to_string().contains(&text));
    }

    #[test]
    fn what_is_no_token_is_bad_data_and_not_repeated() {
        for bad in ["", "sesame", "{}", "{\"token\":1}", "{\"token\":\"sesame\"}", "{sesame"] {
            let failure = read(None, Some(bad.into()), false).unwrap_err();
            assert_eq!(failure.code(), exit::DATA, "{bad}");
            assert!(!failure.to_string().contains("sesame"));
        }
        assert_eq!(read(None, None, false).unwrap_err().code(), exit::USAGE);
    }
}
