//! Who takes a lock, for those who find it held: as the library tells it, with the number of a user
//! whose name is doubtful.
//!
//! The name comes from `USER`, which everybody can set; in a store of many users the number is what
//! can be relied on.

use std::io::Read as _;

use holdtight::Owner;

/// No list of users that is kept in a file is longer.
const MOST_BYTES: u64 = 1 << 20;

/// This process.
pub(crate) fn current() -> Owner {
    let mut owner = Owner::current();
    #[cfg(unix)]
    {
        let uid = rustix::process::geteuid().as_raw();
        owner.user = Some(told(owner.user.as_deref(), uid, &users()));
    }
    owner
}

/// The list of local users; those of a directory service are not in it, and a lock should not wait
/// for one.
fn users() -> String {
    let mut users = Vec::new();
    if let Ok(file) = std::fs::File::open("/etc/passwd") {
        let _ = file.take(MOST_BYTES).read_to_end(&mut users);
    }
    String::from_utf8_lossy(&users).into_owned()
}

/// The name alone if it is that of `uid`, otherwise with the number.
fn told(name: Option<&str>, uid: u32, users: &str) -> String {
    let number = uid.to_string();
    let is_right = |name: &str| {
        users.lines().any(|line| {
            let mut fields = line.split(':');
            fields.next() == Some(name) && fields.nth(1) == Some(&number)
        })
    };
    // Without a name the library tells the number.
    let bare = format!("uid {uid}");
    match name.filter(|name| !name.is_empty() && *name != bare) {
        Some(name) if is_right(name) => name.to_owned(),
        Some(name) => format!("{} (uid {uid})", name.chars().take(64).collect::<String>()),
        None => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_is_right_stands_alone() {
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(told(Some("ann"), 1000, users), "ann");
        assert_eq!(told(Some("root"), 1000, users), "root (uid 1000)");
        assert_eq!(told(Some("ann"), 0, users), "ann (uid 0)");
        assert_eq!(told(Some("bob"), 5000, users), "bob (uid 5000)", "of a directory service");
        assert_eq!(told(None, 1000, users), "uid 1000");
        assert_eq!(told(Some("uid 1000"), 1000, users), "uid 1000");
        assert_eq!(told(Some("uid 0"), 1000, users), "uid 0 (uid 1000)");
        assert_eq!(told(Some(""), 7, ""), "uid 7");
    }
}
