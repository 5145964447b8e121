//! A file under a fence: late writes are refused, whoever is killed, frozen or racing at whatever
//! moment.

#![cfg(unix)]

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdtight_core::{DistributedLock, ErrorKind, Fence};
use holdtight_file::{Config, FencedFile, FileStore};
use support::{at_every_crash_point, block_on, is_root, role, run_until, say};

/// Long enough that a write which stops half-way would leave a part.
fn text(fence: u64) -> Vec<u8> {
    format!("written under {fence}\n").repeat(5_000).into_bytes()
}

/// The fence that contents were written under; they must be whole.
fn author(contents: &[u8]) -> u64 {
    let line = contents.split(|byte| *byte == b'\n').next().unwrap();
    let fence = std::str::from_utf8(line).unwrap().strip_prefix("written under ").unwrap();
    let fence = fence.parse().unwrap();
    assert_eq!(contents, text(fence), "a part of what was written");
    fence
}

/// All that is in a directory.
fn names(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_link_that_another_user_may_have_planted_is_not_followed() {
    const MALLORY: u32 = 54_002;
    if !is_root("only root can make another user's link") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (precious, open) = (place.path().join("precious"), place.path().join("open"));
    fs::create_dir_all(precious.join("below")).unwrap();
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    symlink(&precious, open.join("way")).unwrap();
    // One's own link leads where one wants it to.
    let file = FencedFile::new(open.join("way/below/report")).unwrap();
    file.replace(Fence::new(1), "mine").unwrap();
    lchown(open.join("way"), Some(MALLORY), Some(MALLORY)).unwrap();
    for path in ["way/report", "way/below/report"] {
        let refused = FencedFile::new(open.join(path)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains("symbolic link of user 54002"), "{refused}");
        assert!(!refused.to_string().contains("store"), "{refused}");
    }
    // Nor one that was put there after the file had been named.
    let early = open.join("early");
    fs::create_dir(&early).unwrap();
    let file = FencedFile::new(early.join("report")).unwrap();
    file.replace(Fence::new(1), "mine").unwrap();
    fs::rename(&early, open.join("away")).unwrap();
    symlink(&precious, &early).unwrap();
    lchown(&early, Some(MALLORY), Some(MALLORY)).unwrap();
    for outcome in [
        file.replace(Fence::new(2), "mine"),
        file.read().map(drop),
        file.fence().map(drop),
        file.read_as(Fence::new(2)).map(drop),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    assert_eq!(names(&precious), ["below"]);
    assert_eq!(fs::read(open.join("away/report")).unwrap(), b"mine");
}

#[test]
fn a_link_in_the_place_of_the_file_is_not_read() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("secret"), "secret").unwrap();
    symlink("secret", place.path().join("report")).unwrap();
    let file = FencedFile::new(place.path().join("report")).unwrap();
    assert_eq!(file.read().unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[test]
fn files_with_like_names_are_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let others = ["report.new", ".report.new", "report.tmp", ".fence-new-", "report~"];
    for name in others {
        fs::write(place.path().join(name), "mine").unwrap();
    }
    let file = FencedFile::new(place.path().join("report")).unwrap();
    let beside = FencedFile::new(place.path().join("report.new")).unwrap();
    for fence in 1..4 {
        file.replace(Fence::new(fence), "contents").unwrap();
        for name in others.iter().filter(|name| fence == 1 || **name != "report.new") {
            assert_eq!(fs::read(place.path().join(name)).unwrap(), b"mine", "{name}");
        }
        beside.replace(Fence::new(fence), "beside").unwrap();
        assert_eq!(beside.read().unwrap().unwrap(), b"beside");
    }
    assert_eq!(file.read().unwrap().unwrap(), b"contents");
}

#[test]
fn names_that_end_as_the_files_beside_do_are_refused() {
    let place = tempfile::tempdir().unwrap();
    for name in ["z.fence", ".fence", ".fence-new-0123456789abcdef0123456789abcdef"] {
        let error = FencedFile::new(place.path().join(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_foreign_file_in_the_place_of_the_fence_is_refused_and_stays() {
    let place = tempfile::tempdir().unwrap();
    let (path, side) = (place.path().join("conf"), place.path().join("conf.fence"));
    fs::write(&path, "before").unwrap();
    fs::write(&side, "posts = 12\nwire = true\n".repeat(400)).unwrap();
    let whole = fs::read(&side).unwrap();
    let file = FencedFile::new(&path).unwrap();
    for error in [
        file.replace(Fence::new(1), "after").unwrap_err(),
        file.read_as(Fence::new(1)).unwrap_err(),
        file.fence().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let text = error.to_string();
        assert!(text.contains("conf.fence") && text.contains("not holdtight's"), "{text}");
        assert!(!text.contains("remove"), "{text}");
    }
    assert_eq!(fs::read(&side).unwrap(), whole);
    assert_eq!(file.read().unwrap().unwrap(), b"before");
    fs::remove_file(&side).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&side).status().unwrap().success());
    let error = file.replace(Fence::new(1), "after").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

#[test]
fn a_fence_recorded_by_an_earlier_version_is_read_and_kept() {
    // Magic, checksum, version, length, number; twice in a page, without a payload.
    let mut copy = b"HTfc\0\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
    copy[4..8].copy_from_slice(&0xEAB5_8319_u32.to_le_bytes());
    let mut page = copy.clone();
    page.resize(2048, 0);
    page.extend(&copy);
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), "seven").unwrap();
    fs::write(place.path().join("file.fence"), page).unwrap();
    let file = FencedFile::new(place.path().join("file")).unwrap();
    assert_eq!(file.fence().unwrap(), Some(Fence::new(7)));
    assert_eq!(file.replace(Fence::new(6), "late").unwrap_err().kind(), ErrorKind::NotHeld);
    file.replace(Fence::new(7), "again").unwrap();
    file.replace(Fence::new(8), "eight").unwrap();
    assert_eq!(file.replace(Fence::new(7), "late").unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn a_writer_may_be_willing_to_wait_for_ever() {
    let place = tempfile::tempdir().unwrap();
    let file = FencedFile::new(place.path().join("file")).unwrap().wait(Duration::MAX);
    file.replace(Fence::new(1), "written").unwrap();
    let other = File::open(place.path().join("file.fence")).unwrap();
    other.lock().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.replace(Fence::new(2), "after a while"));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!writer.is_finished());
        other.unlock().unwrap();
        writer.join().unwrap().unwrap();
    });
}

#[test]
fn the_late_write_of_a_holder_that_lost_its_lock_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let report = FencedFile::new(place.path().join("report")).unwrap();
    block_on(async {
        let store = FileStore::open(Config::new(place.path().join("locks"))).await.unwrap();
        let lock = DistributedLock::builder(store).build().unwrap();
        let paused = lock.acquire("report").await.unwrap();
        report.replace(paused.fence(), "first").unwrap();
        lock.force_release("report", paused.fence()).await.unwrap();
        let next = lock.acquire("report").await.unwrap();
        report.replace(next.fence(), "second").unwrap();

        let late = report.replace(paused.fence(), "too late").unwrap_err();
        assert_eq!(late.kind(), ErrorKind::NotHeld);
        let message = late.to_string();
        let (old, new) = (paused.fence().to_string(), next.fence().to_string());
        assert!(message.contains(&old) && message.contains(&new), "{message}");
        assert!(message.contains("report"), "{message}");
        assert_eq!(report.read().unwrap().unwrap(), b"second");
        assert_eq!(report.fence().unwrap(), Some(next.fence()));
        report.replace(next.fence(), "third").unwrap();
        next.release().await.unwrap();
    });
    let left = names(place.path());
    assert_eq!(left, ["locks", "report", "report.fence"], "nothing unfinished stays");
}

#[test]
fn whoever_has_read_under_a_fence_is_not_overtaken_by_an_earlier_holder() {
    let place = tempfile::tempdir().unwrap();
    let file = FencedFile::new(place.path().join("balance")).unwrap();
    assert_eq!(file.fence().unwrap(), None);
    assert_eq!(file.read_as(Fence::new(5)).unwrap(), None);
    let late = file.replace(Fence::new(4), "100");
    assert_eq!(late.unwrap_err().kind(), ErrorKind::NotHeld, "it would be overwritten unseen");
    assert_eq!(file.read_as(Fence::new(4)).unwrap_err().kind(), ErrorKind::NotHeld);

    let add = |old: Option<Vec<u8>>| {
        let old: u64 = old.map_or(0, |old| String::from_utf8(old).unwrap().parse().unwrap());
        (old + 1).to_string().into_bytes()
    };
    for _ in 0..3 {
        file.update(Fence::new(5), add).unwrap();
    }
    assert_eq!(file.read().unwrap().unwrap(), b"3");
}

#[test]
fn of_many_writers_none_overwrites_a_later_one_and_readers_see_whole_files() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("contested");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (file, mut last) = (FencedFile::new(&path).unwrap(), 0);
            while !done.load(Ordering::SeqCst) {
                let Some(contents) = file.read().unwrap() else { continue };
                let now = author(&contents);
                assert!(now >= last, "{now} overwrote {last}");
                assert!(file.fence().unwrap().unwrap().get() >= now);
                last = now;
            }
        });
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let path = &path;
                scope.spawn(move || {
                    let file = FencedFile::new(path).unwrap().wait(support::PATIENCE);
                    let mut accepted = 0;
                    for round in 0..25 {
                        let fence = 1 + writer + 4 * round;
                        match file.replace(Fence::new(fence), text(fence)) {
                            Ok(()) => accepted = fence,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}"),
                        }
                    }
                    accepted
                })
            })
            .collect();
        let accepted: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        assert!(accepted.contains(&100), "the largest fence cannot be refused: {accepted:?}");
    });
    assert_eq!(author(&fs::read(&path).unwrap()), 100);
}

#[test]
fn a_writer_killed_at_any_moment_leaves_a_whole_file_and_a_fence_that_is_not_older() {
    at_every_crash_point(10, |crash_at| {
        let place = tempfile::tempdir().unwrap();
        let worker = run_until(crash_at, "writer", place.path(), &[]);
        let acknowledged = worker.said.last().map_or(0, |said| said.parse().unwrap());
        let file = FencedFile::new(place.path().join("file")).unwrap();
        let found = file.read().unwrap().map_or(0, |contents| author(&contents));
        let fence = file.fence().unwrap().map_or(0, Fence::get);
        assert!(found >= acknowledged, "crash point {crash_at}: {acknowledged} was forgotten");
        assert!(fence >= found, "crash point {crash_at}: {found} is there under fence {fence}");
        if fence > 1 {
            let late = file.replace(Fence::new(fence - 1), "late").unwrap_err();
            assert_eq!(late.kind(), ErrorKind::NotHeld, "crash point {crash_at}");
        }
        file.replace(Fence::new(9), text(9)).unwrap();
        assert_eq!(author(&file.read().unwrap().unwrap()), 9);
        assert_eq!(names(place.path()), ["file", "file.fence"], "crash point {crash_at}");
        worker.status
    });
}

#[test]
#[ignore = "started by the tests of this file"]
fn worker() {
    let Some((role, place)) = role() else { return };
    assert_eq!(role, "writer");
    let file = FencedFile::new(place.join("file")).unwrap();
    for fence in [1, 2, 2] {
        file.replace(Fence::new(fence), text(fence)).unwrap();
        say(fence);
    }
}

#[test]
fn a_writer_that_is_frozen_inside_a_write_keeps_others_out_and_they_are_told() {
    let place = tempfile::tempdir().unwrap();
    let file = FencedFile::new(place.path().join("file")).unwrap();
    file.replace(Fence::new(1), "before").unwrap();
    let frozen = File::open(place.path().join("file.fence")).unwrap();
    frozen.lock().unwrap();
    let impatient = file.clone().wait(Duration::from_millis(20));
    let error = impatient.replace(Fence::new(2), "after").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("another write"), "{error}");
    assert_eq!(file.read().unwrap().unwrap(), b"before", "readers are not kept out");
    drop(frozen);
    file.replace(Fence::new(2), "after").unwrap();
}

#[test]
fn a_damaged_fence_is_an_error_and_never_a_permission() {
    let place = tempfile::tempdir().unwrap();
    let file = FencedFile::new(place.path().join("file")).unwrap();
    file.replace(Fence::new(7), "kept").unwrap();
    let side = place.path().join("file.fence");
    let whole = fs::read(&side).unwrap();
    for damaged in [whole[..3].to_vec(), whole[..10].to_vec(), vec![0; whole.len()]] {
        fs::write(&side, damaged).unwrap();
        let error = file.replace(Fence::new(8), "lost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("file.fence"), "{error}");
        assert_eq!(file.read().unwrap().unwrap(), b"kept");
    }
    // Half of it is enough.
    let mut half = whole;
    half[..20].fill(0);
    fs::write(&side, half).unwrap();
    assert_eq!(file.fence().unwrap(), Some(Fence::new(7)));
    assert!(file.replace(Fence::new(6), "late").is_err());
}

#[test]
fn links_and_directories_are_refused_and_the_mode_is_kept() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    let file = FencedFile::new(&path).unwrap();
    file.replace(Fence::new(1), "one").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    file.replace(Fence::new(1), "two").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);

    let link = place.path().join("link");
    symlink(&path, &link).unwrap();
    fs::create_dir(place.path().join("directory")).unwrap();
    for name in ["link", "directory"] {
        let other = FencedFile::new(place.path().join(name)).unwrap();
        let error = other.replace(Fence::new(2), "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"two");
    for nothing in ["/", ".."] {
        let error = FencedFile::new(nothing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    let nowhere = FencedFile::new(place.path().join("missing/file")).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Unavailable);
}
