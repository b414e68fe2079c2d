//! How far the KV caches of a device will grow: what completions have taught, on the sequences that the graph holds.
//!
//! A forecast grows caches by the iterations that it simulates, and knows of no end that nobody has reported. Bounds come from
//! the lengths of earlier completions of the same tenant instead, as [`growth`](crate::growth) says.

use slicescheduler_gmg::delta::{Applied, Delta};
use slicescheduler_gmg::id::{DeviceId, RequestId, TenantId};
use slicescheduler_gmg::plan::Event;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};

use super::Timeline;
use crate::growth::{Growing, KvForecast, KvStep, KvViolation, OutputLengths};

/// The output lengths of the last completions, by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Completions {
    by_tenant: Vec<OutputLengths>,
}

impl Completions {
    /// O(requests that ended * window).
    pub(super) fn observe(&mut self, applied: &Applied, view: View<'_>) {
        let Delta::Observed(Event::Finished { ended, .. }) = &applied.delta else { return };
        for ended in ended {
            let Some(request) = view.request(ended.request) else { continue };
            let tenant = request.tenant.index();
            if self.by_tenant.len() <= tenant {
                self.by_tenant.resize_with(tenant + 1, OutputLengths::default);
            }
            self.by_tenant[tenant].observe(ended.produced);
        }
    }

    pub(super) fn bound(&self, tenant: TenantId, produced: u32, alpha_percent: u32) -> Option<u32> {
        self.by_tenant.get(tenant.index())?.bound(produced, alpha_percent)
    }
}

/// The KV bytes of a device from now to the horizon, if every sequence goes on to its bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvGrowth {
    /// What is in use from when on; the first steps are what is there now. Ascending in time.
    pub steps: Vec<KvStep>,
    /// The first time that this is more than the device has blocks for.
    pub violation: Option<KvViolation>,
}

impl Timeline {
    /// The output lengths of the last completions of `tenant` that were observed; [`None`] before the first.
    pub fn output_lengths(&self, tenant: TenantId) -> Option<&OutputLengths> {
        self.completions.by_tenant.get(tenant.index())
    }

    /// An upper bound of the KV bytes on `device` up to the horizon: every sequence there gets its next token when the forecast
    /// says, or after `pace`, and another one every `pace` until its [bound](slicescheduler_gmg::plan::WhatIf::output_bound), or its maximum where there is
    /// none, and ends there. Each sequence exceeds it with a probability of at most `alpha_percent`. `view` is the graph at
    /// the version of this timeline. Blocks that sequences share count for each of them.
    ///
    /// `pace` is the shortest time between two tokens that is to be reckoned with, such as the fastest iteration seen.
    ///
    /// O(forecast + rows of its jobs + tokens + blocks * log blocks).
    pub fn kv_growth(&mut self, view: View<'_>, device: DeviceId, alpha_percent: u32, pace: Nanos) -> KvGrowth {
        let Some(memory) = view.memory(device) else { return KvGrowth::default() };
        let layout = memory.layout();
        let (now, horizon) = (self.mirror.clock, self.mirror.clock + self.horizon.0);
        let mut sequences: Vec<(RequestId, u32)> = self
            .mirror
            .sequences
            .iter()
            .filter(|(_, (on, _))| *on == device)
            .map(|(request, (_, blocks))| (*request, *blocks))
            .collect();
        sequences.sort_unstable_by_key(|(request, _)| *request);
        let fed = self.fed(view);
        let growing = sequences.into_iter().filter_map(|(id, blocks)| {
            let request = view.request(id)?;
            // Blocks are taken before their tokens are there: what is known of neither is at most all that they hold.
            let known = fed.binary_search_by_key(&id, |(id, ..)| *id).ok().and_then(|place| fed.get(place));
            let (tokens, next) = match known {
                Some(&(_, tokens, next)) => (tokens, next),
                None => (blocks.saturating_mul(layout.kv_block_tokens), now + pace),
            };
            let produced = tokens.saturating_sub(request.prompt).min(request.max_output);
            let bound = self.completions.bound(request.tenant, produced, alpha_percent).unwrap_or(request.max_output);
            let taken = blocks.saturating_sub(1).saturating_mul(layout.kv_block_tokens).saturating_add(1);
            let tokens = if blocks == 0 { tokens } else { tokens.max(taken) };
            Some((Growing { request: id, tokens, produced, max_output: request.max_output, next, pace }, bound))
        });
        let growing: Vec<_> = growing.collect();
        let lengths = OutputLengths::default();
        let forecast = KvForecast { lengths: &lengths, block_tokens: layout.kv_block_tokens, block: layout.kv_block };
        let steps = forecast.until(&growing, now, horizon);
        let pool = layout.kv_block.times(u64::from(memory.kv().total()));
        let violation = KvForecast::first_violation(&steps, pool);
        KvGrowth { steps, violation }
    }

    /// By request: the tokens in its cache after the first work of the forecast that emits one of its own, and when that ends.
    fn fed(&mut self, view: View<'_>) -> Vec<(RequestId, u32, Nanos)> {
        let mut fed = Vec::new();
        for run in &self.forecast().runs {
            let Some(job) = run.job.and_then(|job| view.job(job)) else { continue };
            let emitting = job.spec.rows.iter().filter(|row| row.emits);
            fed.extend(emitting.map(|row| (row.request, row.position + row.tokens, run.finish)));
        }
        fed.sort_unstable_by_key(|&(request, _, finish)| (request, finish));
        fed.dedup_by_key(|(request, ..)| *request);
        fed
    }
}
