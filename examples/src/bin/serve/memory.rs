//! Whether the machine has the memory that devices are to have.

use std::fmt;

use slicescheduler_gmg::units::Bytes;

/// Devices are to have more memory than there is.
#[derive(Debug)]
pub(crate) struct NotEnoughMemory {
    devices: u32,
    each: Bytes,
    there: Bytes,
}

impl fmt::Display for NotEnoughMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, each, there } = self;
        write!(f, "{devices} devices of {each} need more memory than the {there} of this machine: ")?;
        write!(f, "give --devices or --memory-mib less")
    }
}

impl std::error::Error for NotEnoughMemory {}

/// Refuses devices that the machine cannot have: their memory is taken as it is used, and a system that promised more
/// than it has ends the program in the middle of its work. Where a system does not say what it has, nothing is refused
/// but what cannot be counted.
pub(crate) fn check(devices: u32, each_mib: u64) -> Result<(), NotEnoughMemory> {
    let wanted = u64::from(devices).checked_mul(each_mib).and_then(|mib| mib.checked_mul(1 << 20));
    let there = physical().unwrap_or(Bytes::MAX);
    if wanted.is_some_and(|wanted| wanted <= there.get()) {
        return Ok(());
    }
    Err(NotEnoughMemory { devices, each: Bytes(each_mib.saturating_mul(1 << 20)), there })
}

/// The machine's memory, as Linux tells it: a line `MemTotal:  16000000 kB`.
fn physical() -> Option<Bytes> {
    let lines = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = lines.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse().ok().and_then(|kib: u64| Some(Bytes(kib.checked_mul(1024)?)))
}
