//! The command line: what each command takes, and its help. What is asked for is checked where it
//! is used.

mod run;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use holdtight_kit::duration;

pub(crate) use run::{RunArgs, is_run};
pub(crate) use usage::parse;

/// Run commands under locks that many processes and machines share
#[derive(Debug, Parser)]
#[command(name = "holdtight", version, disable_help_subcommand = true, after_help = EXAMPLES)]
#[command(max_term_width = 100)]
pub(crate) struct Cli {
    /// Where the locks are kept, if not where `HOLDTIGHT_STORE` or holdtight.toml says
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The same for a run alone. What is run often should not have to describe all other commands to
/// itself first.
#[derive(Debug, Parser)]
#[command(name = "holdtight", disable_help_flag = true, disable_help_subcommand = true)]
struct Brief {
    #[arg(long, global = true)]
    store: Option<String>,
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: BriefCommand,
}

#[derive(Debug, Subcommand)]
enum BriefCommand {
    #[command(disable_help_flag = true)]
    Run(RunArgs),
}

const EXAMPLES: &str =
    "Stores: file: (the default: ~/.local/state/holdtight), file:/directory, redis://host (rediss://,
redis+sentinel://, redis+cluster://), postgres://host/database, etcd://a,b,c, memcached://host,
firestore://project, memory:. A URL with a password belongs into HOLDTIGHT_STORE or holdtight.toml:
a command line can be read by everybody on this machine.

Examples:
  holdtight run backup -- ./backup.sh         hold `backup` while the script runs
  holdtight run -n report -- ./report.sh      give up at once if somebody else runs it
  holdtight status backup                     who holds it?
  eval \"$(holdtight hold backup || echo exit 1)\"    hold it for the rest of a script

Exit codes: the command's own, 128+signal; 75 busy or timed out, 74 lost, 73 written by a later
holder, 69 store unreachable, 64 usage, 65 bad key or token, 126 and 127 as shells do.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a key while a command runs
    Run(RunArgs),
    /// Take a key and print a token to extend and release it with
    #[command(after_help = ACQUIRE_EXAMPLES)]
    Acquire(AcquireArgs),
    /// Give the holder of a token more time
    #[command(after_help = EXTEND_EXAMPLES)]
    Extend(ExtendArgs),
    /// Hold a key for the rest of a shell script
    #[command(after_help = HOLD_EXAMPLES)]
    Hold(HoldArgs),
    /// Say whether what this works under is still held: exit 0, or 74 if not
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Give back what `acquire` or `hold` took
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(ReleaseArgs),
    /// Say who holds a key: exit 0 if somebody does, 1 if it is free
    #[command(after_help = STATUS_EXAMPLES)]
    Status(KeyArgs),
    /// List the keys that are held
    #[command(after_help = LS_EXAMPLES)]
    Ls(LsArgs),
    /// Wait until a key is free, without taking it
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(WaitArgs),
    /// Free a key whose holder is surely gone
    #[command(after_help = FORCE_EXAMPLES)]
    ForceRelease(ForceReleaseArgs),
    /// Replace a file by standard input, unless a later holder did
    #[command(after_help = FENCED_WRITE_EXAMPLES)]
    FencedWrite(FencedArgs),
    /// Say whether a later holder wrote a file: exit 0 if not, 73 if so
    #[command(after_help = FENCED_CHECK_EXAMPLES)]
    FencedCheck(FencedArgs),
    /// Say what the store really guarantees: exit 1 if it is unsafe for locks
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor,
    /// Create or upgrade what the store needs before it can be used
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate,
    /// Show the settings and where each comes from
    #[command(after_help = CONFIG_EXAMPLES)]
    Config,
    /// Measure how fast the store is from here
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// Print the completions for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
}

/// How long to wait for a busy key: the letters of flock.
#[derive(Args, Clone, Debug)]
pub(crate) struct Patience {
    /// Do not wait: fail at once if the key is busy
    #[arg(short = 'n', long, visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Wait at most so long (30s, 5m, 1h, 250ms, or seconds; 0 as -n) [default: for ever]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    /// The key
    pub(crate) key: String,
}

#[derive(Args, Debug)]
pub(crate) struct AcquireArgs {
    /// The key
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) patience: Patience,

    /// How long the lock lasts unless it is extended [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Why, for whoever finds the key held
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

const ACQUIRE_EXAMPLES: &str = "The lock ends with its TTL, whatever becomes of the script. The token opens the lock: keep it off
command lines.

Examples:
  HOLDTIGHT_TOKEN=$(holdtight acquire deploy --ttl 10m) || exit
  export HOLDTIGHT_TOKEN
  ./deploy.sh
  holdtight release";

#[derive(Args, Debug)]
pub(crate) struct ExtendArgs {
    #[command(flatten)]
    pub(crate) token: TokenArgs,

    /// How long the lock shall last from now, at least [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
}

const EXTEND_EXAMPLES: &str = "Exit 74 means that the lock is lost: stop the work it protects.

Examples:
  holdtight extend --ttl 10m                  the token is in HOLDTIGHT_TOKEN
  holdtight extend --ttl 10m @token.txt       the token is in a file";

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) token: TokenArgs,

    /// Give back this key, which `hold` took
    #[arg(long, value_name = "KEY", conflicts_with = "source")]
    pub(crate) hold: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// The key
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) patience: Patience,

    /// How long the lock outlives a holder that nobody hears from [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// Why, for whoever finds the key held
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

const HOLD_EXAMPLES: &str = "It prints code for the shell, so it stands in eval, in this form and no other. The lock is held
until the shell and all that it started have ended, however they end, or until `holdtight release`.
If the key stays busy, or anything else goes wrong, the script ends there with our exit code, and
with `|| echo exit 1` also if holdtight cannot be found. If the lock is lost, the shell and all
that it started get TERM and then KILL, before anybody else can get the lock.

Examples:
  eval \"$(holdtight hold backup || echo exit 1)\"
  eval \"$(holdtight hold -w 10m deploy || echo exit 1)\"
  (eval \"$(holdtight hold step-2 || echo exit 1)\"; ./step-2)        for a part of a script
  holdtight check || exit                                            still held?
  holdtight release                                                  let go before the end";

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Only this key [default: all that this process works under]
    pub(crate) key: Option<String>,
}

const CHECK_EXAMPLES: &str = "It asks the store whether the fences in HOLDTIGHT_HOLD, HOLDTIGHT_FENCE and HOLDTIGHT_FENCES are
still those of the holder. The answer may be old when it arrives: what must not be written too late
is written with `fenced-write`.

Examples:
  holdtight check || exit
  holdtight check backup --json";

const RELEASE_EXAMPLES: &str =
    "Exit 74 means that the lock was lost before: somebody else may have worked at the same time.

Examples:
  holdtight release                           the token is in HOLDTIGHT_TOKEN
  holdtight release - < token.txt             the token comes from standard input
  holdtight release --hold backup             what `hold` took in this script";

/// Where the token is: never on the command line itself.
#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// Where the token is: `-` for standard input, `@FILE` for a file [default: `$HOLDTIGHT_TOKEN`]
    #[arg(value_name = "TOKEN", allow_hyphen_values = false)]
    pub(crate) source: Option<String>,
}

const STATUS_EXAMPLES: &str = "Examples:
  holdtight status backup
  holdtight status backup --json | jq -r .host
  if holdtight status backup >/dev/null; then echo 'in use'; fi";

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only keys that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

const LS_EXAMPLES: &str = "Examples:
  holdtight ls
  holdtight ls job:
  holdtight ls --json | jq -r '.[].key'";

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The key
    pub(crate) key: String,

    /// Wait at most so long [default: for ever]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

const WAIT_EXAMPLES: &str =
    "Somebody else may take the key right after: to do something while it is yours, use `run`.

Examples:
  holdtight wait deploy && echo done
  holdtight wait deploy -w 10m || echo 'still busy'";

#[derive(Args, Debug)]
pub(crate) struct ForceReleaseArgs {
    /// The key
    pub(crate) key: String,

    /// The fence that `status` showed: it proves that the holder is still the one you looked at
    #[arg(long, value_name = "N")]
    pub(crate) fence: String,
}

const FORCE_EXAMPLES: &str = "Its holder is not stopped, and learns of it only at its next renewal: make sure that it is gone,
or that what the lock protects checks fences. Exit 1: the key is free already. Exit 75: somebody
else holds it by now.

Examples:
  holdtight status deploy
  holdtight force-release deploy --fence 1790000000000000";

#[derive(Args, Debug)]
pub(crate) struct FencedArgs {
    /// The file; its fence is kept beside it, in FILE.fence
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The fence of this holder [default: `$HOLDTIGHT_FENCE`]
    #[arg(long, value_name = "N")]
    pub(crate) fence: Option<String>,
}

const FENCED_WRITE_EXAMPLES: &str = "The file is replaced as a whole when all of standard input is read: readers see the old contents
or the new ones. Exit 73: a later holder was here already, and nothing was changed; stop, and take
the lock again. All who write the file write it so, and one key protects one file. Of a program that
fails half-way this gets half: let it write elsewhere first, as in the first example.

Examples:
  holdtight run report -- sh -c './make > new && holdtight fenced-write report.json < new'
  ./make | holdtight fenced-write --fence \"$HOLDTIGHT_FENCE\" report.json";

const FENCED_CHECK_EXAMPLES: &str = "It only looks. A check that is made before a write, and not with it, leaves a gap between the two:
write with `fenced-write`.

Examples:
  holdtight fenced-check report.json || exit
  holdtight fenced-check report.json --json";

const DOCTOR_EXAMPLES: &str = "Examples:
  holdtight doctor
  HOLDTIGHT_STORE=file:/var/lib/locks holdtight doctor --json";

const MIGRATE_EXAMPLES: &str = "\
Only PostgreSQL has a schema. It is safe to run this again, and by many at once.

Examples:
  holdtight --store postgres://admin@db/app migrate";

const CONFIG_EXAMPLES: &str =
    "Flags come first, then the environment (HOLDTIGHT_STORE, HOLDTIGHT_TTL, HOLDTIGHT_WAIT,
HOLDTIGHT_KILL_AFTER), then the user's file, then the system's. A file looks like this:

  store = \"file:/var/lib/locks\"
  ttl = \"1m\"
  wait = \"10m\"
  kill_after = \"5s\"

Examples:
  holdtight config
  HOLDTIGHT_TTL=5m holdtight config --json";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// How long to measure
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse, default_value = "3s")]
    pub(crate) duration: Duration,

    /// How many tasks take and release keys at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) tasks: u32,

    /// Let all tasks want the same key, instead of one each
    #[arg(long)]
    pub(crate) shared_key: bool,
}

const BENCH_EXAMPLES: &str =
    "It takes keys of its own, which begin with holdtight-bench, and leaves none behind.

Examples:
  holdtight bench
  holdtight bench --tasks 16 --shared-key --json";

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

const COMPLETIONS_EXAMPLES: &str = "Examples:
  holdtight completions bash > ~/.local/share/bash-completion/completions/holdtight
  holdtight completions fish > ~/.config/fish/completions/holdtight.fish";

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Write holdtight.1, holdtight-run.1 and so on into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) dir: Option<PathBuf>,
}

const MAN_EXAMPLES: &str = "Examples:
  holdtight man | man -l -
  holdtight man --dir ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
