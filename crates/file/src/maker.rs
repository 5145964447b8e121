//! Which process a liveness file belongs to, written into it: a child that was forked and not
//! executed has the lock of its parent as well, and must not keep what the parent held.
//!
//! The number of a process means something only in its own pid namespace, so that is written down,
//! too. A process that is not there any more *in the same namespace* is dead, whatever still has
//! its files open. Every doubt is a no: then the lock decides, and in the end the lease. Nothing is
//! written where there are no pid file descriptors.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Magic, process, device and number of the namespace.
const LENGTH: usize = 24;

/// The first bytes.
const MAGIC: [u8; 4] = *b"HTlv";

/// Says in a liveness file that it belongs to this process.
///
/// Best effort: without it a forked child keeps what its parent held to the end of the lease.
pub(crate) fn sign(file: &File) {
    if let Some((device, number)) = namespace() {
        let mut text = [0; LENGTH];
        text[..4].copy_from_slice(&MAGIC);
        text[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        text[8..16].copy_from_slice(&device.to_le_bytes());
        text[16..].copy_from_slice(&number.to_le_bytes());
        let _ = file.write_all_at(&text, 0);
    }
}

/// Takes that back, for a process whose lock was given to others deliberately: from now on the lock
/// alone counts.
pub(crate) fn unsign(file: &File) -> std::io::Result<()> {
    file.write_all_at(&[0; LENGTH], 0)
}

/// Whether the process that signed a liveness file is known to be dead.
pub(crate) fn is_dead(file: &File) -> bool {
    let Some(text) = read(file) else { return false };
    let (mut device, mut number, mut process) = ([0; 8], [0; 8], [0; 4]);
    process.copy_from_slice(&text[4..8]);
    device.copy_from_slice(&text[8..16]);
    number.copy_from_slice(&text[16..]);
    let theirs = (u64::from_le_bytes(device), u64::from_le_bytes(number));
    namespace() == Some(theirs)
        && is_gone(u32::from_le_bytes(process))
        // It may have given its lock to others before it died; now it cannot any more.
        && read(file) == Some(text)
}

fn read(file: &File) -> Option<[u8; LENGTH]> {
    let mut text = [0; LENGTH];
    let whole = file.read_at(&mut text, 0).is_ok_and(|length| length == LENGTH);
    (whole && text[..4] == MAGIC).then_some(text)
}

/// Whether no thread of this process runs any more. A number that was given out again is taken for
/// the same process.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_gone(process: u32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(process, PidfdFlags::empty()) {
        Err(Errno::SRCH) => true,
        Err(_) => false,
        // Readable when all of it has ended, though its parent may not have asked for it yet.
        Ok(process) => {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut events, Some(&at_once)).is_ok() && events[0].revents().contains(PollFlags::IN)
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_gone(_process: u32) -> bool {
    false
}

/// The pid namespace of this process, which it has for life.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn namespace() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    use std::sync::LazyLock;
    static OWN: LazyLock<Option<(u64, u64)>> = LazyLock::new(|| {
        let found = std::fs::metadata("/proc/self/ns/pid").ok()?;
        Some((found.dev(), found.ino()))
    });
    *OWN
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn namespace() -> Option<(u64, u64)> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_a_signature_of_a_process_that_is_gone_says_that_it_is_dead() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_dead(&file), "not signed");
        sign(&file);
        assert!(!is_dead(&file), "it lives");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        file.write_all_at(&child.id().to_le_bytes(), 4).unwrap();
        // Ended, and still to be asked for: as good as gone.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_dead(&file) {
            assert!(std::time::Instant::now() < end, "it has ended");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dead(&file));
        let another = [7; 8];
        let (_, number) = namespace().unwrap();
        file.write_all_at(&another, 16).unwrap();
        assert!(!is_dead(&file), "its number means nothing in another namespace");
        file.write_all_at(&number.to_le_bytes(), 16).unwrap();
        assert!(is_dead(&file));
        unsign(&file).unwrap();
        assert!(!is_dead(&file), "its lock was given to others");
    }
}
