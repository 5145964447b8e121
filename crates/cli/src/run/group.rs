//! The process group of the command: signalled as a whole, and looked at until nobody in it is alive.
//!
//! Used by the supervisor and by the guardian. Descendants that leave the group (`setsid`) are not seen.

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A process group that we started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(Pid);

impl Group {
    /// The group led by `pid`. Zero and one would reach ourselves or everybody, so they are refused.
    pub(super) fn led_by(pid: u32) -> Option<Self> {
        i32::try_from(pid).ok().filter(|&pid| pid > 1).map(|pid| Self(Pid::from_raw(pid)))
    }

    pub(super) fn id(self) -> i32 {
        self.0.as_raw()
    }

    /// Sends a signal to every member. A group that is gone, or that belongs to another user by now, hears nothing.
    pub(super) fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether nobody in it can run any more.
    pub(super) fn is_empty(self) -> bool {
        match killpg(self.0, None) {
            Err(Errno::ESRCH) => true,
            // Zombies count as members for `kill`, and a parent that never reaps keeps them for ever.
            _ => self.only_zombies(),
        }
    }

    #[cfg(target_os = "linux")]
    fn only_zombies(self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let mut seen = false;
        for process in processes.flatten() {
            let name = process.file_name();
            if !name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())) {
                continue;
            }
            let Ok(stat) = std::fs::read(process.path().join("stat")) else { continue };
            match state_in_group(&stat, self.id()) {
                Some(b'Z' | b'X') => seen = true,
                Some(_) => return false,
                None => {}
            }
        }
        // A member that /proc does not show (`hidepid`) is alive for all we know.
        seen || killpg(self.0, None) == Err(Errno::ESRCH)
    }

    #[cfg(not(target_os = "linux"))]
    fn only_zombies(self) -> bool {
        false
    }
}

/// The state in a line of `/proc/PID/stat`, if that process is in `group`. The name in brackets may hold anything.
#[cfg(target_os = "linux")]
fn state_in_group(stat: &[u8], group: i32) -> Option<u8> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    let in_group = fields.nth(1)?.parse() == Ok(group);
    in_group.then_some(state)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_confuse_the_reader() {
        let line = b"42 (a) R 1 (b) S 7 99 99 0 -1 4194560";
        assert_eq!(state_in_group(line, 99), Some(b'S'));
        assert_eq!(state_in_group(line, 98), None);
        assert_eq!(state_in_group(b"", 99), None);
    }

    #[test]
    fn groups_that_would_reach_ourselves_are_refused() {
        assert!(Group::led_by(0).is_none() && Group::led_by(1).is_none());
        assert!(Group::led_by(u32::MAX).is_none());
    }

    #[test]
    fn a_killed_group_is_empty_even_before_it_is_reaped() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let group = Group::led_by(child.id()).unwrap();
        assert!(!group.is_empty());
        group.signal(Signal::SIGKILL);
        for _ in 0..1000 {
            if group.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(group.is_empty(), "a zombie cannot run");
        child.wait().unwrap();
        assert!(group.is_empty());
    }
}
