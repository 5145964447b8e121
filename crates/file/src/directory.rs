//! The store's directory: whether it is fit for locks, and the way to everything in it.
//!
//! It is opened once, and with it `keys`, `live` and `new`; all the rest is reached through these
//! descriptors. Each directory is judged before it is used, whoever made it. A directory that holds
//! anything else is not taken for a store.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdtight_core::LockError;
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, openat};

use crate::error;
use crate::failpoint;
use crate::filesystem::{self, FileSystem};
use crate::folder::{AS_DIRECTORY, Folder, QUIET, names_in, open_directory};
use crate::look::{Found, look_at, look_up};
use crate::names::{InLive, InNew, Name, hex, part_of, record_in};
use crate::trust::{self, Access, Doubt, Inside, judge_inside, judge_root};
use crate::way::{Arrived, walk};

/// The file with the facts about the whole store, which also says that this is one.
pub(crate) const LEDGER: &str = "store";

/// How long a step may rely on an earlier look that the store is still where it was: ten
/// milliseconds.
pub(crate) const MOVED: u64 = 10_000_000;

/// How often something is tried again that others may undo meanwhile.
const TRIES: usize = 64;

/// How often, and how long each time, whoever makes a directory is waited for before it is taken
/// for dead.
const MAKER_WAITS: usize = 20;
const MAKER_PAUSE: Duration = Duration::from_millis(10);

/// A directory that was found fit for locks.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The path that was asked for, absolute, with the links that are in it.
    asked: PathBuf,
    pub(crate) root: Folder,
    /// Where the records are, in up to 256 parts.
    pub(crate) keys: Folder,
    /// Where processes show that they live.
    pub(crate) live: Arc<Folder>,
    /// Where files are made before they get their place.
    pub(crate) new: Folder,
    pub(crate) access: Access,
    pub(crate) file_system: FileSystem,
    group: u32,
    pub(crate) me: u32,
    /// When the path was last seen to lead here, on the store's clock.
    seen_at: AtomicU64,
    /// The parts of `keys` that this process has judged, a bit each.
    judged: [AtomicU64; 4],
}

/// What to do about a directory inside the store that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Skip,
    /// Make it; it may be swept away when it is empty, and nobody is harmed by that.
    Make,
    /// Make it; it stays for as long as the store.
    MakeForGood,
}

/// What a directory inside the store has to fit to.
#[derive(Clone, Copy, Debug)]
struct Terms<'d> {
    store: &'d Path,
    access: Access,
    group: u32,
    me: u32,
}

/// Where a store's path leads by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Here,
    Removed,
    Replaced,
}

impl Directory {
    /// Creates what is missing, and checks what is there.
    pub(crate) fn open(path: &Path) -> Result<Self, LockError> {
        let me = rustix::process::geteuid().as_raw();
        let asked = std::path::absolute(path).map_err(|source| error::io("open", path, source))?;
        let Arrived { opened: there, path: root } = walk(&asked, me, true)?;
        let opening = |source| error::io("open", &root, source);
        let (opened, found) = open_directory(&there, ".").map_err(opening)?;
        let opened = File::from(opened);
        let file_system =
            filesystem::of(&opened).map_err(opening)?.map_err(|name| error::remote(&root, name))?;
        let whole = format!("the directory {}", root.display());
        let access = judge_root(found.owner, found.mode, me)
            .map_err(|doubt| error::unfit(&root, &whole, &doubt))?;
        if access == Access::Own && !is_really_mine(&opened).map_err(opening)? {
            return Err(error::unfit(&root, &whole, &trust::unknown_owner()));
        }
        if let Some(foreign) = foreign_contents(&opened).map_err(opening)? {
            return Err(LockError::invalid_config(format!(
                "{whole} has contents that are not holdtight's ({}), and no file `{LEDGER}` that \
                 would make it a store; choose an empty directory, or a new one",
                foreign.display()
            )));
        }
        let group = found.group;
        let root = Folder::new(opened.into(), root, &found, access);
        let inside = |name| {
            let terms = Terms { store: root.path(), access, group, me };
            let made = open_inside(&root, name, terms, Missing::MakeForGood)?;
            made.ok_or_else(|| LockError::internal("a directory that was just made is not there"))
        };
        let (keys, live, new) = (inside("keys")?, Arc::new(inside("live")?), inside("new")?);
        let (seen_at, judged) = (AtomicU64::new(0), Default::default());
        Ok(Self { asked, root, keys, live, new, access, file_system, group, me, seen_at, judged })
    }

    /// Looks again at the directory, those in it and the way to it: somebody may have changed their
    /// modes since.
    pub(crate) fn judge_again(&self) -> Result<(), LockError> {
        let path = self.path();
        walk(&self.asked, self.me, false)?;
        let found = look_at(&self.root).map_err(|source| error::io("open", path, source))?;
        judge_root(found.owner, found.mode, self.me).map_err(|doubt| {
            error::unfit(path, &format!("the directory {}", path.display()), &doubt)
        })?;
        for name in ["keys", "live", "new"] {
            open_inside(&self.root, name, self.terms(), Missing::Skip)?;
        }
        Ok(())
    }

    fn terms(&self) -> Terms<'_> {
        Terms { store: self.path(), access: self.access, group: self.group, me: self.me }
    }

    /// The path of the store.
    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// The path of one key's file, for people, and to see whether it still leads there.
    pub(crate) fn path_of(&self, name: &Name) -> PathBuf {
        let hex = hex(name);
        let mut path = self.keys.path().to_path_buf();
        path.push(&hex[..2]);
        path.push(&hex[2..]);
        path
    }

    /// Where the path leads that was opened.
    pub(crate) fn whereabouts(&self) -> Result<Whereabouts, LockError> {
        let missing = |source: &io::Error| {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        match look_up(self.keys.path()) {
            Ok(found) if found.identity == self.keys.identity => return Ok(Whereabouts::Here),
            Err(source) if !missing(&source) => {
                return Err(error::io("open", self.keys.path(), source));
            }
            _ => {}
        }
        Ok(match look_up(self.path()) {
            Err(source) if missing(&source) => Whereabouts::Removed,
            _ => Whereabouts::Replaced,
        })
    }

    /// The same as an error, if it is not here any more.
    pub(crate) fn check_still_there(&self) -> Result<(), LockError> {
        match self.whereabouts()? {
            Whereabouts::Here => Ok(()),
            Whereabouts::Replaced => Err(LockError::unavailable(format!(
                "the directory {} was replaced while in use: locks in the old one are void; open \
                 the store again",
                self.path().display()
            ))),
            Whereabouts::Removed => Err(LockError::unavailable(format!(
                "the directory {} was removed while in use: its locks are void; create it and \
                 open the store again",
                self.path().display()
            ))),
        }
    }

    /// Notes that the path leads here at the time `now`.
    pub(crate) fn seen(&self, now: u64) {
        self.seen_at.store(now, Ordering::Relaxed);
    }

    /// Makes sure that the path led here not long before `now`, and tells when it was seen to.
    pub(crate) fn check_lately(&self, now: u64) -> Result<u64, LockError> {
        let seen_at = self.seen_at.load(Ordering::Relaxed);
        if now.saturating_sub(seen_at) < MOVED {
            return Ok(seen_at);
        }
        self.check_still_there()?;
        self.seen(now);
        Ok(now)
    }

    /// Opens the file of a key. `None` if there is none.
    pub(crate) fn open_record(&self, name: &Name, write: bool) -> Result<Option<File>, LockError> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        match self.open_at_once(name, write) {
            Ok(file) => return Ok(Some(file)),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            // Every other doubt is settled step by step.
            Err(_) => {}
        }
        let Some(part) = self.part(name[0], false)? else { return Ok(None) };
        match part.open_file(&hex(&name[1..]), write) {
            Ok(file) => Ok(Some(file)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => {
                let path = self.path_of(name);
                // A link, a socket or a directory cannot even be opened as a file.
                if let Ok(found) = part.look(hex(&name[1..])) {
                    self.check_file(&found, &path)?;
                }
                Err(error::io("open", &path, source))
            }
        }
    }

    /// The same in one call, in a part that was judged before: the kernel makes sure that no link
    /// is on the way.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn open_at_once(&self, name: &Name, write: bool) -> rustix::io::Result<File> {
        use rustix::fs::{ResolveFlags, openat2};
        if !self.is_judged(name[0]) {
            return Err(rustix::io::Errno::NOSYS);
        }
        let mut path = hex(name);
        path.insert(2, '/');
        let quiet = if self.access == Access::Own { QUIET } else { OFlags::empty() };
        let flags = crate::folder::mode_of(write) | quiet | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.keys, &*path, flags | OFlags::NOFOLLOW, Mode::empty(), within).map(File::from)
    }

    fn is_judged(&self, part: u8) -> bool {
        let bits = self.judged[usize::from(part / 64)].load(Ordering::Relaxed);
        bits & (1 << (part % 64)) != 0
    }

    /// One of the parts of `keys`. `None` if it is missing and not to be made.
    pub(crate) fn part(&self, number: u8, make: bool) -> Result<Option<Folder>, LockError> {
        let name = hex(&[number]);
        let missing = if make { Missing::Make } else { Missing::Skip };
        let part = open_inside(&self.keys, &name, self.terms(), missing)?;
        if part.is_some() {
            let bits = &self.judged[usize::from(number / 64)];
            bits.fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
        Ok(part)
    }

    /// Whether a file of the store is what it should be.
    pub(crate) fn check_file(&self, found: &Found, path: &Path) -> Result<(), LockError> {
        trust::judge_file(self.access, found, self.me).map_err(|Doubt { why, fix }| {
            LockError::internal(format!("{} {why}; {fix}", path.display()))
        })
    }

    /// The same of the ledger, without which there is no store.
    pub(crate) fn check_ledger(&self, found: &Found, path: &Path) -> Result<(), LockError> {
        trust::judge_file(self.access, found, self.me)
            .map_err(|doubt| error::unfit(self.path(), &path.display().to_string(), &doubt))
    }

    /// Gives the finished file `made` in `new` its place as the file of a key, and tells in which
    /// part that is. `None` if somebody else was there first.
    pub(crate) fn place_record(
        &self,
        made: &str,
        name: &Name,
    ) -> Result<Option<Folder>, LockError> {
        let rest = hex(&name[1..]);
        for _ in 0..TRIES {
            let Some(part) = self.part(name[0], true)? else { continue };
            match self.new.move_unless_taken(made, &part, &rest) {
                Ok(()) => return Ok(Some(part)),
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                // The part was empty and swept away just now.
                Err(source) if source.kind() == io::ErrorKind::NotFound => {
                    self.check_still_there()?;
                }
                Err(source) => return Err(error::io("create", &self.path_of(name), source)),
            }
        }
        Err(error::io("create", &self.path_of(name), io::ErrorKind::NotFound.into()))
    }
}

/// Users whom a namespace does not know all show the same number, which may also be one's own. Only
/// the owner may open a file without a trace, and for this the kernel compares the true users.
fn is_really_mine(directory: &File) -> io::Result<bool> {
    match openat(directory, c".", AS_DIRECTORY | QUIET, Mode::empty()) {
        Ok(again) => look_at(&again).map(|_| true),
        Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => Ok(false),
        // Nothing was learnt: too many open files, for one.
        Err(error) => Err(error.into()),
    }
}

/// Something in a directory without a ledger that no store has put there.
fn foreign_contents(root: &File) -> io::Result<Option<PathBuf>> {
    let names = names_in(root)?;
    if names.iter().any(|name| name == LEDGER) {
        return Ok(None);
    }
    for name in names {
        let is_ours: &dyn Fn(&OsStr) -> bool = match name.to_str() {
            Some("keys") => &|name| part_of(name).is_some(),
            Some("live") => &|name| InLive::of(name).is_some(),
            Some("new") => &|name| InNew::of(name).is_some(),
            _ => return Ok(Some(name.into())),
        };
        // What cannot be opened is judged when it is needed.
        let Ok((opened, _)) = open_directory(root, &name) else { continue };
        for inner in names_in(&opened)? {
            if !is_ours(&inner) {
                return Ok(Some(Path::new(&name).join(inner)));
            }
            let Some(part) = part_of(&inner) else { continue };
            let Ok((records, _)) = open_directory(&opened, &inner) else { continue };
            let foreign =
                names_in(&records)?.into_iter().find(|name| record_in(part, name).is_none());
            if let Some(foreign) = foreign {
                return Ok(Some(Path::new(&name).join(inner).join(foreign)));
            }
        }
    }
    Ok(None)
}

/// Opens a directory inside the store if it is fit for it. If it is missing, it is made, or `None`
/// is the answer.
///
/// One that was made by a process which died before it opened it to the group is mended: by its
/// owner, or, as nobody else can have put anything into it, by whoever finds it empty.
fn open_inside(
    parent: &Folder,
    name: &str,
    terms: Terms<'_>,
    missing: Missing,
) -> Result<Option<Folder>, LockError> {
    let path = parent.path_of(name);
    let Terms { store, access, group, me } = terms;
    let unfit = |doubt: &Doubt| error::unfit(store, &path.display().to_string(), doubt);
    let mut waits = 0;
    for _ in 0..TRIES {
        let (opened, found) = match open_directory(parent, name) {
            Ok((opened, found)) => (Some(opened), found),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                if missing == Missing::Skip {
                    return Ok(None);
                }
                failpoint::point("before a directory is made");
                match mkdirat(parent.as_fd(), name, Mode::RWXU) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => continue,
                    Err(source) => return Err(error::io("create", &path, source.into())),
                }
            }
            Err(source) => match parent.look(name) {
                Ok(found) if !found.kind.is_dir() => {
                    return Err(unfit(&trust::no_directory(&found)));
                }
                Ok(found) if source.kind() == io::ErrorKind::PermissionDenied => (None, found),
                _ => return Err(error::io("open", &path, source)),
            },
        };
        match (judge_inside(access, group, &found, me), opened) {
            (Inside::Fit, Some(opened)) => {
                return Ok(Some(Folder::new(opened, path, &found, access)));
            }
            (Inside::HalfMade, Some(opened)) => {
                failpoint::point("before a directory is opened to the group");
                fchmod(&opened, Mode::from_raw_mode(0o2770))
                    .map_err(|source| error::io("open to the group", &path, source.into()))?;
            }
            // Its maker is about to open it to the group, if it lives.
            (Inside::HalfMadeByAnother, _)
                if missing == Missing::MakeForGood && waits < MAKER_WAITS =>
            {
                waits += 1;
                std::thread::sleep(MAKER_PAUSE);
            }
            (Inside::HalfMadeByAnother, _) => {
                if let Err(source) = parent.remove_empty(name)
                    && source.kind() != io::ErrorKind::NotFound
                {
                    let why = "was left half-made by user";
                    return Err(LockError::invalid_config(format!(
                        "{} {why} {}, who or root has to run `chmod 2770` on it",
                        path.display(),
                        found.owner
                    ))
                    .with_source(source));
                }
            }
            (Inside::Unfit(doubt), _) => return Err(unfit(&doubt)),
            (Inside::Fit | Inside::HalfMade, None) => {
                return Err(error::io("open", &path, io::ErrorKind::PermissionDenied.into()));
            }
        }
    }
    Err(LockError::unavailable(format!("{} keeps disappearing", path.display())))
}
