//! Whose turn it is: where tenants take turns, and where best-effort work has none otherwise.

use slicescheduler_gmg::id::{DeviceId, TenantId};
use slicescheduler_gmg::plan::Event;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};

use crate::baseline::{Parameter, Settings};
use crate::placing::is_latency;
use crate::policy::Context;

/// For rules that know no classes.
pub(super) const BEST_EFFORT_LAST: Parameter = Parameter {
    name: "best_effort_last",
    what: "1: best-effort tenants have a turn only where no latency-sensitive one has work; 0: all take turns alike",
    default: 1,
    least: 0,
    most: 1,
    grid: &[0, 1],
};

/// The tenants in the order of their turns, beginning after `last`: all of them, or with `best_effort_last` in
/// two groups, those with due times first.
pub(super) fn groups(
    view: View<'_>,
    last: Option<TenantId>,
    best_effort_last: bool,
) -> impl Iterator<Item = impl Iterator<Item = TenantId> + Clone + use<'_>> + use<'_> {
    let tenants = view.tenants().len() as u32;
    let first = last.map_or(0, |last| last.0.wrapping_add(1));
    let classes: &[Option<bool>] = if best_effort_last { &[Some(true), Some(false)] } else { &[None] };
    classes.iter().map(move |class| {
        let around = (0..tenants).map(move |turn| TenantId((first + turn) % tenants));
        around.filter(move |&tenant| class.is_none_or(|latency| is_latency(view, tenant) == latency))
    })
}

/// For rules that go by due times.
pub(super) const BEST_EFFORT_EVERY: Parameter = Parameter {
    name: "best_effort_every_ms",
    what: "best-effort work is due so long after it last ran on a device; 0: it is never due, and goes last",
    default: 100,
    least: 0,
    most: 1_000_000,
    grid: &[0, 30, 100, 500],
};

/// When best-effort work is due, which has no due times of its own: a while after it last ran on the device.
/// Earliest due time first, it uses the slack of what is due later, and is not starved by it.
#[derive(Clone, Debug)]
pub(super) struct BestEffortDue {
    every: Nanos,
    since: Vec<Nanos>,
}

impl BestEffortDue {
    pub(super) fn of(settings: &Settings) -> Self {
        Self { every: Nanos::ms(settings.get(&BEST_EFFORT_EVERY)), since: Vec::new() }
    }

    /// Keeps the times true. Call it for every event.
    pub(super) fn note(&mut self, context: &Context<'_>, event: &Event) {
        self.since.resize(context.view.cluster().devices().len(), Nanos::ZERO);
        if let Event::Finished { job, lane, at, .. } = event
            && let Some(job) = context.view.job(*job)
            && !is_latency(context.view, TenantId(job.spec.key.tenant))
            && let Some(since) = self.since.get_mut(lane.device.index())
        {
            *since = *at;
        }
    }

    /// When the next best-effort iteration of a device is due; [`Nanos::MAX`]: after all others.
    pub(super) fn on(&self, device: DeviceId) -> Nanos {
        let since = self.since.get(device.index()).copied().unwrap_or(Nanos::ZERO);
        if self.every.is_zero() { Nanos::MAX } else { since + self.every }
    }
}
