//! `fenced-write FILE` and `fenced-check FILE`: what a script can do with its fence.
//!
//! Comparing and writing in one step is `FencedFile`'s business; no store is asked, and no lock is
//! needed for it.

use std::io::{self, Read as _};

use holdtight::{ErrorKind, Fence, LockError};
use holdtight_file::FencedFile;

use crate::args::FencedArgs;
use crate::exit::{self, Failure};
use crate::output;

const FENCE: &str = "HOLDTIGHT_FENCE";
const FENCES: &str = "HOLDTIGHT_FENCES";

pub(crate) fn write(args: &FencedArgs, json: bool) -> Result<u8, Failure> {
    let (file, fence) = open(args)?;
    let mut contents = Vec::new();
    io::stdin().lock().read_to_end(&mut contents).map_err(|error| {
        Failure::usage(format!("cannot read standard input, so nothing was written: {error}"))
    })?;
    file.replace(fence, contents).map_err(failure)?;
    if json {
        let path = args.file.display().to_string();
        let fence = fence.to_string();
        output::print_json(&serde_json::json!({ "file": path, "fence": fence, "written": true }))?;
    }
    Ok(exit::OK)
}

pub(crate) fn check(args: &FencedArgs, json: bool) -> Result<u8, Failure> {
    let (file, fence) = open(args)?;
    let recorded = file.fence().map_err(failure)?;
    let late = recorded.filter(|recorded| fence < *recorded);
    if json {
        output::print_json(&serde_json::json!({
            "file": args.file.display().to_string(),
            "fence": fence.to_string(),
            "recorded": recorded.map(|recorded| recorded.to_string()),
            "late": late.is_some(),
        }))?;
    } else if let Some(later) = late {
        let path = args.file.display();
        output::complain(format_args!(
            "a later holder wrote {path} under fence {later}, after {fence}; stop, and take the lock again"
        ));
    }
    Ok(if late.is_some() { exit::TOO_LATE } else { exit::OK })
}

fn open(args: &FencedArgs) -> Result<(FencedFile, Fence), Failure> {
    let fence = fence(args.fence.as_deref(), |name| std::env::var(name).ok())?;
    Ok((FencedFile::new(&args.file).map_err(failure)?, fence))
}

/// The fence that was said, or that of the run or hold around us.
fn fence(said: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Fence, Failure> {
    let (text, origin) = match (said, variable(FENCE)) {
        (Some(said), _) => (said.to_owned(), "--fence"),
        (None, Some(text)) => (text, FENCE),
        (None, None) if variable(FENCES).is_some() => {
            return Err(Failure::usage(format!(
                "there are several fences in {FENCES}; say which one protects this file: --fence N"
            )));
        }
        (None, None) => {
            return Err(Failure::usage(format!(
                "no fence: call this under `holdtight run` or `hold`, which set {FENCE}, or say --fence N"
            )));
        }
    };
    let fence =
        text.parse::<Fence>().map_err(|error| Failure::usage(format!("{origin}: {error}")))?;
    if fence == Fence::new(0) {
        return Err(Failure::usage(format!("{origin}: no holder has the fence 0")));
    }
    Ok(fence)
}

/// A write that comes too late has an exit code of its own: it is neither a mistake nor an
/// accident.
fn failure(error: LockError) -> Failure {
    match error.kind() {
        ErrorKind::NotHeld => Failure::new(exit::TOO_LATE, error.to_string()),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_that_is_said_counts_more_than_the_one_around_us() {
        let around = |name: &str| (name == FENCE).then(|| "7".to_owned());
        assert_eq!(fence(None, around).unwrap(), Fence::new(7));
        assert_eq!(fence(Some("8"), around).unwrap(), Fence::new(8));
        for bad in ["", "0", "-1", "x", "1.5", "18446744073709551616", " 7"] {
            assert_eq!(fence(Some(bad), around).unwrap_err().code(), exit::USAGE, "{bad:?}");
        }
        let several = |name: &str| (name == FENCES).then(|| "7 a\n8 b".to_owned());
        assert!(fence(None, several).unwrap_err().to_string().contains("--fence"));
        assert!(fence(None, |_| None).unwrap_err().to_string().contains("holdtight run"));
    }
}
