//! The store's clock: nanoseconds since this machine booted, the same number in every container on
//! it.
//!
//! `CLOCK_BOOTTIME` is shifted inside a time namespace, so the shift is taken out again. The boot
//! id says whether a record was written since the last boot; where it cannot be trusted, the clock
//! itself says it.

use holdtight_core::{BootClock, Clock, LockError};

/// One run of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootId {
    pub(crate) id: [u8; 16],
    /// The kernel's own id. System containers (LXC, systemd-nspawn) mount a made-up one over it,
    /// which differs between containers of the same boot.
    pub(crate) genuine: bool,
}

impl BootId {
    /// Whether something that was written in boot `self` at `written_at` is from before this boot.
    ///
    /// Never says yes for this boot. With a doubtful id it may say no for an earlier one, but then
    /// the time stamps of the record are in this boot's past, so its lease ends within its own TTL
    /// from now.
    pub(crate) fn is_over(self, current: Self, written_at: u64, now: u64) -> bool {
        if self.genuine && current.genuine { self.id != current.id } else { written_at > now }
    }
}

/// The boot this process runs in, and how to read its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot {
    pub(crate) id: BootId,
    /// How far this process's boot clock is ahead of the machine's, in nanoseconds.
    pub(crate) shift: i64,
}

impl Boot {
    /// Nanoseconds since the machine booted.
    pub(crate) fn now(&self) -> u64 {
        BootClock.now().as_nanos().saturating_add_signed(self.shift.saturating_neg())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn current() -> Result<Self, LockError> {
        use std::fs::{metadata, read_link, read_to_string};
        use std::os::unix::fs::MetadataExt;

        const ID: &str = "/proc/sys/kernel/random/boot_id";
        let without_proc = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => LockError::invalid_config(
                "the file store needs /proc to tell this boot from the last one; mount it",
            )
            .with_source(source),
            _ => crate::error::io("read", ID.as_ref(), source),
        };
        let text = read_to_string(ID).map_err(without_proc)?;
        let id = parse_id(&text)
            .ok_or_else(|| LockError::internal(format!("{ID} does not hold a boot id")))?;
        let genuine = metadata(ID).map_err(without_proc)?.dev()
            == metadata("/proc/self").map_err(without_proc)?.dev();
        // A kernel without time namespaces has no such link, and nothing to take out.
        let shift = match read_link("/proc/self/ns/time") {
            Err(_) => 0,
            Ok(mine) => {
                // The offsets are those of the namespace for children: the same, unless this
                // process unshared and did not fork.
                if read_link("/proc/self/ns/time_for_children").map_err(without_proc)? != mine {
                    return Err(LockError::invalid_config(
                        "this process has unshared its time namespace without entering it; fork first",
                    ));
                }
                let offsets = read_to_string("/proc/self/timens_offsets").map_err(without_proc)?;
                parse_shift(&offsets).ok_or_else(|| {
                    LockError::internal("/proc/self/timens_offsets is not understood")
                })?
            }
        };
        Ok(Self { id: BootId { id, genuine }, shift })
    }

    /// Elsewhere there are no time namespaces, and the clock alone tells boots apart.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[expect(clippy::unnecessary_wraps, reason = "the same signature everywhere")]
    pub(crate) fn current() -> Result<Self, LockError> {
        Ok(Self { id: BootId { id: [0; 16], genuine: false }, shift: 0 })
    }
}

/// The lowest fence that may be minted now, so that fences go on increasing when all records were
/// lost.
///
/// The one use of the wall clock in this store. If the clock was set back, the record's own fence,
/// or the high-water mark of the ledger, is larger and wins.
pub(crate) fn fence_floor() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the fence floor, and never a lease")]
    let wall = std::time::SystemTime::now();
    let micros = wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_micros();
    u64::try_from(micros).unwrap_or(0)
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
fn parse_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(id)
}

/// Reads the line `boottime SECONDS NANOSECONDS`.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn parse_shift(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_of_a_time_namespace_is_read_with_its_sign() {
        assert_eq!(
            parse_shift("monotonic  0  0\nboottime   100000  7\n"),
            Some(100_000_000_000_007)
        );
        assert_eq!(parse_shift("monotonic  3  0\nboottime   -5      250\n"), Some(-4_999_999_750));
        for bad in ["", "boottime", "boottime x 0", "boottime 1", "boottime 9999999999999 0"] {
            assert_eq!(parse_shift(bad), None, "{bad:?}");
        }
        let boot = Boot { id: BootId { id: [0; 16], genuine: true }, shift: i64::MAX };
        assert_eq!(boot.now(), 0, "a shift beyond the clock saturates");
    }

    #[test]
    fn boot_ids_are_read_or_refused() {
        let id = parse_id("e2a0257d-ff10-4cf2-acd8-8e22ffc6db97\n").unwrap();
        assert_eq!((id[0], id[15]), (0xe2, 0x97));
        for bad in [
            "",
            "e2a0257d",
            "zza0257d-ff10-4cf2-acd8-8e22ffc6db97",
            "é2a0257dff104cf2acd88e22ffc6db9",
        ] {
            assert!(parse_id(bad).is_none(), "{bad:?}");
        }
        assert!(Boot::current().is_ok());
    }

    #[test]
    fn another_boot_is_recognised_by_a_genuine_id_or_by_time_stamps_from_the_future() {
        let id = |n, genuine| BootId { id: [n; 16], genuine };
        assert!(id(1, true).is_over(id(2, true), 5, 10));
        assert!(!id(1, true).is_over(id(1, true), 5, 10));
        // Two containers with made-up ids share the machine's clock: not a reboot.
        assert!(!id(1, false).is_over(id(2, false), 5, 10));
        assert!(!id(1, true).is_over(id(2, false), 5, 10));
        assert!(id(1, false).is_over(id(1, false), 11, 10));
    }
}
