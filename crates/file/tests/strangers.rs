//! What is not the store's own is not touched: links in its directory, files that were there
//! before, directories that somebody else made. And what a killed process left half-made locks
//! nobody out.

#![cfg(unix)]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{AcquireRequest, Attempt, Backend, ErrorKind, Key, Level, LockError, Secret};
use holdtight_file::{Config, FileStore};
use support::{ForOthers, block_on, is_root, role, run, say};

/// Has a worker believe in another boot.
const BOOT: &str = "HOLDTIGHT_FILE_BOOT";

const GROUP: u32 = 54_000;
const ALICE: u32 = 54_001;
const MALLORY: u32 = 54_002;

/// What a sweep, or the first process after a boot, might take for its own.
const LOOK_ALIKES: [&str; 5] =
    ["index.html", "letter", "store-2026.csv", "alarm.wake", "0123456789abcdef0123456789abcdef"];

fn open(place: &Path) -> Result<FileStore, LockError> {
    FileStore::open_blocking(Config::new(place))
}

fn try_acquire(store: &Arc<FileStore>, key: &str) -> Result<bool, LockError> {
    let ttl = Duration::from_secs(600);
    let request = AcquireRequest::new(Key::new(key).unwrap(), Secret::generate().unwrap(), ttl);
    let attempt = block_on(Arc::clone(store).acquire(request))?;
    Ok(matches!(attempt, Attempt::Granted(_)))
}

/// A directory of somebody who has nothing to do with locks.
fn precious(place: &Path) -> PathBuf {
    let precious = place.join("precious");
    fs::create_dir(&precious).unwrap();
    for name in LOOK_ALIKES {
        fs::write(precious.join(name), "precious").unwrap();
    }
    fs::create_dir(precious.join("82")).unwrap();
    fs::write(precious.join("82").join("f".repeat(62)), "precious").unwrap();
    precious
}

fn contents(place: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}

/// A worker does everything that looks, sweeps, or clears up after a reboot; what it says is the
/// error, if there is one.
fn look_around(place: &Path, boot: &str) -> Option<String> {
    let ended = run("look around", place, &[(BOOT, boot)]);
    assert!(ended.status.success());
    ended.said.last().filter(|said| *said != "fine").cloned()
}

#[test]
fn a_link_in_the_place_of_a_directory_is_refused_and_what_it_leads_to_stays() {
    for part in ["keys", "live", "new"] {
        // Once in the same boot, once in the next one, which clears the store.
        for boot in ["1", "2"] {
            let place = tempfile::tempdir().unwrap();
            let (locks, precious) = (place.path().join("locks"), precious(place.path()));
            let before = contents(&precious);
            assert_eq!(look_around(&locks, "1"), None);
            fs::rename(locks.join(part), locks.join("away")).unwrap();
            symlink(&precious, locks.join(part)).unwrap();
            let said = look_around(&locks, boot).unwrap_or_else(|| panic!("{part} was followed"));
            assert!(said.contains(part) && said.contains("symbolic link"), "{said}");
            assert_eq!(contents(&precious), before, "{part}, boot {boot}");
        }
    }
}

#[test]
fn a_link_in_the_place_of_a_part_of_the_keys_is_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let (locks, precious) = (place.path().join("locks"), precious(place.path()));
    let before = contents(&precious);
    assert_eq!(look_around(&locks, "1"), None);
    for part in 0..256 {
        let part = locks.join("keys").join(format!("{part:02x}"));
        let _ = fs::remove_dir_all(&part);
        symlink(&precious, &part).unwrap();
    }
    let said = look_around(&locks, "1").expect("a record was made through a link");
    assert!(said.contains("symbolic link"), "{said}");
    let _ = look_around(&locks, "2");
    assert_eq!(contents(&precious), before);
    // One whose part is whole goes on.
    fs::remove_dir_all(locks.join("keys")).unwrap();
    fs::create_dir(locks.join("keys")).unwrap();
    assert_eq!(look_around(&locks, "2"), None);
}

#[test]
fn a_directory_with_contents_and_no_store_in_it_is_refused() {
    for planted in
        ["live/index.html", "keys/site/private.pem", "new/letter", "index.html", "live/x/y"]
    {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(planted);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "precious").unwrap();
        let before = contents(place.path());
        let error = open(place.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{planted}: {error}");
        assert!(error.to_string().contains("not holdtight's"), "{planted}: {error}");
        assert_eq!(contents(place.path()), before, "a refusal leaves all as it was");
    }
}

#[test]
fn files_of_others_in_the_directory_outlive_every_sweep_and_every_reboot() {
    let place = tempfile::tempdir().unwrap();
    assert_eq!(look_around(place.path(), "1"), None);
    fs::create_dir_all(place.path().join("keys/site")).unwrap();
    fs::create_dir_all(place.path().join("live/subdirectory")).unwrap();
    fs::create_dir_all(place.path().join("new").join(format!("{}-7", "a".repeat(32)))).unwrap();
    fs::create_dir_all(place.path().join("keys/00")).unwrap();
    for directory in ["live", "new", "keys", "keys/00", "keys/site"] {
        for name in LOOK_ALIKES {
            fs::write(place.path().join(directory).join(name), "precious".repeat(100)).unwrap();
        }
    }
    // A name of ours is not enough.
    fs::write(place.path().join("keys/00").join("0".repeat(62)), "precious").unwrap();
    fs::write(place.path().join("new").join(format!("{}-1", "0".repeat(32))), "precious").unwrap();
    fs::write(place.path().join("new").join(format!("store-{}", "0".repeat(32))), "mine").unwrap();
    fs::write(place.path().join("live").join(format!("{}.wake", "0".repeat(32))), "mine").unwrap();
    let before = contents(place.path());
    for boot in ["1", "2", "2"] {
        assert_eq!(look_around(place.path(), boot), None, "they are in nobody's way");
        let after = contents(place.path());
        let lost: Vec<_> = before.iter().filter(|path| !after.contains(path)).collect();
        assert!(lost.is_empty(), "boot {boot}: {lost:?}");
    }
}

#[test]
fn what_somebody_else_planted_in_ones_own_directory_is_refused() {
    if !is_root("giving directories away") {
        return;
    }
    for planted in ["keys", "live", "new", "store"] {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(look_around(place.path(), "1"), None);
        chown(place.path().join(planted), Some(MALLORY), Some(MALLORY)).unwrap();
        let error = open(place.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("/{planted} belongs to user {MALLORY}")), "{text}");
        chown(place.path().join(planted), Some(0), Some(0)).unwrap();
        if planted != "store" {
            fs::set_permissions(place.path().join(planted), Permissions::from_mode(0o777)).unwrap();
            let text = open(place.path()).unwrap_err().to_string();
            assert!(text.contains(planted) && text.contains("everybody"), "{text}");
        }
    }
    // A part of the keys, and a record.
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(open(place.path()).unwrap());
    assert!(try_acquire(&store, "k").unwrap());
    let record = contents(&place.path().join("keys")).pop().unwrap();
    let fresh = || Arc::new(open(place.path()).unwrap());
    for theirs in [record.as_path(), record.parent().unwrap()] {
        chown(theirs, Some(MALLORY), None).unwrap();
        let error = try_acquire(&fresh(), "k").unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
        let looked = block_on(fresh().lookup(Key::new("k").unwrap())).unwrap_err();
        assert!(looked.to_string().contains("belongs to user"), "{looked}");
        chown(theirs, Some(0), None).unwrap();
    }
    assert!(!try_acquire(&fresh(), "k").unwrap(), "and with all as it was, it is held");
}

/// A directory in `parent` with this owner, group and mode.
fn directory(parent: &Path, name: &str, owner: u32, group: u32, mode: u32) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir(&path).unwrap();
    chown(&path, Some(owner), Some(group)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn what_others_could_exchange_on_the_way_to_the_store_is_refused() {
    if !is_root("giving directories away") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let target = directory(place, "target", 0, 0, 0o700);
    let link = |parent: &Path, owner| {
        let link = parent.join("link");
        symlink(&target, &link).unwrap();
        lchown(&link, Some(owner), None).unwrap();
        link
    };
    let sticky = directory(place, "sticky", 0, 0, 0o1777);
    let groups = directory(place, "groups", 0, GROUP, 0o2770);
    let open_to_all = directory(place, "open", 0, 0, 0o777);
    let theirs = directory(place, "theirs", MALLORY, MALLORY, 0o755);
    let in_sticky = directory(&sticky, "theirs", MALLORY, MALLORY, 0o755);
    let by_link = link(&sticky, MALLORY);
    let through = place.join("through");
    symlink(open_to_all.join("locks"), &through).unwrap();
    for (asked, what) in [
        (by_link.clone(), "sticky/link"),
        (by_link.join("below"), "sticky/link"),
        (link(&groups, 0), "groups"),
        (link(&directory(place, "plain", 0, 0, 0o755), MALLORY), "plain/link"),
        (directory(&open_to_all, "locks", 0, 0, 0o700), "open"),
        (open_to_all.join("new/locks"), "open"),
        (through, "open"),
        (directory(&groups, "locks", 0, 0, 0o700), "groups"),
        (directory(&groups, "shared", 0, GROUP, 0o2770), "groups"),
        (directory(&theirs, "locks", 0, 0, 0o700), "theirs"),
        (theirs.join("new"), "theirs"),
        (directory(&in_sticky, "locks", 0, 0, 0o700), "sticky/theirs"),
    ] {
        let before = contents(place);
        let error = open(&asked).expect_err(&format!("{} was trusted", asked.display()));
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let (text, culprit) = (error.to_string(), place.join(what));
        let named = format!("{}, on the way to the store, ", culprit.display());
        assert!(text.contains(&named), "{}: {text}", asked.display());
        let guarantees = error.guarantees().expect("what doctor says");
        assert_eq!(guarantees.level(), Level::Unsafe);
        assert!(guarantees.findings[0].fix.is_some(), "{guarantees}");
        assert_eq!(contents(place), before, "a refusal leaves all as it was");
    }
}

#[test]
fn a_way_that_becomes_unsafe_is_told_by_a_store_in_use() {
    let place = tempfile::tempdir().unwrap();
    let parent = place.path().join("parent");
    let store = Arc::new(open(&parent.join("locks")).unwrap());
    let level = || block_on(Arc::clone(&store).probe()).unwrap().level();
    assert!(level() < Level::Unsafe);
    fs::set_permissions(&parent, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(level(), Level::Unsafe);
    fs::set_permissions(&parent, Permissions::from_mode(0o1777)).unwrap();
    assert!(level() < Level::Unsafe, "nobody else can rename what is in it");
}

#[test]
fn ways_that_nobody_else_can_change_lead_to_one_store() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    let (sticky, mine) = (place.join("sticky"), place.join("mine"));
    for (directory, mode) in [(&sticky, 0o1777), (&mine, 0o711)] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
    }
    let locks = mine.join("deep/locks");
    assert_eq!(open(&locks).unwrap().directory(), locks);
    symlink("../mine/deep", sticky.join("relative")).unwrap();
    symlink(sticky.join("relative"), place.join("absolute")).unwrap();
    let upwards = mine.join("deep/../../absolute/locks");
    let (by_one, by_two) = (sticky.join("relative/locks"), place.join("absolute/locks/."));
    for way in [by_one, by_two, upwards, Path::new("/..").join(locks.strip_prefix("/").unwrap())] {
        let store = open(&way).unwrap_or_else(|error| panic!("{}: {error}", way.display()));
        assert_eq!(store.directory(), locks, "{}", way.display());
    }
    // In a directory of everybody, as /tmp is.
    assert_eq!(open(&sticky.join("locks")).unwrap().directory(), sticky.join("locks"));
    // Links that lead nowhere, or in a circle.
    symlink("circle", place.join("circle")).unwrap();
    symlink("nowhere", place.join("dangling")).unwrap();
    for wrong in ["circle", "circle/locks", "dangling", "dangling/locks"] {
        let error = open(&place.join(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong}: {error}");
        assert!(error.to_string().contains("symbolic link"), "{wrong}: {error}");
    }
    assert!(!place.join("nowhere").exists());
}

#[test]
fn a_home_that_only_its_users_own_group_can_write_to_is_good_for_a_store() {
    if !is_root("becoming other users") {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let others = ForOthers::in_place(parent.path());
    // Nobody but root may list what is above the home.
    let above = directory(parent.path(), "above", 0, 0, 0o711);
    for (group, outcome) in [(ALICE, "fine"), (GROUP, "is writable for its group")] {
        let home = directory(&above, &format!("home-{group}"), ALICE, group, 0o775);
        let locks = home.join(".local/state/holdtight");
        let mut worker = others.start(ALICE, Some(GROUP), "look around", &locks, &[]);
        let said = worker.next().unwrap_or_default();
        assert!(said.contains(outcome), "group {group}: {said}");
    }
}

/// A directory that root made for a group, and the program for its members.
fn shared() -> (tempfile::TempDir, PathBuf, ForOthers) {
    let parent = tempfile::tempdir().unwrap();
    let others = ForOthers::in_place(parent.path());
    let place = parent.path().join("shared");
    make_shared(&place, 0);
    (parent, place, others)
}

fn make_shared(place: &Path, owner: u32) {
    fs::create_dir(place).unwrap();
    chown(place, Some(owner), Some(GROUP)).unwrap();
    fs::set_permissions(place, Permissions::from_mode(0o2770)).unwrap();
}

#[test]
fn a_member_cannot_have_root_delete_files_through_a_link() {
    if !is_root("becoming other users") {
        return;
    }
    for part in ["keys", "live", "new"] {
        let (parent, place, others) = shared();
        let precious = precious(parent.path());
        fs::set_permissions(&precious, Permissions::from_mode(0o700)).unwrap();
        let before = contents(&precious);
        let member = |user, role, env: &[(&str, &str)]| {
            let mut worker = others.start(user, Some(GROUP), role, &place, env);
            worker.expect("fine");
            assert!(worker.done().success());
        };
        member(ALICE, "look around", &[(BOOT, "1")]);
        let target = precious.to_str().unwrap();
        member(MALLORY, "plant", &[("PART", part), ("TARGET", target)]);
        // Root only looks: in the same boot, and in the next.
        for boot in ["1", "2"] {
            let said = look_around(&place, boot).expect("root followed the link");
            assert!(said.contains("symbolic link"), "{said}");
            assert_eq!(contents(&precious), before, "{part}, boot {boot}");
        }
    }
}

#[test]
fn what_a_killed_member_left_half_made_locks_no_other_member_out() {
    if !is_root("becoming other users") {
        return;
    }
    for half_made in ["keys", "live", "new", "all parts"] {
        let (_parent, place, others) = shared();
        let half = |path: &Path| {
            let _ = fs::remove_dir_all(path);
            fs::create_dir(path).unwrap();
            chown(path, Some(ALICE), Some(GROUP)).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o2700)).unwrap();
        };
        if half_made == "all parts" {
            let mut worker = others.start(ALICE, Some(GROUP), "look around", &place, &[]);
            worker.expect("fine");
            for part in 0..256 {
                half(&place.join("keys").join(format!("{part:02x}")));
            }
        } else {
            half(&place.join(half_made));
        }
        for user in [MALLORY, ALICE] {
            let mut worker = others.start(user, Some(GROUP), "look around", &place, &[]);
            worker.expect("fine");
            assert!(worker.done().success());
        }
        for made in ["keys", "live", "new"] {
            let mode = fs::metadata(place.join(made)).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o2770, "{made}: {mode:o}");
        }
    }
}

#[test]
fn nothing_is_made_in_the_home_of_somebody_else() {
    if !is_root("giving a directory away") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    chown(home.path(), Some(ALICE), Some(ALICE)).unwrap();
    let error = open(&home.path().join(".local/state/holdtight")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let text = error.to_string();
    assert!(text.contains("HOME") && text.contains(&format!("user {ALICE}")), "{text}");
    assert!(contents(home.path()).is_empty());
}

#[test]
fn a_directory_of_a_user_whom_the_namespace_does_not_know_is_not_ones_own() {
    if !is_root("becoming other users") {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let program = ForOthers::in_place(parent.path()).program;
    for (user, outcome) in [(ALICE, "fine"), (MALLORY, "does not know")] {
        let place = parent.path().join(format!("locks-{user}"));
        fs::create_dir(&place).unwrap();
        chown(&place, Some(ALICE), Some(ALICE)).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
        // Nobody is mapped there, so all show the same number: the user of the process, and the
        // owner.
        let id = user.to_string();
        let wrapper = [
            "setpriv",
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            "unshare",
            "--user",
            "sh",
            "-c",
            "exec \"$PROGRAM\" \"$@\"",
        ];
        let environment = [("PROGRAM", program.to_str().unwrap())];
        let mut worker =
            support::Worker::start_under(&wrapper, "look around", &place, &environment);
        let said = worker.next().unwrap_or_default();
        assert!(said.contains(outcome), "user {user}: {said}");
    }
}

#[test]
fn a_member_killed_at_any_moment_of_the_first_use_locks_no_other_member_out() {
    if !is_root("becoming other users") {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let others = ForOthers::in_place(parent.path());
    support::at_every_crash_point(10, |crash_at| {
        let place = parent.path().join(format!("shared-{crash_at}"));
        make_shared(&place, 0);
        let at = crash_at.to_string();
        let crash = [("HOLDTIGHT_FILE_CRASH_AT", &*at)];
        let mut first = others.start(ALICE, Some(GROUP), "look around", &place, &crash);
        while first.next().is_some() {}
        let status = first.done();
        let mut second = others.start(MALLORY, Some(GROUP), "look around", &place, &[]);
        assert_eq!(second.next().as_deref(), Some("fine"), "crash point {crash_at}");
        status
    });
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    match role.as_str() {
        "look around" => match everything(&place) {
            Ok(()) => say("fine"),
            Err(error) => say(error),
        },
        "plant" => {
            let part = place.join(std::env::var("PART").unwrap());
            fs::rename(&part, place.join("away")).unwrap();
            symlink(std::env::var("TARGET").unwrap(), &part).unwrap();
            say("fine");
        }
        other => panic!("no such role: {other}"),
    }
}

/// Looks, lists, probes, takes a lock, gives it back, sweeps.
fn everything(place: &Path) -> Result<(), LockError> {
    let store = Arc::new(open(place)?);
    let key = Key::new("k")?;
    block_on(async {
        Arc::clone(&store).lookup(key.clone()).await?;
        Arc::clone(&store).list(String::new(), 100).await?;
        Arc::clone(&store).probe().await?;
        let secret = Secret::generate()?;
        let request = AcquireRequest::new(key.clone(), secret.clone(), Duration::from_secs(600));
        let attempt = Arc::clone(&store).acquire(request).await?;
        assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
        Arc::clone(&store).release(key.clone(), secret).await?;
        Ok::<_, LockError>(())
    })?;
    store.sweep(Duration::ZERO)?;
    Ok(())
}
