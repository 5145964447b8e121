//! `cargo xtask servers`: what of the requirements is here, in which version, and how to get the
//! rest.

use crate::install::by_hand;
use crate::locate::{find, version};
use crate::process::Outcome;
use crate::requirements::{Need, REQUIREMENTS, Requirement};
use crate::workspace::Workspace;

pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(arg) = args.first() {
        return Err(format!("servers takes no arguments, got `{arg}`"));
    }
    let tools = Workspace::load()?.tools();
    let width = REQUIREMENTS.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut missing: Vec<&Requirement> = Vec::new();
    for row in REQUIREMENTS {
        let state = match (find(row, &tools), row.need) {
            (Some(programs), _) => {
                let version = version(row, &programs).unwrap_or_else(|| "version unknown".into());
                format!("{version}  ({})", programs[0].display())
            }
            (None, Need::Tests) => {
                missing.push(row);
                "missing".to_owned()
            }
            (None, Need::Optional(why)) => format!("not installed, optional: {why}"),
        };
        println!("{:width$}  {state}", row.name);
    }
    if missing.is_empty() {
        println!("\nThe tests have all they need.");
    } else {
        println!(
            "\n`{}` installs the rest as root or with sudo, or\n{}",
            crate::TEST_COMMAND,
            by_hand(&missing, &tools)
        );
    }
    Ok(())
}
