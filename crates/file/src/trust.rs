//! Whom the store trusts: pure functions of who owns a directory or a file, and who may write to
//! it.
//!
//! Its own directory belongs to one user, mode 0700. A shared one is made by root: group-writable
//! and setgid. Everything else is refused, because whoever can write here can break every lock, and
//! so can whoever is able to put another directory in the place of the store's, or of one on the
//! way to it.

use std::ffi::OsStr;

use crate::look::Found;

/// Who may use a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One user.
    Own,
    /// All members of the directory's group.
    Shared,
}

/// What is to be done with a directory inside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    Fit,
    /// This user made it, and died before it was opened to the group.
    HalfMade,
    /// The same of another user.
    HalfMadeByAnother,
    Unfit(Doubt),
}

/// Why something is not to be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) why: String,
    pub(crate) fix: String,
}

impl Doubt {
    fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }
}

/// Who goes to a store, and whom they trust on the way there.
pub(crate) struct Passage<'p> {
    pub(crate) me: u32,
    /// The owner of `/`: root, or what root looks like in a user namespace that does not know it.
    pub(crate) highest: u32,
    /// Whether nobody but a user is in a group.
    pub(crate) is_private: &'p dyn Fn(u32, u32) -> bool,
}

impl Passage<'_> {
    /// Root, this user, or the system of a telephone, which is root there for all but the kernel.
    fn trusts(&self, owner: u32) -> bool {
        owner == 0 || owner == self.me || (cfg!(target_os = "android") && owner == ANDROID_SYSTEM)
    }
}

const ANDROID_SYSTEM: u32 = 1000;

/// Whether the directory `here` can be passed: nobody but root and `me` may be able to put
/// something else in the place of what is called `next` in it. Tells whether others can write to
/// it, and only its sticky bit keeps them from that.
pub(crate) fn judge_passage(
    here: &Found,
    next: &OsStr,
    passage: &Passage<'_>,
) -> Result<bool, Doubt> {
    let next = next.display();
    let Found { owner, group, mode, .. } = *here;
    if !passage.trusts(owner) && owner != passage.highest {
        return Err(Doubt::new(
            format!(
                "belongs to user {owner}, who could put something else in the place of `{next}` in it"
            ),
            format!(
                "choose a place to which only directories of root and of you (user {}) lead; is HOME \
                 that of another user?",
                passage.me
            ),
        ));
    }
    let by_all = mode & 0o002 != 0;
    let by_group = mode & 0o020 != 0
        && !(cfg!(target_os = "android") && group == ANDROID_SYSTEM)
        && !(passage.is_private)(owner, group);
    if (by_all || by_group) && mode & 0o1000 == 0 {
        let (whom, take_away) = if by_all {
            ("everybody".to_owned(), "o-w")
        } else {
            (format!("its group ({group})"), "g-w")
        };
        return Err(Doubt::new(
            format!(
                "is writable for {whom}, who could put something else in the place of `{next}` in it"
            ),
            format!(
                "run `chmod {take_away}` on it, or `chmod +t` if they must go on writing there; or \
                 choose another place for the store"
            ),
        ));
    }
    Ok(by_all || by_group)
}

/// Whether what was found in a directory on the way can be followed: a link says where to go, so it
/// counts whose it is, and where others can write, they may have made either.
pub(crate) fn judge_next(
    next: &Found,
    open_to_others: bool,
    passage: &Passage<'_>,
) -> Result<(), Doubt> {
    let owner = next.owner;
    // A user namespace that does not know root shows others whom it does not know by the same
    // number.
    if passage.trusts(owner) || (owner == passage.highest && !open_to_others) {
        return Ok(());
    }
    let me = passage.me;
    Err(if next.kind.is_symlink() {
        Doubt::new(
            format!(
                "is a symbolic link of user {owner}, not yours (user {me}) or root's: it could be \
                     pointed elsewhere at any time"
            ),
            "name the directory that you mean",
        )
    } else {
        Doubt::new(
            format!(
                "belongs to user {owner}, who could put something else in the place of what is in it"
            ),
            format!(
                "choose a place to which only directories of root and of you (user {me}) lead; is HOME \
                 that of another user?"
            ),
        )
    })
}

/// Whether the store's directory, with this owner and mode, can be trusted by `me`, or what is
/// wrong with it.
pub(crate) fn judge_root(owner: u32, mode: u32, me: u32) -> Result<Access, Doubt> {
    if mode & 0o002 != 0 {
        return Err(Doubt::new(
            "is writable for everybody, so anybody could break its locks",
            "run `chmod o-w` on it, or choose another",
        ));
    }
    if owner == 0 && mode & 0o2020 == 0o2020 {
        return Ok(Access::Shared);
    }
    if owner != me {
        return Err(Doubt::new(
            format!("belongs to user {owner}, not to you (user {me})"),
            "choose your own, or let root make one for a group with `install -d -o root -g GROUP -m \
             2770 DIRECTORY`",
        ));
    }
    if mode & 0o020 != 0 {
        return Err(Doubt::new(
            "is writable for its group",
            "run `chmod g-w` on it to keep it to yourself, or let root make one for the group with \
             `install -d -o root -g GROUP -m 2770 DIRECTORY`",
        ));
    }
    Ok(Access::Own)
}

/// A directory looks like one's own, and the kernel says that it is not.
pub(crate) fn unknown_owner() -> Doubt {
    Doubt::new("belongs to a user whom this user namespace does not know", "choose your own")
}

/// Something else stands in the place of a directory inside a store.
pub(crate) fn no_directory(found: &Found) -> Doubt {
    Doubt::new(
        format!("is {} where the store keeps a directory; nothing in it is touched", found.what()),
        "remove it",
    )
}

/// Whether a directory inside a store with this access and group can be trusted by `me`.
pub(crate) fn judge_inside(access: Access, group: u32, found: &Found, me: u32) -> Inside {
    let Found { owner, mode, .. } = *found;
    if mode & 0o002 != 0 {
        return Inside::Unfit(Doubt::new(
            "is writable for everybody, so anybody could break the locks in it",
            "if nobody holds one, remove it",
        ));
    }
    match access {
        Access::Own if owner != me => {
            Inside::Unfit(Doubt::new(belongs(owner, me), "if nobody holds a lock, remove it"))
        }
        Access::Own if mode & 0o020 != 0 => Inside::Unfit(Doubt::new(
            "is writable for its group, which the directory around it is not",
            "run `chmod g-w` on it",
        )),
        Access::Own => Inside::Fit,
        Access::Shared if found.group != group => Inside::Unfit(Doubt::new(
            format!("belongs to group {}, not to that of the store ({group})", found.group),
            "if nobody holds a lock in it, remove it",
        )),
        Access::Shared if mode & 0o2070 == 0o2070 => Inside::Fit,
        Access::Shared if mode & 0o777 | 0o700 == 0o700 && owner == me => Inside::HalfMade,
        Access::Shared if mode & 0o777 | 0o700 == 0o700 => Inside::HalfMadeByAnother,
        Access::Shared => Inside::Unfit(Doubt::new(
            format!("has mode {mode:o}, so not all of its group can use it"),
            "run `chmod 2770` on it",
        )),
    }
}

/// Whether a file of a store with this access can be trusted by `me`, or what is wrong with it.
pub(crate) fn judge_file(access: Access, found: &Found, me: u32) -> Result<(), Doubt> {
    if !found.is_file() {
        return Err(Doubt::new(
            format!("is not a file but {}", found.what()),
            "remove it: nothing but holdtight writes there",
        ));
    }
    match access {
        Access::Own if found.owner != me => {
            Err(Doubt::new(belongs(found.owner, me), "if nobody holds a lock, remove it"))
        }
        _ => Ok(()),
    }
}

fn belongs(owner: u32, me: u32) -> String {
    format!(
        "belongs to user {owner}, not to you (user {me}), although the directory of the store is \
         yours: who put it there?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FileType;

    fn found(owner: u32, group: u32, mode: u32) -> Found {
        let kind = FileType::Directory;
        Found { identity: (1, 1), kind, is_named: true, owner, group, mode, size: 0 }
    }

    #[test]
    fn only_ones_own_directory_or_roots_shared_one_is_trusted() {
        assert_eq!(judge_root(1000, 0o40700, 1000), Ok(Access::Own));
        assert_eq!(judge_root(1000, 0o40755, 1000), Ok(Access::Own));
        assert_eq!(judge_root(0, 0o42770, 1000), Ok(Access::Shared));
        assert_eq!(judge_root(0, 0o42775, 0), Ok(Access::Shared));
        for (owner, mode, me, why) in [
            (1000, 0o40777, 1000, "everybody"),
            (0, 0o41777, 1000, "everybody"),
            (0, 0o42777, 0, "everybody"),
            (1001, 0o40700, 1000, "belongs to user 1001"),
            (1001, 0o42770, 1000, "belongs to user 1001"),
            (1000, 0o40700, 0, "belongs to user 1000"),
            (1000, 0o40770, 1000, "its group"),
            (1000, 0o42770, 1000, "its group"),
        ] {
            let doubt = judge_root(owner, mode, me).unwrap_err();
            assert!(doubt.why.contains(why), "{mode:o}: {doubt:?}");
        }
    }

    #[test]
    fn what_others_can_rename_is_not_passed() {
        let is_private = |owner, group| owner == group;
        let passage = Passage { me: 1000, highest: 0, is_private: &is_private };
        let pass = |owner, group, mode| {
            judge_passage(&found(owner, group, mode), OsStr::new("next"), &passage)
        };
        assert_eq!(pass(0, 0, 0o755), Ok(false));
        assert_eq!(pass(1000, 5, 0o2755), Ok(false));
        assert_eq!(pass(1000, 1000, 0o775), Ok(false), "a group of one");
        assert_eq!(pass(0, 0, 0o1777), Ok(true));
        assert_eq!(pass(1000, 5, 0o1770), Ok(true));
        for (owner, group, mode, why) in [
            (1001, 1001, 0o700, "belongs to user 1001"),
            (1001, 1001, 0o1777, "belongs to user 1001"),
            (0, 0, 0o777, "everybody"),
            (1000, 1000, 0o777, "everybody"),
            (0, 5, 0o2770, "its group (5)"),
            (1000, 5, 0o775, "its group (5)"),
        ] {
            let doubt = pass(owner, group, mode).unwrap_err();
            assert!(doubt.why.contains(why), "{owner} {mode:o}: {doubt:?}");
        }
    }

    #[test]
    fn what_others_made_is_not_followed() {
        let is_private = |_, _| false;
        let follow = |owner, kind, open_to_others| {
            let passage = Passage { me: 1000, highest: 65_534, is_private: &is_private };
            let next = Found { kind, ..found(owner, 7, 0o777) };
            judge_next(&next, open_to_others, &passage).is_ok()
        };
        for kind in [FileType::Symlink, FileType::Directory] {
            for (owner, in_private, in_the_open) in
                [(0, true, true), (1000, true, true), (1001, false, false), (65_534, true, false)]
            {
                assert_eq!(follow(owner, kind, false), in_private, "{owner} {kind:?}");
                assert_eq!(follow(owner, kind, true), in_the_open, "{owner} {kind:?}");
            }
        }
    }

    #[test]
    fn what_is_inside_is_judged_as_the_directory_around_it() {
        let own = |owner, mode| judge_inside(Access::Own, 5, &found(owner, 7, mode), 1000);
        assert_eq!(own(1000, 0o700), Inside::Fit);
        assert_eq!(own(1000, 0o2755), Inside::Fit);
        for (owner, mode) in [(0, 0o700), (1001, 0o700), (1000, 0o770), (1000, 0o702)] {
            assert!(matches!(own(owner, mode), Inside::Unfit(_)), "{owner} {mode:o}");
        }
        let shared =
            |owner, group, mode| judge_inside(Access::Shared, 5, &found(owner, group, mode), 1000);
        assert_eq!(shared(1001, 5, 0o2770), Inside::Fit);
        assert_eq!(shared(0, 5, 0o2775), Inside::Fit);
        assert_eq!(shared(1000, 5, 0o2700), Inside::HalfMade);
        assert_eq!(shared(1001, 5, 0o2700), Inside::HalfMadeByAnother);
        for (group, mode) in [(5, 0o2772), (5, 0o770), (5, 0o2750), (6, 0o2770), (6, 0o2700)] {
            assert!(matches!(shared(1001, group, mode), Inside::Unfit(_)), "{group} {mode:o}");
        }
    }
}
