//! What a device's agent says replaces what the graph says.

use std::collections::BTreeSet;

use slicescheduler_gmg::id::LaneId;
use slicescheduler_gmg::plan::DeviceReport;

use super::{Op, Reference};

impl Reference {
    /// False if the graph had said something else.
    pub(super) fn resync(&mut self, report: &DeviceReport) -> bool {
        let device = report.device;
        if device.index() >= self.devices.len() {
            return false;
        }
        let mut expected = true;
        let lanes: Vec<LaneId> = self.lanes.keys().copied().filter(|lane| lane.device == device).collect();
        let mut reported: Vec<_> =
            report.queued.iter().flat_map(|(lane, job, ops)| ops.clone().map(move |op| (*lane, *job, op))).collect();
        for lane in lanes {
            for (job, op, _) in self.lanes[&lane].clone() {
                match reported.iter().position(|entry| *entry == (lane, job, op)) {
                    Some(place) => drop(reported.remove(place)),
                    None => {
                        expected = false;
                        self.leave(job, op..op + 1, lane, Op::Pending);
                        self.abandon(job);
                    }
                }
            }
        }
        // Others that were reported, twice or wrongly.
        expected &= reported.is_empty();
        for (id, job) in &mut self.jobs {
            let here = job.arena.is_some_and(|(on, _, _)| on == device);
            if here && !report.jobs.contains(id) && !job.on_lane() {
                expected = false;
                job.arena = None;
                job.ops.iter_mut().filter(|op| matches!(op, Op::Done(_))).for_each(|op| *op = Op::Pending);
            }
        }
        let here = |id| self.jobs.get(id).and_then(|job| job.arena).is_some_and(|(on, _, _)| on == device);
        expected &= report.jobs.iter().all(here);

        let state = &mut self.devices[device.index()];
        let had: BTreeSet<_> =
            state.weights.keys().chain(state.parts.keys().map(|(model, _)| model)).copied().collect();
        expected &= had == report.models.iter().copied().collect();
        state.weights.retain(|model, _| report.models.contains(model));
        state.loaded.retain(|model, _| report.models.contains(model));
        state.parts.retain(|(model, _), _| report.models.contains(model));

        let known: Vec<_> = state.kv.tables.keys().copied().collect();
        expected &= report.sequences.iter().all(|id| known.contains(id));
        for id in known.into_iter().filter(|id| !report.sequences.contains(id)) {
            expected = false;
            self.forget_sequence(id);
        }
        self.devices[device.index()].kv.drop_cached(|_| true);
        expected
    }
}
