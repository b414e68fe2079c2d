//! What is counted while a replay runs.

mod tenant;

use std::ops::Range;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, RequestId, TenantId};
use slicescheduler_gmg::memory::ByteKind;
use slicescheduler_gmg::plan::{Command, Event, Observer, World};
use slicescheduler_gmg::shape::TOKENS;
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_scheduler::batching::Completed;
use slicescheduler_scheduler::explain::Explanation;
use slicescheduler_simulator::cost::{CostModel, Coverage};

use crate::driver::{Driver, Lost};
use crate::learned::Learned;
use crate::replay::slices::Slices;
use crate::report::{
    CoverageFigures, DecisionFigures, DeviceLabel, LateRequest, MemorySample, PolicySummary, PredictionFigures,
    RunRecord, SecondUse, Span, SpanKind, TenantLabel, TenantSummary,
};
use crate::scenario::Scenario;

use tenant::TenantCounts;
pub(crate) use tenant::violates;

/// Memory samples per device over a run.
const MEMORY_SAMPLES: u64 = 400;

/// The part of a run that is kept span by span.
const DETAIL: Nanos = Nanos::secs(20);

/// Spans that are kept at most.
const MAX_SPANS: usize = 60_000;

/// Operators that ran without a break.
struct Piece {
    job: JobId,
    lane: LaneId,
    start: Nanos,
    finish: Nanos,
    ops: Range<u32>,
    recalled: bool,
}

/// Watches a replay and makes its [`RunRecord`].
#[derive(Debug)]
pub struct Recorder {
    window: (Nanos, Nanos),
    closed: bool,
    labels: Vec<TenantLabel>,
    devices: Vec<DeviceLabel>,
    tenants: Vec<TenantCounts>,
    seconds: Vec<Vec<SecondUse>>,
    slices: Slices,
    memory: Vec<MemorySample>,
    next_sample: Nanos,
    detail: (Nanos, Nanos),
    spans: Vec<Span>,
    busy: Nanos,
    owner_busy: Nanos,
    guest_busy: Nanos,
    completed: Vec<Completed>,
    lost: Vec<Lost>,
    learned: Option<Learned>,
    forecast: Option<(Arc<dyn CostModel>, Coverage)>,
    explained: usize,
    late: Vec<LateRequest>,
}

impl Recorder {
    /// Watches a run of `scenario` on the graph that `view` shows.
    pub fn new(scenario: &Scenario, view: View<'_>) -> Self {
        let end = scenario.duration;
        let labels = scenario.tenants.iter().map(|t| TenantLabel { name: t.name.clone(), class: t.class }).collect();
        let devices: Vec<DeviceLabel> = view
            .cluster()
            .devices()
            .iter()
            .map(|device| DeviceLabel {
                name: format!("{} {}", view.cluster().device_name(device.id), device.spec.name),
                owner: view.owner(device.id).map(TenantId::index),
                usable: view.memory(device.id).map_or(0, |memory| memory.layout().usable.get()),
            })
            .collect();
        let tenants = view.tenants().iter().enumerate().filter_map(|(index, _)| {
            let model = view.models().iter().find(|model| model.tenant().index() == index)?;
            let container = view.containers().iter().find(|container| container.tenant().index() == index);
            let ranks = container.map_or(1, |container| container.layout.ranks());
            let caches = scenario.tenants.get(index).is_some_and(|tenant| tenant.prefix_caching);
            Some(TenantCounts::new(model.template.clone(), ranks, caches))
        });
        let tenants = tenants.collect();
        let device_count = devices.len();
        let seconds = vec![Vec::new(); device_count];
        let middle = end.scale(1, 2);
        Self {
            window: (scenario.warm_up, end),
            closed: false,
            labels,
            devices,
            tenants,
            seconds,
            slices: Slices::new(device_count, (scenario.warm_up, end)),
            memory: Vec::new(),
            next_sample: Nanos::ZERO,
            detail: (middle, (middle + DETAIL).min(end)),
            spans: Vec::new(),
            busy: Nanos::ZERO,
            owner_busy: Nanos::ZERO,
            guest_busy: Nanos::ZERO,
            completed: Vec::new(),
            lost: Vec::new(),
            learned: None,
            forecast: None,
            explained: 0,
            late: Vec::new(),
        }
    }

    /// Explains the `most` requests whose service level was violated most.
    #[must_use]
    pub(crate) fn explaining(mut self, most: usize) -> Self {
        self.explained = most;
        self
    }

    /// Asks what delayed those of `completed` that violated their service level.
    pub(crate) fn explain(&mut self, completed: &[Completed], why: impl Fn(RequestId) -> Option<Explanation>) {
        if self.explained == 0 {
            return;
        }
        for done in completed {
            let late = violates(done) && self.in_window(done.arrival);
            let Some(slo) = done.slo.filter(|_| late) else { continue };
            let late = LateRequest {
                tenant: done.tenant.index(),
                arrival: done.arrival,
                prompt: done.prompt,
                produced: done.produced,
                late: done.late,
                first_token: done.first_token,
                first_due: slo.due(done.arrival, 0),
                because: None,
            };
            let place = self.late.partition_point(|other| other.severity() >= late.severity());
            if place < self.explained {
                self.late.truncate(self.explained - 1);
                self.late.insert(place, LateRequest { because: why(done.request), ..late });
            }
        }
    }

    /// Counts how `cost`, which forecasts go by, knows the times of the iterations that run.
    #[must_use]
    pub fn covering(mut self, cost: Arc<dyn CostModel>) -> Self {
        self.forecast = Some((cost, Coverage::default()));
        self
    }

    /// Lets a cost model learn from the run; its predictions become figures.
    #[must_use]
    pub fn learning(mut self, learned: Option<Learned>) -> Self {
        self.learned = learned;
        self
    }

    /// A request arrived.
    pub fn arrived(&mut self, tenant: TenantId, at: Nanos) {
        let in_window = self.in_window(at);
        if let Some(counts) = self.tenants.get_mut(tenant.index()) {
            counts.arrived_in_window += u64::from(in_window);
        }
    }

    /// The measuring window is over; what completes later counts for service levels only.
    pub fn close_window(&mut self) {
        self.closed = true;
    }

    /// Empty buffers to be filled and given to [`settle`](Self::settle).
    pub(crate) fn buffers(&mut self) -> (Vec<Completed>, Vec<Lost>) {
        (std::mem::take(&mut self.completed), std::mem::take(&mut self.lost))
    }

    /// Counts requests that ended, and takes the buffers back.
    pub(crate) fn settle(&mut self, mut completed: Vec<Completed>, mut lost: Vec<Lost>) {
        for (tenant, done) in completed.drain(..).map(|done| (done.tenant, done)) {
            let arrived_in_window = self.in_window(done.arrival);
            let completed_in_window = !self.closed && done.last_token >= self.window.0;
            if let Some(counts) = self.tenants.get_mut(tenant.index()) {
                counts.complete(&done, arrived_in_window, completed_in_window);
            }
        }
        for gone in lost.drain(..) {
            let in_window = self.in_window(gone.arrival);
            if let Some(counts) = self.tenants.get_mut(gone.tenant.index()).filter(|_| in_window) {
                counts.lose();
            }
        }
        (self.completed, self.lost) = (completed, lost);
    }

    /// The figures and pictures of the run.
    pub(crate) fn finish<W: World>(mut self, name: &str, driver: &Driver<W>, wall: Option<Nanos>) -> RunRecord {
        self.sample_memory(driver.now(), driver.gmg().view());
        let length = (self.window.1 - self.window.0).as_secs_f64();
        let per_second = |amount: f64| amount / length;
        let sum = |of: fn(&TenantCounts) -> u64| self.tenants.iter().map(of).sum::<u64>() as f64;
        let (input, output) = (sum(|counts| counts.input), sum(|counts| counts.output));
        let device_time = (self.window.1 - self.window.0).times(self.devices.len() as u64);
        let share = |time: Nanos, of: Nanos| if of.is_zero() { 0.0 } else { time.as_secs_f64() / of.as_secs_f64() };
        let view = driver.gmg().view();
        let peaks = view.cluster().devices().iter().filter_map(|device| Some(view.memory(device.id)?.ledger().peak()));
        let (decisions, forecasts) = (driver.decisions(), driver.forecasts());
        let forecast = view.cluster().devices().iter().filter_map(|device| forecasts.peak(device.id));
        let micros = |time: Nanos| time.get() as f64 / 1e3;
        let per_ms = |amount: u64| share(Nanos(amount), forecasts.time()) * 1e6;
        let pools = || view.cluster().devices().iter().filter_map(|device| view.memory(device.id));
        let displaced = |tenant| pools().map(|memory| memory.kv().displaced(tenant)).sum();
        let tenants: Vec<TenantSummary> = (0..)
            .map(TenantId)
            .zip(self.labels.iter().zip(&mut self.tenants))
            .map(|(tenant, (label, counts))| counts.summary(label, length, displaced(tenant)))
            .collect();
        let sensitive = tenants.iter().zip(&self.labels).filter(|(_, label)| label.class == Class::LatencySensitive);
        let worst = sensitive.map(|(tenant, _)| tenant.sla_violation_rate).fold(0.0, f64::max);
        let kept = self.tenants.iter().map(|counts| counts.kept).sum::<u64>() as f64;
        let flops: f64 = self.tenants.iter().map(|counts| counts.flops).sum();
        let counters = driver.counters();
        let summary = PolicySummary {
            name: name.to_owned(),
            token_throughput: per_second(input + output),
            input_token_throughput: per_second(input),
            output_token_throughput: per_second(output),
            flop_weighted_throughput: per_second(flops / 1e12),
            goodput: per_second(kept),
            sla_violation_rate: worst,
            tenants,
            memory_violations: counters.memory_violations,
            busy_share: share(self.busy, device_time),
            idle_slice_recovery: share(self.guest_busy, device_time - self.owner_busy),
            forecast_peak_memory_gib: forecast.max().map(|peak| peak.as_gib_f64()),
            peak_memory_gib: peaks.max().unwrap_or_default().as_gib_f64(),
            recalls: counters.recalls,
            decisions: decisions.decisions(),
            decision_us: DecisionFigures {
                p50: micros(decisions.quantile(0.5)),
                p99: micros(decisions.quantile(0.99)),
                mean: micros(decisions.mean()),
            },
            what_ifs: forecasts.questions(),
            sim_ops_per_ms: per_ms(forecasts.operators()),
            sim_entries_per_ms: per_ms(forecasts.entries()),
            wall_s: wall.unwrap_or_default().as_secs_f64(),
            answers_compared: None,
            tokens_hash: None,
            predictions: self.learned.and_then(|learned| PredictionFigures::of(&learned.predictions())),
            forecast_coverage: self.forecast.and_then(|(_, coverage)| CoverageFigures::of(&coverage)),
        };
        RunRecord {
            tenants: self.labels,
            devices: self.devices,
            seconds: self.seconds,
            slices: self.slices.finish(),
            memory: self.memory,
            spans: self.spans,
            detail: self.detail,
            late: self.late,
            summary,
        }
    }

    fn in_window(&self, at: Nanos) -> bool {
        self.window.0 <= at && at < self.window.1
    }

    fn ran(&mut self, piece: &Piece, view: View<'_>) {
        let Piece { job, lane, start, finish, ref ops, recalled } = *piece;
        let operators = ops.end.saturating_sub(ops.start);
        let Some(spec) = view.job(job).map(|job| &job.spec) else { return };
        let device = lane.device.index();
        let tenant = spec.key.tenant;
        let guest = view.owner(lane.device) != Some(TenantId(tenant));
        let inside = finish.min(self.window.1) - start.max(self.window.0);
        self.busy += inside;
        if guest {
            self.guest_busy += inside;
            self.slices.guest_ran(device, start, finish);
        } else {
            self.owner_busy += inside;
            self.slices.owner_ran(device, start, finish);
        }
        self.count_seconds(device, start, finish, guest);
        if finish > self.detail.0 && start < self.detail.1 && self.spans.len() < MAX_SPANS {
            let tokens = spec.binding.value(TOKENS) as u32;
            let kind = if tokens as usize > spec.rows.len() { SpanKind::Prefill } else { SpanKind::Decode };
            let device = device as u32;
            self.spans.push(Span { device, tenant, start, finish, kind, guest, recalled, operators, tokens });
        }
    }

    /// Counts the iteration that `piece` is the last of.
    fn cover(&mut self, piece: &Piece, view: View<'_>) {
        let Some((cost, coverage)) = &mut self.forecast else { return };
        let job = view.job(piece.job).filter(|job| piece.ops.end >= job.template.op_count());
        if let Some((job, device)) = job.zip(view.cluster().device(piece.lane.device)) {
            coverage.add(&**cost, &job.template, &job.spec.binding, &device.spec);
        }
    }

    fn count_seconds(&mut self, device: usize, start: Nanos, finish: Nanos, guest: bool) {
        let Some(seconds) = self.seconds.get_mut(device) else { return };
        let second = Nanos::secs(1);
        let mut from = start;
        while from < finish.min(self.window.1) {
            let index = (from.get() / second.get()) as usize;
            let to = finish.min(second.times(index as u64 + 1));
            if seconds.len() <= index {
                seconds.resize(index + 1, SecondUse::default());
            }
            let micros = ((to - from).get() / 1000) as u32;
            if guest {
                seconds[index].guest_us += micros;
            } else {
                seconds[index].owner_us += micros;
            }
            from = to;
        }
    }

    fn sample_memory(&mut self, now: Nanos, view: View<'_>) {
        for device in 0..self.devices.len() as u32 {
            let Some(memory) = view.memory(DeviceId(device)) else { continue };
            let bytes = ByteKind::ALL.map(|kind| memory.ledger().of(kind).get());
            self.memory.push(MemorySample { at: now, device, bytes });
        }
        self.next_sample = now + self.window.1.scale(1, MEMORY_SAMPLES);
    }
}

impl Observer for Recorder {
    fn on_event(&mut self, event: &Event, view: View<'_>) {
        if let Some(learned) = &mut self.learned {
            learned.on_event(event, view);
        }
        let piece = match event {
            Event::Finished { job, lane, ops, started, at, .. } => {
                Some(Piece { job: *job, lane: *lane, start: *started, finish: *at, ops: ops.clone(), recalled: false })
            }
            Event::Recalled { job, lane, done, started, at, .. } => {
                Some(Piece { job: *job, lane: *lane, start: *started, finish: *at, ops: done.clone(), recalled: true })
            }
            _ => None,
        };
        if let Some(piece) = piece {
            self.cover(&piece, view);
            self.ran(&piece, view);
        }
        if event.at() >= self.next_sample && !self.closed {
            self.sample_memory(event.at(), view);
        }
    }

    fn on_command(&mut self, now: Nanos, command: &Command, view: View<'_>) {
        if let Some(learned) = &mut self.learned {
            learned.on_command(now, command, view);
        }
    }
}
