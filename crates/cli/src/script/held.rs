//! What a script can do with what it holds: ask whether it still does, and give it back.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdtight::{DistributedLock, Fence};
use rustix::fs::OFlags;

use super::code::{Hold, VARIABLE, holds};
use crate::args::CheckArgs;
use crate::conflict::quoted;
use crate::context::Context;
use crate::exit::{self, Failure};
use crate::run::holders::{PLACE, RELEASE, bits};
use crate::run::tree;
use crate::{output, store};

/// How long the keeper and its store may take to give a lock back.
const GIVING_BACK: Duration = Duration::from_secs(10);

/// Whether the process that reads the pipe is there.
pub(super) fn is_alive(hold: &Hold) -> bool {
    let (pid, started) = hold.keeper;
    tree::started(pid) == Some(started)
}

/// What this process works under.
struct Under {
    key: String,
    fence: Fence,
    hold: Option<Hold>,
}

/// A line of what `check --json` prints; a struct, so that the key comes first.
#[derive(serde::Serialize)]
struct Checked {
    key: String,
    fence: String,
    held: bool,
}

/// All that this process works under, by what `hold` and `run` left in its environment.
fn all() -> Vec<Under> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let held = holds(&variable(VARIABLE)).into_iter();
    let mut all: Vec<Under> = held
        .map(|hold| Under { key: hold.key.clone(), fence: hold.fence, hold: Some(hold) })
        .collect();
    let mut run = vec![(variable("HOLDTIGHT_FENCE"), variable("HOLDTIGHT_KEY"))];
    let lines = variable("HOLDTIGHT_FENCES");
    run.extend(
        lines.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.into(), b.into())),
    );
    for (fence, key) in run {
        if let Ok(fence) = fence.parse::<Fence>()
            && !key.is_empty()
            && !all.iter().any(|one| one.key == key && one.fence == fence)
        {
            all.push(Under { key, fence, hold: None });
        }
    }
    all
}

/// Says whether what this process works under is still held: exit 0, or 74.
pub(crate) async fn check(args: CheckArgs, context: &Context) -> Result<u8, Failure> {
    let mut under = all();
    if let Some(key) = &args.key {
        under.retain(|one| one.key == *key);
    }
    if under.is_empty() {
        return Err(Failure::usage(match &args.key {
            Some(key) => format!("this process does not work under {}", quoted(key)),
            None => format!(
                "nothing to check: {VARIABLE} and HOLDTIGHT_KEY are not set; was `hold` called outside of eval, or `run` \
                 not at all?"
            ),
        }));
    }
    if let Some(lost) =
        under.iter().find(|one| one.hold.as_ref().is_some_and(|hold| !is_alive(hold)))
    {
        return Err(is_lost(&lost.key, "its keeper is gone, or it was given back"));
    }
    let lock = store::connect(&context.settings).await?;
    for one in &under {
        if !is_current(&lock, &one.key, one.fence).await? {
            return Err(is_lost(&one.key, "the store does not know this holder any more"));
        }
    }
    if context.json {
        let checked = |one: &Under| Checked {
            key: one.key.clone(),
            fence: one.fence.to_string(),
            held: true,
        };
        output::print_json(&under.iter().map(checked).collect::<Vec<_>>())?;
    }
    Ok(exit::OK)
}

async fn is_current(lock: &DistributedLock, key: &str, fence: Fence) -> Result<bool, Failure> {
    Ok(lock.lookup(key).await?.is_some_and(|info| info.fence == Some(fence)))
}

fn is_lost(key: &str, why: &str) -> Failure {
    Failure::new(exit::LOST, format!("{} is not held by this script: {why}", quoted(key)))
}

/// Gives back what `hold` took: `key`, or the only one there is. `None` if nothing is held by this
/// script.
pub(crate) async fn release(key: Option<&str>, context: &Context) -> Result<Option<u8>, Failure> {
    let mut taken = holds(&std::env::var(VARIABLE).unwrap_or_default());
    match key {
        Some(key) => taken.retain(|hold| hold.key == key),
        // Those that were given back before are not meant, unless there are no others.
        None if taken.iter().any(is_alive) => taken.retain(is_alive),
        None => taken = taken.pop().into_iter().collect(),
    }
    let hold = match &taken[..] {
        [] if key.is_none() => return Ok(None),
        [] => {
            let key = quoted(key.unwrap_or_default());
            return Err(Failure::usage(format!("this script did not take {key} by `hold`")));
        }
        [.., last] if key.is_some() => last,
        [only] => only,
        _ => {
            return Err(Failure::usage(
                "this script holds several keys; say which: holdtight release --hold KEY",
            ));
        }
    };
    give_back(hold, context).await?;
    if context.json {
        output::print_json(&serde_json::json!({ "key": hold.key, "released": true }))?;
    }
    Ok(Some(exit::OK))
}

/// The pipe that the keeper reads, as one of its descriptors.
fn pipe_of(hold: &Hold) -> Option<PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", hold.keeper.0)).ok()?;
    let paths = descriptors.flatten().map(|entry| entry.path());
    let is_named = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.parent().is_some_and(|place| {
            place.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PLACE))
        })
    };
    let is_pipe =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    paths.filter(is_named).find(is_pipe)
}

async fn give_back(hold: &Hold, context: &Context) -> Result<(), Failure> {
    if !is_alive(hold) {
        return Err(is_lost(&hold.key, "its keeper is gone, or it was given back before"));
    }
    // Not by the descriptor of this process: a script may have closed it, or use its number for
    // something else.
    let gone = || is_lost(&hold.key, "its keeper cannot be reached");
    let path = pipe_of(hold).ok_or_else(gone)?;
    let pipe = OpenOptions::new().write(true).custom_flags(bits(OFlags::NONBLOCK)).open(path);
    pipe.and_then(|mut pipe| pipe.write_all(&[RELEASE])).map_err(|_| gone())?;
    let lock = store::connect(&context.settings).await?;
    let started = Instant::now();
    while is_alive(hold) || is_current(&lock, &hold.key, hold.fence).await? {
        if started.elapsed() > GIVING_BACK {
            return Err(Failure::new(
                exit::UNAVAILABLE,
                format!("{} was not given back in time; it ends with its lease", quoted(&hold.key)),
            ));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
