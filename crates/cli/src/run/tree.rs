//! All that the command started: found by descent, signalled one by one, and gone when waiting says
//! so.
//!
//! Wrapper and guardian are child subreapers, so whatever loses its parent becomes a child of the
//! nearest of them, whatever process group, session or user it has moved to. That nobody is left is
//! not looked up anywhere but told by the kernel: there are no children any more.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The process group of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(Pid);

impl Group {
    /// The group led by `pid`. Zero and one would reach ourselves or everybody, so they are
    /// refused.
    pub(super) fn led_by(pid: u32) -> Option<Self> {
        i32::try_from(pid).ok().filter(|&pid| pid > 1).map(|pid| Self(Pid::from_raw(pid)))
    }

    pub(super) fn id(self) -> i32 {
        self.0.as_raw()
    }

    /// Sends a signal to every member at once.
    ///
    /// Only while its leader is not reaped: after that the number may be another's.
    pub(super) fn signal(self, signal: Signal) -> Obeyed {
        Obeyed::unless(killpg(self.0, signal) == Err(nix::errno::Errno::EPERM))
    }

    /// Whether the kernel knows no such group any more.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_gone(self) -> bool {
        killpg(self.0, None) == Err(nix::errno::Errno::ESRCH)
    }
}

/// A process that descends from us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Descendant {
    pub(super) pid: i32,
    pub(super) name: String,
    group: i32,
    /// When it was started, in ticks since the boot: with the number it is unique.
    started: u64,
}

/// A process by its number and when it was started, in ticks since the boot: no other has both.
pub(crate) type Process = (i32, u64);

/// Whether somebody is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nobody,
    Somebody,
}

/// Whether a signal reached everybody it was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obeyed {
    Yes,
    /// Somebody is another user's by now, and not to be told anything.
    No,
}

impl Obeyed {
    fn unless(refused: bool) -> Self {
        if refused { Self::No } else { Self::Yes }
    }
}

/// Reaps every child that has ended, and hands each to `ended`.
pub(super) fn reap(mut ended: impl FnMut(i32, rustix::process::WaitStatus)) -> Left {
    use rustix::process::{WaitOptions, wait};
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid.as_raw_nonzero().get(), status),
            Ok(None) => return Left::Somebody,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Left::Nobody,
        }
    }
}

/// Makes all orphans among our descendants our children.
pub(super) fn adopt_orphans() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Sends `signal` to all of our descendants: by the group to its members, which reaches them at
/// once and leaves out nobody who is just being started, and one by one to all others.
pub(super) fn signal_all(signal: Signal, group: Option<Group>) -> Obeyed {
    let mut refused = group.is_some_and(|group| group.signal(signal) == Obeyed::No);
    for process in descendants() {
        if group.is_none_or(|group| process.group != group.id()) {
            refused |= process.signal(signal) == Obeyed::No;
        }
    }
    Obeyed::unless(refused)
}

/// Who is left, for people: `pid 42 (sleep), pid 43 (rsync)`.
pub(super) fn list(processes: &[Descendant]) -> String {
    const SHOWN: usize = 5;
    let name = |process: &Descendant| {
        format!("pid {} ({})", process.pid, crate::output::clean(&process.name))
    };
    let mut told: Vec<_> = processes.iter().take(SHOWN).map(name).collect();
    if processes.len() > SHOWN {
        told.push(format!("and {} more", processes.len() - SHOWN));
    }
    if told.is_empty() { "a process that /proc does not show".to_owned() } else { told.join(", ") }
}

#[cfg(target_os = "linux")]
mod platform {
    use std::collections::HashMap;

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

    use super::{Descendant, Obeyed, Process, Signal};

    /// One line of `/proc/PID/stat`.
    struct Line {
        process: Descendant,
        parent: i32,
        session: i32,
        state: u8,
    }

    impl Line {
        fn can_run(&self) -> bool {
            !matches!(self.state, b'Z' | b'X')
        }
    }

    /// All of our descendants that can still run, as far as `/proc` shows them.
    pub(in super::super) fn descendants() -> Vec<Descendant> {
        let us = std::process::id();
        // In a namespace whose /proc is another's, its numbers would be strangers.
        let shown = std::fs::read_link("/proc/self");
        if shown.ok().and_then(|link| link.to_str()?.parse().ok()) != Some(us) {
            return Vec::new();
        }
        let mut found: Vec<_> = descent(i32::try_from(us).unwrap_or(0), lines())
            .into_iter()
            .filter(Line::can_run)
            .map(|line| line.process)
            .collect();
        found.sort_by_key(|process| process.pid);
        found
    }

    fn lines() -> Vec<Line> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter_map(look).collect()
    }

    /// Those among `lines` that descend from `root`.
    fn descent(root: i32, lines: Vec<Line>) -> Vec<Line> {
        let mut children: HashMap<i32, Vec<Line>> = HashMap::new();
        for line in lines {
            children.entry(line.parent).or_default().push(line);
        }
        let mut found = Vec::new();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for line in children.remove(&parent).unwrap_or_default() {
                parents.push(line.process.pid);
                found.push(line);
            }
        }
        found
    }

    /// Every process that can still run.
    pub(crate) fn all() -> Vec<Process> {
        let lines = lines().into_iter().filter(Line::can_run);
        lines.map(|line| (line.process.pid, line.process.started)).collect()
    }

    /// All that can still run of what descends from another process, without those of our own
    /// session: if that process is the first of a container, we are its children too.
    pub(crate) fn below(root: i32) -> Vec<Process> {
        let ours = rustix::process::getsid(None).map_or(0, rustix::process::Pid::as_raw_pid);
        let others = lines().into_iter().filter(|line| line.session != ours).collect();
        let found = descent(root, others).into_iter().filter(Line::can_run);
        found.map(|line| (line.process.pid, line.process.started)).collect()
    }

    /// Whose line of `/proc/PID/stat` this is.
    pub(crate) fn identity(stat: &[u8]) -> Option<Process> {
        parse(stat).map(|line| (line.process.pid, line.process.started))
    }

    fn look(pid: i32) -> Option<Line> {
        parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads a line; the name in brackets may hold anything.
    fn parse(stat: &[u8]) -> Option<Line> {
        let open = stat.iter().position(|&byte| byte == b'(')?;
        let close = stat.iter().rposition(|&byte| byte == b')')?;
        let pid = std::str::from_utf8(&stat[..open]).ok()?.trim().parse().ok()?;
        let name = String::from_utf8_lossy(&stat[open + 1..close]).into_owned();
        let rest = std::str::from_utf8(&stat[close + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let id = |at: usize| i32::try_from(number(at)?).ok();
        let state = fields.first()?.bytes().next()?;
        let process = Descendant { pid, name, group: id(2)?, started: number(19)? };
        Some(Line { process, parent: id(1)?, session: id(3)?, state })
    }

    impl Descendant {
        /// Sends a signal to this process and to no other that has its number by now.
        pub(super) fn signal(&self, signal: Signal) -> Obeyed {
            Obeyed::unless(send(self.pid, self.started, signal) == Some(Errno::PERM))
        }
    }

    /// When a process that can still run was started, in ticks since the boot: with its number it
    /// is unique.
    pub(crate) fn started(pid: i32) -> Option<u64> {
        look(pid).filter(Line::can_run).map(|line| line.process.started)
    }

    /// Sends a signal to the process `pid` that was started at `started`, and to no other that has
    /// its number by now.
    pub(crate) fn signal_one(pid: i32, started: u64, signal: Signal) {
        send(pid, started, signal);
    }

    /// The same; says why the process did not get it, if it is there.
    fn send(pid: i32, started: u64, signal: Signal) -> Option<Errno> {
        let signal = rustix::process::Signal::from_named_raw(signal as i32)?;
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // The descriptor keeps the process, so what is looked at now is what gets the signal.
        look(pid).filter(|now| now.process.started == started)?;
        pidfd_send_signal(&pidfd, signal).err()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_with_brackets_and_spaces_does_not_confuse_the_reader() {
            let line =
                parse(b"42 (a) R 1 (b) S 7 99 98 0 -1 4194560 1 2 3 4 5 6 7 8 9 10 1 0 4711 0 0");
            let Line { process, parent, session, state } = line.unwrap();
            assert_eq!((process.pid, process.name.as_str()), (42, "a) R 1 (b"));
            assert_eq!((parent, state, process.group, process.started), (7, b'S', 99, 4711));
            assert_eq!(session, 98);
            assert!(parse(b"").is_none() && parse(b"42 (sh) S").is_none());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::{Descendant, Obeyed, Process, Signal};

    pub(in super::super) fn descendants() -> Vec<Descendant> {
        Vec::new()
    }

    pub(crate) fn all() -> Vec<Process> {
        Vec::new()
    }

    pub(crate) fn below(_: i32) -> Vec<Process> {
        Vec::new()
    }

    pub(crate) fn identity(_: &[u8]) -> Option<Process> {
        None
    }

    pub(crate) fn started(_: i32) -> Option<u64> {
        None
    }

    pub(crate) fn signal_one(_: i32, _: u64, _: Signal) {}

    impl Descendant {
        pub(super) fn signal(&self, _: Signal) -> Obeyed {
            Obeyed::Yes
        }
    }
}

pub(super) use platform::descendants;
pub(crate) use platform::{all, below, identity, signal_one, started};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_would_reach_ourselves_are_refused() {
        assert!(Group::led_by(0).is_none() && Group::led_by(1).is_none());
        assert!(Group::led_by(u32::MAX).is_none());
    }

    #[test]
    fn a_long_list_is_cut_and_an_empty_one_says_why() {
        let process = |pid| Descendant { pid, name: "sh".into(), group: pid, started: 1 };
        assert_eq!(list(&[process(7), process(8)]), "pid 7 (sh), pid 8 (sh)");
        let many: Vec<_> = (1..9).map(process).collect();
        assert!(list(&many).ends_with("pid 5 (sh), and 3 more"));
        assert!(list(&[]).contains("/proc"));
    }
}
