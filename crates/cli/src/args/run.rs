//! The arguments of `run`: `run [opts] KEY [opts] [--] COMMAND…`, or `run -k A -k B [opts] [--]
//! COMMAND…`.
//!
//! Options may stand before and after KEY; whatever follows the first word of the command is the
//! command's own.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use holdtight_kit::duration;

use super::Patience;

#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct RunArgs {
    /// A key to hold; repeat it for several keys, all or none
    #[arg(short, long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,

    #[command(flatten)]
    pub(crate) patience: Patience,

    /// Exit with this code if the key is busy [default: 75]
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "N")]
    pub(crate) conflict_exit: Option<u8>,

    /// A busy key is fine: exit 0 without a word
    #[arg(long, conflicts_with = "conflict_exit")]
    pub(crate) skip_ok: bool,

    /// How long the lock outlives a holder that nobody hears from [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Keep the key held for at least so long after the start, even if the command ends before
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) keep_for: Option<Duration>,

    /// Stop the command after so long: the time until TERM
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    /// How long a command that must stop has between TERM and KILL; less than half the TTL
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,

    /// Let go at the end of the command, also if something that it started still runs
    #[arg(short = 'o', long)]
    pub(crate) close: bool,

    /// Why, for whoever finds the key held
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    /// What the holder is called, instead of by its command
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) told_as: Option<String>,

    /// The directory of the pipe of a script that must have ended before the key is given back
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    pub(crate) script: Option<PathBuf>,

    /// Let the command see the URL of the store although it holds a password
    #[arg(long)]
    pub(crate) pass_store: bool,

    /// Say how long waiting took, and with which fence
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Run this line by the shell, `/bin/sh`, instead of a command
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "line")]
    pub(crate) words: Vec<OsString>,
}

impl RunArgs {
    /// The words of the command.
    pub(crate) fn command(line: Option<OsString>, words: Vec<OsString>) -> Vec<OsString> {
        match line {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line],
            None => words,
        }
    }
}

const USAGE: &str = "holdtight run [OPTIONS] <KEY> [--] <COMMAND>...
       holdtight run [OPTIONS] -k <KEY> [-k <KEY>]... [--] <COMMAND>...
       holdtight run [OPTIONS] <KEY> -c <LINE>";

const EXAMPLES: &str =
    "KEY is a name, not a path: whoever uses the same store and the same key waits for each other.

The command gets HOLDTIGHT_KEY and HOLDTIGHT_FENCE (several keys: HOLDTIGHT_FENCES). The lock covers
everything that the command started, until the last of it has ended. If the lock is lost, all of it
is stopped before anybody else can get the lock, and the exit code is 74.

Examples:
  holdtight run backup -- ./backup.sh
  holdtight run -n backup ./backup.sh --full            give up at once if it is busy
  holdtight run -w 10m deploy -- make deploy            wait at most ten minutes
  holdtight run -k stock -k orders -- ./settle.sh       two keys, all or none
  holdtight run backup -c './dump | gzip > dump.gz'     a line for the shell
  holdtight --store redis://locks run -n --skip-ok --keep-for 5m report -- ./report.sh
                                                        cron on many machines: one runs it";

/// Moves a KEY that stands before other options into `--key`, so that one grammar reads all forms.
///
/// `args` is the whole command line and `words` what the grammar took for the command: without
/// `--key` the first of them is the key. `None` if there is nothing to move.
pub(super) fn with_key_as_option(args: &[OsString], run: &RunArgs) -> Option<Vec<OsString>> {
    if !run.keys.is_empty() {
        return None;
    }
    // What the grammar takes for the command is the end of the command line, word for word.
    let start = args.len().checked_sub(run.words.len())?;
    let (before, words) = args.split_at(start);
    let (key, rest) = words.split_first()?;
    let (before, literal) = match before.split_last() {
        Some((last, before)) if last == OsStr::new("--") => (before, true),
        _ => (before, false),
    };
    let mut moved = before.to_vec();
    let mut option = OsString::from("--key=");
    option.push(key);
    moved.push(option);
    if literal && rest.first().is_none_or(|word| word != OsStr::new("--")) {
        moved.push("--".into());
    }
    moved.extend_from_slice(rest);
    Some(moved)
}

/// The same where that is plain to see: KEY is the word that follows `run`.
pub(super) fn with_first_word_as_key(args: &[OsString]) -> Option<Vec<OsString>> {
    let at = position(args)? + 1;
    let key = args.get(at).filter(|key| !key.as_encoded_bytes().starts_with(b"-"))?;
    let mut moved = args.to_vec();
    moved[at] = OsString::from("--key=");
    moved[at].push(key);
    Some(moved)
}

/// Whether the first word of `args` that is no option is `run`.
pub(crate) fn is_run(args: &[OsString]) -> bool {
    position(args).is_some()
}

fn position(args: &[OsString]) -> Option<usize> {
    let mut words = args.iter().map(|word| word.to_str()).enumerate().skip(1);
    loop {
        match words.next()? {
            (_, Some("--store")) => _ = words.next(),
            (_, Some(word)) if word.starts_with('-') => {}
            (at, word) => return (word == Some("run")).then_some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command, parse};
    use super::*;

    fn run(line: &str) -> Result<RunArgs, String> {
        let args: Vec<_> =
            std::iter::once("holdtight").chain(line.split(' ')).map(OsString::from).collect();
        match parse(&args).map_err(|failure| failure.to_string())? {
            Cli { command: Command::Run(run), .. } => Ok(run),
            other => Err(format!("{other:?}")),
        }
    }

    fn parts(line: &str) -> (String, String, bool) {
        let run = run(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let words: Vec<_> = run.words.iter().map(|word| word.to_string_lossy()).collect();
        (run.keys.join(","), words.join(" "), run.patience.nonblock)
    }

    #[test]
    fn options_stand_before_or_after_the_key_and_end_with_the_command() {
        for (line, keys, words, nonblock) in [
            ("run k true", "k", "true", false),
            ("run k -- true", "k", "true", false),
            ("run -n k -- true -n", "k", "true -n", true),
            ("run k -n -- true", "k", "true", true),
            ("run k -n true -w x", "k", "true -w x", true),
            ("run k grep -k x -- y", "k", "grep -k x -- y", false),
            ("run k -- -x", "k", "-x", false),
            ("run -- k -x y", "k", "-x y", false),
            ("run -- -k -- y", "-k", "y", false),
            ("run -k a -k b -- make -j4", "a,b", "make -j4", false),
            ("run -k a make -j4 -- all", "a", "make -j4 -- all", false),
            ("run -ka -n make", "a", "make", true),
            ("run a -k b -- make", "a,b", "make", false),
            ("--store memory: run k true", "k", "true", false),
            ("run -w 5 k true", "k", "true", false),
            ("run k -w 5 true --json", "k", "true --json", false),
            ("run k sh -c run", "k", "sh -c run", false),
            ("run k -c line", "k", "", false),
            ("run -c line k", "k", "", false),
            ("run -k a -k b -n -c line", "a,b", "", true),
        ] {
            assert_eq!(parts(line), (keys.into(), words.into(), nonblock), "{line}");
        }
    }

    #[test]
    fn a_run_is_known_by_its_first_word() {
        let is_run = |line: &str| {
            let words = std::iter::once("holdtight").chain(line.split(' '));
            is_run(&words.map(OsString::from).collect::<Vec<_>>())
        };
        for line in ["run k true", "--store memory: run k", "--store=memory: --json run", "run"] {
            assert!(is_run(line), "{line}");
        }
        for line in ["", "ls run", "--store run", "--store run ls", "status --json run", "help run"]
        {
            assert!(!is_run(line), "{line}");
        }
    }

    #[test]
    fn what_is_read_briefly_is_what_is_read_with_all_commands() {
        for line in [
            "run k true",
            "run k -- true",
            "run k -n -- true -n",
            "--store memory: run k -w 5 --json true --json",
            "run --json k true",
            "run k --store=memory: -- --store x",
            "run a -k b -o --ttl 9s -- make -j4 -- all",
            "run k -c line",
            "run k grep -k x -- y",
            "run k -- -x",
            "run k -- --help",
            "run k sh -h",
        ] {
            let args: Vec<_> =
                std::iter::once("holdtight").chain(line.split(' ')).map(OsString::from).collect();
            let all = Cli::try_parse_from(&args).unwrap();
            let Command::Run(run) = &all.command else { panic!("{line}") };
            let moved = with_key_as_option(&args, run).unwrap_or(args.clone());
            let all = Cli::try_parse_from(moved).unwrap();
            assert_eq!(format!("{:?}", parse(&args).unwrap()), format!("{all:?}"), "{line}");
        }
    }

    #[test]
    fn a_missing_command_or_key_is_refused() {
        for line in ["run", "run k", "run k --", "run k -n", "run -k a", "run -k a --", "run --"] {
            assert!(run(line).is_err(), "{line} must be refused");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "run -n -w 5 k true",
            "run -n k -w 5 true",
            "run --skip-ok -E 3 k true",
            "run -E 256 k true",
            "run -n k -n true",
            "run -w 5x k true",
            "run k -c line true",
            "run -k a -c line true",
        ] {
            assert!(run(line).is_err(), "{line} must be refused");
        }
    }
}
