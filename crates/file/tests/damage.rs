//! Records that were torn, cut, flipped or replaced from outside: a clear error or the right
//! answer, never a second holder.

#![cfg(unix)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use holdtight_core::{
    AcquireRequest, Attempt, Backend, ErrorKind, Key, Lease, Level, LockError, Release, Secret,
};
use holdtight_file::FileStore;
use support::{block_on, store};

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

fn release(store: &Arc<FileStore>, request: &AcquireRequest) -> Result<Release, LockError> {
    block_on(Arc::clone(store).release(request.key.clone(), request.secret.clone()))
}

/// The one record in a store.
fn record_in(place: &Path) -> PathBuf {
    let first = |path: PathBuf| fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    first(first(place.join("keys")))
}

#[test]
fn a_held_record_with_any_byte_flipped_is_still_held_by_its_holder() {
    let place = tempfile::tempdir().unwrap();
    let (holder, rival) = (Arc::new(store(place.path())), Arc::new(store(place.path())));
    let held = request("k");
    let lease = acquire(&holder, &held).unwrap().unwrap();
    let path = record_in(place.path());
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x41;
        fs::write(&path, &damaged).unwrap();
        assert!(acquire(&rival, &request("k")).unwrap().is_none(), "byte {at}: granted twice");
        let again = acquire(&holder, &held).unwrap().unwrap();
        assert_eq!(again.fence, lease.fence, "byte {at}");
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(release(&holder, &held).unwrap(), Release::Released);
}

#[test]
fn a_held_record_cut_at_any_length_is_held_or_an_error_and_never_granted_twice() {
    let place = tempfile::tempdir().unwrap();
    let (holder, rival) = (Arc::new(store(place.path())), Arc::new(store(place.path())));
    let held = request("k");
    acquire(&holder, &held).unwrap().unwrap();
    let path = record_in(place.path());
    let whole = fs::read(&path).unwrap();
    let mut errors = 0;
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        match acquire(&rival, &request("k")) {
            Ok(lease) => assert!(lease.is_none(), "cut to {length}: granted twice"),
            Err(error) => {
                errors += 1;
                assert_eq!(error.kind(), ErrorKind::Internal);
                let text = error.to_string();
                assert!(
                    text.contains("damaged") && text.contains(path.to_str().unwrap()),
                    "{text}"
                );
                assert!(block_on(Arc::clone(&rival).lookup(held.key.clone())).is_err());
                assert!(release(&holder, &held).is_err());
            }
        }
    }
    assert!(errors > 100, "a cut in the first copy is noticed");
    fs::write(&path, &whole).unwrap();
    assert_eq!(release(&holder, &held).unwrap(), Release::Released);
}

#[test]
fn one_damaged_record_blocks_no_other_key_and_no_list() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    acquire(&store, &request("damaged")).unwrap().unwrap();
    fs::write(record_in(place.path()), [0xEE; 4096]).unwrap();
    let fine = request("fine");
    acquire(&store, &fine).unwrap().unwrap();
    // Neither do files that are not ours, in places that are.
    fs::write(place.path().join("keys/README"), "hello").unwrap();
    fs::create_dir(place.path().join("keys/zz")).unwrap();
    fs::write(place.path().join("keys/zz/x"), "hello").unwrap();
    let listed = block_on(Arc::clone(&store).list(String::new(), 10)).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, fine.key);
    let swept = store.sweep(Duration::ZERO).unwrap();
    assert_eq!((swept.removed, swept.kept), (0, 2), "what cannot be read is kept: {swept:?}");
}

#[test]
fn what_cannot_be_read_is_told_and_not_hidden() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    let probe = || block_on(Arc::clone(&store).probe()).unwrap();
    acquire(&store, &request("held")).unwrap().unwrap();
    let record = record_in(place.path());
    assert!(store.damaged().unwrap().is_empty());
    assert_eq!(probe().level(), Level::Good, "{}", probe());
    let whole = fs::read(&record).unwrap();
    let told = |what: &str| {
        let damaged = store.damaged().unwrap();
        assert_eq!(damaged.len(), 1, "{what}: {damaged:?}");
        let text = damaged[0].to_string();
        assert!(text.contains(record.to_str().unwrap()), "{what}: {text}");
        let probe = probe();
        assert_eq!(probe.level(), Level::Warning, "{what}: {probe}");
        assert!(probe.to_string().contains(record.to_str().unwrap()), "{what}: {probe}");
        // Whoever looks at the key is not told that it is free, where no lock can be taken.
        let looked = block_on(Arc::clone(&store).lookup(Key::new("held").unwrap()));
        assert!(looked.is_err(), "{what}: {looked:?}");
    };
    fs::write(&record, [0xEE; 4096]).unwrap();
    told("damaged");
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    told("a directory");
    fs::remove_dir(&record).unwrap();
    assert!(Command::new("mkfifo").arg(&record).status().unwrap().success());
    told("a pipe");
    fs::remove_file(&record).unwrap();
    symlink("/dev/null", &record).unwrap();
    told("a link");
    fs::remove_file(&record).unwrap();
    fs::write(&record, whole).unwrap();
    assert!(store.damaged().unwrap().is_empty());
    // And what is not ours is named.
    fs::write(place.path().join("live/index.html"), "hello").unwrap();
    let text = probe().to_string();
    assert!(text.contains("live/index.html") && text.contains("left alone"), "{text}");
}

#[test]
fn a_probe_sees_what_was_opened_to_others_since() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    let probe = || block_on(Arc::clone(&store).probe()).unwrap();
    assert_eq!(probe().level(), Level::Good, "{}", probe());
    for part in ["", "keys", "live", "new"] {
        let path = place.path().join(part);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let found = probe();
        assert_eq!(found.level(), Level::Unsafe, "{part:?}: {found}");
        assert!(found.to_string().contains("everybody"), "{part:?}: {found}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn a_record_of_another_key_in_the_place_of_this_one_grants_nothing() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    acquire(&store, &request("one")).unwrap().unwrap();
    let one = record_in(place.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Arc::new(support::store(elsewhere.path()));
    let two = request("two");
    acquire(&other, &two).unwrap().unwrap();
    fs::copy(record_in(elsewhere.path()), &one).unwrap();
    let error = acquire(&store, &request("one")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("another key"), "{error}");
}

#[test]
fn a_link_a_directory_or_a_pipe_in_the_place_of_a_record_is_an_error_and_is_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(store(place.path()));
    let first = request("k");
    acquire(&store, &first).unwrap().unwrap();
    release(&store, &first).unwrap();
    let path = record_in(place.path());
    let victim = place.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    assert!(acquire(&store, &request("k")).is_err());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(acquire(&store, &request("k")).is_err());
    fs::remove_dir(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    for _ in 0..2 {
        let error = acquire(&store, &request("k")).unwrap_err();
        assert!(error.to_string().contains("is not a file"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(acquire(&store, &request("k")).unwrap().is_some());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_holder_whose_record_was_removed_learns_that_it_lost() {
    let place = tempfile::tempdir().unwrap();
    let (holder, rival) = (Arc::new(store(place.path())), Arc::new(store(place.path())));
    let held = request("k");
    let lost = acquire(&holder, &held).unwrap().unwrap();
    fs::remove_file(record_in(place.path())).unwrap();
    let next = acquire(&rival, &request("k")).unwrap().unwrap();
    assert!(next.fence > lost.fence);
    assert_eq!(release(&holder, &held).unwrap(), Release::NotHeld);
}
