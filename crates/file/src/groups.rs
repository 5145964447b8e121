//! Whether a group is one user's alone: many systems give every user such a group, and a umask that
//! lets it write.

use std::fs;

/// Whether nobody but `owner` is in `group`, as far as this machine's files say.
pub(crate) fn is_private(owner: u32, group: u32) -> bool {
    // The files are read as they are: users of a directory service are in neither.
    let read = |path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    match (read("/etc/passwd"), read("/etc/group")) {
        (Ok(users), Ok(groups)) => is_private_in(&users, &groups, owner, group),
        _ => owner == group,
    }
}

/// A group is private if it has no other members and bears the name of its user, or the number if
/// it has no name here.
fn is_private_in(users: &str, groups: &str, owner: u32, group: u32) -> bool {
    let user_of = |line: &str| {
        let mut fields = line.split(':');
        let (name, _) = (fields.next()?.to_owned(), fields.next()?);
        let (id, group) =
            (fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
        Some((name, id, group))
    };
    let users: Vec<_> = users.lines().filter_map(user_of).collect();
    if users.iter().any(|(_, id, theirs)| *theirs == group && *id != owner) {
        return false;
    }
    let name = users.iter().find(|(_, id, _)| *id == owner).map(|(name, ..)| name.as_str());
    let mut listed = groups.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let id = fields.get(2)?.parse::<u32>().ok()?;
        (id == group).then(|| (fields[0], fields.get(3).copied().unwrap_or_default()))
    });
    match listed.next() {
        Some((called, members)) => {
            let only_owner = |members: &str| {
                let mut members = members.split(',').filter(|member| !member.is_empty());
                members.all(|member| Some(member) == name)
            };
            Some(called) == name && only_owner(members) && listed.all(|(_, more)| only_owner(more))
        }
        None => owner == group,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_if_nobody_else_can_be_in_it() {
        let users = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n\
                     bob:x:1001:1005::/home/bob:/bin/sh\ncarol:x:1002:100::/home/carol:/bin/sh\n\
                     dave:x:1003:1003::/:\nerin:x:1004:1003::/:\nbroken\n";
        let groups = "root:x:0:\nalice:x:1000:\nbob:x:1005:bob\nusers:x:100:\ndave:x:1003:\n\
                      team:x:2000:alice,bob\nalice:x:3000:mallory\nbroken:x\n";
        for (owner, group, expected) in [
            (0, 0, true),
            (1000, 1000, true),
            (1001, 1005, true),
            (1002, 100, false),
            (1003, 1003, false),
            (1000, 2000, false),
            (1000, 3000, false),
            (1000, 1005, false),
            // Of a directory service: only the numbers are known.
            (70_000, 70_000, true),
            (70_000, 70_001, false),
            (100, 100, false),
        ] {
            assert_eq!(is_private_in(users, groups, owner, group), expected, "{owner} {group}");
        }
    }
}
