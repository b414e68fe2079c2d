//! Which actions of a question depend on each other.

use slicescheduler_gmg::id::{DeviceId, JobId};
use slicescheduler_gmg::plan::{Action, Source, Work};

use super::simulation::Simulation;

/// Actions that were simulated together, and all through which others can depend on them.
///
/// Devices do not depend on each other but by what moves between them, and by jobs: those that are spread over them, and
/// those that others wait for. So actions that share none of these can be simulated one after the other.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Their numbers, ascending.
    pub(super) actions: Vec<usize>,
    /// The devices that were simulated, and those whose weights are copied.
    devices: Vec<DeviceId>,
    /// The jobs that are named, and those that these wait for.
    jobs: Vec<JobId>,
    /// True if bytes move over links, which all that moves may share.
    moves: bool,
}

impl Part {
    /// What `simulation` has taken in.
    pub(super) fn of(simulation: &Simulation<'_>) -> Self {
        let (mut actions, mut jobs) = (Vec::new(), Vec::new());
        let mut devices = simulation.scratch.in_use.clone();
        for (index, action) in simulation.chosen() {
            actions.push(index);
            match action {
                Action::Run { work: Work::New(spec), .. } => jobs.extend(&spec.after),
                Action::RunGang { members, .. } => jobs.extend(members.iter().flat_map(|(spec, _)| &spec.after)),
                Action::Run { work: Work::Existing { job, .. }, .. } => {
                    jobs.push(*job);
                    let known = simulation.mirror.job(*job);
                    jobs.extend(known.iter().flat_map(|job| &job.spec.after));
                    jobs.extend(known.and_then(|job| job.gang.as_ref()).iter().flat_map(|gang| gang.jobs()));
                }
                Action::Recall { job, .. } => jobs.push(*job),
                Action::Prefetch { source: Source::Device(from), .. } => devices.push(*from),
                _ => {}
            }
        }
        Self { actions, devices, jobs, moves: simulation.scratch.moves }
    }

    /// True if the actions of one may change what those of the other do.
    pub(super) fn has_to_do_with(&self, other: &Self) -> bool {
        (self.moves && other.moves)
            || self.devices.iter().any(|device| other.devices.contains(device))
            || self.jobs.iter().any(|job| other.jobs.contains(job))
    }
}
