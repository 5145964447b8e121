//! Whom the store trusts: pure functions of who owns a directory or a file, and who may write to it.
//!
//! Its own directory belongs to one user, mode 0700. A shared one is made by root: group-writable and setgid.
//! Everything else is refused, because whoever can write here can break every lock.

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
    /// Not to be used, and why.
    Unfit(String),
}

/// Whether the store's directory, with this owner and mode, can be trusted by `me`, or what is wrong with it.
pub(crate) fn judge_root(owner: u32, mode: u32, me: u32) -> Result<Access, String> {
    if mode & 0o002 != 0 {
        return Err(
            "is writable for everybody, so anybody could break its locks; run `chmod o-w` on \
                    it, or choose another"
                .into(),
        );
    }
    if owner == 0 && mode & 0o2020 == 0o2020 {
        return Ok(Access::Shared);
    }
    if owner != me {
        return Err(format!(
            "belongs to user {owner}, not to you (user {me}): choose your own, or let root make one \
             for a group with `install -d -o root -g GROUP -m 2770 DIRECTORY`"
        ));
    }
    if mode & 0o020 != 0 {
        return Err("is writable for its group; run `chmod g-w` on it to keep it to yourself, or let \
                    root make one for the group with `install -d -o root -g GROUP -m 2770 DIRECTORY`"
            .into());
    }
    Ok(Access::Own)
}

/// Whether a directory inside a store with this access and group can be trusted by `me`.
pub(crate) fn judge_inside(access: Access, group: u32, found: &Found, me: u32) -> Inside {
    let Found { owner, mode, .. } = *found;
    if mode & 0o002 != 0 {
        return Inside::Unfit(
            "is writable for everybody, so anybody could break the locks in it; if nobody holds \
             one, remove it"
                .into(),
        );
    }
    match access {
        Access::Own if owner != me => Inside::Unfit(belongs(owner, me)),
        Access::Own if mode & 0o020 != 0 => Inside::Unfit(
            "is writable for its group, which the directory around it is not; run `chmod g-w` on it"
                .into(),
        ),
        Access::Own => Inside::Fit,
        Access::Shared if found.group != group => Inside::Unfit(format!(
            "belongs to group {}, not to that of the store ({group}); if nobody holds a lock in \
             it, remove it",
            found.group
        )),
        Access::Shared if mode & 0o2070 == 0o2070 => Inside::Fit,
        Access::Shared if mode & 0o777 | 0o700 == 0o700 && owner == me => Inside::HalfMade,
        Access::Shared if mode & 0o777 | 0o700 == 0o700 => Inside::HalfMadeByAnother,
        Access::Shared => Inside::Unfit(format!(
            "has mode {mode:o}, so not all of its group can use it; run `chmod 2770` on it"
        )),
    }
}

/// Whether a file of a store with this access can be trusted by `me`, or what is wrong with it.
pub(crate) fn judge_file(access: Access, found: &Found, me: u32) -> Result<(), String> {
    if !found.is_file() {
        return Err(format!(
            "is not a file but {}; remove it: nothing but holdtight writes there",
            found.what()
        ));
    }
    match access {
        Access::Own if found.owner != me => Err(belongs(found.owner, me)),
        _ => Ok(()),
    }
}

fn belongs(owner: u32, me: u32) -> String {
    format!(
        "belongs to user {owner}, not to you (user {me}), although the directory of the store is \
         yours: who put it there? If nobody holds a lock, remove it"
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
            let text = judge_root(owner, mode, me).unwrap_err();
            assert!(text.contains(why), "{mode:o}: {text}");
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
