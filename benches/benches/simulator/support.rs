//! Clocks and random numbers that all groups share.

use std::time::Duration;

use cpu_time::ThreadTime;

/// The shortest of `repetitions` calls of `run`, each with what `setup` made for it.
///
/// In time of this thread on a processor: other work on the machine costs caches but no waiting.
pub(crate) fn shortest<T>(repetitions: u32, mut setup: impl FnMut() -> T, mut run: impl FnMut(&mut T)) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..repetitions {
        let mut state = setup();
        let begin = ThreadTime::now();
        run(&mut state);
        best = best.min(begin.elapsed());
    }
    best
}

/// Memory of this process that is in use; [`None`] where the system does not say.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(|kib: u64| kib << 10)
}

/// Nanoseconds per item.
pub(crate) fn nanos_per(time: Duration, items: u64) -> f64 {
    time.as_secs_f64() * 1e9 / items as f64
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
