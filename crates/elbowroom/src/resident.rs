//! Resident memory of this process as the system counts it: arena, host tier, code and everything else. Known on Linux only.

use elbowroom_ir::Bytes;

/// Bytes that are resident now (`VmRSS`); `None` if the system does not report it.
pub fn now() -> Option<Bytes> {
    status("VmRSS:")
}

/// Most bytes that were ever resident (`VmHWM`); `None` if the system does not report it.
pub fn most() -> Option<Bytes> {
    status("VmHWM:")
}

fn status(field: &str) -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}
