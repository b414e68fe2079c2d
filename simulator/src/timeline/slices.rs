//! Idle intervals of lanes.

use slicescheduler_gmg::id::LaneId;
use slicescheduler_gmg::plan::{Forecast, Slice};
use slicescheduler_gmg::units::{Bytes, Nanos};

/// The idle slices of a forecast, by lane, then by time.
#[derive(Clone, Debug)]
pub struct Slices {
    slices: std::vec::IntoIter<Slice>,
    at_least: Nanos,
}

impl Slices {
    /// The gaps between the work of `forecast` on each of `lanes`, up to `horizon`. `free` gives
    /// the bytes that are free on the lane's device.
    pub(super) fn of(
        forecast: &Forecast,
        lanes: impl Iterator<Item = LaneId>,
        horizon: Nanos,
        free: impl Fn(LaneId) -> Bytes,
    ) -> Self {
        let mut runs: Vec<_> = forecast.runs.iter().map(|run| (run.lane, run.start, run.finish)).collect();
        runs.sort_unstable();
        let mut slices = Vec::new();
        for lane in lanes {
            let first = runs.partition_point(|(other, ..)| *other < lane);
            let mut idle_from = forecast.now;
            let mut gap = |start: Nanos, end: Nanos| {
                if start < end {
                    slices.push(Slice { lane, start, end, free: free(lane) });
                }
            };
            for &(_, start, finish) in runs[first..].iter().take_while(|(other, ..)| *other == lane) {
                gap(idle_from, start.min(horizon));
                idle_from = idle_from.max(finish);
            }
            gap(idle_from, horizon);
        }
        Self { slices: slices.into_iter(), at_least: Nanos::ZERO }
    }

    /// Leaves out the slices that are not longer than `length`.
    #[must_use]
    pub fn longer_than(mut self, length: Nanos) -> Self {
        self.at_least = self.at_least.max(length + Nanos(1));
        self
    }
}

impl Iterator for Slices {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        let at_least = self.at_least;
        self.slices.find(|slice| slice.length() >= at_least)
    }
}
