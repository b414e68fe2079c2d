//! Idle slices by length: the gaps between an owner's work, and what guests made of them.

use slicescheduler_gmg::units::Nanos;

use crate::report::SliceBucket;

/// The longest slice of the first bucket; every further one is twice as long.
const SHORTEST: Nanos = Nanos::us(125);

/// Buckets: the last one has everything above about two minutes.
const BUCKETS: usize = 22;

/// The gap that is open on one device.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    since: Nanos,
    recovered: Nanos,
}

/// Counts the slices of every device inside a window of time.
#[derive(Debug)]
pub(super) struct Slices {
    window: (Nanos, Nanos),
    gaps: Vec<Gap>,
    buckets: [SliceBucket; BUCKETS],
}

impl Slices {
    pub(super) fn new(devices: usize, window: (Nanos, Nanos)) -> Self {
        let mut buckets = [SliceBucket::default(); BUCKETS];
        let mut longest = SHORTEST;
        for bucket in &mut buckets {
            bucket.longest = longest;
            longest = longest.times(2);
        }
        buckets[BUCKETS - 1].longest = Nanos::MAX;
        Self { window, gaps: vec![Gap { since: window.0, recovered: Nanos::ZERO }; devices], buckets }
    }

    /// The owner of `device` ran from `start` to `finish`: the slice before it has ended.
    pub(super) fn owner_ran(&mut self, device: usize, start: Nanos, finish: Nanos) {
        let Some(gap) = self.gaps.get_mut(device) else { return };
        let ended = std::mem::replace(gap, Gap { since: finish.max(gap.since), recovered: Nanos::ZERO });
        self.count(ended, start);
    }

    /// Guests ran on `device` from `start` to `finish`.
    pub(super) fn guest_ran(&mut self, device: usize, start: Nanos, finish: Nanos) {
        if let Some(gap) = self.gaps.get_mut(device) {
            gap.recovered += finish.min(self.window.1) - start.max(gap.since);
        }
    }

    /// Every slice, those that were open at the end of the window cut there.
    pub(super) fn finish(mut self) -> Vec<SliceBucket> {
        for gap in std::mem::take(&mut self.gaps) {
            self.count(gap, self.window.1);
        }
        self.buckets.to_vec()
    }

    fn count(&mut self, gap: Gap, end: Nanos) {
        let length = end.min(self.window.1) - gap.since;
        if length.is_zero() {
            return;
        }
        let index = self.buckets.partition_point(|bucket| bucket.longest < length).min(BUCKETS - 1);
        let bucket = &mut self.buckets[index];
        bucket.slices += 1;
        bucket.idle += length;
        bucket.recovered += gap.recovered.min(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_between_the_owners_work_and_are_counted_by_length() {
        let mut slices = Slices::new(2, (Nanos::ms(10), Nanos::ms(100)));
        slices.owner_ran(0, Nanos::ms(5), Nanos::ms(20));
        slices.guest_ran(0, Nanos::ms(21), Nanos::ms(24));
        slices.owner_ran(0, Nanos::ms(24), Nanos::ms(50));
        slices.owner_ran(0, Nanos::ms(50), Nanos::ms(60));
        slices.guest_ran(0, Nanos::ms(90), Nanos::ms(130));
        slices.owner_ran(1, Nanos::ms(10), Nanos::ms(100));
        let buckets = slices.finish();
        // Of 4 ms, guests had 3; of the 40 ms from 60 to the end of the window, 10.
        let of = |length: Nanos| buckets.iter().find(|bucket| length <= bucket.longest).unwrap();
        assert_eq!((of(Nanos::ms(4)).slices, of(Nanos::ms(4)).idle), (1, Nanos::ms(4)));
        assert_eq!(of(Nanos::ms(4)).recovered, Nanos::ms(3));
        assert_eq!((of(Nanos::ms(40)).slices, of(Nanos::ms(40)).idle), (1, Nanos::ms(40)));
        assert_eq!(of(Nanos::ms(40)).recovered, Nanos::ms(10));
        assert_eq!(buckets.iter().map(|bucket| bucket.slices).sum::<u64>(), 2);
        assert!(buckets.is_sorted_by_key(|bucket| bucket.longest));
    }
}
