//! The way to the store's directory: each directory and each link on it is judged before it is
//! passed.
//!
//! Whoever can rename something on the way can put another directory in the place of the store, and
//! then two hold one lock. So the path is walked by hand from `/` on, through descriptors. What was
//! passed can be changed by nobody but root and this user, and so what lies behind it is what was
//! judged. On the way to a fenced file, which is at home in directories of all kinds, only links
//! are judged.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use holdtight_core::LockError;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use crate::error;
use crate::folder::AS_DIRECTORY;
use crate::groups;
use crate::look::{Found, look_at, look_in};
use crate::trust::{Passage, judge_next, judge_passage};

/// A directory on the way may be passed by those who may not list it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const TO_PASS: OFlags = AS_DIRECTORY.union(OFlags::PATH);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const TO_PASS: OFlags = AS_DIRECTORY;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// How often a directory is made that others remove again.
const TRIES: usize = 64;

/// The end of the way.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Good for opening what is in it, and perhaps for no more.
    pub(crate) opened: OwnedFd,
    /// Without links.
    pub(crate) path: PathBuf,
}

/// A directory that was entered.
struct Entered {
    opened: OwnedFd,
    found: Found,
    path: PathBuf,
}

/// A part of the path that is still to go.
struct Ahead {
    name: OsString,
    /// Whether a link named it.
    by_link: bool,
}

/// What is to be judged on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// Everything: nobody else may be able to put another directory in the place of one that leads
    /// to a store.
    All,
    /// Links alone: nobody else may have said where to go.
    Links,
}

/// Goes to the directory of a store at `path`, which is absolute, as the user `me`. What is missing
/// there is made for this user alone, if `make` says so.
pub(crate) fn walk(path: &Path, me: u32, make: bool) -> Result<Arrived, LockError> {
    go(path, me, make, Judged::All)
}

/// Goes to a directory in which others may have their part, and in which nothing is trusted: only
/// links are judged.
pub(crate) fn walk_to_file(path: &Path, me: u32) -> Result<Arrived, LockError> {
    go(path, me, false, Judged::Links)
}

fn go(path: &Path, me: u32, make: bool, judged: Judged) -> Result<Arrived, LockError> {
    let opening = |at: &Path| {
        let at = at.to_path_buf();
        move |source: io::Error| error::io("open", &at, source)
    };
    let mut entered = vec![enter(CWD, "/", PathBuf::from("/")).map_err(opening(path))?];
    let highest = entered[0].found.owner;
    let mut ahead: VecDeque<Ahead> = parts(path, false).collect();
    let (mut links, mut tries) = (0, 0);
    while let Some(Ahead { name, by_link }) = ahead.pop_front() {
        if name == ".." {
            if entered.len() > 1 {
                entered.pop();
            }
            continue;
        }
        let Some(here) = entered.last() else { break };
        let unfit = |at: &Path, doubt| error::unfit(path, &on_the_way(at, judged), &doubt);
        let passage = Passage { me, highest, is_private: &groups::is_private };
        let open_to_others = match judge_passage(&here.found, &name, &passage) {
            Err(doubt) if judged == Judged::All => return Err(unfit(&here.path, doubt)),
            open_to_others => open_to_others.unwrap_or(true),
        };
        let at = here.path.join(&name);
        let next = match look_in(&here.opened, &name) {
            Ok(next) => next,
            Err(source) if source.kind() == io::ErrorKind::NotFound && make && tries < TRIES => {
                if by_link {
                    return Err(error::no_directory(path, io::ErrorKind::AlreadyExists.into()));
                }
                match mkdirat(&here.opened, &name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(source) => return Err(error::no_directory(path, source.into())),
                }
                tries += 1;
                ahead.push_front(Ahead { name, by_link });
                continue;
            }
            Err(source) => return Err(opening(&at)(source)),
        };
        // The store's own directory is judged by stricter rules than what leads to it.
        let is_last = ahead.is_empty() && next.kind.is_dir();
        if !is_last && (judged == Judged::All || next.kind.is_symlink()) {
            judge_next(&next, open_to_others, &passage).map_err(|doubt| unfit(&at, doubt))?;
        }
        if next.kind.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(opening(&at)(Errno::LOOP.into()));
            }
            let target = readlinkat(&here.opened, &name, Vec::new())
                .map_err(|source| opening(&at)(source.into()))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                entered.truncate(1);
            }
            for part in parts(&target, true).collect::<Vec<_>>().into_iter().rev() {
                ahead.push_front(part);
            }
        } else if next.kind.is_dir() {
            let there = enter(&here.opened, &name, at.clone()).map_err(opening(&at))?;
            entered.push(there);
        } else {
            return Err(error::no_directory(path, io::ErrorKind::NotADirectory.into()));
        }
    }
    let end = entered.pop().ok_or_else(|| LockError::internal("the way led nowhere"))?;
    Ok(Arrived { opened: end.opened, path: end.path })
}

/// What the end of the way is judged by is read from what was opened.
fn enter(
    parent: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
    path: PathBuf,
) -> io::Result<Entered> {
    let opened = openat(parent, name, TO_PASS, Mode::empty())?;
    let found = look_at(&opened)?;
    Ok(Entered { opened, found, path })
}

fn parts(path: &Path, by_link: bool) -> impl Iterator<Item = Ahead> {
    path.components().filter_map(move |component| match component {
        Component::Normal(name) => Some(Ahead { name: name.to_owned(), by_link }),
        Component::ParentDir => Some(Ahead { name: "..".into(), by_link }),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn on_the_way(path: &Path, judged: Judged) -> String {
    let end = if judged == Judged::All { "store" } else { "file" };
    format!("{}, on the way to the {end},", path.display())
}
