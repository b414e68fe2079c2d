//! What is counted of one tenant: its requests, their tokens and times, and whether they kept their service level.

use std::sync::Arc;

use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::Completed;

use crate::report::{LatencyFigures, PrefixFigures, TenantLabel, TenantSummary};

/// Share of late tokens from which on a request violates its service level, in percent.
const LATE_PERCENT: u64 = 5;

#[derive(Debug)]
pub(super) struct TenantCounts {
    /// Of one rank.
    template: Arc<OpGraph>,
    ranks: u32,
    pub(super) arrived_in_window: u64,
    ended_of_window: u64,
    violated: u64,
    completed: u64,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) kept: u64,
    /// Tokens of prompts that were not computed.
    cached: u64,
    caches: bool,
    pub(super) flops: f64,
    ttft_us: Vec<u32>,
    tpot_us: Vec<u32>,
    preemptions: u64,
}

impl TenantCounts {
    /// Of a model with `template` on each of `ranks` devices; `caches` if its prompts share blocks.
    pub(super) fn new(template: Arc<OpGraph>, ranks: u32, caches: bool) -> Self {
        Self {
            template,
            ranks,
            arrived_in_window: 0,
            ended_of_window: 0,
            violated: 0,
            completed: 0,
            input: 0,
            output: 0,
            kept: 0,
            cached: 0,
            caches,
            flops: 0.0,
            ttft_us: Vec::new(),
            tpot_us: Vec::new(),
            preemptions: 0,
        }
    }

    pub(super) fn complete(&mut self, done: &Completed, arrived_in_window: bool, completed_in_window: bool) {
        let violated = violates(done);
        self.preemptions += u64::from(done.preemptions);
        if arrived_in_window {
            self.ended_of_window += 1;
            self.violated += u64::from(violated);
            let micros = |time: Nanos| u32::try_from(time.get() / 1000).unwrap_or(u32::MAX);
            self.ttft_us.push(micros(done.first_token - done.arrival));
            if done.produced > 1 {
                let pace = (done.last_token - done.first_token).scale(1, u64::from(done.produced - 1));
                self.tpot_us.push(micros(pace));
            }
        }
        if completed_in_window {
            let computed = u64::from(done.prompt.saturating_sub(done.cached));
            let tokens = computed + u64::from(done.produced);
            self.completed += 1;
            self.input += computed;
            self.cached += u64::from(done.cached);
            self.output += u64::from(done.produced);
            self.kept += if violated { 0 } else { tokens };
            self.flops += self.template.flops(&whole(done)).get() as f64 * f64::from(self.ranks);
        }
    }

    /// A request that arrived in the window ended without its answer.
    pub(super) fn lose(&mut self) {
        self.ended_of_window += 1;
        self.violated += 1;
    }

    /// `displaced` blocks of its prefix cache were taken by others.
    pub(super) fn summary(&mut self, label: &TenantLabel, length: f64, displaced: u64) -> TenantSummary {
        let sensitive = label.class == Class::LatencySensitive;
        let never_ended = self.arrived_in_window - self.ended_of_window.min(self.arrived_in_window);
        let violated = if sensitive { self.violated + never_ended } else { 0 };
        TenantSummary {
            name: label.name.clone(),
            class: if sensitive { "latency-sensitive" } else { "best-effort" }.to_owned(),
            sla_violation_rate: violated as f64 / self.arrived_in_window.max(1) as f64,
            ttft_ms: figures(&mut self.ttft_us),
            tpot_ms: figures(&mut self.tpot_us),
            token_throughput: (self.input + self.output) as f64 / length,
            arrived: self.arrived_in_window,
            completed: self.completed,
            preemptions: self.preemptions,
            prefix_cache: self.caches.then(|| PrefixFigures {
                token_throughput: self.cached as f64 / length,
                hit_rate: self.cached as f64 / (self.cached + self.input).max(1) as f64,
                displaced_blocks: displaced,
            }),
        }
    }
}

/// The dims of a request computed at once: every token but the last attends to all before it. Those that were there
/// already are not computed.
fn whole(done: &Completed) -> Binding {
    let tokens = (u64::from(done.prompt) + u64::from(done.produced)).saturating_sub(1);
    let cached = u64::from(done.cached).min(tokens);
    let pairs = |tokens: u64| tokens * (tokens + 1) / 2;
    Binding::iteration(tokens - cached, u64::from(done.produced), tokens, pairs(tokens) - pairs(cached))
}

/// Nearest-rank quantiles, in milliseconds.
fn figures(micros: &mut [u32]) -> LatencyFigures {
    micros.sort_unstable();
    let at = |quantile: f64| {
        let rank = (quantile * micros.len() as f64).ceil().max(1.0) as usize;
        micros.get(rank - 1).map_or(0.0, |&value| f64::from(value) / 1e3)
    };
    LatencyFigures { p50: at(0.5), p99: at(0.99) }
}

/// True if the request has a service level, and its first token was late, or too many of its tokens were.
pub(crate) fn violates(done: &Completed) -> bool {
    let many_late = u64::from(done.late) * 100 > u64::from(done.produced) * LATE_PERCENT;
    done.slo.is_some_and(|slo| many_late || done.first_token > slo.due(done.arrival, 0))
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::id::{RequestId, TenantId};
    use slicescheduler_gmg::tenant::Slo;

    use super::*;

    #[test]
    fn quantiles_are_of_nearest_rank() {
        let mut micros: Vec<u32> = (1..=100).rev().map(|value| value * 1000).collect();
        let figures = super::figures(&mut micros);
        assert_eq!((figures.p50, figures.p99), (50.0, 99.0));
        assert_eq!(super::figures(&mut []).p99, 0.0);
    }

    #[test]
    fn a_request_violates_by_its_first_token_or_by_a_twentieth_of_all() {
        let promised = Some(Slo { ttft: Nanos::ms(400), tpot: Nanos::ms(40) });
        let template = slicescheduler_gmg::templates::dense(&crate::scenario::DenseSpec::tiny()).unwrap();
        let template = Arc::new(template);
        let violations = |slo: Option<Slo>, first_ms: u64, late: u32, produced: u32| {
            let mut counts = TenantCounts::new(template.clone(), 1, false);
            let done = Completed {
                request: RequestId(0),
                tenant: TenantId(0),
                arrival: Nanos::ZERO,
                slo,
                prompt: 10,
                cached: 0,
                produced,
                first_token: Nanos::ms(first_ms),
                last_token: Nanos::ms(first_ms + 100),
                late,
                preemptions: 0,
            };
            counts.complete(&done, true, true);
            counts.violated
        };
        assert_eq!(violations(promised, 400, 0, 20), 0);
        assert_eq!(violations(promised, 401, 1, 20), 1, "the first token was late");
        assert_eq!(violations(promised, 300, 1, 20), 0, "one in twenty may be late");
        assert_eq!(violations(promised, 300, 2, 20), 1);
        let own = Some(Slo { ttft: Nanos::ms(299), tpot: Nanos::ms(40) });
        assert_eq!((violations(own, 299, 0, 20), violations(own, 300, 0, 20)), (0, 1), "by its own level");
        assert_eq!(violations(None, 3000, 0, 20), 0, "it has none");
    }
}
