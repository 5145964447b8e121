//! Where this store can be killed by its own tests, before and after everything that changes the
//! disk, and how they have it believe in a reboot.
//!
//! Without the feature `failpoints` every call is empty.

/// One place where a crash may happen. The environment variable `HOLDTIGHT_FILE_CRASH_AT` names the
/// passage, counted from one, at which the process kills itself.
#[cfg(feature = "failpoints")]
pub(crate) fn point(name: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static CRASH_AT: LazyLock<Option<u64>> =
        LazyLock::new(|| std::env::var("HOLDTIGHT_FILE_CRASH_AT").ok()?.parse().ok());
    let Some(at) = *CRASH_AT else { return };
    if PASSED.fetch_add(1, Ordering::SeqCst) + 1 == at {
        eprintln!("crash point {at}: {name}");
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal may need a moment; nothing may happen after it.
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn point(_name: &'static str) {}

/// A boot id to believe in instead of the kernel's: sixteen bytes of the number in
/// `HOLDTIGHT_FILE_BOOT`.
#[cfg(feature = "failpoints")]
pub(crate) fn boot() -> Option<[u8; 16]> {
    Some([std::env::var("HOLDTIGHT_FILE_BOOT").ok()?.parse().ok()?; 16])
}

#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn boot() -> Option<[u8; 16]> {
    None
}
