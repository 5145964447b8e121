//! What this store promises as it is set up here: read from the directory, the clock and the file system.

use holdtight_core::{Finding, Guarantees, Level, LockError};

use crate::directory::Access;
use crate::store::FileStore;

impl FileStore {
    /// Looks at everything that decides safety.
    pub(crate) fn examine(&self) -> Result<Guarantees, LockError> {
        self.directory.check_still_there()?;
        let facts = self.ledger.read()?;
        let findings =
            vec![self.scope(), self.access(), self.durability(), self.clock(), self.wake_ups()];
        tracing::debug!(high_water = facts.high_water, "probed the file store");
        Ok(Guarantees::new(format!("file store in {}", self.directory.root().display()), findings))
    }

    fn scope(&self) -> Finding {
        Finding::new(
            Level::Good,
            "file system",
            format!(
                "{}: excludes all processes of this machine, in every container that mounts this \
                 directory, and nobody on other machines",
                self.directory.file_system.name
            ),
        )
    }

    fn access(&self) -> Finding {
        match self.directory.access {
            Access::Own => {
                Finding::new(Level::Good, "access", "only this user and root can touch the locks")
            }
            Access::Shared => Finding::new(
                Level::Warning,
                "access",
                "every member of the directory's group can take, and also break, every lock",
            )
            .fix("let only those into the group whom you would trust with the locks"),
        }
    }

    fn durability(&self) -> Finding {
        let volatile = self.directory.file_system.volatile;
        let (level, found) = match (self.config.sync, volatile) {
            (_, true) => (
                Level::Warning,
                "the file system lives in memory: a reboot forgets all fences, and new ones go on \
                 from the wall clock",
            ),
            (true, false) => (
                Level::Good,
                "every step is on the disk before it is answered; a reboot voids all leases and \
                 fences go on increasing",
            ),
            (false, false) => (
                Level::Good,
                "steps are not synced: a reboot voids all leases anyway, and fences go on from the \
                 wall clock",
            ),
        };
        let finding = Finding::new(level, "durability", found);
        match (self.config.sync, volatile) {
            (_, true) => finding.fix("choose a directory on a disk"),
            (false, false) => finding.fix(
                "only if the clock may be set back across a power cut: ?sync=1, at the price of a \
                 disk write per step",
            ),
            (true, false) => finding,
        }
    }

    fn clock(&self) -> Finding {
        let zone = match self.boot.shift {
            0 => String::new(),
            shift => format!(
                ", corrected by {} s for this time namespace",
                shift.unsigned_abs() / 1_000_000_000
            ),
        };
        if self.boot.id.genuine {
            return Finding::new(
                Level::Good,
                "clock",
                format!("the kernel's boot clock{zone}; the wall clock ends no lease"),
            );
        }
        Finding::new(
            Level::Good,
            "clock",
            format!(
                "the kernel's boot clock{zone}; the boot id is not the kernel's own here, so after \
                 a reboot a lease without a process may last up to its TTL"
            ),
        )
    }

    fn wake_ups(&self) -> Finding {
        let piped = cfg!(any(target_os = "linux", target_os = "android", target_os = "freebsd"))
            && self.own.known().is_none_or(|presence| presence.pipe.is_some());
        if piped {
            Finding::new(
                Level::Good,
                "wake-ups",
                "a release, and the death of a holder, wake one waiter through its named pipe",
            )
        } else {
            Finding::new(
                Level::Warning,
                "wake-ups",
                "no named pipes here: waiters look every 50 ms",
            )
        }
    }
}
