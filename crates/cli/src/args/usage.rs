//! Reads the command line, and tells mistakes in it the way all other errors are told: in one or
//! two lines.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::run::{with_first_word_as_key, with_key_as_option};
use super::{Brief, BriefCommand, Cli, Command};
use crate::exit::{self, Failure};
use crate::output;

/// What must not be repeated: the beginning of every token.
const TOKEN_MARK: &str = "ht1_";

/// Reads the command line.
pub(crate) fn parse(args: &[OsString]) -> Result<Cli, Failure> {
    if let [program, help, rest @ ..] = args
        && help == "help"
    {
        let asked: Vec<_> = [program].into_iter().chain(rest).cloned().collect();
        return read(&[asked, vec!["--help".into()]].concat());
    }
    read(args)
}

fn read(args: &[OsString]) -> Result<Cli, Failure> {
    if let Some(cli) = brief(args) {
        return one_command(cli);
    }
    let cli = Cli::try_parse_from(args).map_err(|error| explain(&error, args))?;
    if let Command::Run(run) = &cli.command
        && let Some(args) = with_key_as_option(args, run)
    {
        let cli = Cli::try_parse_from(&args).map_err(|error| explain(&error, &args))?;
        return one_command(cli);
    }
    one_command(cli)
}

/// Reads the command line of a run whose key is its first word. Whatever is wrong with it is told
/// by those who read all.
fn brief(args: &[OsString]) -> Option<Cli> {
    let Brief { store, json, command } =
        Brief::try_parse_from(with_first_word_as_key(args)?).ok()?;
    let BriefCommand::Run(run) = command;
    Some(Cli { store, json, command: Command::Run(run) })
}

/// Refuses a run with a line for the shell and a command, or with a line and no key.
fn one_command(cli: Cli) -> Result<Cli, Failure> {
    if let Command::Run(run) = &cli.command
        && run.line.is_some()
    {
        if run.keys.is_empty() {
            return Err(Failure::usage(
                "no key: write holdtight run KEY -c LINE; see holdtight run --help",
            ));
        }
        if !run.words.is_empty() {
            return Err(Failure::usage(
                "-c runs a line, and a command is given too; leave one of them out; see holdtight run --help",
            ));
        }
    }
    Ok(cli)
}

/// Whether the first word that is no text belongs to an option, and not to a key.
fn is_value_of_option(args: &[OsString]) -> bool {
    let Some(at) = args.iter().position(|word| word.to_str().is_none()) else { return false };
    let word = args[at].to_string_lossy();
    let before = at.checked_sub(1).and_then(|before| args[before].to_str()).unwrap_or_default();
    let cli = Cli::command();
    let commands = cli.get_subcommands().chain([&cli]);
    let options = commands.flat_map(clap::Command::get_arguments).filter(|option| {
        option.get_action().takes_values() && option.get_long().is_some_and(|name| name != "key")
    });
    options.into_iter().any(|option| {
        let long = format!("--{}", option.get_long().unwrap_or_default());
        let short = option.get_short().map(|letter| format!("-{letter}"));
        let joined = |name: &String| word.starts_with(name.as_str());
        before == long
            || short.as_ref().is_some_and(|short| before == short || joined(short))
            || joined(&format!("{long}="))
    })
}

/// What clap has to say, in our words; help and version are printed, and end the command well.
fn explain(error: &clap::Error, args: &[OsString]) -> Failure {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return match output::print(&text) {
                Ok(()) => Failure::silent(exit::OK),
                Err(failure) => failure,
            };
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return Failure::usage(
                "say what to do, as in: holdtight run KEY -- COMMAND; see holdtight --help",
            );
        }
        _ => {}
    }
    let text = text.to_string();
    if text.contains(TOKEN_MARK) {
        return crate::token::on_command_line();
    }
    let is_key = error.kind() == ErrorKind::InvalidUtf8 && !is_value_of_option(args);
    let code = if is_key { exit::DATA } else { exit::USAGE };
    Failure::new(code, format!("{}; see holdtight {}--help", one_line(&text), command(args)))
}

/// The paragraphs that say what is wrong, joined; usage and pointers to help are left out.
fn one_line(text: &str) -> String {
    let told: Vec<_> = text
        .split("\n\n")
        .filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more information"))
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    let told = told.join("; ");
    told.strip_prefix("error: ").unwrap_or(&told).to_owned()
}

/// The command that was meant, followed by a space, if one was.
fn command(args: &[OsString]) -> String {
    use clap::CommandFactory as _;
    let known = Cli::command();
    let named = args.iter().skip(1).filter_map(|arg| arg.to_str());
    named
        .filter_map(|arg| known.find_subcommand(arg))
        .map(|command| format!("{} ", command.get_name()))
        .next()
        .unwrap_or_default()
}
