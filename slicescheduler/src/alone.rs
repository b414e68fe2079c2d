//! How long requests take alone, and service levels relative to that.

use std::sync::{Arc, Mutex, PoisonError};

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::cost::CostTable;
use slicescheduler_simulator::world::{WorldCost, WorldOptions};

/// What requests of one tenant take on one of its devices, or one group of them, where nothing else runs or waits.
///
/// Times are those of the simulated world without noise, [`WorldCost`]: what its users could measure. They are not
/// the forecaster's, since a promise does not change with what somebody believes about it.
///
/// Nothing here depends on how long the answer of a request is. The context of its decode steps is taken to be the prompt
/// and half of its tenant's median answer, for a service level that depended on the request's own would tell it to policies.
#[derive(Clone, Debug)]
pub struct Alone {
    table: CostTable,
    /// Most tokens of an iteration.
    token_budget: u32,
    /// Tokens of the median answer.
    answer: u32,
    /// Time that the host takes for an iteration.
    gap: Nanos,
    /// Entry `k`: what the first `k` iterations of a longer prompt take, each of `token_budget` tokens. As long as the
    /// longest prompt needs it that was asked for; clones share it.
    whole: Arc<Mutex<Vec<Nanos>>>,
}

impl Alone {
    /// Requests of a model, of which `template` is one rank's, on devices like `device`; `answer` are the tokens of the
    /// median answer.
    pub fn new(template: Arc<OpGraph>, device: Arc<DeviceSpec>, token_budget: u32, answer: u32) -> Self {
        let table = CostTable::new(Arc::new(WorldCost::default()), template, device);
        let gap = WorldOptions::default().launch_gap;
        Self { table, token_budget: token_budget.max(1), answer, gap, whole: Arc::new(Mutex::new(vec![Nanos::ZERO])) }
    }

    /// The time to the first token: that of the iterations that the whole prompt takes, one for each
    /// `token_budget` tokens. O(1) for prompts no longer than one that was asked for, else O(iterations beyond it).
    pub fn first_token(&self, prompt: u32) -> Nanos {
        let prompt = prompt.max(1);
        let before = (prompt - 1) / self.token_budget;
        let computed = before * self.token_budget;
        self.before_last(before) + self.chunk(computed, prompt - computed, true)
    }

    /// What the first `count` iterations of a longer prompt take.
    fn before_last(&self, count: u32) -> Nanos {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = whole.last().copied().unwrap_or_default();
        for done in whole.len() as u32..=count {
            sum += self.chunk((done - 1) * self.token_budget, self.token_budget, false);
            whole.push(sum);
        }
        whole.get(count as usize).copied().unwrap_or(sum)
    }

    /// The iteration in which the `tokens` of a prompt behind its first `computed` ones are computed.
    fn chunk(&self, computed: u32, tokens: u32, is_last: bool) -> Nanos {
        let (old, new) = (u64::from(computed), u64::from(tokens));
        self.iteration(new, u64::from(is_last), old + new, new * old + new * (new + 1) / 2)
    }

    /// The time of a decode step in the middle of the answer.
    pub fn per_token(&self, prompt: u32) -> Nanos {
        let context = u64::from(prompt) + u64::from(self.answer / 2);
        self.iteration(1, 1, context, context)
    }

    /// `factor` times what a request with this prompt takes alone, to the first token and from one to the next.
    pub fn slo(&self, factor: f64, prompt: u32) -> Slo {
        let times = |time: Nanos| Nanos((time.get() as f64 * factor + 0.5) as u64).max(Nanos(1));
        Slo { ttft: times(self.first_token(prompt)), tpot: times(self.per_token(prompt)) }
    }

    fn iteration(&self, tokens: u64, emits: u64, context: u64, pairs: u64) -> Nanos {
        let cost = self.table.bind(&Binding::iteration(tokens, emits, context, pairs));
        self.gap + cost.total(0..cost.op_count())
    }
}

/// The service levels of requests, by tenant, where they are relative to each of them.
#[derive(Clone, Debug, Default)]
pub struct RelativeLevels(Vec<Option<(f64, Alone)>>);

impl RelativeLevels {
    /// Of each tenant, in the order of their ids, what its requests take alone and how many times that they are promised.
    pub(crate) fn new(tenants: Vec<Option<(f64, Alone)>>) -> Self {
        Self(tenants)
    }

    /// The service level of a request of its own; [`None`] where its tenant has one for all.
    pub fn of(&self, tenant: TenantId, prompt: u32) -> Option<Slo> {
        let (factor, alone) = self.0.get(tenant.index())?.as_ref()?;
        Some(alone.slo(*factor, prompt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::templates::{DenseSpec, dense};

    fn alone(token_budget: u32, answer: u32) -> Alone {
        let template = Arc::new(dense(&DenseSpec::llama3_8b()).unwrap());
        Alone::new(template, Arc::new(DeviceSpec::h100_sxm()), token_budget, answer)
    }

    // Llama 3 8B has 7.5e9 weights in products, 15 GB in BF16. A token reads all of them: 5.0 ms at 90 % of 3.35 TB/s.
    // 2048 tokens are 2 x 2048 x 7.0e9 operations without the last layer's, 38.6 ms at 75 % of 989 TFLOP/s.
    #[test]
    fn times_are_those_of_weights_read_and_of_arithmetic() {
        let alone = alone(4096, 0);
        let step = alone.per_token(1).as_secs_f64() * 1e3;
        assert!((5.0..6.5).contains(&step), "{step} ms");
        let prompt = alone.first_token(2048).as_secs_f64() * 1e3;
        assert!((38.0..46.0).contains(&prompt), "{prompt} ms");
    }

    #[test]
    fn a_prompt_beyond_the_budget_takes_several_iterations() {
        let (whole, cut) = (alone(4096, 0), alone(1024, 0));
        assert_eq!(whole.first_token(1024), cut.first_token(1024));
        let one_more = cut.first_token(1025);
        // The second iteration reads all weights for one token.
        assert!(one_more > cut.first_token(1024) + Nanos::ms(4));
        assert!(one_more < cut.first_token(1024) + cut.per_token(1025) + Nanos::ms(1));
        assert_eq!(whole.first_token(0), whole.first_token(1), "there is always a token to compute");
    }

    // The oracle adds the iterations up one by one, for prompts in an order in which the table grows and is read.
    #[test]
    fn the_time_to_the_first_token_is_the_sum_of_all_iterations() {
        for budget in [1, 7, 64] {
            let alone = alone(budget, 0);
            let directly = |prompt: u32| {
                let (mut time, mut computed) = (Nanos::ZERO, 0);
                while computed < prompt {
                    let tokens = (prompt - computed).min(budget);
                    time += alone.chunk(computed, tokens, computed + tokens == prompt);
                    computed += tokens;
                }
                time
            };
            let shared = alone.clone();
            for prompt in [15, 1, 7, 64, 8, 129, 128, 65, 14, 129] {
                assert_eq!(shared.first_token(prompt), directly(prompt), "{prompt} tokens, {budget} at a time");
            }
            let longest = alone.whole.lock().unwrap().len() as u32;
            assert_eq!(longest, 1 + 128 / budget, "an entry for each iteration, computed once");
        }
    }

    #[test]
    fn a_step_reads_the_prompt_and_half_of_the_median_answer() {
        assert_eq!(alone(2048, 400).per_token(1000), alone(2048, 0).per_token(1200));
        assert!(alone(2048, 0).per_token(8000) > alone(2048, 0).per_token(1000));
    }

    #[test]
    fn levels_are_multiples() {
        let alone = alone(2048, 100);
        let (one, two) = (alone.slo(1.0, 500), alone.slo(2.5, 500));
        assert_eq!((one.ttft, one.tpot), (alone.first_token(500), alone.per_token(500)));
        assert!(two.ttft.get().abs_diff(one.ttft.get() * 5 / 2) <= 1, "{one:?} {two:?}");
        let levels = RelativeLevels::new(vec![None, Some((2.5, alone))]);
        assert_eq!([0, 1, 2].map(|tenant| levels.of(TenantId(tenant), 500)), [None, Some(two), None]);
    }
}
