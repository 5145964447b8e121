//! Waiting for the end of a child, to the microsecond: whoever called us waits for it.

use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Waits for the end of a child, at most for `limit`, and leaves it to be reaped.
pub(super) fn wait_for(pid: i32, limit: Duration) {
    let Some(child) = Pid::from_raw(pid) else { return };
    if !lives(child) || told_by_kernel(child, limit) {
        return;
    }
    let mut pause = Duration::from_micros(20);
    while pause < limit && lives(child) {
        std::thread::sleep(pause);
        pause *= 2;
    }
}

fn lives(child: Pid) -> bool {
    let what = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), what), Ok(None))
}

/// The same where the kernel tells of it; `false` where it does not.
#[cfg(target_os = "linux")]
fn told_by_kernel(child: Pid, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    let Ok(child) = pidfd_open(child, PidfdFlags::empty()) else { return false };
    let limit = Timespec::try_from(limit).ok();
    poll(&mut [PollFd::new(&child, PollFlags::IN)], limit.as_ref()).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn told_by_kernel(_: Pid, _: Duration) -> bool {
    false
}
