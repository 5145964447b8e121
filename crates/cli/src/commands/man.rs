//! `man`: the manual page on standard output, or the pages of all commands into a directory.
//!
//! Options come from the definition of the command line; what stands below its help is the page's
//! description and examples. Exit codes, variables and files are in the tables below, each with the
//! commands that it belongs to.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::{Cli, ManArgs};
use crate::exit::{self, Failure};
use crate::output;

/// A name, what it is, and the commands for which it means something; none for all of them.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// Those that ask a store.
const STORES: &[&str] = &[
    "run",
    "acquire",
    "extend",
    "hold",
    "check",
    "release",
    "status",
    "ls",
    "wait",
    "force-release",
    "doctor",
    "migrate",
    "bench",
];
const TAKERS: &[&str] = &["run", "acquire", "hold"];
const FENCED: &[&str] = &["fenced-write", "fenced-check"];

const EXIT_STATUS: &[Row] = &[
    (
        "0",
        "It was done. For \\fBrun\\fR: the command's own code was 0, or the key was busy and \\fB--skip-ok\\fR was given.",
        &[],
    ),
    ("the command's own", "\\fBrun\\fR held the key all the time.", &["run"]),
    (
        "1",
        "The answer is no: \\fBstatus\\fR found the key free, \\fBdoctor\\fR the store unsafe, \\fBforce-release\\fR the key free already.",
        &["status", "doctor", "force-release"],
    ),
    ("64", "Usage: the command line, a setting or the environment is wrong.", &[]),
    ("65", "A key or a token is malformed.", STORES),
    ("69", "The store, or the file, cannot be reached, or refuses to serve.", &[]),
    (
        "70",
        "A bug, or a store that answered nonsense; for \\fBls\\fR and \\fBstatus\\fR: a record that cannot be read.",
        &[],
    ),
    ("73", "A later holder wrote the file already: nothing was changed.", FENCED),
    (
        "74",
        "The lock was lost, and the command was stopped; or what was to be told could not be written, and a lock taken for it was given back.",
        STORES,
    ),
    (
        "75",
        "The key is busy, or waiting for it took too long.",
        &["run", "acquire", "hold", "wait", "force-release"],
    ),
    ("126, 127", "The command cannot be run, or does not exist.", &["run"]),
    (
        "128+n",
        "Signal n ended the command, or holdtight while it waited.",
        &["run", "acquire", "hold", "wait"],
    ),
];

const ENVIRONMENT: &[Row] = &[
    (
        "HOLDTIGHT_STORE",
        "The URL of the store, unless \\fB--store\\fR is given. \\fBrun\\fR sets it for its command, to \\fBwithheld:\\fR if it holds a password.",
        STORES,
    ),
    ("HOLDTIGHT_TTL", "For \\fB--ttl\\fR.", &["run", "acquire", "extend", "hold"]),
    ("HOLDTIGHT_WAIT", "For \\fB--wait\\fR.", &["run", "acquire", "hold", "wait"]),
    (
        "HOLDTIGHT_KILL_AFTER",
        "For \\fB--kill-after\\fR; for \\fBhold\\fR, which has no such option, the same time.",
        &["run", "hold"],
    ),
    (
        "HOLDTIGHT_TOKEN",
        "The token of \\fBacquire\\fR. It is taken out of the environment of a command that \\fBrun\\fR starts.",
        &["acquire", "extend", "release"],
    ),
    ("HOLDTIGHT_KEY", "Set for the command or the script: its key.", &["run", "hold", "check"]),
    (
        "HOLDTIGHT_FENCE",
        "Set for the command or the script: its fence, a decimal number of up to 20 digits.",
        &["run", "hold", "check", "fenced-write", "fenced-check"],
    ),
    (
        "HOLDTIGHT_FENCES",
        "Set for a command under several keys, instead of these two: a line \\(dqFENCE KEY\\(dq for each.",
        &["run", "check"],
    ),
    (
        "HOLDTIGHT_DEADLINE",
        "Set for the command with \\fB--max-hold\\fR: when it gets TERM, in seconds since 1970.",
        &["run"],
    ),
    (
        "HOLDTIGHT_HOLD",
        "Set for the script: what \\fBhold\\fR took.",
        &["hold", "check", "release"],
    ),
    ("HOME", "Where the default store and the user's settings are.", STORES),
    ("USER", "The name that others see; with the number of the user if it is not theirs.", TAKERS),
    (
        "XDG_CONFIG_HOME, XDG_CONFIG_DIRS",
        "Where the settings are, if not in ~/.config and /etc.",
        STORES,
    ),
    (
        "XDG_RUNTIME_DIR, TMPDIR",
        "Where \\fBhold\\fR makes its pipe, for the moment until the script has opened it.",
        &["hold"],
    ),
];

const FILES: &[Row] = &[
    (
        "~/.local/state/holdtight",
        "The default store, for the processes of this user on this machine.",
        STORES,
    ),
    (
        "~/.config/holdtight/holdtight.toml",
        "The user's settings: store, ttl, wait, kill_after.",
        STORES,
    ),
    ("/etc/holdtight/holdtight.toml", "The system's settings, which count less.", STORES),
    ("FILE.fence", "The fence under which FILE was written.", FENCED),
];

pub(crate) fn run(args: &ManArgs) -> Result<u8, Failure> {
    let mut program = Cli::command();
    // Fills in what options and names the commands have from the program.
    program.build();
    if let Some(dir) = &args.dir {
        write_all(&program, dir).map_err(|error| Failure::file(dir, &error))?;
    } else {
        let page = page(&program, None)
            .map_err(|error| Failure::file(Path::new("holdtight.1"), &error))?;
        output::print(page)?;
    }
    Ok(exit::OK)
}

fn write_all(program: &Command, dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("holdtight.1"), page(program, None)?)?;
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        std::fs::write(dir.join(format!("holdtight-{name}.1")), page(command, Some(name))?)?;
    }
    Ok(())
}

/// The page of the program, or of the command `name`.
fn page(command: &Command, name: Option<&str>) -> std::io::Result<String> {
    let title = name.map_or_else(|| "holdtight".to_owned(), |name| format!("holdtight-{name}"));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (prose, examples) = after.split_once("Examples:\n").unwrap_or((&after, ""));
    // Examples stand last on the page, and what follows them in the help is prose again.
    let (examples, more) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let mut page = format!(".TH {title} 1 \"\" \"holdtight {}\"\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(page, ".SH NAME\n{title} \\- {}", roff(&about));
    page.push_str(".SH SYNOPSIS\n.nf\n");
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage: ").lines() {
        let _ = writeln!(page, "{}", roff(line.trim()));
    }
    page.push_str(".fi\n.SH DESCRIPTION\n");
    paragraphs(&mut page, &format!("{about}.\n\n{prose}"));
    if name.is_some() {
        paragraphs(&mut page, more);
    }
    let man = Man::new(command.clone().bin_name(title.replace('-', " ")));
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    page.push_str(&String::from_utf8_lossy(&options));
    if name.is_none() {
        page.push_str(".SH COMMANDS\n");
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(
                page,
                ".TP\n\\fBholdtight\\-{}\\fR(1)\n{}",
                roff(command.get_name()),
                roff(&about)
            );
        }
    }
    table(&mut page, "EXIT STATUS", EXIT_STATUS, name);
    table(&mut page, "ENVIRONMENT", ENVIRONMENT, name);
    table(&mut page, "FILES", FILES, name);
    page.push_str(".SH EXAMPLES\n.EX\n");
    for line in examples.lines() {
        let _ = writeln!(page, "{}", roff(line.strip_prefix("  ").unwrap_or(line)));
    }
    page.push_str(".EE\n");
    if name.is_some() {
        page.push_str(".SH SEE ALSO\n\\fBholdtight\\fR(1)\n");
    }
    Ok(page)
}

/// A section with the rows of a command, if it has any.
fn table(page: &mut String, title: &str, rows: &[Row], name: Option<&str>) {
    let ours = |row: &&Row| row.2.is_empty() || name.is_none_or(|name| row.2.contains(&name));
    let mut rows = rows.iter().filter(ours).peekable();
    if rows.peek().is_none() {
        let _ = writeln!(page, ".SH {title}\nNone.");
        return;
    }
    let _ = writeln!(page, ".SH {title}");
    for (name, text, _) in rows {
        // The text has marks of its own; hyphens in options must stay what is typed.
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", roff(name), text.replace("--", "\\-\\-"));
    }
}

fn paragraphs(page: &mut String, text: &str) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        page.push_str(".PP\n");
        // What is indented is laid out by hand.
        let by_hand = paragraph.lines().any(|line| line.starts_with("  "));
        let (start, end) = if by_hand { (".EX\n", ".EE\n") } else { ("", "") };
        page.push_str(start);
        for line in paragraph.trim_matches('\n').lines() {
            let _ = writeln!(page, "{}", roff(line));
        }
        page.push_str(end);
    }
}

/// Text as roff shows it, letter by letter.
fn roff(text: &str) -> String {
    let text =
        text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_tables_is_a_command() {
        let program = Cli::command();
        let known: Vec<_> = program.get_subcommands().map(Command::get_name).collect();
        for (row, _, commands) in EXIT_STATUS.iter().chain(ENVIRONMENT).chain(FILES) {
            for command in *commands {
                assert!(known.contains(command), "{row}: {command}");
            }
        }
    }

    #[test]
    fn text_that_roff_would_obey_is_shown() {
        assert_eq!(roff(".TH x"), "\\&.TH x");
        assert_eq!(roff("'a' \\ -n"), "\\(aqa\\(aq \\e \\-n");
    }
}
