//! How many tokens a best-effort iteration computes.
//!
//! An iteration reads the weights once, however few rows it has, so prompts are cheapest where they ride with
//! answers, evenly: computed in bursts they fill the KV cache, sequences lose their places, and the iterations
//! between have rows to spare. The even rate replaces the sequences that end. With `C` tokens of KV cache, prompts
//! of `P` and answers of `O` tokens, `C / (P + O / 2)` sequences are under way, of which one in `O` ends with each
//! iteration, so the rate is `C P / ((P + O / 2) O)`.

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::Ended;

use crate::demand::ReplicaInfo;
use crate::placing::{block_tokens, is_latency};
use crate::policy::Context;
use crate::slice_fill::SliceFill;
use crate::slice_fill::agenda::tenants_on;

/// The least tokens of prompts per iteration.
const LEAST: u32 = 64;

/// The share of the KV cache that the even rate is meant to fill, in percent: lengths vary, and a sequence that
/// loses its place is computed twice.
const FILL_PERCENT: u64 = 75;

/// Rows of a tile of matrix products on accelerators: an iteration of a few rows more takes as long as one of a
/// whole tile more.
const TILE: u32 = 128;

/// Requests after which half of what was seen is forgotten.
const MEMORY: u64 = 256;

/// Lengths of requests of a tenant that ended.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    requests: u64,
    prompts: u64,
    outputs: u64,
}

/// Lengths of requests of all best-effort tenants, by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks(Vec<Lengths>);

impl Chunks {
    /// A request of `tenant` ended.
    fn learn(&mut self, tenant: TenantId, prompt: u32, output: u32) {
        if self.0.len() <= tenant.index() {
            self.0.resize(tenant.index() + 1, Lengths::default());
        }
        let Some(seen) = self.0.get_mut(tenant.index()) else { return };
        if seen.requests >= MEMORY {
            *seen = Lengths { requests: seen.requests / 2, prompts: seen.prompts / 2, outputs: seen.outputs / 2 };
        }
        seen.requests += 1;
        seen.prompts += u64::from(prompt);
        seen.outputs += u64::from(output);
    }

    /// Tokens of prompts per iteration that fill `capacity` tokens of KV cache evenly; [`None`] as long as no
    /// request of the tenant ended.
    fn even(&self, tenant: TenantId, capacity: u64) -> Option<u32> {
        let seen = self.0.get(tenant.index()).filter(|seen| seen.requests > 0)?;
        let (prompts, outputs) = (u128::from(seen.prompts), u128::from(seen.outputs.max(seen.requests)));
        // With P = prompts / requests and O = outputs / requests.
        let rate = 2 * u128::from(capacity) * prompts * u128::from(seen.requests) / ((2 * prompts + outputs) * outputs);
        Some(u32::try_from(rate).unwrap_or(u32::MAX).max(LEAST))
    }
}

/// The whole tiles nearest to a token for each of `running` sequences and `prompts` tokens of prompts, with
/// room for [`LEAST`] of those.
fn in_tiles(running: u32, prompts: u32) -> u32 {
    let nearest = running.saturating_add(prompts).saturating_add(TILE / 2) / TILE;
    nearest.max(running.saturating_add(LEAST).div_ceil(TILE)).saturating_mul(TILE)
}

impl SliceFill {
    /// Looks at requests that ended.
    pub(super) fn learn_lengths(&mut self, context: &Context<'_>, ended: &[Ended]) {
        for one in ended {
            let Some(request) = context.view.request(one.request) else { continue };
            if !is_latency(context.view, request.tenant) {
                self.chunks.learn(request.tenant, request.prompt, one.produced);
            }
        }
    }

    /// Tokens of the next iteration of a best-effort replica that may take `blocks` more blocks.
    pub(super) fn best_effort_tokens(&self, context: &Context<'_>, replica: &ReplicaInfo, blocks: u32) -> u32 {
        let (view, tenant) = (context.view, replica.id.tenant);
        let owner = view.owner(replica.device);
        if owner.is_some_and(|owner| owner != tenant && !self.lends(context, owner)) {
            return self.options.guest_tokens;
        }
        let shares = tenants_on(view, replica.device).into_iter().filter(|&other| {
            let runs = context.demand.replica_on(other, replica.device).is_some_and(|other| other.running > 0);
            other == tenant || (runs && !is_latency(view, other))
        });
        let held = view.memory(replica.device).map_or(0, |memory| memory.kv().used_by(tenant));
        let blocks = u64::from(held) + u64::from(blocks) / shares.count().max(1) as u64;
        let capacity = blocks.saturating_mul(block_tokens(view, replica)) / 100 * FILL_PERCENT;
        let prompts = self.chunks.even(tenant, capacity).unwrap_or(self.options.guest_tokens);
        in_tiles(replica.running, prompts).min(context.demand.token_budget(tenant)).max(replica.running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 10,000 tokens hold 8 sequences of 1,000 + 500 / 2; one in 500 ends with each iteration: 16 tokens of
    /// prompts per iteration, so 640 for 400,000 tokens.
    #[test]
    fn the_even_rate_replaces_the_sequences_that_end() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.even(TenantId(1), 400_000), None);
        chunks.learn(TenantId(1), 800, 400);
        chunks.learn(TenantId(1), 1200, 600);
        assert_eq!(chunks.even(TenantId(1), 400_000), Some(640));
        assert_eq!(chunks.even(TenantId(1), 10_000), Some(LEAST));
        assert_eq!(chunks.even(TenantId(0), 400_000), None);
    }

    #[test]
    fn later_lengths_outweigh_earlier_ones() {
        let mut chunks = Chunks::default();
        (0..2 * MEMORY).for_each(|_| chunks.learn(TenantId(0), 4000, 100));
        (0..8 * MEMORY).for_each(|_| chunks.learn(TenantId(0), 1000, 500));
        let rate = chunks.even(TenantId(0), 400_000).unwrap();
        assert!((640..=660).contains(&rate), "{rate}, near 640 of the later lengths alone");
    }

    proptest! {
        #[test]
        fn any_lengths_and_capacities_give_a_rate(
            lengths in prop::collection::vec((any::<u32>(), any::<u32>()), 1..20), capacity: u64,
            running in 0u32..100_000,
        ) {
            let mut chunks = Chunks::default();
            lengths.iter().for_each(|&(prompt, output)| chunks.learn(TenantId(0), prompt, output));
            let rate = chunks.even(TenantId(0), capacity).unwrap();
            prop_assert!(rate >= LEAST && in_tiles(running, rate) >= running + LEAST);
            let near = in_tiles(running, rate.min(10_000)).abs_diff(running + rate.min(10_000));
            prop_assert!(near <= TILE, "{near} rows away");
        }
    }
}
