//! Directories and disks that are not as they should be: each one a clear error, and a way back
//! where there is one.

#![cfg(unix)]

mod support;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ErrorKind, ExtendBy, ExtendRequest, Extension, Key, Lease,
    Level, LockError, Release, Secret,
};
use holdtight_file::{Config, FileStore};
use support::{ForOthers, Worker, block_on, hear, is_root, role, say, store};

fn refusal(place: &Path) -> LockError {
    FileStore::open_blocking(Config::new(place)).unwrap_err()
}

fn request(key: &str) -> AcquireRequest {
    let ttl = Duration::from_secs(600);
    AcquireRequest::new(Key::new(key).unwrap(), Secret::generate().unwrap(), ttl)
}

fn acquire(store: &Arc<FileStore>, request: &AcquireRequest) -> Result<Option<Lease>, LockError> {
    block_on(Arc::clone(store).acquire(request.clone())).map(|attempt| match attempt {
        Attempt::Granted(lease) => Some(lease),
        _ => None,
    })
}

fn extend(store: &Arc<FileStore>, request: &AcquireRequest) -> Result<Extension, LockError> {
    let by = ExtendBy::AtLeast(Duration::from_secs(900));
    let ask = ExtendRequest::new(request.key.clone(), request.secret.clone(), by);
    block_on(Arc::clone(store).extend(vec![ask])).unwrap().pop().unwrap()
}

fn release(store: &Arc<FileStore>, request: &AcquireRequest) -> Result<Release, LockError> {
    block_on(Arc::clone(store).release(request.key.clone(), request.secret.clone()))
}

#[test]
fn a_missing_directory_is_made_for_its_owner_alone() {
    let place = tempfile::tempdir().unwrap();
    let deep = place.path().join("a/b/locks");
    let store = Arc::new(store(&deep));
    acquire(&store, &request("k")).unwrap().unwrap();
    for path in [deep.clone(), deep.join("keys"), deep.join("live"), deep.join("new")] {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "{}", path.display());
    }
    assert_eq!(fs::metadata(deep.join("store")).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let place = tempfile::tempdir().unwrap();
    for (mode, why) in [(0o777, "everybody"), (0o1777, "everybody"), (0o770, "its group")] {
        fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
        let error = refusal(place.path());
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let text = error.to_string();
        assert!(text.contains(why) && text.contains(place.path().to_str().unwrap()), "{text}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "a refusal leaves nothing");
}

#[test]
fn a_directory_of_somebody_else_is_refused_even_for_root() {
    if !is_root("giving a directory away") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(place.path(), Some(54_321), None).unwrap();
    let error = refusal(place.path());
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("belongs to user 54321"), "{error}");
}

#[test]
fn what_is_not_a_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "hello").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = refusal(&path);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    // A file system that is not for files at all.
    let error = refusal(Path::new("/proc/self/locks"));
    assert!(error.to_string().contains("/proc/self/locks"), "{error}");
}

#[test]
fn a_directory_that_is_removed_while_in_use_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let locks = place.path().join("locks");
    let store = Arc::new(store(&locks));
    let held = request("k");
    acquire(&store, &held).unwrap().unwrap();
    fs::remove_dir_all(&locks).unwrap();
    // The holder must learn that nothing protects it any more.
    assert_eq!(extend(&store, &held).unwrap(), Extension::NotHeld);
    assert_eq!(release(&store, &held).unwrap(), Release::NotHeld);
    let looked = block_on(Arc::clone(&store).lookup(held.key.clone())).unwrap_err();
    for error in [acquire(&store, &request("k")).unwrap_err(), looked] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("was removed while in use"), "{error}");
    }
    assert!(!locks.exists(), "it is not made again behind the user's back");
    // Another process made a new one: grants there are another store's.
    let next = Arc::new(support::store(&locks));
    let error = acquire(&store, &request("k")).unwrap_err();
    assert!(error.to_string().contains("was replaced while in use"), "{error}");
    assert!(acquire(&next, &request("k")).unwrap().is_some());
}

#[test]
fn a_directory_that_is_made_anew_is_not_mistaken_for_the_one_whose_files_are_open() {
    let place = tempfile::tempdir().unwrap();
    let locks = place.path().join("locks");
    let store = Arc::new(store(&locks));
    // Its file stays open, and the next step would find it as it was left.
    let known = request("k");
    acquire(&store, &known).unwrap().unwrap();
    release(&store, &known).unwrap();
    fs::remove_dir_all(&locks).unwrap();
    let next = Arc::new(support::store(&locks));
    let held = request("k");
    acquire(&next, &held).unwrap().unwrap();
    for key in ["k", "new"] {
        let error = acquire(&store, &request(key)).expect_err("granted by a file of the old one");
        assert!(error.to_string().contains("was replaced while in use"), "{error}");
    }
    assert!(matches!(extend(&next, &held).unwrap(), Extension::Extended(_)));
}

#[test]
fn a_process_that_may_open_few_files_closes_those_it_keeps() {
    let place = tempfile::tempdir().unwrap();
    let mut worker = Worker::start("few files", place.path());
    worker.expect("as it should be");
    assert!(worker.done().success());
}

/// Runs `role` in a mount namespace of its own where the directory is a small file system in
/// memory.
fn on_small_disk(role: &str, options: &str) {
    if !is_root("mounting a small disk") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o mode=700,{options} none \"$HOLDTIGHT_FILE_TEST_DIRECTORY\" && \
         exec \"$0\" \"$@\""
    );
    let wrapper = ["unshare", "--mount", "sh", "-c", &script];
    let mut worker = Worker::start_under(&wrapper, role, place.path(), &[]);
    worker.expect("as it should be");
    assert!(worker.done().success());
}

#[test]
fn a_full_disk_grants_nothing_new_and_keeps_what_is_held() {
    on_small_disk("full disk", "size=512k");
}

#[test]
fn a_disk_without_inodes_grants_nothing_new_and_keeps_what_is_held() {
    on_small_disk("full disk", "nr_inodes=40");
}

#[test]
fn on_a_read_only_disk_one_can_look_and_take_no_lock() {
    on_small_disk("read-only disk", "size=512k");
}

#[test]
fn users_of_a_group_share_a_directory_that_root_made_for_them() {
    if !is_root("becoming other users") {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let others = ForOthers::in_place(parent.path());
    let place = parent.path().join("shared");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(0), Some(54_000)).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o2770)).unwrap();
    let member = |user| others.start(user, Some(54_000), "member", &place, &[]);
    let (mut ann, mut bob) = (member(54_001), member(54_002));
    ann.expect("open");
    bob.expect("open");
    ann.tell("acquire");
    ann.expect("granted");
    bob.tell("acquire");
    bob.expect("busy");
    ann.kill();
    bob.tell("acquire");
    bob.expect("granted");
    drop(bob);
    // Who is not in the group is kept out.
    let mut stranger = others.start(54_003, None, "stranger", &place, &[]);
    stranger.expect("access denied");
    let probe = block_on(Arc::new(store(&place)).probe()).unwrap();
    assert_eq!(probe.level(), Level::Warning, "{probe}");
    assert!(probe.to_string().contains("group"), "{probe}");
}

#[test]
fn a_probe_says_what_the_directory_promises() {
    let place = tempfile::tempdir().unwrap();
    let probe = block_on(Arc::new(store(place.path())).probe()).unwrap();
    assert!(probe.level() < Level::Unsafe, "{probe}");
    let text = probe.to_string();
    for subject in ["file system", "access", "durability", "clock", "wake-ups"] {
        assert!(text.contains(subject), "{text}");
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    match role.as_str() {
        "full disk" => full_disk(&place),
        "read-only disk" => read_only_disk(&place),
        "few files" => block_on(few_files(&place)),
        "member" => member(&place),
        "no threads" => block_on(no_threads(&place)),
        "stranger" => {
            say(FileStore::open_blocking(Config::new(place)).unwrap_err().kind());
        }
        other => panic!("no such role: {other}"),
    }
}

/// Lives with fewer descriptors than the store would keep.
async fn few_files(place: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let store = Arc::new(store(place));
    let few = Rlimit { current: Some(40), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).unwrap();
    let held: Vec<_> = (0..200).map(|n| request(&format!("key {n}"))).collect();
    for request in &held {
        let attempt = Arc::clone(&store).acquire(request.clone()).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)));
    }
    // The program itself takes all that are left: those that the store keeps are enough for it.
    let hoard = || std::iter::from_fn(|| fs::File::open(place).ok()).collect::<Vec<_>>();
    let some = hoard();
    for request in &held[..100] {
        let released = Arc::clone(&store).release(request.key.clone(), request.secret.clone());
        assert_eq!(released.await.unwrap(), Release::Released);
    }
    drop(some);
    // Where a sweep has closed what was kept and the program takes all, there is nothing to be done
    // but to say so.
    assert!(store.sweep(Duration::from_secs(600)).unwrap().complete);
    let all = hoard();
    let (key, secret) = (held[150].key.clone(), held[150].secret.clone());
    let error = Arc::clone(&store).release(key.clone(), secret.clone()).await;
    drop(all);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert!(error.to_string().contains("ulimit"), "{error}");
    assert_eq!(Arc::clone(&store).release(key, secret).await.unwrap(), Release::Released);
    say("as it should be");
}

fn full_disk(place: &Path) {
    let store = Arc::new(store(place));
    let held = request("held");
    let fence = acquire(&store, &held).unwrap().unwrap().fence;
    // Until there is no room for one more byte, and no inode for one more file.
    let mut filler = fs::File::create(place.join("filler")).unwrap();
    while filler.write_all(&[1; 512]).is_ok() && filler.metadata().unwrap().len() < 1 << 20 {}
    for n in 0.. {
        if fs::write(place.join(format!("filler-{n}")), [1; 512]).is_err() {
            break;
        }
    }
    // An open file that is removed would keep its room.
    drop(filler);
    let error = acquire(&store, &request("new")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert!(error.to_string().contains("\"new\"") && error.to_string().contains("full"), "{error}");
    assert_eq!(fs::read_dir(place.join("new")).unwrap().count(), 0, "nothing half-made is left");
    // Another process cannot even start here, and says why.
    let fresh = place.join("another");
    let error = FileStore::open_blocking(Config::new(&fresh)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    // What is held needs no new room.
    match extend(&store, &held).unwrap() {
        Extension::Extended(lease) => assert_eq!(lease.fence, fence),
        other => panic!("{other:?}"),
    }
    let other = Arc::new(support::store(place));
    let busy = block_on(Arc::clone(&other).lookup(held.key.clone())).unwrap();
    assert_eq!(busy.unwrap().fence, Some(fence));
    assert_eq!(release(&store, &held).unwrap(), Release::Released);
    assert!(acquire(&store, &held).unwrap().unwrap().fence > fence);
    // And with room again, all is well.
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("filler") {
            fs::remove_file(path).unwrap();
        }
    }
    assert!(acquire(&store, &request("new")).unwrap().is_some());
    say("as it should be");
}

/// A container that sees the directory read-only can take no lock, and cannot be led to believe it
/// did. But a monitor in it sees who holds what.
fn read_only_disk(place: &Path) {
    let (locks, view) = (place.join("locks"), place.join("view"));
    let store = Arc::new(store(&locks));
    let held = request("held");
    acquire(&store, &held).unwrap().unwrap();
    fs::create_dir(&view).unwrap();
    mount(&[OsStr::new("--bind"), locks.as_ref(), view.as_ref()]);
    mount(&[OsStr::new("-o"), OsStr::new("remount,bind,ro"), view.as_ref()]);
    let monitor = Arc::new(support::store(&view));
    let seen = block_on(Arc::clone(&monitor).lookup(held.key.clone())).unwrap().unwrap();
    assert_eq!(
        seen.fence,
        block_on(Arc::clone(&store).lookup(held.key.clone())).unwrap().unwrap().fence
    );
    assert_eq!(block_on(Arc::clone(&monitor).lookup(Key::new("free").unwrap())).unwrap(), None);
    assert_eq!(block_on(Arc::clone(&monitor).list(String::new(), 10)).unwrap().len(), 1);
    let probe = block_on(Arc::clone(&monitor).probe()).unwrap();
    assert_eq!(probe.level(), Level::Warning, "{probe}");
    assert!(probe.to_string().contains("only look"), "{probe}");
    assert!(!monitor.sweep(Duration::ZERO).unwrap().complete);
    for key in ["held", "free"] {
        let error = acquire(&monitor, &request(key)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    let error = release(&monitor, &held).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    let error = refusal(&view.join("below"));
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert_eq!(release(&store, &held).unwrap(), Release::Released);
    say("as it should be");
}

fn mount(arguments: &[&OsStr]) {
    let status = std::process::Command::new("mount").args(arguments).status();
    assert!(status.unwrap().success());
}

fn member(place: &Path) {
    let store = Arc::new(store(place));
    say("open");
    while hear().is_some() {
        say(if acquire(&store, &request("k")).unwrap().is_some() { "granted" } else { "busy" });
    }
}

/// No thread can be started in this process: each would have a stack that no machine has room for.
async fn no_threads(place: &Path) {
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "threads can be started");
    let refused = |what: &str, outcome: Result<(), LockError>| {
        let kind = outcome.err().unwrap_or_else(|| panic!("{what} was done")).kind();
        assert_eq!(kind, ErrorKind::Unavailable, "{what}");
    };
    refused("opening", FileStore::open(Config::new(place)).await.map(drop));
    let open = |config| Arc::new(FileStore::open_blocking(config).unwrap());
    let store = open(Config::new(place));
    refused("listing", Arc::clone(&store).list(String::new(), 10).await.map(drop));
    refused("probing", Arc::clone(&store).probe().await.map(drop));
    // Steps need none; that nobody can sweep is no reason to fail.
    assert!(matches!(store.acquire(request("k")).await.unwrap(), Attempt::Granted(_)));
    let synced = open(Config::new(place).sync(true));
    refused("a synced step", synced.acquire(request("synced")).await.map(drop));
    refused("the engine", holdtight_core::background().map(drop));
    say("done");
}

#[test]
fn without_threads_calls_fail_and_nothing_panics() {
    let place = tempfile::tempdir().unwrap();
    // More than an address can say.
    let stack = [("RUST_MIN_STACK", "140737488355328")];
    let mut worker = support::Worker::start_under(&[], "no threads", place.path(), &stack);
    worker.expect("done");
}
