//! `man`: the manual page on standard output, or the pages of all commands into a directory.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::{Cli, ManArgs};
use crate::exit::{self, Failure};
use crate::output;

pub(crate) fn run(args: &ManArgs) -> Result<u8, Failure> {
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| Failure::file(dir, &error))?;
            clap_mangen::generate_to(Cli::command(), dir)
                .map_err(|error| Failure::file(dir, &error))?;
        }
        None => output::print(String::from_utf8_lossy(&page()?))?,
    }
    Ok(exit::OK)
}

fn page() -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut page)
        .map_err(|error| Failure::file(Path::new("holdtight.1"), &error))?;
    Ok(page)
}
