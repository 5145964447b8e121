//! What the machine tells: its clock that all processes share, the cost of this process, and what
//! it is.

use std::time::Duration;

use serde_json::{Value, json};

/// Nanoseconds of the clock that all processes of the machine share.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// Resident memory of this process in bytes, where the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// What this machine is, for whoever reads numbers that were measured on it.
pub fn describe() -> Value {
    let system = rustix::system::uname();
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = text("/proc/cpuinfo");
    let model =
        processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = text("/proc/meminfo");
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory = memory.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    json!({
        "processor": model.map_or("unknown", |(_, model)| model.trim()),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": memory.map(|kilobytes| (kilobytes + (1 << 19)) >> 20),
        "system": format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_is() {
        let said = describe();
        assert!(said["cores"].as_u64().unwrap() > 0, "{said}");
        assert!(!said["system"].as_str().unwrap().is_empty(), "{said}");
    }

    #[test]
    fn the_clock_runs() {
        let before = monotonic_nanos();
        assert!(monotonic_nanos() >= before);
    }
}
