//! What passes between `hold` and the shell: code to be evaluated, and the variable that names what
//! is held.

use std::fmt::Write as _;
use std::path::Path;

use holdtight::Fence;

use crate::run::holders::BOUND;

/// The variable that lists what this script holds, the last one last.
pub(crate) const VARIABLE: &str = "HOLDTIGHT_HOLD";

/// One lock that a script holds: a line `DESCRIPTOR PID START FENCE KEY` of the variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The descriptor of the pipe in the script.
    pub(crate) descriptor: u32,
    /// The process that reads the pipe, and when it was started: with that its number is unique.
    pub(crate) keeper: (i32, u64),
    pub(crate) fence: Fence,
    pub(crate) key: String,
}

impl Hold {
    fn line(&self) -> String {
        let Self { descriptor, keeper: (pid, started), fence, key } = self;
        format!("{descriptor} {pid} {started} {fence} {key}")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(5, ' ');
        let mut field = || fields.next();
        Some(Self {
            descriptor: field()?.parse().ok().filter(|number| (3..=9).contains(number))?,
            keeper: (field()?.parse().ok()?, field()?.parse().ok()?),
            fence: field()?.parse().ok()?,
            key: field().filter(|key| !key.is_empty())?.to_owned(),
        })
    }
}

/// What the variable with this value lists. Lines that are not understood hold nothing.
pub(crate) fn holds(value: &str) -> Vec<Hold> {
    value.lines().filter_map(Hold::parse).collect()
}

/// Code that opens the pipe, says that it is open, and tells the script what it holds.
pub(super) fn bind(hold: &Hold, pipe: &Path, before: &[Hold]) -> Option<String> {
    let n = hold.descriptor;
    let pipe = quoted(pipe.to_str()?);
    let list: Vec<String> = before.iter().chain([hold]).map(Hold::line).collect();
    let mut code = String::new();
    // Without a directory the shell cannot make a file of that name, so a keeper that is gone is
    // noticed here. A shell that reads a file by itself finds itself there, where `$$` would name
    // the shell around a subshell.
    let _ = writeln!(
        code,
        "{{ exec {n}<>{pipe} && IFS= read -r HOLDTIGHT_SHELL </proc/self/stat \\\n\
         && printf '{}%s\\n' \"$HOLDTIGHT_SHELL\" >&{n}; }} || {}",
        char::from(BOUND),
        end(crate::exit::LOST)
    );
    let _ = writeln!(code, "{VARIABLE}={}", quoted(&list.join("\n")));
    let _ = writeln!(code, "HOLDTIGHT_KEY={}", quoted(&hold.key));
    let _ = writeln!(code, "HOLDTIGHT_FENCE={}", hold.fence);
    let _ = writeln!(code, "export {VARIABLE} HOLDTIGHT_KEY HOLDTIGHT_FENCE");
    let _ = writeln!(code, "unset HOLDTIGHT_FENCES HOLDTIGHT_DEADLINE HOLDTIGHT_SHELL");
    Some(code)
}

/// Code for a lock that was not taken: an empty answer would let the script go on without it.
pub(crate) fn give_up(code: u8) -> String {
    format!("{}\n", end(code))
}

/// Ends a script, and leaves a shell that somebody types into.
fn end(code: u8) -> String {
    format!("case $- in *i*) (exit {code});; *) exit {code};; esac")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(key: &str) -> Hold {
        Hold { descriptor: 9, keeper: (42, 4711), fence: Fence::new(7), key: key.to_owned() }
    }

    #[test]
    fn what_is_written_is_read_again_and_nonsense_holds_nothing() {
        let holds_of = |lines: &[Hold]| lines.iter().map(Hold::line).collect::<Vec<_>>().join("\n");
        let both = [hold("a b"), hold("it's $HOME")];
        assert_eq!(holds(&holds_of(&both)), both);
        for bad in
            ["", "9", "9 1 2 3", "9 1 2 3 ", "2 1 2 3 k", "10 1 2 3 k", "x 1 2 3 k", "9 1 2 x k"]
        {
            assert_eq!(holds(bad), [], "{bad:?}");
        }
    }

    #[test]
    fn code_is_read_by_shells_whatever_the_key_is() {
        let key = "it's; rm -rf $HOME `date` \"x\" \\";
        let code = bind(&hold(key), Path::new("/dev/null"), &[hold("other")]).unwrap();
        for shell in ["sh", "bash", "dash"] {
            let script = format!("{code}\nprintf '%s|%s' \"$HOLDTIGHT_KEY\" \"$HOLDTIGHT_HOLD\"");
            let Ok(output) = std::process::Command::new(shell).args(["-euc", &script]).output()
            else {
                continue;
            };
            let told = String::from_utf8(output.stdout).unwrap();
            assert_eq!(told, format!("{key}|9 42 4711 7 other\n9 42 4711 7 {key}"), "{shell}");
        }
    }

    #[test]
    fn a_script_ends_with_the_code_of_what_went_wrong() {
        for shell in ["sh", "bash", "dash"] {
            let script = format!("eval \"$1\"; echo went on; {}", "exit 3");
            let command = std::process::Command::new(shell)
                .args(["-c", &script, "sh", &give_up(75)])
                .output();
            let Ok(output) = command else { continue };
            assert_eq!(
                (output.status.code(), output.stdout.as_slice()),
                (Some(75), &b""[..]),
                "{shell}"
            );
        }
    }
}
